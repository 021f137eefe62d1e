"""Pods of a generation: created and bound as a whole, why the API server refuses one, and how each of them ended.

This is only what the API server knows; launchers' messages are handled by the gang runtime. Everything runs on the
event loop.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from ganger.backends.kubernetes.binding import Binder, NotPlacedError, node_of
from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.backends.kubernetes.devices.device_claims import DevicesUnavailableError
from ganger.backends.kubernetes.gpus.node_gpus import PLUGIN_LABEL
from ganger.backends.kubernetes.gpus.sharing_dialects import HAMI
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_networks import NoProfileError, join_networks
from ganger.backends.kubernetes.volumes.volume_claims import ClaimUnavailableError, VolumeClaims
from ganger.gang_jobs import object_names
from ganger.gang_jobs.code_archive import is_stored
from ganger.gang_jobs.pod_template import PRIORITY_CLASS, build_pods
from ganger.kubeapi.api_error import NO_WEBHOOK, ApiError
from ganger.kubeapi.objects import Key, Object, Pod, Terminated
from ganger.model.decision import Cause, Start
from ganger.model.job import Job
from ganger.model.policy import RESTRICTED

# A refusal by a quota or a webhook has the status of a missing permission, and one by an unreachable webhook that of an
# internal error: the messages of Kubernetes 1.36 are parsed.
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
_NO_RIGHT: Final = re.compile(r'^\S+( "[^"]+")? is forbidden: User "[^"]*" cannot \S+ resource "')
"""A right that the controller lacks: all these objects are created with its own."""
_NO_CLASS: Final = f"is forbidden: no PriorityClass with name {PRIORITY_CLASS} was found"
EXIT_BAD_CODE: Final = 65
"""Exit code of a launcher that does not run the job's code (docs/reference/launcher-protocol.md)."""
_INSTALL: Final = "ganger install --dry-run --image IMAGE | kubectl apply -f -"
"""Restores the roles and classes of an installation."""


class StartRecorder(Protocol):
    """Writes starts to GangJobs before they are carried out: `StatusWriter`."""

    async def wait_until_written(self, gang: str, generation: int) -> None:
        """Wait until the object says that this generation starts. Raises KeyError if it was deleted."""


class AttemptError(Exception):
    """A generation without pods: none is left, or none was created. Has the cause, node and detail of its failure."""

    def __init__(self, cause: Cause, node: str, detail: str) -> None:
        super().__init__(detail)
        self.cause, self.node, self.detail = cause, node, detail


