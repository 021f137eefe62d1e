"""Why pods of others wait, as their condition PodScheduled, which is where people look for it.

Fed by `others`; written when it is convenient, and not again while it says the same.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Object, Pod
from ganger.kubeapi.request import Place
from ganger.kubeapi.resources import PODS
from ganger.kubeapi.workqueue import WorkQueue

SCHEDULED: Final = "PodScheduled"
CALM_S: Final = 2.0
"""So long a pod must wait before that is said: most are bound sooner."""


class PodConditions:
    """`pods` as they are followed. `run` must run for anything to be written."""

    def __init__(self, api: Api, pods: Mapping[Key, Pod], may_act: Callable[[], bool]) -> None:
        self._api, self._pods, self._may_act = api, pods, may_act
        self._wanted: dict[Key, str] = {}
        self._work = WorkQueue(self._write, workers=4)

    async def run(self) -> None:
        """Write what is wanted, until cancelled."""
        await self._work.run()

    def want(self, pod: Key, message: str) -> None:
        """Have a pod say that it waits, and why."""
        self._wanted[pod] = message
        self._work.add_later(pod, CALM_S)

    async def _write(self, key: Key) -> None:
        message, pod = self._wanted.pop(key, ""), self._pods.get(key)
        if pod is None or pod.spec.node_name or not message or not self._may_act():
            return
        if any(each.type == SCHEDULED and each.message == message for each in pod.status.conditions):
            return
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = {"type": SCHEDULED, "status": "False", "reason": "Unschedulable", "message": message}
        rest: list[Object] = [
            {"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
            | ({"lastTransitionTime": each.last_transition_time} if each.last_transition_time else {})
            for each in pod.status.conditions
            if each.type != SCHEDULED
        ]
        # A merge writes the list whole: it must be of the version that was read.
        about = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        body = {"metadata": about, "status": {"conditions": [*rest, said | {"lastTransitionTime": at}]}}
        try:
            await self._api.merge(Place(PODS, key.namespace, key.name, "status"), body)
        except ApiError as error:
            if error.conflict and key not in self._wanted:
                self.want(key, message)
            elif not error.missing and not error.conflict:
                raise
