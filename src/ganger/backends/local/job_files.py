"""Where the embedded engine keeps a job's files, and what it reads and writes there.

Every name that becomes a path is checked here. Called by everything in this package. The files, and who writes which:
docs/reference/state-directory.md and docs/reference/launcher-protocol.md, "Files".
"""

import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ganger.launcher_server import message_schema
from ganger.launcher_server.message_schema import BadMessage
from ganger.model.job import split_element_id
from ganger.ports import LaunchPlan

MOST_BYTES: Final = 64 << 20
"""Of a file that is read whole: ranks could have put anything in its place."""
_IGNORED_KEPT: Final = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PRIVATE_FILE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700

_log = logging.getLogger(__name__)
_ignored: set[Path] = set()
"""Files that are not what they should be, of which the log has a line."""


class BadName(ValueError):
    """A name that cannot be part of a path."""


def checked(name: str) -> str:
    """The name, when it is safe as one part of a path. BadName otherwise."""
    if not _NAME.fullmatch(name):
        raise BadName(
            f"{name!r} is no name of a job or a node: letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


@dataclass(frozen=True, slots=True)
class TaskDirectory:
    """The directory of one launcher: one gang on one node, all its generations."""

    path: Path

    @property
    def node(self) -> str:
        """Which node it is of."""
        return self.path.name

    @property
    def launcher_log(self) -> Path:
        """What the launcher itself had to say: empty unless it broke."""
        return self.path / "launcher.log"

    def make(self) -> None:
        """Make the directory and its token, unless they are there."""
        self.path.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        if self.token() is None:
            _write(self.path / "token", secrets.token_hex(16))

    def token(self) -> str | None:
        """What the launcher shows to be let in; None when there is no such task."""
        try:
            return (self.path / "token").read_text() or None
        except OSError:
            return None

    def write_plan(self, plan: LaunchPlan) -> None:
        """Put the plan of a generation in place, whole or not at all. OSError when the disk will not have it."""
        _write(self.path / f"plan-{plan.generation}.json", json.dumps(asdict(plan)))

    def planned(self, generation: int) -> list[dict[str, Any]] | None:
        """The ranks of a generation here as its plan has them (`ports.RankPlan`); None without a plan."""
        found = self.plan(generation)
        return None if found is None else list(found["ranks"])

    def plan(self, generation: int) -> dict[str, Any] | None:
        """Return the plan of a generation as `launcher_server.message_schema` has it; None when it is not there, or is
        none."""
        return _checked(self.path / f"plan-{generation}.json", message_schema.plan)

    def planned_ranks(self, generation: int) -> tuple[int, ...]:
        """The ranks that a generation has here, by its plan; empty when there is no plan."""
        return tuple(rank["rank"] for rank in self.planned(generation) or ())

    def generation(self, generation: int) -> Path:
        """Where a generation's launcher and ranks write. It exists as soon as the launcher has begun the generation."""
        return self.path / str(generation)

    def generations(self) -> list[int]:
        """The generations that were begun here, oldest first."""
        try:
            return sorted(int(entry.name) for entry in os.scandir(self.path) if entry.name.isdecimal())
        except OSError:
            return []

    def new_generation(self, generation: int) -> bool:
        """Whether a launcher has begun this generation."""
        return self.generation(generation).is_dir()

    def cleared(self, generation: int) -> bool:
        """Whether the launcher left a note that nothing of this generation is left."""
        return (self.generation(generation) / "cleared").exists()

    def exits(self, generation: int) -> list[dict[str, Any]]:
        """The exit records of a generation: those of the ranks that had ended while their launcher lived."""
        found = []
        for path in sorted(self.generation(generation).glob("rank-*.exit")):
            record = _checked(path, message_schema.exit_record)
            if record is not None and path.name == f"rank-{record['rank']}.exit":
                found.append(record)
        return found


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The places a local backend works with: the state directory (absolute), the socket its launchers connect to, the
    launcher's zipapp; and how large the log of one process may grow there (0: without a limit).

    open_files: the soft limit of descriptors that launchers start with; 0: the server's own.
    """

    home: Path
    socket: Path
    launcher: Path
    log_bytes: int = 0
    open_files: int = 0

    @property
    def jobs(self) -> Path:
        """One directory a job."""
        return self.home / "jobs"

    def job(self, gang: str) -> Path:
        """The directory of one job; that of an element is in its array's."""
        element = split_element_id(gang)
        if element is None:
            return self.jobs / checked(gang)
        return self.jobs / checked(element[0]) / "elements" / str(element[1])

    def code(self, gang: str) -> Path:
        """This job's copy of its code, with `code:`; an array has one."""
        return self._whole(gang) / "code"

    def output(self, gang: str) -> Path:
        """What a job wants kept with it: GANGER_OUTPUT_DIR."""
        return self.job(gang) / "output"

    def secrets(self, gang: str) -> Path:
        """The values of a job's secrets, by name."""
        return self._whole(gang) / "secrets.json"

    def _whole(self, gang: str) -> Path:
        """The directory of a job, or of the array that an element belongs to."""
        element = split_element_id(gang)
        return self.job(element[0] if element else gang)

    def task(self, gang: str, node: str) -> TaskDirectory:
        """The task directory of one launcher."""
        return TaskDirectory(self.job(gang) / "nodes" / checked(node))

    def tasks(self, gang: str) -> Iterator[TaskDirectory]:
        """Every task directory a job has, by node name."""
        nodes = self.job(gang) / "nodes"
        if nodes.is_dir():
            yield from map(TaskDirectory, sorted(nodes.iterdir()))

    def logs(self, gang: str) -> Iterator[Path]:
        """Every log of a job's ranks and set-up lines, of all its generations, in all parts of those that have several;
        those of its elements too."""
        job = self.job(gang)
        for pattern in ("nodes/*/*/*.log*", "elements/*/nodes/*/*/*.log*"):
            yield from job.glob(pattern)

    def task_of(self, path: Path) -> tuple[str, str] | None:
        """The (gang, node) whose task directory is `path`, or None: it is none of ours."""
        match path.parts[len(self.jobs.parts) :]:
            case (gang, "nodes", node) if (
                path.is_relative_to(self.jobs) and _NAME.fullmatch(gang) and _NAME.fullmatch(node)
            ):
                return gang, node
            case (array, "elements", index, "nodes", node) if (
                path.is_relative_to(self.jobs) and _NAME.fullmatch(array) and _NAME.fullmatch(node)
            ):
                return (gang, node) if split_element_id(gang := f"{array}[{index}]") else None
            case _:
                return None

    def remove(self, gang: str) -> None:
        """Delete a job's directory with all in it; links are removed, never followed. OSError when that fails."""
        job = self.job(gang)
        if job.is_symlink():
            job.unlink()
        elif job.exists():
            shutil.rmtree(job)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None when the file is not there or torn."""
    try:
        found = json.loads(_read(path))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _checked(path: Path, parse: Callable[[bytes], dict[str, Any]]) -> dict[str, Any] | None:
    """Parse a file that ranks, which run under the same user, may have written too. None when it is not there, or not
    what it should be."""
    try:
        return parse(_read(path))
    except FileNotFoundError:
        return None
    except (OSError, BadMessage) as error:
        if path not in _ignored:
            if len(_ignored) >= _IGNORED_KEPT:
                _ignored.clear()
            _ignored.add(path)
            _log.warning("%s is ignored: %s", path, error)
        return None


def _read(path: Path) -> bytes:
    """Read a regular file. OSError for anything else, which might never end, and for one that is too long."""
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise OSError(f"no regular file of at most {MOST_BYTES} bytes")
        return file.read(MOST_BYTES)


def _open_at_once(path: str, flags: int) -> int:
    """Do not wait for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _write(path: Path, text: str) -> None:
    """A private file, whole or not at all. Synced, because some disks say only then that they are full."""
    draft = path.with_name(f".{path.name}.draft")
    draft.touch(_PRIVATE_FILE)
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
