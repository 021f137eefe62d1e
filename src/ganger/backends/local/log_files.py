"""The log files with the lines that a query selects; found again and again while it is followed.

A long log is stored in parts (`launcher.logs.log_file`): `NAME.log`, and `NAME.log.START`, which begins START bytes
after the beginning of the whole. The oldest of the later parts are deleted as new ones come.

The roles and the highest rank of a generation come from its plan, which exists before the log files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ganger.backends.local.job_files import JobFiles, TaskDirectory
from ganger.model.job import WORKER
from ganger.ports import LogQuery

LOG: Final = ".log"
_RANK_FILE = re.compile(r"rank-(\d+)\.log")
_ROLE = "GANGER_ROLE"


@dataclass(frozen=True, slots=True)
class Part:
    """A file, and its offset in the log."""

    start: int
    path: Path


@dataclass(frozen=True, slots=True)
class Source:
    """A log to read.

    streams: the selected streams, `oe` or `e`.
    parts: the files seen so far, in order; once a later one exists, those before it do not grow.
    """

    path: Path
    generation: int
    rank: int
    streams: str
    parts: list[Part] = field(default_factory=list)


class Sources:
    """The log files of a query, of generation `oldest` and, unless the query names one, of later ones."""

    def __init__(self, files: JobFiles, query: LogQuery, oldest: int) -> None:
        self._files, self._query, self._oldest = files, query, oldest
        self._last_ranks: dict[int, int] = {}
        self._known: set[Path] = set()
        self._sources: dict[Path, Source] = {}

    def new(self) -> list[Source]:
        """Return the logs that have appeared since the last call, and append new parts to the known ones."""
        return [source for task in self._files.tasks(self._query.job) for source in self._of_task(task)]

    def _of_task(self, task: TaskDirectory) -> Iterator[Source]:
        if self._query.node not in (None, task.path.name):
            return
        for generation in task.generations():
            if generation == self._oldest or (self._query.generation is None and generation > self._oldest):
                paths = sorted(set(task.generation(generation).glob(f"*{LOG}*")) - self._known)
                self._known.update(paths)
                logs = [path for path in paths if path.suffix == LOG]
                roles = _roles(task, generation) if logs else {}
                for path in logs:
                    match = _RANK_FILE.fullmatch(path.name)
                    # Output of a node's setup command is shown as that of the first rank there.
                    rank = int(match[1]) if match else min(roles, default=0)
                    if streams := self._streams(generation, rank, roles):
                        self._sources[path] = Source(path, generation, rank, streams, [Part(0, path)])
                        yield self._sources[path]
                for part in _later_parts(paths):
                    if source := self._sources.get(part.path.with_suffix("")):
                        source.parts.append(part)

    def _streams(self, generation: int, rank: int, roles: Mapping[int, str]) -> str:
        query = self._query
        if query.role not in (None, roles.get(rank, WORKER)):
            return ""
        if query.ranks is not None:
            is_named = rank in query.ranks or (-1 in query.ranks and rank == self._last_rank(generation))
            return "oe" if is_named else ""
        is_selected = query.everything or query.role is not None or query.node is not None
        return "oe" if is_selected or rank == 0 else "e"

    def _last_rank(self, generation: int) -> int:
        """Return the highest rank in the plans of a generation."""
        if generation not in self._last_ranks:
            planned = (task.planned_ranks(generation) for task in self._files.tasks(self._query.job))
            self._last_ranks[generation] = max((rank for ranks in planned for rank in ranks), default=0)
        return self._last_ranks[generation]


def parts_of(path: Path) -> list[Part]:
    """Return the current files of a log, in order."""
    return [Part(0, path), *_later_parts(path.parent.glob(f"{path.name}.*"))]


def _later_parts(paths: Iterable[Path]) -> list[Part]:
    """Return the files that are later parts, in order."""
    parts = [Part(int(path.suffix[1:]), path) for path in paths if path.suffix[1:].isdecimal()]
    return sorted(parts, key=lambda part: part.start)


def newest_generation(files: JobFiles, job: str) -> int:
    """Return the newest generation of a job that has begun, 1 if none has."""
    return max((generation for task in files.tasks(job) for generation in task.generations()), default=1)


def _roles(task: TaskDirectory, generation: int) -> dict[int, str]:
    """Return the role of each rank in a plan."""
    plan = task.plan(generation)
    if plan is None:
        return {}
    default = plan["environment"].get(_ROLE, WORKER)
    return {rank["rank"]: rank["environment"].get(_ROLE, default) for rank in plan["ranks"]}
