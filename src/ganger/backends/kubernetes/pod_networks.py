"""Networks of pods: the profile of each node, for a job that asks for a fabric, and the devices that its pods take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.errors import RequestError
from ganger.gang_jobs.object_names import key_of
from ganger.kubeapi.device_objects import ClaimSpec
from ganger.kubeapi.objects import Object
from ganger.model.cluster import HOST_DEVICE, Node
from ganger.model.decision import Start
from ganger.model.job import Job, JobSpec, Resources
from ganger.model.network_profile import NetworkProfile
from ganger.model.terms import SHARED
from ganger.networks.job_network import gpu_conflict
from ganger.networks.pod_network import join_network
from ganger.networks.render import PodFacts, fits, render
from ganger.networks.variables import gid_index_warnings, replaced


class NoProfileError(Exception):
    """No profile of the fabric is for a pod like this one on the node."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(message)
        self.node = node


@dataclass(frozen=True, slots=True)
class AttemptNetworks:
    """Networks of the pods of an attempt.

    Attributes:
        pods: the pods with their networks.
        templates: specs of the claim templates that have to exist before the pods do, by name.
        changes: sentences: which variables of a profile the job replaces, and that it fixes the index of a GID.
    """

    pods: list[Object]
    templates: dict[str, Object]
    changes: list[str]


def with_rail_devices(spec: JobSpec, profiles: Sequence[NetworkProfile]) -> JobSpec:
    """Return the spec of a job with the devices of rails that each of its pods gets, so that the scheduler counts them.

    Of several profiles that may be the job's, as its nodes decide, only what all of them ask for is counted; nothing,
    if it may run on a fabric without one. Processes of roles may share a pod, which gets each rail once, and each of
    them counts as if it were alone, but not where what they need is theirs in any case: on nodes that no other job
    uses, and of whole cards, which only whole nodes have. Raise RequestError (bad_claim) if the job asks for GPUs, and
    a profile gives it some with its rails.
    """
    candidates = _candidates(spec.placement.network, profiles)
    for profile in candidates:
        if conflict := gpu_conflict(spec, profile):
            raise RequestError("bad_claim", f"placement.network: {conflict}", "leave resources.gpu out")
    if not candidates or (spec.roles and not counts_per_process(spec)):
        return spec
    if spec.roles and any(profile.attach == HOST_DEVICE for profile in candidates):
        return spec
    first, *others = (render(profile, PodFacts()).resources for profile in candidates)
    needs = {
        name: min([count, *(other[name] for other in others)])
        for name, count in first.items()
        if all(name in other for other in others)
    }

    def counted(resources: Resources) -> Resources:
        extended = {**resources.extended, **{name: max(needs[name], resources.extended.get(name, 0)) for name in needs}}
        return replace(resources, extended=extended)

    roles = {name: replace(role, resources=counted(role.resources)) for name, role in spec.roles.items()}
    resources = counted(spec.resources) if spec.has_node_workers else spec.resources
    return replace(spec, resources=resources, roles=roles)


def counts_per_process(spec: JobSpec) -> bool:
    """Return whether what a pod has once is counted for each process of a role: other jobs may be on its nodes."""
    return spec.placement.sharing == SHARED


class RailClaim(NamedTuple):
    """A claim for a rail: of a template that exists, or, with `spec`, of one that ganger writes for each job."""

    name: str
    template: str
    spec: ClaimSpec | None


def rail_claims(networks: Sequence[str], profiles: Sequence[NetworkProfile]) -> tuple[RailClaim, ...]:
    """Return the claims for rails that each pod of a job on these networks has, whatever its nodes are."""
    rendered = [render(profile, PodFacts()) for profile in _candidates(networks, profiles)]
    if not rendered:
        return ()
    first, *others = rendered
    # The name of a template of ganger's is by its content, so equal names are equal claims.
    shared = [item for item in first.claims.items() if all(item in other.claims.items() for other in others)]
    specs = first.templates
    return tuple(
        RailClaim(name, template, msgspec.convert(specs[template], ClaimSpec) if template in specs else None)
        for name, template in shared
    )


def _candidates(networks: Sequence[str], profiles: Sequence[NetworkProfile]) -> list[NetworkProfile]:
    """Return the profiles that may be those of a job's nodes; none if it may run on a fabric without one."""
    candidates = [profile for profile in profiles if profile.fabric in networks]
    return candidates if {profile.fabric for profile in candidates} == {*networks} else []


def join_networks(
    bodies: list[Object], start: Start, job: Job, cache: ClusterCache, *, may_lock_memory: bool
) -> AttemptNetworks:
    """Return the pods of an attempt with their networks. Raises NoProfileError.

    `bodies` are in the order of the attempt's nodes. The fabric is the first that the job asks for and all nodes are
    on. Pods of a job that asks for none, and on nodes without a profile, have the cluster's network alone.
    """
    nodes = [cache.nodes[name] for name in start.nodes]
    asked = job.spec.placement.network
    fabric = next((name for name in asked if all(name in node.networks for node in nodes)), None)
    profiles = [profile for profile in cache.network_profiles if profile.fabric == fabric]
    exclusive = job.spec.placement.sharing != SHARED
    roles = {name: role.env for name, role in job.spec.roles.items()}
    templates = dict[str, Object]()
    joined, changes = list[Object](), dict.fromkeys(gid_index_warnings(job.spec.env, roles) if fabric else ())
    for node, body in zip(nodes, bodies, strict=True):
        pod = PodFacts(
            gpus=sum(len(share.devices) for share in start.shares if share.node == node.name),
            node_gpus=node.gpus,
            gpu_resource=cache.gpu_resources.get(node.name, ""),
            exclusive=exclusive,
            job=key_of(start.gang).name,
        )
        profile = _profile_for(node, profiles, pod)
        if profile is None:
            joined.append(body)
            continue
        network = render(profile, pod)
        joined.append(join_network(body, network, may_lock_memory=may_lock_memory))
        templates |= network.templates
        changes |= dict.fromkeys(change.text for change in replaced(network.env, job.spec))
    return AttemptNetworks(joined, templates, list(changes))


def _profile_for(node: Node, profiles: list[NetworkProfile], pod: PodFacts) -> NetworkProfile | None:
    """Return the first profile by name that fits; None if the node has none of this fabric."""
    of_node = [profile for profile in profiles if profile.node_selector.items() <= node.labels.items()]
    if fitting := [profile for profile in of_node if fits(profile, pod)]:
        return fitting[0]
    if of_node:
        message = f"network profile {of_node[0].name} gives a pod whole network cards"
        remedy = "ask for all GPUs of a node, or for placement.sharing: exclusive"
        raise NoProfileError(
            node.name, f"{message}, and it has {pod.gpus} of {pod.node_gpus} GPUs of {node.name}: {remedy}"
        )
    return None
