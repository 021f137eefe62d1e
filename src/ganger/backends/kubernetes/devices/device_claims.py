"""ResourceClaims of the pods that ganger places: counted when they are placed, and allocated before they are bound.

kube-scheduler does not see these pods, so what it does for theirs is done here: the devices of a claim, and the pod
that uses it, are written to its status. Claims of templates are made by kube-controller-manager, which also frees
claims whose pods have ended.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from ganger.backends.kubernetes.devices.allocator import Granted, NoDevicesError
from ganger.backends.kubernetes.devices.claim_needs import KindDemand, configuration_of, demands_of, kind_of
from ganger.backends.kubernetes.devices.device_inventory import DeviceInventory
from ganger.backends.kubernetes.devices.job_claims import check_names, source_of, source_of_object, with_demands
from ganger.backends.kubernetes.devices.kind_users import KindUsers, Source
from ganger.backends.kubernetes.devices.published_devices import DeviceRequestError
from ganger.backends.kubernetes.nodes.pod_requests import PodResources, pod_request
from ganger.backends.kubernetes.pod_networks import RailClaim, counts_per_process
from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import owner_reference
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.device_objects import ClaimSpec, DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from ganger.kubeapi.informer import HasMetadata, Informer
from ganger.kubeapi.objects import CustomObject, Key, Object, ObjectMeta, Pod, PodResourceClaim
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import CLAIM_TEMPLATES, DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from ganger.model.job import JobSpec
from ganger.networks.dranet import template

_log = logging.getLogger(__name__)

COLLECT_S: Final = 0.2
"""Time for which changes are collected: a driver that starts publishes many slices."""
CLAIMS_S: Final = 20.0
"""Time for which the claims of created pods are waited for."""
POLL_S: Final = 0.05
MADE_FOR: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that kube-controller-manager has made from a template."""
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Keeps a claim until kube-controller-manager has freed its devices."""
_CLAIM_KEYS: Final = (b'"resourceClaims"', b'"network"')
"""Keys of a GangJob whose pods may have claims."""
T = TypeVar("T", bound=HasMetadata)


class DevicesUnavailableError(Exception):
    """A gang that cannot have its devices on its nodes now."""

    def __init__(self, node: str, detail: str) -> None:
        super().__init__(detail)
        self.node, self.detail = node, detail


@dataclass(frozen=True, slots=True)
class ClaimWrite:
    """An allocation to be written to a claim. granted: None if the claim is allocated already."""

    claim: ResourceClaim
    pod: Pod
    node: str
    granted: tuple[Granted, ...] | None


class DeviceClaims:
    """Claims of pods, and the devices of nodes.

    Attributes:
        claims, templates, slices, classes: informers of the objects, which `run` follows.
        rails: returns the claims of rails that pods on these fabrics have beside their own.
        on_change: called with the GangJobs that have claims when the devices that they may get have changed.
        on_foreign_change: the same, for foreign pods.
    """

    def __init__(
        self,
        api: ApiClient,
        inventory: DeviceInventory,
        pods: Mapping[Key, Pod],
        claim_changed: Callable[[ResourceClaim | None, ResourceClaim | None], None],
    ) -> None:
        self._api, self._inventory, self._pods, self._report_claim = api, inventory, pods, claim_changed
        self.claims = Informer(api, RESOURCE_CLAIMS, self._claim_changed)
        self.templates = Informer(api, CLAIM_TEMPLATES, self._template_changed)
        self.slices = Informer(api, RESOURCE_SLICES, self._slice_changed)
        self.classes = Informer(api, DEVICE_CLASSES, self._class_changed)
        self._jobs: dict[Key, Source] = {}
        """GangJobs with claims."""
        self._users = KindUsers(inventory.forget_kind)
        self._uncounted: set[Key] = set()
        """Those that existed before this controller, and whose templates do not exist."""
        self.rails: Callable[[tuple[str, ...]], tuple[RailClaim, ...]] = lambda networks: ()  # noqa: ARG005
        self.on_change: Callable[[Collection[Key]], None] = lambda jobs: None  # noqa: ARG005
        self.on_foreign_change: Callable[[], None] = lambda: None
        self._pending_report: asyncio.TimerHandle | None = None

    @property
    def informers(self) -> tuple[tuple[Informer[HasMetadata], Resource[HasMetadata]], ...]:
        """The informers, and what they follow."""
        return (  # type: ignore[return-value]  # each is of its own type
            (self.claims, RESOURCE_CLAIMS),
            (self.templates, CLAIM_TEMPLATES),
            (self.slices, RESOURCE_SLICES),
            (self.classes, DEVICE_CLASSES),
        )

    # -- changes -------------------------------------------------------------------------------------------------------

    def job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        """Note the claims of a GangJob that was added or deleted; they never change."""
        if after is None and before is not None:
            if (source := self._jobs.pop(before.metadata.key, None)) is not None:
                self._users.remove_job(source)
        elif after is not None and before is None and any(key in bytes(after.spec) for key in _CLAIM_KEYS):
            with suppress(msgspec.ValidationError):  # it is refused
                source = source_of_object(after)
                if source.parts or source.networks:
                    self._jobs[after.metadata.key] = source
                    self._users.add_job(source)

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a change of a Pod: the kind of one that is gone is not counted for it any more."""
        if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
            self._users.remove_pod(before.metadata.uid)

    def count_jobs(self) -> None:
        """Count the kinds of pods of the GangJobs that exist, of which a restarted controller knows the names alone."""
        self._uncounted = {key for key, source in self._jobs.items() if not self._count_job(source)}

    def _count_job(self, source: Source) -> bool:
        try:
            self._count(source, self._demands(source))
        except DeviceRequestError:
            return False
        return True

    def _claim_changed(self, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        self._inventory.claim_changed(before, after)
        self._report_claim(before, after)
        if not any(MADE_FOR in each.metadata.annotations for each in (before, after) if each is not None) and (
            before is None or after is None or before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
        ):
            self._report_soon()  # of others, and of what claims hold, nothing but the amounts of nodes follows

    def _template_changed(self, before: ResourceClaimTemplate | None, after: ResourceClaimTemplate | None) -> None:
        if after is not None and before is None:
            self._report_soon()

    def _slice_changed(self, before: ResourceSlice | None, after: ResourceSlice | None) -> None:
        self._inventory.slice_changed(before, after)
        self._report_soon()

    def _class_changed(self, before: DeviceClass | None, after: DeviceClass | None) -> None:
        self._inventory.class_changed(before, after)
        self._report_soon()

    def _report_soon(self) -> None:
        if self._pending_report is None:
            self._pending_report = asyncio.get_running_loop().call_later(COLLECT_S, self._report)

    def _report(self) -> None:
        self._pending_report = None
        self._users.forget_unused()
        live = ((key, self._jobs.get(key)) for key in self._uncounted)
        self._uncounted = {key for key, source in live if source is not None and not self._count_job(source)}
        if self._jobs:
            self.on_change(tuple(self._jobs))
        self.on_foreign_change()

    # -- counting ------------------------------------------------------------------------------------------------------

    def has_claims(self, namespace: str, spec: JobSpec) -> bool:
        """Return whether the pods of a job have claims, of its own or for rails; from any thread."""
        source = source_of(namespace, spec)
        return bool(source.parts or self.rails(source.networks))

    async def count(self, namespace: str, spec: JobSpec) -> JobSpec:
        """Return a job's spec with the devices of its claims as resources of nodes and roles. Raises RequestError."""
        source = source_of(namespace, spec)
        rails = self.rails(source.networks)
        if not source.parts and not rails:
            return spec
        for informer, _ in self.informers:
            await informer.synced.wait()
        try:
            check_names(source, rails)
            demands = self._demands(source)
            for demand in demands:
                self._inventory.check(demand.kind.claims, demand.kind.indices)
        except DeviceRequestError as error:
            where = "pod.spec.resourceClaims" if source.parts else "placement.network"
            detail, _, remedy = f"{where}: {error}".partition("; ")
            raise RequestError("bad_claim", detail, f"{remedy or 'change it'}: this job waits for it") from None
        self._count(source, demands)
        amounts = [demand.amounts for demand in demands]
        of_rails = amounts[-1] if rails and (not spec.roles or counts_per_process(spec)) else {}
        return with_demands(spec, dict(zip(source.parts, amounts, strict=False)), of_rails)

    def _demands(self, source: Source) -> list[KindDemand]:
        """Return the demand of each part of a job, and then of rails. Raises DeviceRequestError."""
        kinds = [kind_of(self._specs(source.namespace, part), source.indices) for part in source.parts]
        if rails := self.rails(source.networks):
            kinds.append(kind_of([rail.spec or self._template_spec(source.namespace, rail.template) for rail in rails]))
        return demands_of(kinds)

    def _count(self, source: Source, demands: Iterable[KindDemand]) -> None:
        for kind in (kind for demand in demands for kind in demand.kinds):
            self._inventory.count_kind(kind.claims, kind.indices)
            self._users.note_source(source, kind.name)

    def request(self, pod: Pod) -> PodResources:
        """Return what a pod requests, with its devices as a resource. Raises DeviceRequestError."""
        request = pod_request(pod)
        if not pod.spec.resource_claims:
            return request
        try:
            checked = self._inventory.check(self._specs(pod.metadata.namespace, pod.spec.resource_claims))
            kind = checked.name
            current = self._pods.get(pod.metadata.key)
            if current is not None and current.metadata.uid == pod.metadata.uid:
                self._inventory.count_kind(checked.claims)
                self._users.note_pod(pod.metadata.uid, kind)
        except DeviceRequestError:
            kind = pod.metadata.annotations.get(object_names.DEVICE_KIND, "")  # it has its devices already
            if not kind:
                raise
        return request.plus(PodResources(extended=((kind, 1),)))._replace(share=request.share)

    def annotation(self, pod: Pod) -> dict[str, str]:
        """Return the annotation by which the devices of a bound pod are counted; none for a pod without claims."""
        with suppress(DeviceRequestError):
            if pod.spec.resource_claims:
                ((kind, _),) = self.request(pod).plus(pod_request(pod), sign=-1).extended
                return {object_names.DEVICE_KIND: kind}
        return {}

    def _specs(self, namespace: str, claims: Iterable[PodResourceClaim]) -> list[ClaimSpec]:
        """Return the specs of claims, which may not exist yet. Raises DeviceRequestError."""
        specs = []
        for claim in claims:
            if name := claim.resource_claim_template_name:
                specs.append(self._template_spec(namespace, name))
            else:
                existing = self.claims.objects.get(Key(namespace, claim.resource_claim_name))
                if existing is None:
                    raise DeviceRequestError(f"there is no ResourceClaim {claim.resource_claim_name}; create it")
                if existing.metadata.deletion_timestamp is not None:
                    raise DeviceRequestError(
                        f"the ResourceClaim {existing.metadata.name} is being deleted; use another"
                    )
                specs.append(existing.spec)
        return specs

    def _template_spec(self, namespace: str, name: str) -> ClaimSpec:
        template = self.templates.objects.get(Key(namespace, name))
        if template is None:
            raise DeviceRequestError(f"there is no ResourceClaimTemplate {name}; create it")
        return template.spec.spec

    # -- allocation ----------------------------------------------------------------------------------------------------

    async def plan(self, placed: Sequence[tuple[Pod, str]]) -> list[ClaimWrite]:
        """Choose the devices of all pods on their nodes, and hold them. Raises DevicesUnavailableError."""
        with_claims = [(pod, node) for pod, node in placed if pod.spec.resource_claims]
        claims = {pod.metadata.uid: await self._claims_of(pod, node) for pod, node in with_claims}
        writes = list[ClaimWrite]()
        try:
            for pod, node in with_claims:  # without waiting: nothing else may get these devices meanwhile
                writes += self._plan_pod(pod, node, claims[pod.metadata.uid], writes)
        except DevicesUnavailableError:
            self._forget(writes)
            raise
        return writes

    async def write_templates(self, job: Key, uid: str, specs: Mapping[str, Object]) -> None:
        """Write the claim templates of a GangJob with this UID, with which they are deleted. Raises ApiError."""
        metadata = {"namespace": job.namespace, "ownerReferences": [owner_reference(job, uid)]}
        labels = {"labels": {object_names.JOB: job.name}}
        for name, spec in specs.items():
            _log.debug("claim template %s of %s", name, job)
            await self._api.apply(CLAIM_TEMPLATES, template(name, spec, metadata | labels))

    async def write(self, write: ClaimWrite) -> None:
        """Write an allocation, or only the pod that uses it, to a claim. Raises ApiError."""
        about = write.claim.metadata
        unchanged = {"uid": about.uid, "resourceVersion": about.resource_version}
        user = {"resource": "pods", "name": write.pod.metadata.name, "uid": write.pod.metadata.uid}
        status: Object = {"reservedFor": [user]}
        if write.granted is not None:
            status["allocation"] = self._allocation(write, write.granted)
            if FINALIZER not in about.finalizers:
                body = {"metadata": {**unchanged, "finalizers": [*about.finalizers, FINALIZER]}}
                updated = await self._api.merge(ObjectRef(RESOURCE_CLAIMS, about.namespace, about.name), body)
                unchanged["resourceVersion"] = updated.metadata.resource_version
        ref = ObjectRef(RESOURCE_CLAIMS, about.namespace, about.name, "status")
        await self._api.merge(ref, {"metadata": unchanged, "status": status})

    async def undo(self, write: ClaimWrite) -> None:
        """Free the devices of a claim, unless its pod is bound or the claim is not the pod's. Raises ApiError.

        On a conflict, call it again: the claim has changed since it was read.
        """
        about, pod = write.claim.metadata, write.pod.metadata
        claim = await self._read(RESOURCE_CLAIMS, about)
        is_reserved = claim is not None and [user.uid for user in claim.status.reserved_for] == [pod.uid]
        if claim is None or not is_reserved:  # never written, or another pod was faster
            self._forget([write])
            return
        bound = await self._read(PODS, pod)
        if bound is not None and bound.spec.node_name:
            return  # kube-controller-manager frees its claims when it has ended
        unchanged = {"uid": about.uid, "resourceVersion": claim.metadata.resource_version}
        freed: Object = {"reservedFor": None} | ({} if write.granted is None else {"allocation": None})
        ref = ObjectRef(RESOURCE_CLAIMS, about.namespace, about.name, "status")
        try:
            await self._api.merge(ref, {"metadata": unchanged, "status": freed})
        except ApiError as error:
            if not error.missing:
                raise
        self._forget([write])

    async def _read(self, resource: Resource[T], about: ObjectMeta) -> T | None:
        """Return an object with this UID as it is now, or None if it is gone. Raises ApiError."""
        try:
            current = await self._api.get(resource, about.name, about.namespace)
        except ApiError as error:
            if error.missing:
                return None
            raise
        return current if current.metadata.uid == about.uid else None

    def _forget(self, writes: Iterable[ClaimWrite]) -> None:
        for write in writes:
            self._inventory.release(write.claim.metadata.key, write.pod.metadata.uid)

    async def _claims_of(self, pod: Pod, node: str) -> list[ResourceClaim]:
        """Wait until the claims of a pod exist; return them. Raises DevicesUnavailableError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + CLAIMS_S
        while (claims := self._existing_claims(pod)) is None:
            if loop.time() > until_s:
                detail = f"the claims of the pod {pod.metadata.name} were not made within {CLAIMS_S:.0f} s"
                raise DevicesUnavailableError(node, f"{detail}; is kube-controller-manager running?")
            await asyncio.sleep(POLL_S)
        return claims

    def _existing_claims(self, pod: Pod) -> list[ResourceClaim] | None:
        """Return the claims of a pod; None until all exist."""
        current = self._pods.get(pod.metadata.key, pod)
        made = {each.name: each.resource_claim_name for each in current.status.resource_claim_statuses}
        claims = list[ResourceClaim]()
        for each in pod.spec.resource_claims:
            name = each.resource_claim_name or made.get(each.name)
            if name == "":
                continue  # a webhook decided that none is needed
            claim = None if name is None else self.claims.objects.get(Key(pod.metadata.namespace, name))
            if claim is None or claim.metadata.deletion_timestamp is not None:
                return None
            claims.append(claim)
        return claims

    def _plan_pod(
        self, pod: Pod, node: str, claims: list[ResourceClaim], planned: list[ClaimWrite]
    ) -> Iterator[ClaimWrite]:
        where = f"the pod {pod.metadata.name} on {node}"
        for claim in claims:
            users = {user.name for user in claim.status.reserved_for if user.uid != pod.metadata.uid}
            users |= {write.pod.metadata.name for write in planned if write.claim.metadata.uid == claim.metadata.uid}
            holder = self._inventory.holder(claim)
            if holder is not None and holder.uid != pod.metadata.uid:
                users.add(holder.name)
            if users:
                detail = f"the ResourceClaim {claim.metadata.name} of {where} is in use by {', '.join(sorted(users))}"
                raise DevicesUnavailableError(node, f"{detail}; use a ResourceClaimTemplate")
            if claim.status.allocation is not None and (other := _node_of(claim)) not in ("", node):
                detail = f"the ResourceClaim {claim.metadata.name} of {where} has its devices on {other}"
                raise DevicesUnavailableError(node, f"{detail}; delete the claim")
        new = [claim for claim in claims if claim.status.allocation is None]
        kinds = [kind for name in object_names.device_kinds(pod.metadata) if (kind := self._inventory.kind(name))]
        try:
            granted = self._inventory.allocate(node, [claim.spec for claim in new], kinds)
        except (NoDevicesError, DeviceRequestError) as error:
            raise DevicesUnavailableError(node, f"{where}: {error}") from None
        by_claim = {claim.metadata.uid: devices for claim, devices in zip(new, granted, strict=True)}
        for claim in claims:
            devices = by_claim.get(claim.metadata.uid)
            if devices is not None:
                self._inventory.assume(claim, devices, pod.metadata)
            yield ClaimWrite(claim, pod, node, devices)

    def _allocation(self, write: ClaimWrite, granted: tuple[Granted, ...]) -> Object:
        results = [
            {
                "request": each.request,
                **dict(zip(("driver", "pool", "device"), each.device, strict=True)),
                **({"adminAccess": True} if each.admin_access else {}),
            }
            for each in granted
        ]
        names = {each.request for each in granted}
        config = configuration_of(write.claim.spec, names, self._inventory.published)
        field = {"key": "metadata.name", "operator": "In", "values": [write.node]}
        return {
            "devices": {"results": results, **({"config": config} if config else {})},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }


def _node_of(claim: ResourceClaim) -> str:
    """Return the node on which a claim has its devices; empty if they are not of one node."""
    allocation = claim.status.allocation
    terms = () if allocation is None else allocation.node_selector.node_selector_terms
    names = [field.values for term in terms for field in term.match_fields if field.key == "metadata.name"]
    return names[0][0] if len(names) == 1 and len(names[0]) == 1 else ""
