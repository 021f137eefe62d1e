"""How each queue is used, on its object: who waits and runs, the GPUs in use and its share of them, and what a
successor needs to go on (`usage`).

Run by `wiring.controller`; the log says when something happened, and without that nothing is looked at. What is written
does not go by how many jobs there are: figures of a queue at most every 10 s, what was used at most once a minute,
and once more at the end.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from ganger.backends.kubernetes.api_error import ApiError
from ganger.engine.loop import Loop
from ganger.engine.rows import queue_rows
from ganger.wiring.usage import Usage, encode, usage_of

GATHER_S: Final = 1.0
"""What happens together is told together; and jobs first, so that no end is counted that no job knows of."""
CALM_S: Final = 10.0
"""Between two looks."""
USAGE_S: Final = 60.0
"""Between two writes of what was used of a queue."""
END_S: Final = 5.0

Figures = dict[str, Any]


class Shows(Protocol):
    """Where the figures go: `PolicyObjects`."""

    async def show(self, told: Mapping[str, Figures]) -> None:
        """Have these in the status of each queue."""
        ...

    async def flush(self) -> None:
        """Come back when all of it is written."""
        ...


class QueueFigures:
    """`kept`: what the state began with, by queue."""

    def __init__(self, loop: Loop, shows: Shows, kept: Mapping[str, Usage]) -> None:
        self._loop, self._shows = loop, shows
        self._kept = {name: each.figures for name, each in kept.items()}
        self._kept_s: dict[str, float] = {}
        self._news = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()

    def changed(self) -> None:
        """Something happened; from any thread."""
        if not self._news.is_set():
            self._event_loop.call_soon_threadsafe(self._news.set)

    async def end(self) -> None:
        """Tell what is so now, and come back when it is written, or nobody can write it. Called after `run`."""
        with suppress(TimeoutError, ApiError):
            async with asyncio.timeout(END_S):
                await self._tell(usage_s=0.0)
                await self._shows.flush()

    async def run(self) -> None:
        """Tell what changes, until cancelled."""
        is_owed = False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), CALM_S if is_owed else None)
            await asyncio.sleep(GATHER_S)
            self._news.clear()
            is_owed = await self._tell(USAGE_S)
            await asyncio.sleep(CALM_S)

    async def _tell(self, usage_s: float) -> bool:
        """Tell what is so now; whether what was used is still to be told."""
        figures, usage = await asyncio.to_thread(self._look)
        now_s, is_owed = self._event_loop.time(), False
        for name, each in usage.items():
            if self._kept.get(name) == each.figures:
                continue
            if now_s - self._kept_s.get(name, -usage_s) >= usage_s:
                figures[name]["usage"] = encode(each)
                self._kept[name], self._kept_s[name] = each.figures, now_s
            else:
                is_owed = True
        await self._shows.show(figures)
        return is_owed

    def _look(self) -> tuple[dict[str, Figures], dict[str, Usage]]:
        with self._loop.view() as state:
            rows, usage = queue_rows(state), usage_of(state)
        figures: dict[str, Figures] = {
            row.name: {
                "waiting": row.pending,
                "running": row.running,
                "gpus": int(row.used["gpus"]),
                "share": row.fair_gpus,
            }
            for row in rows
        }
        return figures, usage
