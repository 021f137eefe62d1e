"""Additions to a pod that uses a fabric, from its network profile: a pure function.

The GID index of RoCE is never set: it differs between hosts, and between pods of one host, and NCCL finds the address
in `NCCL_IB_ADDR_RANGE` by itself. Variables of a job take precedence over those set here.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, Final

from ganger.model.cluster import CLUSTER, DRA, HOST_DEVICE, IB, MACVLAN, ROCE, SRIOV, TCP
from ganger.model.network_profile import NETWORKS_ANNOTATION, NetworkProfile

TOPOLOGY_VOLUME: Final = "network-topology"
TOPOLOGY_FOLDER: Final = "/ganger/network"
TOPOLOGY_KEY: Final = "topology.xml"
IPC_LOCK: Final = "IPC_LOCK"
"""Capability to register memory with a network card beyond the limit of locked memory."""
ECN_CAPABLE: Final = 2
"""The two bits below the DSCP: the switches may mark packets instead of dropping them."""
_GPU_TRANSPORTS: Final = {
    "nvidia.com/gpu": ("cuda_copy", "cuda_ipc"),
    "amd.com/gpu": ("rocm_copy", "rocm_ipc"),
}
"""UCX transports for the memory of GPUs, by their resource."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod and its node.

    Attributes:
        gpus: GPUs of the pod.
        node_gpus: GPUs of the node.
        gpu_resource: resource of the node's GPUs; empty if it has none.
        exclusive: no other pod with GPUs is on the node.
    """

    gpus: int = 0
    node_gpus: int = 0
    gpu_resource: str = ""
    exclusive: bool = False

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
        env: variables of the container.
        capabilities: capabilities of the container.
        volumes: volumes of the pod, and where the container mounts each.
        expected: what `init_check` has to find in the pod.
    """

    annotations: dict[str, str] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    volumes: tuple[tuple[Object, str], ...] = ()
    expected: Object = field(default_factory=dict)


def fits(profile: NetworkProfile, pod: PodFacts) -> bool:
    """Return whether pods like this one may use the profile: a whole network card is for one pod of its node."""
    return profile.attach != HOST_DEVICE or pod.has_node


def render(profile: NetworkProfile, pod: PodFacts) -> PodNetwork:
    """Return what the pod needs. It gets every rail: ranks use the network cards nearest to their GPUs."""
    volumes, env = list[tuple[Object, str]](), dict(_environment(profile, pod))
    if profile.topology_file is not None:
        source = {"name": profile.topology_file, "items": [{"key": TOPOLOGY_KEY, "path": TOPOLOGY_KEY}]}
        volumes.append(({"name": TOPOLOGY_VOLUME, "configMap": source}, TOPOLOGY_FOLDER))
        env["NCCL_TOPO_FILE"] = f"{TOPOLOGY_FOLDER}/{TOPOLOGY_KEY}"
    resources: dict[str, int] = {}
    for rail in profile.rails:
        if rail.resource is not None and profile.attach != DRA:
            # Shared devices are not handed out one by one: one of them gives access to all.
            resources[rail.resource] = 1 if profile.attach == MACVLAN else resources.get(rail.resource, 0) + 1
    return PodNetwork(
        annotations=_annotations(profile),
        resources=resources,
        claims={rail.name: rail.claim or "" for rail in profile.rails} if profile.attach == DRA else {},
        env=env,
        capabilities=() if profile.fabric == TCP else (IPC_LOCK,),
        volumes=tuple(volumes),
        expected=_expected(profile),
    )


def traffic_class(profile: NetworkProfile) -> int | None:
    """Return the traffic class of RoCE packets, which has the DSCP in its upper six bits; None: not specified."""
    return None if profile.dscp is None else profile.dscp << 2 | ECN_CAPABLE


