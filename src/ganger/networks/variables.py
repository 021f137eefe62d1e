"""Environment variables of NCCL, UCX and Gloo that follow from a network profile, and what a job replaces of them.

Each value has its reason beside it. What NCCL and UCX choose well by themselves is not set: above all the index of a
GID, which differs between hosts, and with macvlan between pods of one host.
"""

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from ganger.model.cluster import HOST_DEVICE, IB, MACVLAN, SRIOV, TCP
from ganger.model.job import JobSpec
from ganger.model.network_profile import NetworkProfile

ECN_CAPABLE: Final = 2
"""The two bits below the DSCP: the switches may mark packets instead of dropping them."""
MAX_SHOWN: Final = 100
"""Characters of a value that are shown."""
GID_INDEX_VARIABLES: Final = ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX")
GID_CHOICE: Final = "NCCL chooses the GID by NCCL_IB_ADDR_RANGE, which address_range of the profile sets"
_GPU_TRANSPORTS: Final = {
    "nvidia.com/gpu": ("cuda_copy", "cuda_ipc"),
    "amd.com/gpu": ("rocm_copy", "rocm_ipc"),
}
"""UCX transports for the memory of GPUs, by their resource."""


@dataclass(frozen=True, slots=True)
class ReplacedVariable:
    """A variable of a profile in whose place ranks see that of the job.

    Attributes:
        name: its name.
        profile_value: value by the profile.
        job_value: value of the job; None: it is not shown, since it is a secret or is read from another object.
        key: the key of the job that has it: env, roles.chief.env, secrets, pod.container.env.
        role: the role whose ranks alone see it; empty: all do.
    """

    name: str
    profile_value: str
    job_value: str | None
    key: str
    role: str = ""

    @property
    def text(self) -> str:
        """One sentence."""
        value = self.job_value or "an empty value"
        if len(value) > MAX_SHOWN or not value.isprintable():  # it stands in a comment, and in an Event
            value = json.dumps(value)[:MAX_SHOWN]
        value = "a value that is not shown" if self.job_value is None else value
        return f"{self.name}: {self.key} sets {value} in place of the profile's {self.profile_value}"


def variables(profile: NetworkProfile, gpu_resource: str, gpus: int) -> dict[str, str]:
    """Return the variables of a pod with these GPUs; those of `profile.env` take precedence over derived ones."""
    return {**dict(_derived(profile, gpu_resource if gpus else "")), **profile.env}


def traffic_class(profile: NetworkProfile) -> int | None:
    """Return the traffic class of RoCE packets, which has the DSCP in its upper six bits; None: not specified."""
    return None if profile.dscp is None else profile.dscp << 2 | ECN_CAPABLE


def replaced(profile_variables: Mapping[str, str], spec: JobSpec) -> list[ReplacedVariable]:
    """Return which variables of a profile a job replaces by a value of its own.

    The pod's container has the variables of the profile, without those that `pod.container` sets. For the ranks the
    launcher sets `env`, that of a role, and secrets, over those of the container.
    """
    found = []
    items = spec.pod.container.get("env", ()) if spec.pod is not None else ()
    in_container = {item.get("name"): item.get("value") for item in items}
    for name, value in profile_variables.items():
        if name in spec.secrets:
            found.append(ReplacedVariable(name, value, None, "secrets"))
        elif name in spec.env:
            found.append(ReplacedVariable(name, value, spec.env[name], "env"))
        elif name in in_container:
            found.append(ReplacedVariable(name, value, in_container[name], "pod.container.env"))
        for role, of_role in spec.roles.items():
            if name in of_role.env:
                found.append(ReplacedVariable(name, value, of_role.env[name], f"roles.{role}.env", role))
    return [variable for variable in found if variable.job_value != variable.profile_value]


def gid_index_variables(names: Container[str]) -> str:
    """Return which variables fix the index of a GID; empty if none does."""
    return " and ".join(name for name in GID_INDEX_VARIABLES if name in names)


