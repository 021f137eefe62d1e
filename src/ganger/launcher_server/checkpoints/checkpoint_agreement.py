"""Drives the coordinators of all generations: hands them what launchers say and the time, and sends what they order.

Made by `hearing`; everything here runs on the event loop.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from ganger.launcher_server.checkpoints.checkpoint_coordinator import Coordinator, Counts, Order
from ganger.launcher_server.connection import Connection
from ganger.launcher_server.generation_state import Generation


class CheckpointAgreement:
    """`is_current` says of a generation whether it is still the newest of its gang; `connection` finds the launcher of
    a gang on a node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        is_current: Callable[[Generation], bool],
        connection: Callable[[str, str], Connection | None],
    ) -> None:
        self._loop = loop
        self._is_current = is_current
        self._connection = connection

    def counted(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Take in how far the ranks of a node are."""
        counts = Counts.of(message)
        if generation.coordinator is None:
            generation.coordinator = _coordinator(generation)
        orders = _heed_stop(generation, generation.coordinator)
        orders += generation.coordinator.heard(node, counts, self._loop.time())
        self._carry_out(generation, generation.coordinator, orders)

    def saved(self, generation: Generation) -> None:
        """Count the time to the next checkpoint from this one."""
        if generation.coordinator is not None:
            generation.coordinator.saved(self._loop.time())

    def _wake(self, generation: Generation) -> None:
        generation.coordinator_timer = None
        if generation.coordinator is not None and generation.left and self._is_current(generation):
            self._carry_out(generation, generation.coordinator, _heed_stop(generation, generation.coordinator))

    def _carry_out(self, generation: Generation, coordinator: Coordinator, orders: list[Order]) -> None:
        for node, kind, fields in [*orders, *coordinator.tick(self._loop.time())]:
            connection = self._connection(generation.gang, node)
            if connection is not None:
                connection.send(kind, generation=generation.number, **fields)
        if generation.coordinator_timer is not None:
            generation.coordinator_timer.cancel()
            generation.coordinator_timer = None
        if coordinator.due_s < float("inf"):
            generation.coordinator_timer = self._loop.call_at(coordinator.due_s, self._wake, generation)


def _coordinator(generation: Generation) -> Coordinator:
    checkpoint = generation.job.spec.checkpoint
    period_ms = None if checkpoint is None else checkpoint.every_ms
    return Coordinator(
        left=generation.left,
        ranks=sum(len(share.ranks) for share in generation.start.shares),
        period_s=period_ms / 1000 if period_ms else None,
    )


def _heed_stop(generation: Generation, coordinator: Coordinator) -> list[Order]:
    """Tell the coordinator of a stop that it does not know. Launchers say `counted` when they give a notice, so it
    hears of that at once, and what it says to a launcher comes after the stop."""
    if generation.stopping is None or generation.stopping == coordinator.stop:
        return []
    return coordinator.stopped(generation.stopping)
