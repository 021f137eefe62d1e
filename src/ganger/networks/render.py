"""Additions to a pod that uses a fabric, from its network profile: a pure function.

Variables of a job take precedence over those of its profile.
"""

import json
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, Final

from ganger.model.cluster import CLUSTER, DRA, HOST_DEVICE, IB, MACVLAN, ROCE, TCP
from ganger.model.network_profile import NETWORKS_ANNOTATION, NetworkProfile, Rail
from ganger.networks.attachments import APPLY_NETWORKS, ARP_SYSCTLS
from ganger.networks.dranet import claim_spec, template_name
from ganger.networks.variables import variables

TOPOLOGY_VOLUME: Final = "network-topology"
TOPOLOGY_FOLDER: Final = "/ganger/network"
TOPOLOGY_KEY: Final = "topology.xml"
IPC_LOCK: Final = "IPC_LOCK"
"""Capability to register memory with a network card beyond the limit of locked memory."""
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod and its node.

    Attributes:
        gpus: GPUs of the pod.
        node_gpus: GPUs of the node.
        gpu_resource: resource of the node's GPUs; empty if it has none.
        exclusive: no other pod with GPUs is on the node.
        job: name of its GangJob, by which its claim templates are named.
    """

    gpus: int = 0
    node_gpus: int = 0
    gpu_resource: str = ""
    exclusive: bool = False
    job: str = "JOB"

    @property
    def has_node(self) -> bool:
        """True if the pod has the node for itself."""
        return self.exclusive or self.gpus == self.node_gpus > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """Additions to a pod.

    Attributes:
        annotations: annotations of the pod.
        resources: extended resources of the container, as requests and limits.
        claims: ResourceClaimTemplates of the pod by name of the claim.
        templates: specs of those that ganger writes, by name of the template.
        env: variables of the container.
        capabilities: capabilities of the container.
        volumes: volumes of the pod, and where the container mounts each.
        expected: what `init_check` has to find in the pod.
    """

    annotations: dict[str, str] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    templates: dict[str, Object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    volumes: tuple[tuple[Object, str], ...] = ()
    expected: Object = field(default_factory=dict)


def fits(profile: NetworkProfile, pod: PodFacts) -> bool:
    """Return whether pods like this one may use the profile: a whole network card is for one pod of its node."""
    return profile.attach != HOST_DEVICE or pod.has_node


def render(profile: NetworkProfile, pod: PodFacts) -> PodNetwork:
    """Return what the pod needs. It gets every rail: ranks use the network cards nearest to their GPUs."""
    gpus, gpu_resource = pod.gpus, pod.gpu_resource
    if profile.gpu_class is not None:  # the claims have them: gpu.nvidia.com is for nvidia.com/gpu
        gpus, gpu_resource = len(profile.rails), f"{profile.gpu_class.removeprefix('gpu.')}/gpu"
    volumes, env = list[tuple[Object, str]](), variables(profile, gpu_resource, gpus)
    if profile.topology_file is not None:
        source = {"name": profile.topology_file, "items": [{"key": TOPOLOGY_KEY, "path": TOPOLOGY_KEY}]}
        volumes.append(({"name": TOPOLOGY_VOLUME, "configMap": source}, TOPOLOGY_FOLDER))
        env.setdefault("NCCL_TOPO_FILE", f"{TOPOLOGY_FOLDER}/{TOPOLOGY_KEY}")
    resources: dict[str, int] = {}
    for rail in profile.rails:
        if rail.resource is not None and profile.attach != DRA:
            # Shared devices are not handed out one by one: one of them gives access to all.
            resources[rail.resource] = 1 if profile.attach == MACVLAN else resources.get(rail.resource, 0) + 1
    claims, templates = dict[str, str](), dict[str, Object]()
    for rail in profile.rails if profile.attach == DRA else ():
        claims[rail.name] = rail.claim or ""
        if rail.claim is None:
            spec = claim_spec(profile, rail)
            claims[rail.name] = name = template_name(pod.job, rail, spec)
            templates[name] = spec
    return PodNetwork(
        annotations=_annotations(profile),
        resources=resources,
        claims=claims,
        templates=templates,
        env=env,
        capabilities=() if profile.fabric == TCP else (IPC_LOCK,),
        volumes=tuple(volumes),
        expected=_expected(profile),
    )


def _annotations(profile: NetworkProfile) -> dict[str, str]:
    """Return the annotation for Multus, which attaches the rails in this order."""
    if profile.attach in (DRA, CLUSTER):
        return {}
    networks = []
    for rail in profile.rails:
        namespace, _, name = (rail.network or "").partition("/")
        networks.append({"name": name, "namespace": namespace, "interface": rail.interface})
    return {NETWORKS_ANNOTATION: json.dumps(networks)}


def _expected(profile: NetworkProfile) -> Object:
    """Return what a pod has when its rails are attached; empty without rails."""
    if not profile.rails:
        return {}
    rdma = profile.fabric in (IB, ROCE)
    # A chain of plug-ins gives several rails of Ethernet routing tables, as `attachments` renders it.
    is_routed = profile.fabric != IB and len(profile.rails) > 1 and all(rail.subnet for rail in profile.rails)
    # An interface of InfiniBand has an IP address only with IPoIB.
    of_rail = [
        {
            "interface": rail.interface,
            "mtu": profile.mtu or 0,
            "subnet": (rail.subnet or "") if profile.fabric != IB else "",
            "gateway": (rail.gateway or "") if profile.fabric != IB else "",
            "beyond": _beyond(profile, rail) if rail.gateway is not None else "",
        }
        for rail in profile.rails
    ]
    return {
        "rails": of_rail,
        "rdma_devices": len(profile.rails) if rdma else 0,
        "locked_memory": rdma,
        "routed": _routed(profile) if is_routed else {},
    }


def _routed(profile: NetworkProfile) -> Object:
    """Return the settings by which several rails keep to themselves, and who sets them up."""
    if profile.attach == DRA:
        # The driver has no setting for rp_filter: with a rule for each rail the way back is the right one.
        sysctls = {key: value for key, value in ARP_SYSCTLS.items() if key != "rp_filter"}
        return {"sysctls": sysctls, "fix": "see the configuration of its ResourceClaim, and the log of the DRA driver"}
    fix = f"add the plug-ins tuning and sbr to its NetworkAttachmentDefinition: {APPLY_NETWORKS}"
    return {"sysctls": dict(ARP_SYSCTLS), "fix": fix}


def _beyond(profile: NetworkProfile, rail: Rail) -> str:
    """Return an address of the fabric outside of a rail's subnet, reached by its gateway; empty if there is none."""
    if profile.address_range is None or rail.subnet is None:
        return ""
    around, subnet = ip_network(profile.address_range), ip_network(rail.subnet)
    ends = [around[index] for index in (-2, 1)] if around.num_addresses > 1 else []
    return next((str(address) for address in ends if address not in subnet), "")
