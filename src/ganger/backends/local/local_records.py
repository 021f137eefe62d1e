"""What launchers left on this machine's disk, as `launcher_server` asks for it. Made by the supervisor."""

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
    """`launcher_server.rank_records.Records`, which documents what is said here without a word."""

    def __init__(self, layout: JobFiles) -> None:
        self._layout = layout

    def task(self, gang: str, node: str) -> TaskDirectory:
        return self._layout.task(gang, node)

    def logs(self, gang: str, generation: int) -> Iterator[RankLog]:
        for task in self._layout.tasks(gang):
            for path in task.generation(generation).glob("*.log"):
                match = re.fullmatch(r"rank-(\d+)\.log", path.name)
                rank = int(match[1]) if match else None
                yield RankLog(task.node, rank, partial(_newest, path, generation, _SETUP if rank is None else rank))

    def last_lines(self, gang: str, node: str, generation: int, rank: int) -> tuple[str, ...]:
        log = self._layout.task(gang, node).generation(generation) / f"rank-{rank}.log"
        return tuple(deque(_newest(log, generation, rank, TAIL_BYTES), TAIL_LINES))

    def places(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        return stack_files.places(self._layout, gang, generation)


def _newest(path: Path, generation: int, rank: int, most_bytes: int) -> Iterator[str]:
    return (line.text for line in newest_lines(Source(path, generation, rank, "oe"), most_bytes))
