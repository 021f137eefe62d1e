"""Condition PodScheduled of foreign pods: why they wait.

Written lazily, and not again while it is unchanged.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Object, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS
from ganger.kubeapi.workqueue import WorkQueue

SCHEDULED: Final = "PodScheduled"
DELAY_S: Final = 2.0
"""Delay before a pod's condition is written: most pods are bound sooner."""


class PodConditions:
    """Writes the condition of pending pods while `run` runs. `pods` is a live view."""

    def __init__(self, api: ApiClient, pods: Mapping[Key, Pod], may_act: Callable[[], bool]) -> None:
        self._api, self._pods, self._may_act = api, pods, may_act
        self._messages: dict[Key, str] = {}
        self._queue = WorkQueue(self._write, workers=4)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._queue.run()

    def update(self, pod: Key, message: str) -> None:
        """Set the pending message of a pod."""
        self._messages[pod] = message
        self._queue.add_after(pod, DELAY_S)

    async def _write(self, key: Key) -> None:
        message, pod = self._messages.pop(key, ""), self._pods.get(key)
        if pod is None or pod.spec.node_name or not message or not self._may_act():
            return
        if any(condition.type == SCHEDULED and condition.message == message for condition in pod.status.conditions):
            return
        scheduled: Object = {
            "type": SCHEDULED,
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        others: list[Object] = [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
            }
            | ({"lastTransitionTime": condition.last_transition_time} if condition.last_transition_time else {})
            for condition in pod.status.conditions
            if condition.type != SCHEDULED
        ]
        # A merge patch replaces the whole list: it must be based on the version that was read.
        metadata = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        body = {"metadata": metadata, "status": {"conditions": [*others, scheduled]}}
        try:
            await self._api.merge(ObjectRef(PODS, key.namespace, key.name, "status"), body)
        except ApiError as error:
            if error.conflict and key not in self._messages:
                self.update(key, message)
            elif not error.missing and not error.conflict:
                raise
