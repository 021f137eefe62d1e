"""The pods of a generation: created and bound as a whole, watched while it lives, and how each of them ended.

Only what the API server knows; launchers' messages are the gang runtime's. Everything runs on the event loop.
"""

import re
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final, Protocol

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.binding import Binder, NotPlacedError, node_of
from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_template import pods
from ganger.kubeapi.api_error import NO_WEBHOOK, ApiError
from ganger.kubeapi.objects import Key, Pod
from ganger.model.decision import Cause, Start
from ganger.model.job import Job

STUCK: Final = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
)
"""Why a container waits that will not come by waiting."""
STUCK_AFTER_S: Final = 60.0
"""How long a container may be kept from running: a registry may be away for a moment."""
UNREADY_AFTER_S: Final = 600.0
"""How long a pod may wait for its volumes and its network: a disk that a lost node held is let go after six minutes."""
READY_TO_START: Final = "PodReadyToStartContainers"
"""Of a pod: its kubelet has all that containers need of it but their images."""
BAD_CODE: Final = 65
"""With what a launcher ends that does not run the job's code, as docs/reference/launcher-protocol.md has it."""


_QUOTA: Final = re.compile(
    r'^(?P<resource>\S+) "(?P<name>[^"]+)" is forbidden: exceeded quota: (?P<quota>\S+), '
    r"requested: (?P<requested>\S+), used: (?P<used>\S+), limited: (?P<limited>\S+)$"
)
_DENIALS: Final = (
    re.compile(r'admission webhook "[^"]+" denied the request'),
    re.compile(r"ValidatingAdmissionPolicy \S+ with binding \S+ denied request"),
    re.compile(r'violates PodSecurity "'),
    re.compile(r"failed quota: \S+: must specify"),
)


class Written(Protocol):
    """Where starts are written before they are carried out: `status.StatusWriter`."""

    async def written(self, gang: str, generation: int) -> None:
        """Come back when the object says that this generation starts. KeyError: it was deleted."""


class Unplaceable(Exception):
    """A generation of which no pod is left, or was ever made. cause, node, detail: as its failure is told."""

    def __init__(self, cause: Cause, node: str, detail: str) -> None:
        super().__init__(detail)
        self.cause, self.node, self.detail = cause, node, detail


class AttemptPods:
    """Has generations placed."""

    def __init__(self, binder: Binder, gear: PodBootstrap, written: Written, seen: ClusterCache) -> None:
        self._binder, self._gear, self._written, self._seen = binder, gear, written, seen

    async def begin(self, start: Start, job: Job, wanted: Callable[[], bool]) -> dict[str, Pod]:
        """The pods by node, all of them bound. Broken off when they are not `wanted` any more.

        Raises Unplaceable; NotLeadingError.
        """
        key, first = object_names.key_of(start.gang), start.nodes[0]
        try:
            await self._written.written(start.gang, start.generation)
            uid = self._seen.jobs[key].metadata.uid
            await self._gear.put(key, uid)
        except KeyError:
            raise Unplaceable(Cause.START_FAILED, first, f"the GangJob {key.name} was deleted") from None
        except ApiError as error:
            cause, detail = not_admitted(error, key.namespace)
            raise Unplaceable(cause, first, detail) from None
        self._check_nodes(start)
        devices: dict[str, list[int]] = {}
        for share in start.shares:
            devices.setdefault(share.node, []).extend(share.devices)
        try:
            bodies = pods(start, job, uid, self._gear.setting(key))
            return await self._binder.place(bodies, devices, wanted, self._seen.pods)
        except NotPlacedError as error:
            cause, detail = Cause.START_FAILED, str(error)
            if error.why is not None:
                cause, detail = not_admitted(error.why, key.namespace, error.made)
            raise Unplaceable(cause, error.node, detail) from None
        except ApiError as error:
            raise Unplaceable(Cause.START_FAILED, first, str(error)) from None

    def _check_nodes(self, start: Start) -> None:
        """Raise Unplaceable when something changed about the nodes since the start was planned."""
        key = object_names.key_of(start.gang)
        for at, node in enumerate(start.nodes):
            if not self._seen.answers(node):
                raise Unplaceable(Cause.NODE_LOST, node, f"the node {node} vanished before anything was bound to it")
            # What an earlier controller has made may run, and is not ended because its node is not ready.
            made = Key(key.namespace, object_names.pod_name(start.gang, start.generation, at)) in self._seen.pods
            if (why := self._seen.nodes[node].unready) and not made:
                raise Unplaceable(Cause.NODE_LOST, node, f"the node {node} is {why}")

    async def renew(self, gang: str) -> None:
        """Have the pods of a gang that runs find this controller, wherever the last one was. Raises ApiError."""
        key = object_names.key_of(gang)
        if (job := self._seen.jobs.get(key)) is not None:
            await self._gear.put(key, job.metadata.uid)

    async def end(self, pod: Pod, *, at_once: bool) -> None:
        """Delete one pod, without waiting for its node if that is `at_once`. Tried until it is done.

        Raises NotLeadingError.
        """
        await self._binder.delete([pod], at_once=at_once)

    async def clear(self, start: Start, nodes: Collection[str]) -> set[str]:
        """Have nothing left of a generation on these nodes; gives those of them where its pod still is, until it ends.

        Tried until it is done. Raises NotLeadingError.
        """
        pods = [pod for pod in await self._binder.found(start.gang, start.generation) if node_of(pod.metadata) in nodes]
        await self._binder.delete(pods)
        return {node_of(pod.metadata) for pod in pods}


