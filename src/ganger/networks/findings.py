"""Findings of network checks: stable codes, what each means for jobs, and how a finding is shown."""

from dataclasses import dataclass
from typing import Final

MEANINGS: Final = {
    "acs_redirect": "a bridge sends traffic between devices through the CPU: RDMA to the memory of a GPU is slow, or "
    "hangs with an IOMMU",
    "chain_incomplete": "the kernel sends packets of every rail by the first, and any rail answers ARP for all",
    "fixed_gid_index": "the index of a GID differs between hosts, and on macvlan and in containers between pods: "
    "connections fail where it is another",
    "gid_mismatch": "the same address has another GID index on each rail: a job that sets NCCL_IB_GID_INDEX or "
    "UCX_IB_GID_INDEX uses a wrong one",
    "iommu_translates": "the IOMMU translates what network cards and GPUs send each other: it is slow, through the CPU",
    "link_down": "the rail carries nothing: jobs wait for it, or run on the rest",
    "memlock_limited": "ranks may not lock the memory that a network card reads: RDMA ends with ENOMEM",
    "missing_network": "pods of the fabric stay in ContainerCreating: Multus cannot attach them",
    "mtu_mismatch": "packets larger than the smaller MTU are dropped: small messages pass, large ones hang",
    "neighbours_cold": "the first messages of a job wait for ARP: with many peers at once connections time out",
    "no_dcqcn": "senders do not slow down when told that a switch is full: the network pauses as a whole under load",
    "no_ecn": "receivers do not tell senders that a switch is full: the network pauses as a whole under load",
    "no_gid": "the RDMA device has no address of its rail: RoCE connections fail",
    "no_gpudirect": "network cards cannot read the memory of GPUs: every message is copied to the host's memory first",
    "no_interface": "the rail does not exist on this host",
    "no_nodes": "no node is on the fabric: jobs that ask for it are refused",
    "no_pfc": "packets of RDMA are dropped when a switch is full: throughput collapses",
    "no_resource": "no device plugin offers the resource: kubelets reject every pod of the fabric",
    "one_pool": "one resource for several rails: Multus gives its devices to rails in any order, so that a rail may be "
    "attached to the network card of another",
    "pool_mismatch": "the definition belongs to another resource than the pod asks for: the pod gets no device",
    "rdma_shared": "every pod sees the RDMA devices of all: the plug-in rdma cannot move one into a pod",
    "unreadable": "the check could not be made",
    "vf_maximum": "fewer virtual functions than pods: kubelets reject pods that the scheduler has placed",
    "vfs_merged": "NCCL takes the virtual functions of a network card for one device: ranks share a rail, others idle",
    "vfs_of_one_card": "two rails share one network card: half of the bandwidth, and NCCL counts them as one",
    "wrong_fabric": "the RDMA device is on another kind of network than the profile says",
    "wrong_rail": "a network card is on another rail than the profile says: its packets cross to other rails",
    "wrong_traffic_class": "connections of the RDMA connection manager are not in the class that is free of loss",
    "wrong_trust": "the network card ignores the DSCP of packets: RDMA shares a queue with everything else",
    "wrong_vlan": "packets are tagged for another VLAN than that of the rail: no peer gets them",
}
"""Codes of findings, and what each means for jobs."""
UNREADABLE: Final = "unreadable"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that keeps a fabric from working.

    Attributes:
        code: one of `MEANINGS`.
        what: what was found, and where.
        fix: what to do, mostly a command.
    """

    code: str
    what: str
    fix: str

    @property
    def why(self) -> str:
        """Its meaning for jobs."""
        return MEANINGS[self.code]
