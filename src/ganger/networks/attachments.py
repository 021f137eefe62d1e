"""NetworkAttachmentDefinitions of a profile's rails, as Multus reads them.

With several rails in one subnet the kernel sends every packet by the first of them, and answers ARP requests for all
by any: the chain of plug-ins gives each rail a routing table of its own (`sbr`) and answers for its own address
(`tuning`).
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from ganger.model.cluster import CLUSTER, DRA, HOST_DEVICE, IB, MACVLAN, SRIOV, TCP
from ganger.model.network_profile import NetworkProfile, Rail

CNI_VERSION: Final = "1.0.0"
RESOURCE_ANNOTATION: Final = "k8s.v1.cni.cncf.io/resourceName"
APPLY_NETWORKS: Final = "ganger net render FILE --networks | kubectl apply -f -"
ARP_SYSCTLS: Final = {"arp_ignore": "1", "arp_announce": "2", "rp_filter": "2"}
"""An interface answers for its own addresses, asks from them, and accepts packets by any route back."""

Object = dict[str, Any]


def definitions(profile: NetworkProfile) -> Iterator[Object]:
    """Yield the definition of each rail; none where rails are claims, or there are none."""
    if profile.attach in (DRA, CLUSTER):
        return
    for rail in profile.rails:
        namespace, _, name = (rail.network or "").partition("/")
        metadata: Object = {"name": name, "namespace": namespace}
        if rail.resource is not None:
            metadata["annotations"] = {RESOURCE_ANNOTATION: rail.resource}
        config = {"cniVersion": CNI_VERSION, "name": name, "plugins": list(_plugins(profile, rail))}
        yield {
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": metadata,
            "spec": {"config": json.dumps(config)},
        }


def sysctls(interface: str = "IFNAME") -> dict[str, str]:
    """Return the settings of a rail's interface; `tuning` replaces IFNAME."""
    return {f"net.ipv4.conf.{interface}.{name}": value for name, value in ARP_SYSCTLS.items()}


def _plugins(profile: NetworkProfile, rail: Rail) -> Iterator[Object]:
    main: Object = {"type": _main_type(profile)}
    if profile.attach == MACVLAN:
        main |= {"master": rail.host_interface, "mode": "bridge"}
        main |= {"mtu": profile.mtu} if profile.mtu is not None else {}
    if profile.attach == HOST_DEVICE and rail.resource is None:
        main |= {"device": rail.host_interface}
    if profile.attach == SRIOV and rail.vlan is not None:
        main["vlan"] = rail.vlan
    if rail.subnet is not None:
        main["ipam"] = {"type": "whereabouts", "range": rail.subnet}
        if rail.gateway is not None:
            main["ipam"] |= {"exclude": [f"{rail.gateway}/{'128' if ':' in rail.gateway else '32'}"]}
            main["ipam"] |= {"routes": [{"dst": profile.address_range or rail.subnet, "gw": rail.gateway}]}
    yield main
    if profile.fabric != IB:
        tuning: Object = {"type": "tuning", "sysctl": sysctls()}
        yield tuning | ({"mtu": profile.mtu} if profile.mtu is not None else {})
        if rail.subnet is not None:
            yield {"type": "sbr"}
    if profile.fabric != TCP and profile.attach in (SRIOV, HOST_DEVICE):
        yield {"type": "rdma"}


def _main_type(profile: NetworkProfile) -> str:
    if profile.attach == SRIOV:
        return "ib-sriov" if profile.fabric == IB else "sriov"
    return {HOST_DEVICE: "host-device", MACVLAN: "macvlan"}[profile.attach]
