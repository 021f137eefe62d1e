"""Placeholder pods of the cluster: they hold nodes that an autoscaler added for a gang, until the gang is bound there.

The core does not count what they use. So they are deleted from the nodes of a start before its pods are bound: a
kubelet rejects a pod for which there is no room yet.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from ganger.gang_jobs.node_request_template import is_placeholder
from ganger.gang_jobs.object_names import NODE_REQUEST
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.resources import PODS

CLEAR_WITHIN_S: Final = 20.0
"""Time that a kubelet gets to end a placeholder; after that the pods are bound all the same."""
POLL_S: Final = 0.05


class Placeholders:
    """The placeholder pods. `may_act` returns whether this controller leads."""

    def __init__(self, api: ApiClient, may_act: Callable[[], bool]) -> None:
        self._api, self._may_act = api, may_act
        self._pods: dict[Key, Pod] = {}
        self.cleared = set[Key]()
        """Requests whose pods were deleted here since the last pass over the demand began."""

    @property
    def pods(self) -> Mapping[Key, Pod]:
        """Live view of the pods, by name."""
        return self._pods

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a change of any pod."""
        if after is not None and is_placeholder(after):
            self._pods[after.metadata.key] = after
        elif before is not None:
            self._pods.pop(before.metadata.key, None)

    async def clear(self, nodes: Collection[str], request: Key | None = None) -> None:
        """Delete the placeholders on these nodes and those of a request, and wait until the nodes are free of them.

        None is made again before the next pass over the demand. Raises ApiError if one could not be deleted, after the
        others are gone.
        """
        if not self._may_act():
            return
        leaving = [pod for pod in self._pods.values() if pod.spec.node_name in nodes or _request_of(pod) == request]
        self.cleared.update(_request_of(pod) for pod in leaving)
        if request is not None:
            self.cleared.add(request)
        deleting = (self._api.delete(PODS, pod.metadata) for pod in leaving)
        results = await asyncio.gather(*deleting, return_exceptions=True)
        failed = [isinstance(result, BaseException) and not _is_gone(result) for result in results]
        awaited = (pod for pod, has_failed in zip(leaving, failed, strict=True) if not has_failed)
        await self._wait_until_gone({pod.metadata.uid for pod in awaited if pod.spec.node_name in nodes})
        for result, has_failed in zip(results, failed, strict=True):
            if isinstance(result, BaseException) and has_failed:
                raise result

    async def _wait_until_gone(self, uids: set[str]) -> None:
        event_loop = asyncio.get_running_loop()
        until_s = event_loop.time() + CLEAR_WITHIN_S
        while event_loop.time() < until_s and any(pod.metadata.uid in uids for pod in self._pods.values()):  # noqa: ASYNC110 - the informer has no event for it
            await asyncio.sleep(POLL_S)


def _request_of(pod: Pod) -> Key:
    return Key(pod.metadata.namespace, pod.metadata.labels.get(NODE_REQUEST, ""))


def _is_gone(error: BaseException) -> bool:
    """Return whether a pod could not be deleted because it is gone, and another may have its name."""
    return isinstance(error, ApiError) and (error.missing or error.conflict)
