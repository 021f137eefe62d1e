"""Files of code that were edited after a job started, for a job that runs in place and starts again.

Found by their times, so that nothing has to be read or kept. docs/how-to/code.md, "Edit code while a job runs", has the
limits.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ganger.backends.local.job_files import JobFiles
from ganger.model.event import CodeEdited
from ganger.model.job import Job

SUFFIXES: Final = (".py", ".pyx", ".sh", ".bash", ".cu", ".cuh", ".c", ".cc", ".cpp", ".h", ".hpp")
MAX_ENTRIES: Final = 20_000
MAX_DEPTH: Final = 8
MAX_S: Final = 2.0
MAX_NAMES: Final = 5
SETTLED_MS: Final = 1_000
"""A file changed in the first second is taken to be older than the start: a file server has a clock of its own."""
_SKIPPED: Final = ("__pycache__", "node_modules", "site-packages")


def find_edited_code(files: JobFiles, job: Job, generation: int) -> CodeEdited | None:
    """Return that code of the job was edited since its first start; None if not, or if it runs in a copy."""
    if job.spec.code is not None or generation < 2:
        return None
    started_ms = min(_start_times_ms(files, job.id), default=None)
    if started_ms is None:
        return None
    directory = job.origin.directory
    named = _names_in_command(job)
    edited = sorted(path for path in _edited(directory, started_ms + SETTLED_MS, named) if path)
    if not edited:
        return None
    # A name that is not UTF-8 could not be written to the log.
    names = tuple(os.fsencode(path).decode(errors="backslashreplace") for path in edited[:MAX_NAMES])
    more = max(0, len(edited) - MAX_NAMES)
    return CodeEdited(gang=job.id, generation=generation, directory=directory, files=names, more=more)


def _start_times_ms(files: JobFiles, gang: str) -> Iterator[int]:
    """Iterate over the times at which the first attempt was begun on its nodes."""
    for task in files.tasks(gang):
        if (begun_ms := _changed_ms(task.path / "plan-1.json")) is not None:
            yield begun_ms


def _names_in_command(job: Job) -> frozenset[str]:
    """Return the words of the job's command lines that may name a file: a configuration is code too."""
    spec = job.spec
    lines = [line for line in (spec.run, *(role.run for role in spec.roles.values())) if line is not None]
    words = [word for line in lines for word in (line.split() if isinstance(line, str) else line)]
    return frozenset(os.path.basename(part) for word in words for part in word.split("=") if "." in part)  # noqa: PTH119


def _edited(directory: str, since_ms: int, named: frozenset[str]) -> Iterator[str]:
    """Iterate over the paths of code changed since then, relative to the directory.

    Folders near the top come first: the search is limited in number and time.
    """
    deadline_s, entries = time.monotonic() + MAX_S, 0
    folders = deque([(directory, 0)])
    while folders:
        folder, depth = folders.popleft()
        for entry in _entries(folder):
            entries += 1
            if entries > MAX_ENTRIES or time.monotonic() > deadline_s:
                return
            if entry.name.startswith(".") or entry.name in _SKIPPED:
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    folders.append((entry.path, depth + 1))
            elif entry.name.endswith(SUFFIXES) or entry.name in named:
                changed_ms = _changed_ms(Path(entry.path))
                if changed_ms is not None and changed_ms > since_ms:
                    yield os.path.relpath(entry.path, directory)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none of one that cannot be read, or that is a virtual environment."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:
        return []
    return [] if any(entry.name == "pyvenv.cfg" for entry in listed) else listed


def _changed_ms(path: Path) -> int | None:
    """Return when the content or the name of a file was changed, which a copy that keeps times does not hide."""
    try:
        status = path.stat()
    except OSError:
        return None
    return max(status.st_mtime_ns, status.st_ctime_ns) // 1_000_000
