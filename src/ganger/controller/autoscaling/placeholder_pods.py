"""Placeholder pods of gangs, kept in line with the demand: they stand in for ProvisioningRequests."""

import asyncio
from collections.abc import Callable

from ganger.backends.kubernetes.binding import MAX_CONCURRENT, is_over
from ganger.backends.kubernetes.nodes.placeholders import Placeholders
from ganger.controller.autoscaling.node_demand import NodeDemand
from ganger.gang_jobs.node_request_template import placeholders
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Object
from ganger.kubeapi.resources import PODS


class PlaceholderPods:
    """The pods.

    Args:
        api: client of the API server.
        placeholders: all placeholders of the cluster.
        may_act: returns whether this controller leads.
    """

    def __init__(self, api: ApiClient, placeholders: Placeholders, may_act: Callable[[], bool]) -> None:
        self._api, self._may_act = api, may_act
        self._pods, self._cleared = placeholders.pods, placeholders.cleared
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def reconcile(self, demand: dict[Key, NodeDemand]) -> dict[Key, str]:
        """Create the pods that are missing and delete those not wanted; return what to say of each demand."""
        bodies = {key: placeholders(*each) for key, each in demand.items()}
        wanted = {Key(key.namespace, body["metadata"]["name"]) for key, pods in bodies.items() for body in pods}
        # One that has ended, such as by preemption, is made again.
        leaving = [pod for key, pod in self._pods.items() if key not in wanted or is_over(pod)]
        await asyncio.gather(*(self._api.delete(PODS, pod.metadata) for pod in leaving))
        return {key: await self._ensure(key, pods) for key, pods in bodies.items()}

    async def _ensure(self, key: Key, bodies: list[Object]) -> str:
        names = [Key(key.namespace, body["metadata"]["name"]) for body in bodies]
        missing = [body for name, body in zip(names, bodies, strict=True) if name not in self._pods]
        results = await asyncio.gather(*(self._create(key, body) for body in missing), return_exceptions=True)
        for result in results:
            if isinstance(result, ApiError) and result.conflict:
                continue  # it was created a moment ago
            if isinstance(result, ApiError):
                return f"nodes cannot be requested by placeholder pods: {result}"
            if isinstance(result, BaseException):
                raise result
        placed = sum(name in self._pods and bool(self._pods[name].spec.node_name) for name in names)
        return f"nodes are requested by placeholder pods ({placed} of {len(names)} have one)"

    async def _create(self, request: Key, body: Object) -> None:
        """Create a pod of a request, unless the gang is being bound by now: it would take a node from it."""
        async with self._slots:
            if not self._may_act() or request in self._cleared:
                return
            pod = await self._api.create(PODS, body)
            if request in self._cleared and self._may_act():
                await self._api.delete(PODS, pod.metadata)