class AttemptPods:
    """Places generations, and deletes their pods.

    Attributes:
        variables_watcher: called with an attempt, and what the job's variables change of those of its network profile.
    """

    def __init__(
        self,
        binder: Binder,
        bootstrap: PodBootstrap,
        recorder: StartRecorder,
        cache: ClusterCache,
        volumes: VolumeClaims,
    ) -> None:
        self._binder, self._bootstrap, self._recorder, self._cache = binder, bootstrap, recorder, cache
        self._volumes = volumes
        self.variables_watcher: Callable[[Start, list[str]], None] = lambda start, changes: None  # noqa: ARG005

    async def place(self, start: Start, job: Job, is_wanted: Callable[[], bool]) -> dict[str, Pod]:
        """Create and bind the pods; return them by node. Stops when `is_wanted` returns False.

        Raises AttemptError and NotLeadingError.
        """
        key, first = object_names.key_of(start.gang), start.nodes[0]
        try:
            await self._recorder.wait_until_written(start.gang, start.generation)
            metadata = self._cache.jobs[key].metadata
            uid = metadata.uid
            await self._bootstrap.ensure(start, uid)
        except KeyError:
            raise AttemptError(Cause.START_FAILED, first, f"the GangJob {key.name} was deleted") from None
        except ApiError as error:
            cause, detail = admission_failure(error, key.namespace)
            raise AttemptError(cause, first, detail) from None
        self._check_nodes(start)
        await self._prepare_volumes(start, job)
        devices: dict[str, list[int]] = {}
        for share in start.shares:
            devices.setdefault(share.node, []).extend(share.devices)
        try:
            receives_code = is_stored(metadata) or key in self._bootstrap.fetched
            settings = replace(self._bootstrap.settings(start.gang), receives_code=receives_code)
            bodies = build_pods(start, job, uid, settings, self._cache.gpu_resources)
            may_lock_memory = settings.security != RESTRICTED
            networks = join_networks(bodies, start, job, self._cache, may_lock_memory=may_lock_memory)
            if networks.changes:
                self.variables_watcher(start, networks.changes)
            await self._binder.claims.write_templates(key, uid, networks.templates)
            bodies = [self._with_device_notes(body, devices) for body in networks.pods]
            return await self._binder.place(bodies, devices, is_wanted, self._cache.pods)
        except NoProfileError as error:
            raise AttemptError(Cause.START_FAILED, error.node, str(error)) from None
        except NotPlacedError as error:
            cause, detail = Cause.START_FAILED, str(error)
            if isinstance(error.cause, DevicesUnavailableError):
                cause, detail = Cause.DEVICES_UNAVAILABLE, error.cause.detail
            elif error.cause is not None:
                cause, detail = admission_failure(error.cause, key.namespace, error.created)
            raise AttemptError(cause, error.node, detail) from None
        except ApiError as error:
            raise AttemptError(Cause.START_FAILED, first, str(error)) from None

    def _with_device_notes(self, body: Object, devices: Mapping[str, Sequence[int]]) -> Object:
        """Return a pod with the annotations that the device plugin of its node expects, where one reads any."""
        metadata = body["metadata"]
        name = metadata["annotations"][object_names.NODE]
        if self._cache.nodes[name].labels.get(PLUGIN_LABEL) != HAMI:
            return body
        notes = self._cache.device_notes(msgspec.convert(body, Pod), name, devices.get(name, ()))
        return body | {"metadata": metadata | {"annotations": metadata["annotations"] | notes}}

    def _check_nodes(self, start: Start) -> None:
        """Raise AttemptError if a node has changed since the start was planned."""
        key = object_names.key_of(start.gang)
        for index, node in enumerate(start.nodes):
            if not self._cache.is_available(node):
                raise AttemptError(Cause.NODE_LOST, node, f"the node {node} was lost before a pod was bound to it")
            # A pod that an earlier controller created may run: it is not ended because its node is not ready.
            pod_key = Key(key.namespace, object_names.pod_name(start.gang, start.generation, index))
            if (reason := self._cache.nodes[node].unready) and pod_key not in self._cache.pods:
                raise AttemptError(Cause.NODE_LOST, node, f"the node {node} is {reason}")

    async def _prepare_volumes(self, start: Start, job: Job) -> None:
        """Have the job's claims bound for these nodes. Raises AttemptError."""
        try:
            await self._volumes.prepare(start, job)
        except ClaimUnavailableError as error:
            raise AttemptError(Cause.VOLUME_UNAVAILABLE, error.node, error.detail) from None
        except ApiError as error:
            raise AttemptError(Cause.VOLUME_UNAVAILABLE, start.nodes[0], str(error)) from None

    async def renew_bootstrap(self, start: Start) -> None:
        """Write this controller's address for the pods of a running generation. Raises ApiError."""
        if (job := self._cache.jobs.get(object_names.key_of(start.gang))) is not None:
            await self._bootstrap.ensure(start, job.metadata.uid)

    async def delete(self, pod: Pod, *, at_once: bool) -> None:
        """Delete one pod, with `at_once` without waiting for its node. Retries until it is done.

        Raises NotLeadingError.
        """
        await self._binder.delete([pod], at_once=at_once)

    async def delete_on(self, start: Start, nodes: Collection[str]) -> set[str]:
        """Delete a generation's pods on these nodes; return the nodes that still have one until it ends.

        Retries until it is done. Raises NotLeadingError.
        """
        on_nodes = [
            pod for pod in await self._binder.list_pods(start.gang, start.generation) if node_of(pod.metadata) in nodes
        ]
        await self._binder.delete(on_nodes)
        return {node_of(pod.metadata) for pod in on_nodes}


