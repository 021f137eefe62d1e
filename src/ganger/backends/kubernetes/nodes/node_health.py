"""Health of nodes: reports nodes that are not ready to the inventory, and as lost when `node_patience` decides so.

Checks once a second while a node is not ready, and not at all otherwise.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from ganger.backends.kubernetes.nodes.node_capacity import is_out_of_service, not_ready_reason
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory
from ganger.backends.kubernetes.nodes.node_patience import NO_EVIDENCE, LauncherEvidence, NodePatience
from ganger.kubeapi.objects import Node

CHECK_INTERVAL_S: Final = 1.0


class NodeHealth:
    """Health of the nodes of a cluster.

    Args:
        inventory: the nodes.
        patience: the rules.
        launchers: returns the current evidence about nodes.
        answers: returns whether the API server responds and this controller leads.
        changed: called when the inventory has something new.
    """

    def __init__(
        self,
        inventory: NodeInventory,
        patience: NodePatience,
        launchers: Callable[[], Mapping[str, LauncherEvidence]],
        api_responds: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._inventory, self._patience = inventory, patience
        self._launchers, self._api_responds, self._changed = launchers, api_responds, changed
        self._loop = asyncio.get_running_loop()
        self._wall_offset_s = time.time() - self._loop.time()
        self._reasons: dict[str, str] = {}
        self._next: asyncio.Handle | None = None

    def node_changed(self, before: Node | None, after: Node | None) -> None:
        """Handle a change of a Node, after the inventory."""
        if after is None:
            if before is not None:
                self._reasons.pop(before.metadata.name, None)
                self._patience.removed(before.metadata.name)
            return
        name, reason = after.metadata.name, not_ready_reason(after)
        if reason is None:
            self._reasons.pop(name, None)
            self._patience.ready(name)
            return
        self._reasons[name] = reason.rstrip(".")
        self._patience.unready(name, self._loop.time(), certain=is_out_of_service(after))
        if self._next is None:
            self._next = self._loop.call_soon(self._check)

    def close(self) -> None:
        """Stop checking."""
        if self._next is not None:
            self._next.cancel()

    def _check(self) -> None:
        self._next = None
        now_s, launchers = self._loop.time(), self._launchers()
        self._patience.api_responds(now_s, responds=self._api_responds())
        lost = self._patience.find_lost(now_s, launchers)
        for name in lost:
            self._inventory.lose(name, self._sentence(name, "its jobs start again elsewhere"))
        suspects = self._patience.suspects
        changes = [
            self._inventory.set_unready_reason(name, self._sentence(name, self._fate(name, launchers)))
            for name in suspects
        ]
        if lost or any(changes):
            self._changed()
        if suspects:
            self._next = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def _fate(self, name: str, launchers: Mapping[str, LauncherEvidence]) -> str:
        evidence = launchers.get(name, NO_EVIDENCE)
        if evidence.connected:
            return "a launcher there is connected, so its jobs continue"
        until_s = self._patience.lost_at_s(name, evidence)
        if until_s is None:
            return "its jobs continue until more is known"
        return f"its jobs have until {self._clock_text(until_s)}, then they start again elsewhere"

    def _sentence(self, name: str, fate: str) -> str:
        return f"not ready since {self._clock_text(self._patience.since_s(name))} ({self._reasons[name]}); {fate}"

    def _clock_text(self, time_s: float) -> str:
        return f"{datetime.fromtimestamp(self._wall_offset_s + time_s, UTC):%H:%M:%S} UTC"
