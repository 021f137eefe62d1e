"""Which files hold the lines that a query wants. Called by `logs`, again and again while it follows.

A long log lies in parts (`launcher.logs.log_file`): `NAME.log`, and `NAME.log.START`, which begins so many bytes after
the beginning of the whole. Of the later ones the oldest go as new ones come.

What a generation's plan says of its ranks (their roles, which is the last) is read once: it is there before the files.
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
    """A file, and where in the log it begins."""

    start: int
    path: Path


@dataclass(frozen=True, slots=True)
class Source:
    """A log to read, and which of its streams are wanted: `oe` or `e`. `parts`: the files it has been seen to have, in
    order; once a later one has been seen, those before it do not grow."""

    path: Path
    generation: int
    rank: int
    streams: str
    parts: list[Part] = field(default_factory=list)


class Sources:
    """The files of one query, of generation `oldest` and, unless the query names one, of later ones."""

    def __init__(self, layout: JobFiles, query: LogQuery, oldest: int) -> None:
        self._layout, self._query, self._oldest = layout, query, oldest
        self._last_ranks: dict[int, int] = {}
        self._known: set[Path] = set()
        self._sources: dict[Path, Source] = {}

    def new(self) -> list[Source]:
        """Those that were not there at the last look. Those that were are told of the parts that have come."""
        return [source for task in self._layout.tasks(self._query.job) for source in self._of_task(task)]

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
                    # What the set-up of a node printed belongs, for a reader, to the first rank there.
                    rank = int(match[1]) if match else min(roles, default=0)
                    if wanted := self._streams(generation, rank, roles):
                        self._sources[path] = Source(path, generation, rank, wanted, [Part(0, path)])
                        yield self._sources[path]
                for part in _later(paths):
                    if source := self._sources.get(part.path.with_suffix("")):
                        source.parts.append(part)

    def _streams(self, generation: int, rank: int, roles: Mapping[int, str]) -> str:
        query = self._query
        if query.role not in (None, roles.get(rank, WORKER)):
            return ""
        if query.ranks is not None:
            named = rank in query.ranks or (-1 in query.ranks and rank == self._last_rank(generation))
            return "oe" if named else ""
        chosen = query.everything or query.role is not None or query.node is not None
        return "oe" if chosen or rank == 0 else "e"

    def _last_rank(self, generation: int) -> int:
        """The highest rank that the plans of a generation have."""
        if generation not in self._last_ranks:
            planned = (task.planned_ranks(generation) for task in self._layout.tasks(self._query.job))
            self._last_ranks[generation] = max((rank for ranks in planned for rank in ranks), default=0)
        return self._last_ranks[generation]


def parts_of(path: Path) -> list[Part]:
    """The files that a log consists of now, in order."""
    return [Part(0, path), *_later(path.parent.glob(f"{path.name}.*"))]


def _later(paths: Iterable[Path]) -> list[Part]:
    """Those of the files that are no first part, in order."""
    found = [Part(int(path.suffix[1:]), path) for path in paths if path.suffix[1:].isdecimal()]
    return sorted(found, key=lambda part: part.start)


def newest_generation(layout: JobFiles, job: str) -> int:
    """The newest generation of a job that was begun; 1 before that."""
    return max((generation for task in layout.tasks(job) for generation in task.generations()), default=1)


def _roles(task: TaskDirectory, generation: int) -> dict[int, str]:
    """The role of each rank that a plan has."""
    plan = task.plan(generation)
    if plan is None:
        return {}
    shared = plan["environment"].get(_ROLE, WORKER)
    return {each["rank"]: each["environment"].get(_ROLE, shared) for each in plan["ranks"]}