def end_of(pod: Pod) -> tuple[Cause, str]:
    """Return why a pod ended or was deleted, for a launcher that had no time to report it."""
    node, status = node_of(pod.metadata), pod.status
    for container in status.init_container_statuses:
        ended = container.state.terminated
        if ended is not None and ended.exit_code:
            detail = f"the container {container.name} on {node} exited with {ended.exit_code}{_last_line(ended)}"
            return Cause.START_FAILED, detail
    for container in status.container_statuses:
        ended = container.state.terminated
        if ended is not None and ended.reason == "OOMKilled":
            return Cause.OUT_OF_MEMORY, f"the pod on {node} exceeded its memory limit and was killed by its node"
        if ended is not None and status.phase == "Failed" and not status.reason:
            cause = Cause.START_FAILED if ended.exit_code == EXIT_BAD_CODE else Cause.LAUNCHER_LOST
            return cause, f"the launcher on {node} exited with {ended.exit_code}{_last_line(ended)}"
    if status.reason:
        return Cause.LAUNCHER_LOST, f"the pod on {node} ended: {status.reason}: {status.message}".rstrip(": ")
    disruption = next((condition for condition in status.conditions if condition.type == "DisruptionTarget"), None)
    if disruption is not None:
        return Cause.LAUNCHER_LOST, f"the pod on {node} was disrupted: {disruption.reason}: {disruption.message}"
    return Cause.LAUNCHER_LOST, f"the pod {pod.metadata.name} on {node} was deleted"


def _last_line(ended: Terminated) -> str:
    """Return the last line of what a container printed, after a colon; empty if it printed nothing."""
    lines = ended.message.splitlines()
    return f": {lines[-1].strip()}" if lines else ""


def has_succeeded(pod: Pod | None) -> bool:
    """Return whether all containers exited with 0: a launcher exits with the code of its first rank that failed."""
    return pod is not None and pod.status.phase == "Succeeded"


def admission_failure(error: ApiError, namespace: str, created: int = 0) -> tuple[Cause, str]:
    """Return the cause and a sentence for a pod, Secret or ConfigMap that the API server refused.

    `created`: pods of the gang that existed by then.
    """
    if NO_WEBHOOK in error.message:
        return Cause.WEBHOOK_UNREACHABLE, error.message[error.message.index(NO_WEBHOOK) :]
    if error.status == HTTPStatus.FORBIDDEN and (match := _QUOTA.match(error.message)):
        return (
            Cause.NAMESPACE_QUOTA,
            f"namespace {namespace}, quota {match['quota']}: {_exceeded_amounts(match, created)}",
        )
    if any(denial.search(error.message) for denial in _DENIALS):
        return Cause.ADMISSION_DENIED, str(error)
    if error.status == HTTPStatus.FORBIDDEN and _NO_CLASS in error.message:
        return Cause.INSTALLATION_FAULT, f"{error.message}; to restore it: {_INSTALL}"
    if error.status == HTTPStatus.FORBIDDEN and _NO_RIGHT.match(error.message):
        message = f"the controller lacks a right: {error.message}; to restore its roles: {_INSTALL}"
        return Cause.INSTALLATION_FAULT, message
    return Cause.START_FAILED, str(error)


def _exceeded_amounts(match: re.Match[str], created: int) -> str:
    """Return the exceeded resources of a quota message."""
    requested, used, limits = (_parse_amounts(match[group]) for group in ("requested", "used", "limited"))
    own = f" ({created} pod{'s' * (created > 1)} of this gang counted)" if created else ""
    exceeded = (
        f"{name}: {used.get(name)} of {limit} used{own}, {requested.get(name)} asked" for name, limit in limits.items()
    )
    return f"{'; '.join(exceeded)} by {match['resource'].removesuffix('s')} {match['name']}"


def _parse_amounts(amounts: str) -> dict[str, str]:
    """Return the amounts of `pods=1,requests.cpu=4` by resource."""
    return {name: amount for name, _, amount in (item.partition("=") for item in amounts.split(","))}
