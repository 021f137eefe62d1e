"""Records that launchers left on this machine's disk, in the form that `launcher_server` needs."""

import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from ganger.backends.local import stack_files
from ganger.backends.local.job_files import JobFiles, TaskDirectory
from ganger.backends.local.log_files import Source
from ganger.backends.local.log_reader import newest_lines
from ganger.launcher_server.message_events import TAIL_LINES
from ganger.launcher_server.rank_records import RankLog

TAIL_BYTES: Final = 64 << 10
_SETUP: Final = -1


class LocalRecords:
    """The implementation of `launcher_server.rank_records.Records`, which documents the methods."""

    def __init__(self, files: JobFiles) -> None:
        self._files = files

    def task(self, gang: str, node: str) -> TaskDirectory:
        return self._files.task(gang, node)

    def logs(self, gang: str, generation: int) -> Iterator[RankLog]:
        for task in self._files.tasks(gang):
            for path in task.generation(generation).glob("*.log"):
                match = re.fullmatch(r"rank-(\d+)\.log", path.name)
                rank = int(match[1]) if match else None
                yield RankLog(task.node, rank, partial(_newest, path, generation, _SETUP if rank is None else rank))

    def last_lines(self, gang: str, node: str, generation: int, rank: int) -> tuple[str, ...]:
        log = self._files.task(gang, node).generation(generation) / f"rank-{rank}.log"
        return tuple(deque(_newest(log, generation, rank, TAIL_BYTES), TAIL_LINES))

    def main_frames(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        return stack_files.main_frames(self._files, gang, generation)


def _newest(path: Path, generation: int, rank: int, most_bytes: int) -> Iterator[str]:
    return (line.text for line in newest_lines(Source(path, generation, rank, "oe"), most_bytes))
