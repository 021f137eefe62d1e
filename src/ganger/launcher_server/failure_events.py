"""How all ranks of a generation ended, joined into the failure that is told of it. Called by `rules.RetryRuleSearch`.

A failure waits a little for the ends of the other ranks, because the rank that is told of first need not be the one
that failed first, and the same error on all of them is another matter than that of one. Nobody waits after a signal
from outside: there it is known what happened, and the others may hang for ever.
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
"""While no rank has reported a step: nothing can be lost, and imports end far apart."""
LOOK_FIRST_S: Final = 0.01
LOOK_MAX_S: Final = 0.1
OF_ITS_OWN: Final = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
"""Signals that a process gets by its own doing."""
OF_A_SHELL: Final = 128
"""What a shell adds to the signal that ended what it ran, and exits with."""


class ExitCollector:
    """Reads the exit records of a gang's nodes. `generation_of` gives its newest generation, None when nobody knows
    it any more."""

    def __init__(self, records: Records, generation_of: Callable[[str], Generation | None]) -> None:
        self._records = records
        self._generation_of = generation_of

    def wait_s(self, failed: Failed) -> float:
        """How long this failure is to wait for the ends of other ranks, at most."""
        generation = self._current(failed)
        if generation is None or failed.cause is not Cause.RANK_FAILED or not failed.ends:
            return 0.0
        number = failed.signal or (failed.exit_code or 0) - OF_A_SHELL
        outside = number > 0 and number not in OF_ITS_OWN and failed.ends[0].error is None
        if outside or not self._awaited(generation):
            return 0.0
        stepped = bool(generation.steps) or any(end.step is not None for end in failed.ends)
        return WAIT_S if stepped else WAIT_BEFORE_STEP_S

    async def wait(self, failed: Failed) -> None:
        """Until all have ended, the time is over, or the generation is being stopped anyway."""
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self.wait_s(failed), LOOK_FIRST_S
        while (left_s := until - loop.time()) > 0:
            generation = self._current(failed)
            if generation is None or generation.stopping or not self._awaited(generation):
                return
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LOOK_MAX_S)

    def joined(self, failed: Failed) -> Failed:
        """The failure with the ends of all ranks that have ended by now."""
        generation = self._current(failed)
        if generation is None or not failed.ends:
            return failed
        found = {end.rank: end for end in failed.ends}
        for task in self._tasks(generation):
            counting = _counting(task, generation.number)
            for record in task.exits(generation.number):
                if record["rank"] in counting and record["pid"] is not None:
                    found.setdefault(record["rank"], message_events.rank_end(record, task.node))
        ends = tuple(sorted(found.values(), key=lambda end: (end.at_ms, end.rank)))
        ranks = sum(len(share.ranks) for share in generation.start.shares)
        since_ms = min(end.at_ms for end in ends if end.exit_code != 0)
        cause = Cause.OUT_OF_MEMORY if any(end.out_of_memory for end in ends) else failed.cause
        return replace(failed, ends=ends, ranks=ranks, since_ms=since_ms, cause=cause)

    def _current(self, failed: Failed) -> Generation | None:
        generation = self._generation_of(failed.gang)
        return generation if generation is not None and generation.number == failed.generation else None

    def _awaited(self, generation: Generation) -> bool:
        """Whether a rank may still end by itself on a node where something of the generation is left."""
        for task in self._tasks(generation):
            if task.node in generation.left and not task.cleared(generation.number):
                ended = {record["rank"] for record in task.exits(generation.number)}
                if not ended >= _counting(task, generation.number):
                    return True
        return False

    def _tasks(self, generation: Generation) -> Iterator[TaskRecords]:
        return (self._records.task(generation.gang, node) for node in generation.start.nodes)


def _counting(task: TaskRecords, generation: int) -> frozenset[int]:
    """The ranks on a node whose end counts: not those whose failure does no harm."""
    planned = task.planned(generation) or ()
    return frozenset(rank["rank"] for rank in planned if rank["on_failure"] != "ignore")
