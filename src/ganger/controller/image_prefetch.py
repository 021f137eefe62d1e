"""Images pulled ahead of reserved starts, where the policy says so, on the nodes that lack them.

A pod on the node has the image and a command that no image has: once the kubelet has pulled the image the container
cannot start, which shows that the image is there, and nothing of it ever runs. The pod asks for no resources, and is
deleted then.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ganger.backends.kubernetes.foreign.foreign_gang import is_foreign_gang
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.backends.kubernetes.pod_startup import STUCK_REASONS
from ganger.core.state.state import State
from ganger.engine.loop import Loop
from ganger.gang_jobs.object_names import PREFETCH, key_of, prefetch_pod
from ganger.gang_jobs.pod_template import (
    container_security_context,
    owner_reference,
    pod_security_context,
    tolerations_of,
)
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Object, ObjectMeta, Pod
from ganger.kubeapi.resources import PODS
from ganger.model.job import Job
from ganger.model.policy import RESTRICTED
from ganger.model.units import MINUTE_MS

PASS_S: Final = 10.0
MAX_AT_ONCE: Final = 8
"""Pods at a time: a registry and the network serve running jobs too."""
AHEAD_MS: Final = 30 * MINUTE_MS
"""Time before a reserved start from which its image is pulled: a kubelet may remove an unused image again."""
COMMAND: Final = "/ganger-prefetches-this-image"
"""A program that no image has."""
_log = logging.getLogger(__name__)


class Pull(NamedTuple):
    """An image that a node lacks. `name`: of the pod that pulls it."""

    name: Key
    job: Job
    node: str

    @property
    def subject(self) -> tuple[str, str]:
        """Image and node."""
        return str(self.job.spec.image), self.node


class ImagePrefetch:
    """Pulls images while `run` runs. `may_act` returns whether this controller leads."""

    def __init__(self, api: ApiClient, loop: Loop, backend: KubernetesBackend, may_act: Callable[[], bool]) -> None:
        self._api, self._loop, self._backend, self._may_act = api, loop, backend, may_act
        self._pods: dict[Key, ObjectMeta] = {}
        self._knows_pods = False
        """True once `_pods` has those of an earlier controller."""
        self._tried: set[tuple[str, str]] = set()
        """Images and nodes that were tried for the reservations that there are: a node lists an image minutes later."""

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            if self._may_act():
                try:
                    await self._reconcile()
                except ApiError as error:
                    _log.warning("images are not pulled ahead of reserved starts: %s", error)
            await asyncio.sleep(PASS_S)

    async def _reconcile(self) -> None:
        """Delete pods that have pulled their image or are not wanted, and create others. Raises ApiError."""
        wanted = {pull.name: pull for pull in await asyncio.to_thread(self._find)}
        if not self._knows_pods:
            pods = list(self._backend.pods.items())
            self._pods = {key: pod.metadata for key, pod in pods if PREFETCH in pod.metadata.labels}
            self._knows_pods = True
        for name, metadata in list(self._pods.items()):
            pod = self._backend.pods.get(name)
            if name not in wanted or (pod is not None and _is_over(pod)):
                await self._api.delete(PODS, metadata, grace_s=0)
                del self._pods[name]
        self._tried &= {pull.subject for pull in wanted.values()}
        for pull in wanted.values():
            if len(self._pods) >= MAX_AT_ONCE:
                return
            if pull.name not in self._pods and pull.subject not in self._tried:
                await self._create(pull)

    async def _create(self, pull: Pull) -> None:
        gang_job = self._backend.job(key_of(pull.job.id))
        if gang_job is None:
            return
        self._tried.add(pull.subject)
        body = _body(pull, owner_reference(gang_job.metadata.key, gang_job.metadata.uid))
        try:
            pod = await self._api.create(PODS, body)
        except ApiError as error:  # such as by a quota of its namespace: the start pulls the image itself
            _log.info("the image of %s is not pulled on %s ahead: %s", pull.job.id, pull.node, error)
        else:
            self._pods[pull.name] = pod.metadata

    def _find(self) -> list[Pull]:
        now_ms = self._loop.now_ms()
        with self._loop.view() as state:
            return list(_missing_images(state, now_ms)) if state.document.reservations.prefetch else []


def _missing_images(state: State, now_ms: int) -> Iterator[Pull]:
    """Yield the images that nodes of reserved starts lack, the earliest start first."""
    starts = [(start.start_ms, start) for start in state.reservations.values() if start.start_ms is not None]
    for start_ms, start in sorted(starts, key=lambda item: (item[0], item[1].gang)):
        gang = state.gangs.get(start.gang)
        if start_ms > now_ms + AHEAD_MS:
            return
        if gang is None or not gang.job.spec.image or is_foreign_gang(gang.id):
            continue
        for index, node in enumerate(dict.fromkeys(start.nodes)):
            position = state.nodes.index.get(node)
            if position is not None and gang.job.spec.image not in state.nodes.nodes[position].images:
                name = prefetch_pod(gang.id, gang.attempt.generation + 1, index)
                yield Pull(Key(key_of(gang.id).namespace, name), gang.job, node)


def _is_over(pod: Pod) -> bool:
    """Return whether a pod's image is there, or cannot be pulled."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return True
    states = [status.state for status in pod.status.container_statuses]
    return any(
        state.running is not None
        or state.terminated is not None
        or (state.waiting is not None and state.waiting.reason in STUCK_REASONS)
        for state in states
    )


def _body(pull: Pull, owner: Object) -> Object:
    """Return the pod. What the job asks of its own pods is left out, but what the pull needs."""
    spec, section = pull.job.spec, pull.job.spec.pod.spec if pull.job.spec.pod is not None else {}
    needed = {key: section[key] for key in ("imagePullSecrets", "serviceAccountName") if key in section}
    container = {
        "name": "prefetch",
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [COMMAND],
        "securityContext": container_security_context(RESTRICTED),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pull.name.name,
            "namespace": pull.name.namespace,
            "labels": {PREFETCH: key_of(pull.job.id).name},
            "ownerReferences": [owner],
        },
        "spec": {
            **needed,
            "nodeName": pull.node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": pod_security_context(RESTRICTED),
            "tolerations": list(tolerations_of(spec.placement.tolerations)),
            "containers": [container],
        },
    }