def _annotations(profile: NetworkProfile) -> dict[str, str]:
    """Return the annotation for Multus, which attaches the rails in this order."""
    if profile.attach in (DRA, CLUSTER):
        return {}
    networks = []
    for rail in profile.rails:
        namespace, _, name = (rail.network or "").partition("/")
        networks.append({"name": name, "namespace": namespace, "interface": rail.interface})
    return {NETWORKS_ANNOTATION: json.dumps(networks)}


def _environment(profile: NetworkProfile, pod: PodFacts) -> Iterator[tuple[str, str]]:
    bootstrap, interfaces = profile.bootstrap_interface, ",".join(rail.interface for rail in profile.rails)
    yield "GLOO_SOCKET_IFNAME", bootstrap
    transports = ["tcp" if profile.fabric == TCP else "rc", "sm", "self"]
    yield "UCX_TLS", ",".join([*transports, *(_GPU_TRANSPORTS.get(pod.gpu_resource, ()) if pod.gpus else ())])
    if profile.rail_isolated:
        yield "NCCL_CROSS_NIC", "0"
    if profile.fabric == TCP:
        yield "NCCL_IB_DISABLE", "1"
        yield "NCCL_SOCKET_IFNAME", f"={interfaces or bootstrap}"
        yield "NCCL_OOB_NET_IFNAME", f"={bootstrap}"
        yield "UCX_NET_DEVICES", interfaces or bootstrap
        return
    yield "NCCL_SOCKET_IFNAME", f"={bootstrap}"
    devices = [rail.hca for rail in profile.rails if rail.hca is not None]
    # Of a virtual function, and of a claim, the name is not known before the pod is on its node.
    if profile.attach in (HOST_DEVICE, MACVLAN) and len(devices) == len(profile.rails):
        yield "NCCL_IB_HCA", f"={','.join(devices)}"
        yield "UCX_NET_DEVICES", ",".join(f"{device}:1" for device in devices)
    if profile.attach == SRIOV:
        yield "NCCL_IB_MERGE_VFS", "0"
    yield from _infiniband(profile) if profile.fabric == IB else _roce(profile)


def _infiniband(profile: NetworkProfile) -> Iterator[tuple[str, str]]:
    yield "NCCL_IB_ADAPTIVE_ROUTING", "1"
    if profile.service_level is not None:
        yield "NCCL_IB_SL", str(profile.service_level)
        yield "UCX_IB_SL", str(profile.service_level)


def _roce(profile: NetworkProfile) -> Iterator[tuple[str, str]]:
    if (number := traffic_class(profile)) is not None:
        yield "NCCL_IB_TC", str(number)
        yield "UCX_IB_TRAFFIC_CLASS", str(number)
    if profile.address_range is not None:
        yield "NCCL_IB_ADDR_RANGE", profile.address_range
        if ip_network(profile.address_range).version == 6:
            yield "NCCL_IB_ADDR_FAMILY", "AF_INET6"
    subnets = {rail.subnet for rail in profile.rails if rail.subnet is not None}
    lengths = {ip_network(subnet).prefixlen for subnet in subnets}
    if profile.rail_isolated and len(subnets) == len(profile.rails) > 1 and len(lengths) == 1:
        yield "NCCL_IB_SUBNET_AWARE_ROUTING", "1"
        yield "NCCL_IB_SUBNET_PREFIX_LEN", str(*lengths)


def _expected(profile: NetworkProfile) -> Object:
    """Return what a pod has when its rails are attached; empty without rails."""
    if not profile.rails:
        return {}
    rdma = profile.fabric in (IB, ROCE)
    # An interface of InfiniBand has an IP address only with IPoIB.
    of_rail = [
        {
            "interface": rail.interface,
            "mtu": profile.mtu or 0,
            "subnet": (rail.subnet or "") if profile.fabric != IB else "",
        }
        for rail in profile.rails
    ]
    return {"rails": of_rail, "rdma_devices": len(profile.rails) if rdma else 0, "locked_memory": rdma}
