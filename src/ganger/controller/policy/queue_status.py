"""How each queue is used, on its object: who waits and runs, the GPUs in use and its share of them, and what a
successor needs to go on (`usage`).

Run by `controller.assembly`; the log says when something happened, and without that nothing is looked at. What is
written does not go by how many jobs there are: figures of a queue at most every 10 s, what was used at most once a
minute, and once more at the end.

What was used is written only when the objects of all jobs say what it was counted from: of one whose object still said
that it runs, a successor would count the end again.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from ganger.controller.policy.queue_usage import Usage, encode, usage_of
from ganger.engine.loop import Loop
from ganger.engine.query.listing_rows import queue_rows
from ganger.kubeapi.api_error import ApiError

GATHER_S: Final = 1.0
"""What happens together is told together."""
CALM_S: Final = 10.0
"""Between two looks."""
USAGE_S: Final = 60.0
"""Between two writes of what was used of a queue."""
END_S: Final = 5.0
LOOK_S: Final = 0.1
"""Between two looks whether jobs' objects say all."""

Figures = dict[str, Any]


class QueueStatusWriter(Protocol):
    """Where the figures go: `PolicyObjects`."""

    async def show(self, told: Mapping[str, Figures]) -> None:
        """Have these in the status of each queue."""
        ...

    def shown(self) -> frozenset[str]:
        """The queues of which something can be shown."""
        ...

    async def flush(self) -> None:
        """Come back when all of it is written."""
        ...


class QueueFigures:
    """`kept`: what the state began with, by queue; owes: whether of an event up to one something is still to be written
    to the object of a job."""

    def __init__(
        self, loop: Loop, shows: QueueStatusWriter, kept: Mapping[str, Usage], owes: Callable[[int], bool]
    ) -> None:
        self._loop, self._shows, self._owes, self._told = loop, shows, owes, 0
        self._kept = {name: each.figures for name, each in kept.items()}
        self._kept_s: dict[str, float] = {}
        self._news = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()

    def told(self, seq: int, is_news: bool) -> None:  # noqa: FBT001 - as the log says it
        """Jobs' objects were told of all up to an event, and whether that was anything; from any thread."""
        self._event_loop.call_soon_threadsafe(self._hear, seq, is_news)

    def look_again(self) -> None:
        """What was used of a queue may be kept elsewhere from now on."""
        self._news.set()

    def _hear(self, seq: int, is_news: bool) -> None:  # noqa: FBT001
        self._told = seq
        if is_news:
            self._news.set()

    async def end(self) -> None:
        """Tell what is so now, and come back when it is written, or nobody can write it. Called after `run`."""
        with suppress(TimeoutError, ApiError):
            async with asyncio.timeout(END_S):
                await self._tell(usage_s=0.0, within_s=END_S / 2)
                await self._shows.flush()

    async def run(self) -> None:
        """Tell what changes, until cancelled."""
        is_owed = False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), CALM_S if is_owed else None)
            await asyncio.sleep(GATHER_S)
            self._news.clear()
            is_owed = await self._tell(USAGE_S, CALM_S)
            await asyncio.sleep(CALM_S)

    async def _tell(self, usage_s: float, within_s: float) -> bool:
        """Tell what is so now; whether what was used is still to be told."""
        figures, usage, seq = await asyncio.to_thread(self._look, self._shows.shown())
        await self._shows.show(figures)
        now_s, is_owed = self._event_loop.time(), False
        if self._kept.keys() - usage.keys():
            usage_s = 0.0  # what was used of a queue that is gone is with the one above it, and nowhere else
        due = dict[str, Usage]()
        for name, each in usage.items():
            if self._kept.get(name) == each.figures:
                continue
            if now_s - self._kept_s.get(name, -usage_s) >= usage_s:
                due[name] = each
            else:
                is_owed = True
        if not due or not await self._is_settled(seq, within_s):
            return is_owed or bool(due)
        await self._shows.show({name: {"usage": encode(each)} for name, each in due.items()})
        self._kept = {name: each for name, each in self._kept.items() if name in usage}
        for name, each in due.items():
            self._kept[name], self._kept_s[name] = each.figures, now_s
        return is_owed

    async def _is_settled(self, seq: int, within_s: float) -> bool:
        """Whether jobs' objects come to say all up to an event."""
        until_s = self._event_loop.time() + within_s
        while self._told < seq or self._owes(seq):
            if self._event_loop.time() > until_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _look(self, shown: frozenset[str]) -> tuple[dict[str, Figures], dict[str, Usage], int]:
        with self._loop.view() as state:
            rows, usage, seq = queue_rows(state), usage_of(state, shown), state.seq
        figures: dict[str, Figures] = {
            row.name: {
                "waiting": row.pending,
                "running": row.running,
                "gpus": int(row.used["gpus"]),
                "share": row.fair_gpus,
            }
            for row in rows
        }
        return figures, usage, seq
