"""Nodes that are not ready: told to the inventory with a sentence, and as lost when `node_patience` says so.

Run by `backend` on the event loop, which tells it of every change of a Node. It looks once a second while a node is not
ready, and not at all otherwise.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from ganger.backends.kubernetes.nodes.node_capacity import is_out_of_service, silence
from ganger.backends.kubernetes.nodes.node_inventory import Inventory
from ganger.backends.kubernetes.nodes.node_patience import UNHEARD, Launchers, NodePatience
from ganger.kubeapi.objects import Node

LOOK_S: Final = 1.0


class NodeHealth:
    """launchers: the evidence about nodes at present; answers: whether the API server does, and this controller leads;
    changed: called when the inventory was told something new."""

    def __init__(
        self,
        inventory: Inventory,
        patience: NodePatience,
        launchers: Callable[[], Mapping[str, Launchers]],
        answers: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._inventory, self._patience = inventory, patience
        self._launchers, self._answers, self._changed = launchers, answers, changed
        self._loop = asyncio.get_running_loop()
        self._wall_s = time.time() - self._loop.time()
        self._why: dict[str, str] = {}
        self._next: asyncio.Handle | None = None

    def node_changed(self, before: Node | None, now: Node | None) -> None:
        """Take in a change of a Node, after the inventory."""
        if now is None:
            if before is not None:
                self._why.pop(before.metadata.name, None)
                self._patience.removed(before.metadata.name)
            return
        name, why = now.metadata.name, silence(now)
        if why is None:
            self._why.pop(name, None)
            self._patience.ready(name)
            return
        self._why[name] = why.rstrip(".")
        self._patience.unready(name, self._loop.time(), certain=is_out_of_service(now))
        if self._next is None:
            self._next = self._loop.call_soon(self._look)

    def close(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()

    def _look(self) -> None:
        self._next = None
        now_s, launchers = self._loop.time(), self._launchers()
        self._patience.api(now_s, answers=self._answers())
        lost = self._patience.judge(now_s, launchers)
        for name in lost:
            self._inventory.lose(name, self._sentence(name, "its jobs start again elsewhere"))
        suspects = self._patience.suspects
        news = [self._inventory.doubt(name, self._sentence(name, self._fate(name, launchers))) for name in suspects]
        if lost or any(news):
            self._changed()
        if suspects:
            self._next = self._loop.call_later(LOOK_S, self._look)

    def _fate(self, name: str, launchers: Mapping[str, Launchers]) -> str:
        found = launchers.get(name, UNHEARD)
        if found.connected:
            return "a launcher there is connected, so its jobs go on"
        until_s = self._patience.until_s(name, found)
        if until_s is None:
            return "its jobs go on until more is known"
        return f"its jobs are given until {self._clock(until_s)}, then they start again elsewhere"

    def _sentence(self, name: str, fate: str) -> str:
        return f"not ready since {self._clock(self._patience.since_s(name))} ({self._why[name]}); {fate}"

    def _clock(self, at_s: float) -> str:
        return f"{datetime.fromtimestamp(self._wall_s + at_s, UTC):%H:%M:%S} UTC"