def ending(pod: Pod) -> tuple[Cause, str]:
    """Why a pod ended, or why it is gone, when its launcher had no time to say it."""
    node, status = node_of(pod.metadata), pod.status
    for container in status.container_statuses:
        ended = container.state.terminated
        if ended is not None and ended.reason == "OOMKilled":
            return Cause.OUT_OF_MEMORY, f"the pod on {node} used more memory than it may, so its node killed it"
        if ended is not None and status.phase == "Failed" and not status.reason:
            lines = ended.message.splitlines()
            said = f": {lines[-1].strip()}" if lines else ""
            cause = Cause.START_FAILED if ended.exit_code == BAD_CODE else Cause.LAUNCHER_LOST
            return cause, f"the launcher on {node} exited with {ended.exit_code}{said}"
    if status.reason:
        return Cause.LAUNCHER_LOST, f"the pod on {node} ended: {status.reason}: {status.message}".rstrip(": ")
    disrupted = next((each for each in status.conditions if each.type == "DisruptionTarget"), None)
    if disrupted is not None:
        return Cause.LAUNCHER_LOST, f"the pod on {node} was taken away: {disrupted.reason}: {disrupted.message}"
    return Cause.LAUNCHER_LOST, f"the pod {pod.metadata.name} on {node} was deleted"


def has_succeeded(pod: Pod | None) -> bool:
    """Whether all that ran in it exited with 0: a launcher's code is that of its first rank that failed."""
    return pod is not None and pod.status.phase == "Succeeded"


def stuck(pod: Pod) -> str:
    """Why a pod's container will not run however long one waits; nothing while it may."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in STUCK:
            return f"the pod on {node_of(pod.metadata)} cannot run: {waiting.reason}: {waiting.message}".rstrip(": ")
    return ""


def unready(pod: Pod) -> str:
    """Why no container of a pod has been begun, where that is neither its image nor its making; nothing while none is
    to be expected. A volume that is not there comes by no waiting, but the kubelet says of it nothing on the pod."""
    is_ready = next((each.status for each in pod.status.conditions if each.type == READY_TO_START), "")
    if is_ready != "False" or pod.status.phase != "Pending" or stuck(pod):
        return ""
    named = f"kubectl describe pod {pod.metadata.name} --namespace {pod.metadata.namespace}"
    return f"the pod on {node_of(pod.metadata)} waits for its volumes or its network: {named} says for which"


# The API has no code of its own for these causes: a quota and a webhook answer 403 as a missing right does, and a
# webhook that cannot be reached answers 500 as any fault of the server does. So its words are read: those of Kubernetes
# 1.36.
def not_admitted(error: ApiError, namespace: str, made: int = 0) -> tuple[Cause, str]:
    """Return the cause and one sentence for a pod, Secret or ConfigMap that the API server refused. `made`: pods of the
    gang that there were."""
    if NO_WEBHOOK in error.message:
        return Cause.WEBHOOK_UNREACHABLE, error.message[error.message.index(NO_WEBHOOK) :]
    if error.status == HTTPStatus.FORBIDDEN and (found := _QUOTA.match(error.message)):
        return Cause.NAMESPACE_QUOTA, f"namespace {namespace}, quota {found['quota']}: {_amounts(found, made)}"
    if any(denial.search(error.message) for denial in _DENIALS):
        return Cause.ADMISSION_DENIED, str(error)
    return Cause.START_FAILED, str(error)


def _amounts(found: re.Match[str], made: int) -> str:
    """Return what is short, by resource."""
    asked, used, limits = (_parsed(found[part]) for part in ("requested", "used", "limited"))
    own = f" ({made} pod{'s' * (made > 1)} of this gang counted)" if made else ""
    short = (
        f"{name}: {used.get(name)} of {limit} used{own}, {asked.get(name)} asked" for name, limit in limits.items()
    )
    return f"{'; '.join(short)} by {found['resource'].removesuffix('s')} {found['name']}"


def _parsed(amounts: str) -> dict[str, str]:
    """Return the amounts of `pods=1,requests.cpu=4` by resource."""
    return {name: amount for name, _, amount in (each.partition("=") for each in amounts.split(","))}
