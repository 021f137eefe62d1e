"""Driver of all generations' checkpoint coordinators: passes them messages and the time, and sends their orders.

Everything here runs on the event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ganger.launcher_server.checkpoints.checkpoint_coordinator import Coordinator, Counts, Order
from ganger.launcher_server.connection import Connection
from ganger.launcher_server.generation_state import Generation


class CheckpointAgreement:
    """Driver of the coordinators.

    is_current: tells if a generation is still the newest of its gang
    connection: returns the launcher's connection of a gang on a node
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        is_current: Callable[[Generation], bool],
        connection: Callable[[str, str], Connection | None],
    ) -> None:
        self._loop = loop
        self._is_current = is_current
        self._connection = connection

    def counts_received(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Handle the counts of a node's ranks."""
        counts = Counts.from_message(message)
        if generation.coordinator is None:
            generation.coordinator = _new_coordinator(generation)
        orders = _pass_stop_on(generation, generation.coordinator)
        orders += generation.coordinator.counts_received(node, counts, self._loop.time())
        self._execute(generation, generation.coordinator, orders)

    def checkpoint_saved(self, generation: Generation, took_ms: int) -> None:
        """Start the period until the next checkpoint: one was saved, which took that long."""
        coordinator = generation.coordinator
        if coordinator is None:
            return
        if generation.start.saves is not None and took_ms:
            coordinator.period_s = replace(generation.start.saves, save_ms=took_ms).best_interval_ms / 1000
        coordinator.checkpoint_saved(self._loop.time())

    def _wake(self, generation: Generation) -> None:
        generation.coordinator_timer = None
        if generation.coordinator is not None and generation.remaining and self._is_current(generation):
            self._execute(generation, generation.coordinator, _pass_stop_on(generation, generation.coordinator))

    def _execute(self, generation: Generation, coordinator: Coordinator, orders: list[Order]) -> None:
        for node, kind, fields in [*orders, *coordinator.tick(self._loop.time())]:
            connection = self._connection(generation.gang, node)
            if connection is not None:
                connection.send(kind, generation=generation.number, **fields)
        if generation.coordinator_timer is not None:
            generation.coordinator_timer.cancel()
            generation.coordinator_timer = None
        if coordinator.due_s < float("inf"):
            generation.coordinator_timer = self._loop.call_at(coordinator.due_s, self._wake, generation)


def _new_coordinator(generation: Generation) -> Coordinator:
    checkpoint = generation.job.spec.checkpoint
    period_ms = generation.start.save_interval_ms(checkpoint.every_ms) if checkpoint else None
    return Coordinator(
        remaining=generation.remaining,
        ranks=sum(len(share.ranks) for share in generation.start.shares),
        period_s=period_ms / 1000 if period_ms else None,
    )


def _pass_stop_on(generation: Generation, coordinator: Coordinator) -> list[Order]:
    """Tell the coordinator of a stop that it does not know yet.

    Launchers send `checkpoint_counts` when they give a notice, so it learns of a stop at once, and its messages to a
    launcher come after the stop."""
    if generation.stopping is None or generation.stopping == coordinator.stop:
        return []
    return coordinator.stopped(generation.stopping)
