"""The files of jobs below the state directory: their paths, and how they are read and written.

Every name that becomes part of a path is checked here. The files, and who writes which:
docs/reference/state-directory.md and docs/reference/launcher-protocol.md, "Files"."""

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

MAX_BYTES: Final = 64 << 20
"""Largest file that is read whole: ranks could have written anything in its place."""
CURVES: Final = "metrics.json"
"""File of a generation's curves (`launcher.ranks.metric_curves`)."""
_MAX_IGNORED: Final = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PRIVATE_FILE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700

_log = logging.getLogger(__name__)
_ignored: set[Path] = set()
"""Malformed files that have been logged."""


class InvalidNameError(ValueError):
    """A name that cannot be part of a path."""


def checked_name(name: str) -> str:
    """Return the name if it is safe as one part of a path; raise InvalidNameError otherwise."""
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{name!r} is not a name of a job or a node: use letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


@dataclass(frozen=True, slots=True)
class TaskDirectory:
    """The directory of one launcher: one gang on one node, all its generations."""

    path: Path

    @property
    def node(self) -> str:
        """The name of the node that the launcher serves."""
        return self.path.name

    @property
    def launcher_log(self) -> Path:
        """The launcher's own log, empty unless it failed."""
        return self.path / "launcher.log"

    def make(self) -> None:
        """Create the directory and its token, unless they exist."""
        self.path.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        if self.token() is None:
            write_private(self.path / "token", secrets.token_hex(16))

    def token(self) -> str | None:
        """Return the token with which the launcher authenticates; None if there is no such task."""
        try:
            return (self.path / "token").read_text() or None
        except OSError:
            return None

    def write_plan(self, plan: LaunchPlan) -> None:
        """Write the plan of a generation atomically. OSError if the disk is full."""
        write_private(self.path / f"plan-{plan.generation}.json", json.dumps(asdict(plan)))

    def planned(self, generation: int) -> list[dict[str, Any]] | None:
        """Return the ranks in the plan of a generation (`ports.RankPlan`); None without a plan."""
        plan = self.plan(generation)
        return None if plan is None else list(plan["ranks"])

    def plan(self, generation: int) -> dict[str, Any] | None:
        """Return the plan of a generation, as of `launcher_server.message_schema`; None if absent or invalid."""
        return _parse_untrusted(self.path / f"plan-{generation}.json", message_schema.plan)

    def planned_ranks(self, generation: int) -> tuple[int, ...]:
        """Return the rank numbers in the plan of a generation; empty without a plan."""
        return tuple(rank["rank"] for rank in self.planned(generation) or ())

    def generation(self, generation: int) -> Path:
        """Return the directory of a generation; it exists once the launcher has begun the generation."""
        return self.path / str(generation)

    def generations(self) -> list[int]:
        """Return the generations that have begun here, oldest first."""
        try:
            return sorted(int(entry.name) for entry in self.path.iterdir() if entry.name.isdecimal())
        except OSError:
            return []

    def has_begun(self, generation: int) -> bool:
        """Tell if a launcher has begun this generation."""
        return self.generation(generation).is_dir()

    def curves(self, generation: int) -> dict[str, Any]:
        """Return the curves of a generation here, by metric, as of `launcher_server.message_schema`."""
        content = _parse_untrusted(self.generation(generation) / CURVES, message_schema.curves)
        return {} if content is None else dict(content["curves"])

    def cleared(self, generation: int) -> bool:
        """Tell if the launcher has recorded that no process of this generation is left."""
        return (self.generation(generation) / "cleared").exists()

    def evicted(self, generation: int) -> bool:
        """Tell if the launcher was told to end by another program than the server."""
        return (self.generation(generation) / "evicted").exists()

    def exits(self, generation: int) -> list[dict[str, Any]]:
        """Return the exit records of a generation, of the ranks that ended while their launcher lived."""
        records = []
        for path in sorted(self.generation(generation).glob("rank-*.exit")):
            record = _parse_untrusted(path, message_schema.exit_record)
            if record is not None and path.name == f"rank-{record['rank']}.exit":
                records.append(record)
        return records


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The paths with which a local backend works.

    home: the state directory, absolute.
    socket: the socket to which launchers connect.
    launcher: the launcher's zipapp.
    log_bytes: maximum log size of one process; 0: unlimited.
    open_files: the soft limit of descriptors with which launchers start; 0: that of the server.
    """

    home: Path
    socket: Path
    launcher: Path
    log_bytes: int = 0
    open_files: int = 0

    @property
    def jobs(self) -> Path:
        """The parent of all job directories."""
        return self.home / "jobs"

    def job(self, gang: str) -> Path:
        """Return the directory of one job; that of an array element is inside its array's."""
        element = split_element_id(gang)
        if element is None:
            return self.jobs / checked_name(gang)
        return self.jobs / checked_name(element[0]) / "elements" / str(element[1])

    def code(self, gang: str) -> Path:
        """Return the job's copy of its code, for `code:`; an array has one."""
        return self.array(gang) / "code"

    def output(self, gang: str) -> Path:
        """Return the directory of files to keep with the job: GANGER_RUN_DIR."""
        return self.job(gang) / "output"

    def secrets(self, gang: str) -> Path:
        """Return the file of the job's secret values, by name."""
        return self.array(gang) / "secrets.json"

    def array(self, gang: str) -> Path:
        """Return the directory of a job, or of the array to which an element belongs."""
        element = split_element_id(gang)
        return self.job(element[0] if element else gang)

    def task(self, gang: str, node: str) -> TaskDirectory:
        """Return the task directory of one launcher."""
        return TaskDirectory(self.job(gang) / "nodes" / checked_name(node))

    def tasks(self, gang: str) -> Iterator[TaskDirectory]:
        """Yield every task directory of a job, sorted by node name."""
        nodes = self.job(gang) / "nodes"
        if nodes.is_dir():
            yield from map(TaskDirectory, sorted(nodes.iterdir()))

    def logs(self, gang: str) -> Iterator[Path]:
        """Yield every log file of a job's ranks and setup commands: all generations, parts and array elements."""
        job = self.job(gang)
        for pattern in ("nodes/*/*/*.log*", "elements/*/nodes/*/*/*.log*"):
            yield from job.glob(pattern)

    def task_of(self, path: Path) -> tuple[str, str] | None:
        """Return the (gang, node) of the task directory `path`, or None if it is not one."""
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
        """Delete a job's directory; links are removed, never followed. OSError if that fails."""
        job = self.job(gang)
        if job.is_symlink():
            job.unlink()
        elif job.exists():
            shutil.rmtree(job)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist or is damaged."""
    try:
        value = json.loads(_read(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse_untrusted(path: Path, parse: Callable[[bytes], dict[str, Any]]) -> dict[str, Any] | None:
    """Parse a file that ranks, which run as the same user, may have written too.

    None if it does not exist or is malformed.
    """
    try:
        return parse(_read(path))
    except FileNotFoundError:
        return None
    except (OSError, BadMessage) as error:
        if path not in _ignored:
            if len(_ignored) >= _MAX_IGNORED:
                _ignored.clear()
            _ignored.add(path)
            _log.warning("%s is ignored: %s", path, error)
        return None


def _read(path: Path) -> bytes:
    """Read a regular file. OSError for other files, which might never end, and for one that is too long."""
    with open(path, "rb", opener=_open_nonblocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise OSError(f"the file is not a regular one of at most {MAX_BYTES} bytes")
        return file.read(MAX_BYTES)


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def write_private(path: Path, text: str) -> None:
    """Write a private file atomically. It is synced, because some disks report only then that they are full."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)  # a rank, which runs as the same user, could have put a pipe there
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE_FILE), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
