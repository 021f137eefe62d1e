"""HAMi's device plugin, played on the fake API server: it allocates for one pod of a node at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ganger.backends.kubernetes.gpus.hami_lock import LOCK
from tools.fakeapi import FakeApi

PHASE = "hami.io/bind-phase"


class Plugin:
    """HAMi's device plugin of all nodes. `served` are the pods whose devices it has allocated, in order."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self.served: list[str] = []

    async def run(self) -> None:
        """Allocate for the pod that holds a node's lock, and release it."""
        while True:
            await asyncio.sleep(0.3)
            for node in self._api.objects("nodes"):
                self._allocate(node)

    def _allocate(self, node: dict[str, Any]) -> None:
        waiting = [
            item
            for item in self._api.objects("pods")
            if item["spec"].get("nodeName") == node["metadata"]["name"]
            and item["metadata"]["annotations"].get(PHASE) == "allocating"
        ]
        assert len(waiting) <= 1, "it would not know for which pod"
        for item in waiting:
            owner = (item["metadata"]["namespace"], item["metadata"]["name"])
            lock = lock_of(self._api, node["metadata"]["name"])
            assert tuple(lock.split(",")[1:]) == owner
            annotations = item["metadata"]["annotations"] | {PHASE: "success"}
            self._api.put(item | {"metadata": item["metadata"] | {"annotations": annotations}})
            set_lock(self._api, None, node["metadata"]["name"])
            self.served.append(item["metadata"]["name"])


def lock_of(api: FakeApi, node: str = "hami") -> str:
    text: str = ((api.get("nodes", node, "") or {})["metadata"].get("annotations") or {}).get(LOCK, "")
    return text


def set_lock(api: FakeApi, text: str | None, node: str = "hami") -> None:
    item: Any = api.get("nodes", node, "")
    annotations = {key: value for key, value in item["metadata"]["annotations"].items() if key != LOCK}
    annotations |= {LOCK: text} if text else {}
    api.put(item | {"metadata": item["metadata"] | {"annotations": annotations}})


@asynccontextmanager
async def plugin_of(api: FakeApi) -> AsyncIterator[Plugin]:
    """Run the plugin of all nodes; raises what it found wrong."""
    plugin = Plugin(api)
    task = asyncio.create_task(plugin.run())
    try:
        yield plugin
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
