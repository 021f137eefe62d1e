"""Ends of all ranks of a generation, joined into the failure that is reported.

A failure waits briefly for the ends of the other ranks, because the rank reported first need not be the one that failed
first, and the same error on all ranks means something else than on one. It does not wait after a signal from outside:
then the cause is known, and the other ranks may hang for ever.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ganger.launcher_server import message_events
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.rank_records import Records, TaskRecords
from ganger.model.decision import Cause
from ganger.model.event import Failed

WAIT_S: Final = 1.0
WAIT_BEFORE_STEP_S: Final = 3.0
"""While no rank has reported a step: no progress can be lost, and imports end far apart."""
FIRST_POLL_S: Final = 0.01
MAX_POLL_S: Final = 0.1
SELF_INFLICTED: Final = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
"""Signals by which a process ends itself."""
SHELL_SIGNAL_BASE: Final = 128
"""Number that a shell adds to the signal that ended its command, to exit with the sum."""


class ExitCollector:
    """Reads the exit records of a gang's nodes; `generation_of` returns its newest generation, or None."""

    def __init__(self, records: Records, generation_of: Callable[[str], Generation | None]) -> None:
        self._records = records
        self._generation_of = generation_of

    def wait_s(self, failed: Failed) -> float:
        """Return how long this failure waits at most for the ends of other ranks."""
        generation = self._current(failed)
        if generation is None or failed.cause is not Cause.RANK_FAILED or not failed.ends:
            return 0.0
        number = failed.signal or (failed.exit_code or 0) - SHELL_SIGNAL_BASE
        is_external = number > 0 and number not in SELF_INFLICTED and failed.ends[0].error is None
        if is_external or not self._has_awaited_rank(generation):
            return 0.0
        has_stepped = bool(generation.steps) or any(end.step is not None for end in failed.ends)
        return WAIT_S if has_stepped else WAIT_BEFORE_STEP_S

    async def wait(self, failed: Failed) -> None:
        """Wait until all ranks have ended, the time is over, or the generation is being stopped anyway."""
        loop = asyncio.get_running_loop()
        deadline_s, pause_s = loop.time() + self.wait_s(failed), FIRST_POLL_S
        while (left_s := deadline_s - loop.time()) > 0:
            generation = self._current(failed)
            if generation is None or generation.stopping or not self._has_awaited_rank(generation):
                return
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, MAX_POLL_S)

    def join_ends(self, failed: Failed) -> Failed:
        """Return the failure with the ends of all ranks that have ended by now."""
        generation = self._current(failed)
        if generation is None or not failed.ends:
            return failed
        ends_by_rank = {end.rank: end for end in failed.ends}
        for task in self._tasks(generation):
            counting = _counting_ranks(task, generation.number)
            for record in task.exits(generation.number):
                if record["rank"] in counting and record["pid"] is not None:
                    ends_by_rank.setdefault(record["rank"], message_events.rank_end(record, task.node))
        ends = tuple(sorted(ends_by_rank.values(), key=lambda end: (end.at_ms, end.rank)))
        ranks = sum(len(share.ranks) for share in generation.start.shares)
        since_ms = min((end.at_ms for end in ends if end.exit_code != 0), default=failed.since_ms)
        cause = Cause.OUT_OF_MEMORY if any(end.out_of_memory for end in ends) else failed.cause
        return replace(failed, ends=ends, ranks=ranks, since_ms=since_ms, cause=cause)

    def _current(self, failed: Failed) -> Generation | None:
        generation = self._generation_of(failed.gang)
        return generation if generation is not None and generation.number == failed.generation else None

    def _has_awaited_rank(self, generation: Generation) -> bool:
        """Return True if a rank may still end by itself on a node where something of the generation is left."""
        for task in self._tasks(generation):
            if task.node in generation.remaining and not task.cleared(generation.number):
                ended = {record["rank"] for record in task.exits(generation.number)}
                if not ended >= _counting_ranks(task, generation.number):
                    return True
        return False

    def _tasks(self, generation: Generation) -> Iterator[TaskRecords]:
        return (self._records.task(generation.gang, node) for node in generation.start.nodes)


def _counting_ranks(task: TaskRecords, generation: int) -> frozenset[int]:
    """Return the ranks on a node whose end counts: not those whose failure is ignored."""
    planned = task.planned(generation) or ()
    return frozenset(rank["rank"] for rank in planned if rank["on_failure"] != "ignore")
