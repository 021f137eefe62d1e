"""Claims of jobs: followed while a job uses one, and bound to the nodes of a gang before its pods are created.

kube-scheduler does not see ganger's pods before they have their nodes, so what its volume binding does is done here: an
available volume that fits is given to its claim, or the node is written to the claim for its provisioner.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.volumes.claim_nodes import (
    ClaimWorld,
    Terms,
    holds,
    provisioned_terms,
    restrict_spec,
    terms_of,
)
from ganger.backends.kubernetes.volumes.claim_objects import (
    BOUND_BY_CONTROLLER,
    CLAIMS,
    CLASSES,
    SELECTED_NODE,
    VOLUMES,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import CustomObject, Key, Node, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.model.decision import Start
from ganger.model.job import Job, JobSpec

COLLECT_S: Final = 0.2
"""Time for which changes are collected: the binding of a claim has several."""
SYNC_TIMEOUT_S: Final = 20.0
INTENT_S: Final = 30.0
"""Time until which a gang that is being placed has pods that show which claims it uses."""
_VOLUMES_KEY: Final = b'"volumes"'


class ClaimUnavailableError(Exception):
    """A claim cannot be used on a node now."""

    def __init__(self, node: str, detail: str) -> None:
        super().__init__(detail)
        self.node, self.detail = node, detail


class _Use(NamedTuple):
    """Use of a claim by the pods of a gang on a node."""

    gang: str
    node: str


class _JobVolumes(msgspec.Struct):
    name: str


class _JobSpecVolumes(msgspec.Struct):
    volumes: tuple[_JobVolumes, ...] = ()


class VolumeClaims:
    """Claims of the GangJobs. Everything but `run` and `prepare` returns at once.

    Attributes:
        on_change: called with the GangJobs of which claims, volumes, or what uses them may have changed.
    """

    def __init__(self, api: ApiClient, nodes: Mapping[Key, Node]) -> None:
        self._api, self._loop = api, asyncio.get_running_loop()
        self._claims = Informer(api, CLAIMS, self._claim_changed)
        self._volumes = Informer(api, VOLUMES, self._volume_changed)
        self._classes = Informer(api, CLASSES, self._class_changed)
        self._world = ClaimWorld(self._claims.objects, self._volumes.objects, self._classes.objects, nodes)
        self._is_needed = asyncio.Event()
        self._claims_of_job: dict[Key, tuple[Key, ...]] = {}
        self._jobs_of_claim: dict[Key, set[Key]] = {}
        self._users: dict[Key, dict[str, _Use]] = {}
        """Uses of a claim, by claim and pod UID."""
        self._intents: dict[Key, tuple[_Use, float]] = {}
        """Use of a claim by a gang that is being placed, and until when that counts."""
        self._given: dict[str, str] = {}
        """Volumes given to claims, by UID, until the claim shows it."""
        self._changed_jobs: set[Key] = set()
        self.on_change: Callable[[Collection[Key]], None] = lambda jobs: None  # noqa: ARG005

    async def run(self) -> None:
        """Follow claims, volumes and classes from when the first job uses a claim until cancelled."""
        await self._is_needed.wait()
        async with asyncio.TaskGroup() as group:
            for informer in (self._claims, self._volumes, self._classes):
                group.create_task(informer.run())

    async def restrict(self, namespace: str, spec: JobSpec) -> JobSpec:
        """Return a job's spec with the labels that its claims require of nodes. Raises RequestError."""
        if not spec.volumes:
            return spec
        await self._wait_synced()
        keys = [Key(namespace, volume.name) for volume in spec.volumes]
        return restrict_spec(spec, namespace, self._world, {key: self._used_on(key) for key in keys})

    # -- changes -------------------------------------------------------------------------------------------------------

    def job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        """Note the claims of a GangJob that was added or deleted; they never change."""
        if after is None and before is not None:
            for claim in self._claims_of_job.pop(before.metadata.key, ()):
                self._jobs_of_claim[claim].discard(before.metadata.key)
        elif after is not None and before is None and _VOLUMES_KEY in bytes(after.spec):
            key = after.metadata.key
            volumes = msgspec.json.decode(after.spec, type=_JobSpecVolumes).volumes
            self._claims_of_job[key] = tuple(Key(key.namespace, volume.name) for volume in volumes)
            for claim in self._claims_of_job[key]:
                self._jobs_of_claim.setdefault(claim, set()).add(key)
            self._is_needed.set()
            self._change_soon({key})

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Note where claims are used by ganger's pods."""
        pod = after or before
        mark = object_names.mark(pod) if pod is not None and self._claims_of_job else None
        if (
            pod is None
            or mark is None
            or (before is not None and after is not None and is_over(before) == is_over(after))
        ):
            return
        uses = after is not None and not is_over(after)
        for claim in self._claims_of_job.get(object_names.key_of(mark.gang), ()):
            users = self._users.setdefault(claim, {})
            if uses:
                users[pod.metadata.uid] = _Use(mark.gang, mark.node)
            elif users.pop(pod.metadata.uid, None) is not None:
                self._intents.pop(claim, None)
            self._change_soon(self._jobs_of_claim[claim])

    def _claim_changed(self, before: PersistentVolumeClaim | None, after: PersistentVolumeClaim | None) -> None:
        claim = after or before
        if claim is not None and (before is None or after is None or _use_of(before) != _use_of(after)):
            self._given.pop(claim.metadata.uid, None)
            self._change_soon(self._jobs_of_claim.get(claim.metadata.key, ()))

    def _volume_changed(self, before: PersistentVolume | None, after: PersistentVolume | None) -> None:
        if before is not None and after is not None and before.spec == after.spec:
            return
        self._change_soon(self._jobs_with_unbound_claims())
        if after is not None and (reference := after.spec.claim_ref) is not None:
            self._change_soon(self._jobs_of_claim.get(Key(reference.namespace, reference.name), ()))

    def _class_changed(self, before: StorageClass | None, after: StorageClass | None) -> None:
        self._change_soon(self._jobs_with_unbound_claims())

    def _jobs_with_unbound_claims(self) -> set[Key]:
        """Return the GangJobs for whose claims a volume may have become available, or not be so any more."""
        claims = self._claims.objects
        unbound = (key for key in self._jobs_of_claim if key not in claims or not claims[key].spec.volume_name)
        return {job for claim in unbound for job in self._jobs_of_claim[claim]}

    def _change_soon(self, jobs: Collection[Key]) -> None:
        if not self._changed_jobs and jobs:
            self._loop.call_later(COLLECT_S, self._report_change)
        self._changed_jobs.update(jobs)

    def _report_change(self) -> None:
        jobs, self._changed_jobs = self._changed_jobs, set()
        self.on_change(jobs)

    # -- placement -----------------------------------------------------------------------------------------------------

    async def prepare(self, start: Start, job: Job) -> None:
        """Have the claims of a gang bound for its nodes. Raises ClaimUnavailableError, ApiError."""
        if not job.spec.volumes:
            return
        namespace = object_names.key_of(start.gang).namespace
        try:
            await self._wait_synced()
            for volume in job.spec.volumes:
                claim = self._world.claim(Key(namespace, volume.name))
                self._check_use(claim, _Use(start.gang, start.nodes[0]))
                await self._bind(claim, start.nodes)
        except RequestError as error:
            raise ClaimUnavailableError(start.nodes[0], error.detail) from None

    def _check_use(self, claim: PersistentVolumeClaim, use: _Use) -> None:
        """Raise ClaimUnavailableError if another gang keeps this one from using a claim; else note that it will."""
        if not claim.is_of_one_node:
            return
        key, now_s = claim.metadata.key, self._loop.time()
        uses = [*self._users.get(key, {}).values()]
        intent, until_s = self._intents.get(key, (use, 0.0))
        if until_s > now_s:
            uses.append(intent)
        nodes = {other.node for other in uses if other.gang != use.gang}
        if nodes and (claim.is_of_one_pod or nodes != {use.node}):
            mode = claim.spec.access_modes[0]
            detail = f"the claim {key.name} is {mode} and in use on {', '.join(sorted(nodes))}"
            raise ClaimUnavailableError(use.node, detail)
        self._intents[key] = use, now_s + INTENT_S

    async def _bind(self, claim: PersistentVolumeClaim, nodes: tuple[str, ...]) -> None:
        """Bind a claim that waits for its first consumer, so that these nodes can use it."""
        volume = self._world.volume_of(claim)
        if volume is None and (given := self._given.get(claim.metadata.uid)) is not None:
            volume = self._world.volumes.get(Key("", given))
        if volume is not None:
            for node in nodes:
                if not holds(terms_of(volume), self._world.labels(node)):
                    labels = " or ".join(map(str, terms_of(volume)))
                    raise ClaimUnavailableError(node, f"the volume of the claim {claim.metadata.name} is on {labels}")
            return
        storage_class = self._world.class_of(claim)
        for volume in self._world.available(claim):
            if all(holds(terms_of(volume), self._world.labels(node)) for node in nodes):
                await self._give(volume, claim)
                return
        if storage_class is not None and storage_class.provisions and claim.spec.selector is None:
            terms = provisioned_terms(storage_class)
            if all(holds(terms, self._world.labels(node)) for node in nodes):
                await self._select_node(claim, nodes[0])
                return
        detail = f"no volume for the claim {claim.metadata.name} is available on {', '.join(nodes)}"
        raise ClaimUnavailableError(nodes[0], detail)

    async def _give(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> None:
        """Give an available volume to a claim; the volume controller then binds the claim to it."""
        about = claim.metadata
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        }
        unchanged = {
            "resourceVersion": volume.metadata.resource_version,
            "annotations": {BOUND_BY_CONTROLLER: "yes"},
        }
        body = {"metadata": unchanged, "spec": {"claimRef": reference}}
        self._given[about.uid] = volume.metadata.name
        try:
            await self._api.merge(ObjectRef(VOLUMES, "", volume.metadata.name), body)
        except ApiError:
            del self._given[about.uid]
            raise

    async def _select_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Write the node to a claim, for which its provisioner then creates a volume."""
        if (selected := self._world.selected_node(claim)) not in ("", node):
            detail = f"the volume of the claim {claim.metadata.name} is being created for {selected}"
            raise ClaimUnavailableError(node, detail)
        about = claim.metadata
        body = {"metadata": {"uid": about.uid, "annotations": {SELECTED_NODE: node}}}
        await self._api.merge(ObjectRef(CLAIMS, about.namespace, about.name), body)

    # -- internals -----------------------------------------------------------------------------------------------------

    async def _wait_synced(self) -> None:
        """Wait until claims, volumes and classes were listed once. Raises RequestError (claim_not_bound)."""
        self._is_needed.set()
        informers = (self._claims, self._volumes, self._classes)
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_S):
                for informer in informers:
                    await informer.synced.wait()
        except TimeoutError:
            errors = {f"{informer.last_error}" for informer in informers if informer.last_error is not None}
            detail = f"volumes: the controller cannot list claims: {', '.join(errors) or 'no answer'}"
            raise RequestError("claim_not_bound", detail, "ganger install --dry-run | kubectl apply -f -") from None

    def _used_on(self, claim: Key) -> Terms:
        """Return a term for the nodes on which a claim is in use."""
        return self._world.on_nodes({use.node for use in self._users.get(claim, {}).values()})


def _use_of(claim: PersistentVolumeClaim) -> object:
    """Return what decides whether and where a claim can be used."""
    return claim.spec, claim.metadata.uid, claim.metadata.deletion_timestamp
