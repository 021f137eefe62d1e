"""Network profiles: a description of one fabric of a cluster, from which follows what pods need to use it.

`networks.render` derives annotations, resources and environment from a profile, `networks.host_checks` what a host
must have. A rail is one network card of every node and the part of the fabric that it is connected to.
"""

from dataclasses import dataclass
from typing import Final

from ganger.model.described import described, naming

NETWORKS_ANNOTATION: Final = "k8s.v1.cni.cncf.io/networks"
"""Annotation for Multus, which says what networks are attached to a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """A rail: a network card of each node, and how pods get it."""

    name: str = described("name of the rail: rail0", form="rail_name")
    network: str | None = described(
        "NetworkAttachmentDefinition, as NAMESPACE/NAME: fabric/rail0", form="network_ref", default=None
    )
    resource: str | None = described(
        "extended resource of the device plugin that hands out its devices: openshift.io/rail0",
        form="resource_name",
        default=None,
    )
    claim: str | None = described(
        "with attach: dra, a ResourceClaimTemplate in the namespace of the job; unset: ganger writes one for each job",
        form="object_name",
        default=None,
    )
    interface: str = described("name of the interface in the pod: net1", form="interface_name")
    host_interface: str | None = described(
        "name of the interface on the host: ens1f0", form="interface_name", default=None
    )
    hca: str | None = described("name of the RDMA device on the host: mlx5_0", form="interface_name", default=None)
    subnet: str | None = described("subnet of the addresses of its interfaces: 10.0.0.0/24", form="cidr", default=None)
    neighbours: dict[str, str] = described(
        "with attach: dra, hardware addresses that pods know without asking: {10.0.0.1: 02:00:00:00:00:01}",
        form="neighbours",
        factory=dict,
    )
    vlan: int | None = described(
        "with Ethernet, number of its VLAN; host_interface is that of the VLAN, but with attach: sriov the card's",
        form="vlan",
        default=None,
    )
    gateway: str | None = described("router to the subnets of other nodes: 10.0.0.1", form="ip_address", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProfile:
    """A fabric: its kind, its rails, and how pods are attached to them."""

    name: str = naming("object_name")
    fabric: str = described("kind of the fabric, which jobs ask for by placement.network", form="fabric")
    attach: str = described(
        "sriov: a virtual function of each rail; hostdev: the whole network card; macvlan: a macvlan interface, with "
        "RDMA devices that pods share; dra: a claim for each rail; cluster: the cluster's own network, without rails",
        form="attachment",
    )
    node_selector: dict[str, str] = described("labels of the nodes on the fabric", form="labels", factory=dict)
    rails: tuple[Rail, ...] = described("its rails, in the same order on every node", default=())
    mtu: int | None = described("MTU of every rail: 9000", form="mtu", default=None)
    dscp: int | None = described("with fabric: roce, DSCP of RDMA packets: 26", form="dscp", default=None)
    priority: int = described("with fabric: roce, priority that is free of loss", form="traffic_priority", default=3)
    service_level: int | None = described("with fabric: ib, service level", form="service_level", default=None)
    address_range: str | None = described("range of the addresses of all rails: 10.0.0.0/16", form="cidr", default=None)
    rail_isolated: bool | None = described(
        "true: no packet goes from one rail to another; NVLink within the nodes connects them; false: all rails are on "
        "one switch; unset: NCCL finds out which ways it uses",
        form="flag",
        default=None,
    )
    queue_pairs: int | None = described(
        "with RDMA, queue pairs of each connection of NCCL, over which switches spread it: 4",
        form="queue_pair_count",
        default=None,
    )
    gdr_level: str | None = described(
        "with RDMA, longest way between GPU and network card for which NCCL uses GPUDirect: PIX, PXB, PHB or SYS",
        form="gdr_level",
        default=None,
    )
    port_failover: bool = described(
        "with RDMA, true: NCCL goes on over another port when one is lost, and back when it returns",
        form="flag",
        default=False,
    )
    env: dict[str, str] = described(
        "further variables of the ranks, which take precedence over those that follow from the profile",
        form="variables",
        factory=dict,
    )
    bootstrap_interface: str = described(
        "interface of the cluster's network in the pod, over which processes find each other",
        form="interface_name",
        default="eth0",
    )
    topology_file: str | None = described(
        "ConfigMap with NCCL's description of the nodes, key topology.xml, in the namespace of the job",
        form="object_name",
        default=None,
    )
    device_class: str = described(
        "with attach: dra, DeviceClass of the network cards", form="object_name", default="dranet"
    )
    gpu_class: str | None = described(
        "with attach: dra, DeviceClass of GPUs: each rail's claim has one too, on the same PCIe root: gpu.nvidia.com",
        form="object_name",
        default=None,
    )
    virtual_functions: int | None = described(
        "with attach: sriov, virtual functions of each network card; unset: as many as the node has GPUs",
        form="function_count",
        default=None,
    )
