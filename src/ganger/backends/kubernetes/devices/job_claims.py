"""Claims of a job's pods: what names them, in its GangJob and in its spec, and what nodes need for them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from ganger.backends.kubernetes.devices.kind_users import Source
from ganger.backends.kubernetes.devices.published_devices import DeviceRequestError
from ganger.backends.kubernetes.pod_networks import RailClaim
from ganger.kubeapi.objects import CustomObject, PodResourceClaim
from ganger.model.job import WORKER, JobSpec, Resources


class _ClaimsOfPod(msgspec.Struct, rename="camel", frozen=True):
    resource_claims: tuple[PodResourceClaim, ...] = ()


class _PodOfJob(msgspec.Struct, frozen=True):
    spec: _ClaimsOfPod = _ClaimsOfPod()


class _PlacementOfJob(msgspec.Struct, frozen=True):
    devices: int | tuple[int, ...] = ()
    network: str | tuple[str, ...] = ()

    @property
    def networks(self) -> tuple[str, ...]:
        return (self.network,) if isinstance(self.network, str) else self.network

    @property
    def indices(self) -> tuple[int, ...]:
        return (self.devices,) if isinstance(self.devices, int) else tuple(sorted(self.devices))


class _RoleOfJob(msgspec.Struct, frozen=True):
    pod: _PodOfJob = _PodOfJob()


class _JobClaims(msgspec.Struct, frozen=True):
    pod: _PodOfJob = _PodOfJob()
    placement: _PlacementOfJob = _PlacementOfJob()
    roles: dict[str, _RoleOfJob] = {}  # msgspec copies it


def source_of_object(job: CustomObject) -> Source:
    """Return what names the claims of a GangJob. Raises msgspec.ValidationError."""
    read = msgspec.json.decode(job.spec, type=_JobClaims)
    claims = [read.pod.spec.resource_claims, *(role.pod.spec.resource_claims for role in read.roles.values())]
    return Source(job.metadata.key.namespace, _parts(claims), read.placement.indices, read.placement.networks)


def source_of(namespace: str, spec: JobSpec) -> Source:
    """Return the same of a job's spec."""
    sections = [spec.pod, *(role.pod for role in spec.roles.values())]
    claims = (section.spec.get("resourceClaims", ()) for section in sections if section is not None)
    parts = _parts(map(_pod_claims, claims))
    return Source(namespace, parts, tuple(sorted(spec.placement.devices)), spec.placement.network)


def _pod_claims(claims: object) -> tuple[PodResourceClaim, ...]:
    return msgspec.convert(claims, tuple[PodResourceClaim, ...])


def _parts(claims: Iterable[tuple[PodResourceClaim, ...]]) -> tuple[tuple[PodResourceClaim, ...], ...]:
    """Return different sets of claims, in one order whatever the order of the roles is."""
    return tuple(sorted({part for part in claims if part}, key=msgspec.json.encode))


def with_demands(
    spec: JobSpec, amounts: Mapping[tuple[PodResourceClaim, ...], Mapping[str, int]], of_all: Mapping[str, int]
) -> JobSpec:
    """Return a job's spec in which nodes, and processes of roles, need these kinds of devices for their claims.

    amounts: by claims; of_all: what they need beside them.
    """

    def counted(resources: Resources, role: str) -> Resources:
        needs = Counter(of_all)
        needs.update(amounts.get(_pod_claims(spec.claims_of(role)), {}))
        return replace(resources, extended={**resources.extended, **needs}) if needs else resources

    roles = {name: replace(role, resources=counted(role.resources, name)) for name, role in spec.roles.items()}
    resources = counted(spec.resources, WORKER) if spec.has_node_workers else spec.resources
    placement = replace(spec.placement, devices=())  # a part of the kinds
    return replace(spec, resources=resources, roles=roles, placement=placement)


def check_names(source: Source, rails: Iterable[RailClaim]) -> None:
    """Raise DeviceRequestError for a claim of a job that has in its pods, maybe with a rank, the name of a rail."""
    names = [claim.name for part in source.parts for claim in part]
    for rail in rails:
        if any(re.fullmatch(rf"{re.escape(name)}(-\d+)?", rail.name) for name in names):
            raise DeviceRequestError(f"the claim {rail.name} has the name of a rail; choose another name")
