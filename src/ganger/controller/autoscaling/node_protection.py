"""Protection of reserved nodes from the autoscaler of the cluster, where the policy says that there is one.

An idle node for which there is a reservation looks unneeded to an autoscaler, which would remove it before the reserved
start. The annotations that keep it from doing so are on a node while it is reserved, with a list of those that were
written here: others are left as they are, by the next controller too.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from ganger.backends.kubernetes.binding import MAX_CONCURRENT
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.engine.loop import Loop
from ganger.gang_jobs.object_names import PROTECTED
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Node
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import NODES

PASS_S: Final = 10.0
RELEASE_AFTER_S: Final = 60.0
"""Time for which a node stays protected without a reservation: reservations move, and all clients see each write."""
ANNOTATIONS: Final = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""Annotations by which the cluster autoscaler, and Karpenter, leave a node alone; their value is `true`."""
_TRUE: Final = "true"
_log = logging.getLogger(__name__)


class NodeProtection:
    """Protects nodes while `run` runs. `may_act` returns whether this controller leads."""

    def __init__(self, api: ApiClient, loop: Loop, backend: KubernetesBackend, may_act: Callable[[], bool]) -> None:
        self._api, self._loop, self._backend, self._may_act = api, loop, backend, may_act
        self._reserved_s: dict[str, float] | None = None
        """Protected nodes, and when each was last reserved; None until those of an earlier controller are known."""
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._failure = ""

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            if self._may_act():
                await self._reconcile()
            await asyncio.sleep(PASS_S)

    async def _reconcile(self) -> None:
        """Make one pass, over the nodes that are reserved or protected."""
        now_s, nodes = asyncio.get_running_loop().time(), self._backend.nodes
        if self._reserved_s is None:
            self._reserved_s = {
                key.name: now_s for key, node in nodes.items() if PROTECTED in node.metadata.annotations
            }
        protected = self._reserved_s
        reserved = await asyncio.to_thread(self._reserved_nodes)
        protected |= dict.fromkeys(reserved, now_s)
        ended = [name for name in protected.keys() - reserved if now_s >= protected[name] + RELEASE_AFTER_S]
        changes = [(name, node, _missing(node)) for name in sorted(reserved) if (node := nodes.get(Key("", name)))]
        changes += [(name, node, _written(node)) for name in sorted(ended) if (node := nodes.get(Key("", name)))]
        failures = await asyncio.gather(*(self._annotate(*change) for change in changes))
        failed = {name for (name, *_), failure in zip(changes, failures, strict=True) if failure}
        for name in set(ended) - failed:
            del protected[name]
        self._log_once(next(filter(None, failures), ""))

    async def _annotate(self, name: str, node: Node, annotations: dict[str, str | None]) -> str:
        """Change annotations of a node; return why not. One that has changed since is looked at again."""
        if not annotations:
            return ""
        metadata = {"resourceVersion": node.metadata.resource_version, "annotations": annotations}
        async with self._slots:
            if not self._may_act():
                return "this controller does not lead any more"
            try:
                await self._api.merge(ObjectRef(NODES, "", name), {"metadata": metadata})
            except ApiError as error:
                return "" if error.missing else str(error)
        return ""

    def _reserved_nodes(self) -> set[str]:
        with self._loop.view() as state:
            if state.document.autoscaling.after_ms is None:
                return set()
            return {node for start in state.reservations.values() for node in start.nodes}

    def _log_once(self, failure: str) -> None:
        if failure and failure != self._failure:
            _log.warning("reserved nodes are not protected from the autoscaler, or still are: %s", failure)
        self._failure = failure


def _missing(node: Node) -> dict[str, str | None]:
    """Return the annotations to write to a reserved node; empty if it has them."""
    annotations = node.metadata.annotations
    missing = [name for name in ANNOTATIONS if name not in annotations]
    if not missing:
        return {}
    return {**dict.fromkeys(missing, _TRUE), PROTECTED: ",".join(sorted({*missing, *_listed(node)}))}


def _written(node: Node) -> dict[str, str | None]:
    """Return the removal of the annotations that were written here, of a node that is not reserved any more."""
    annotations: dict[str, Any] = node.metadata.annotations
    if PROTECTED not in annotations:
        return {}
    return dict.fromkeys([PROTECTED, *(name for name in _listed(node) if annotations.get(name) == _TRUE)])


def _listed(node: Node) -> list[str]:
    """Return the annotations that the node says were written here; anything else that is there is not believed."""
    listed = node.metadata.annotations.get(PROTECTED, "").split(",")
    return [name for name in ANNOTATIONS if name in listed]