def gid_index_warnings(env: Mapping[str, str], roles: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield a sentence for each key of a job that fixes the index of a GID: `env`, or that of a role."""
    for key, variables in {"env": env, **{f"roles.{name}.env": of_role for name, of_role in roles.items()}}.items():
        if fixed := gid_index_variables(variables):
            yield (
                f"{key} sets {fixed}: on macvlan and in containers the index differs between pods, and connections "
                f"fail: leave it out; {GID_CHOICE}"
            )


def _derived(profile: NetworkProfile, gpu_resource: str) -> Iterator[tuple[str, str]]:
    bootstrap, interfaces = profile.bootstrap_interface, ",".join(rail.interface for rail in profile.rails)
    # Gloo exchanges small control messages, and takes the first address of the host's name without this.
    yield "GLOO_SOCKET_IFNAME", bootstrap
    # Without a list UCX tries every transport that it finds, and falls back to TCP silently where RDMA fails.
    transports = ["tcp" if profile.fabric == TCP else "rc", "sm", "self", *_GPU_TRANSPORTS.get(gpu_resource, ())]
    yield "UCX_TLS", ",".join(transports)
    # Ranks find each other over the cluster's network, which every pod has, not over a rail. `=` is an exact name:
    # eth0 alone would also stand for eth01.
    yield "NCCL_OOB_NET_IFNAME", f"={bootstrap}"
    if profile.rail_isolated is not None:
        # Between isolated rails there is no route, so a ring stays on its rail (0); on one switch every pair of cards
        # is equally near, and rings may cross (1). Otherwise NCCL finds out which is better.
        yield "NCCL_CROSS_NIC", "0" if profile.rail_isolated else "1"
    if profile.fabric == TCP:
        # Hosts may have RDMA devices that this fabric is not for.
        yield "NCCL_IB_DISABLE", "1"
        yield "NCCL_SOCKET_IFNAME", f"={interfaces or bootstrap}"
        yield "UCX_NET_DEVICES", interfaces or bootstrap
        return
    # Without it NCCL may take a rail for its sockets too, whose packets no switch protects.
    yield "NCCL_SOCKET_IFNAME", f"={bootstrap}"
    devices = [rail.hca for rail in profile.rails if rail.hca is not None]
    # Of a virtual function, and of a claim, the name is not known before the pod is on its node.
    if profile.attach in (HOST_DEVICE, MACVLAN) and len(devices) == len(profile.rails):
        # Leaves out the ports of storage and management, and, of shared devices, all that are not rails.
        yield "NCCL_IB_HCA", f"={','.join(devices)}"
        yield "UCX_NET_DEVICES", ",".join(f"{device}:1" for device in devices)
    if profile.attach == SRIOV:
        # By default NCCL takes the virtual functions of a card for one device: in a pod each of them is a rail.
        yield "NCCL_IB_MERGE_VFS", "0"
    if profile.queue_pairs is not None:
        # Switches choose a path by the ports of a connection: more queue pairs spread it over more paths.
        yield "NCCL_IB_QPS_PER_CONNECTION", str(profile.queue_pairs)
    if profile.gdr_level is not None:
        # The longest way between GPU and card for which NCCL reads GPU memory directly; its own choice is mostly right.
        yield "NCCL_NET_GDR_LEVEL", profile.gdr_level
    if profile.port_failover:
        # A port that is lost moves its traffic to another one instead of ending the job, and back when it returns.
        yield "NCCL_IB_RESILIENCY_PORT_FAILOVER", "1"
        yield "NCCL_IB_RESILIENCY_PORT_RECOVERY", "1"
    yield from _infiniband(profile) if profile.fabric == IB else _roce(profile)


def _infiniband(profile: NetworkProfile) -> Iterator[tuple[str, str]]:
    # Switches of InfiniBand may send the packets of one message over several paths; NCCL orders them again.
    yield "NCCL_IB_ADAPTIVE_ROUTING", "1"
    if profile.service_level is not None:
        # The subnet manager gives each service level its lane.
        yield "NCCL_IB_SL", str(profile.service_level)
        yield "UCX_IB_SL", str(profile.service_level)


def _roce(profile: NetworkProfile) -> Iterator[tuple[str, str]]:
    if (number := traffic_class(profile)) is not None:
        # The class that the switches keep free of loss.
        yield "NCCL_IB_TC", str(number)
        yield "UCX_IB_TRAFFIC_CLASS", str(number)
    if profile.address_range is not None:
        # Chooses the GID by its address, in place of an index.
        yield "NCCL_IB_ADDR_RANGE", profile.address_range
        if ip_network(profile.address_range).version == 6:
            yield "NCCL_IB_ADDR_FAMILY", "AF_INET6"
    subnets = {rail.subnet for rail in profile.rails if rail.subnet is not None}
    lengths = {ip_network(subnet).prefixlen for subnet in subnets}
    if profile.rail_isolated and len(subnets) == len(profile.rails) > 1 and len(lengths) == 1:
        # Connects only cards of one subnet: from one rail to another there is no route.
        yield "NCCL_IB_SUBNET_AWARE_ROUTING", "1"
        yield "NCCL_IB_SUBNET_PREFIX_LEN", str(*lengths)
