"""Checks of a host against a network profile: read-only, on its files or on a copy of them."""

from collections.abc import Iterator
from ipaddress import ip_network

from ganger.model.cluster import HOST_DEVICE, IB, MACVLAN, ROCE, SRIOV
from ganger.model.network_profile import NetworkProfile, Rail
from ganger.networks.findings import UNREADABLE, Finding
from ganger.networks.host_tree import HostTree
from ganger.networks.variables import traffic_class


def check_host(profile: NetworkProfile, host: HostTree) -> list[Finding]:
    """Return what is wrong with the host's part of a fabric."""
    found = list(_cards(profile, host))
    for rail in profile.rails:
        if rail.host_interface is None and rail.hca is None:
            what = f"rail {rail.name}: the profile does not say which network card it is"
            found.append(Finding(UNREADABLE, what, "write host_interface, or hca, of the rail"))
        if rail.host_interface is not None:
            found += _interface(profile, rail, rail.host_interface, host)
        if rail.hca is not None and profile.fabric in (IB, ROCE):
            found += _device(profile, rail, rail.hca, host)
    found += _gid_indices(profile, host)
    if profile.attach in (SRIOV, HOST_DEVICE) and profile.fabric in (IB, ROCE):
        found += _namespaces(host)
    return found


def _cards(profile: NetworkProfile, host: HostTree) -> Iterator[Finding]:
    """Yield the rails whose interfaces are of one network card."""
    rails: dict[str, Rail] = {}
    for rail in profile.rails:
        card = host.card(rail.host_interface) if rail.host_interface is not None else None
        if card is not None and (other := rails.setdefault(card, rail)) is not rail:
            what = f"rails {other.name} and {rail.name}: {other.host_interface} and {rail.host_interface} are of {card}"
            fix = f"write the host_interface of another network card for rail {rail.name}: ls -l /sys/class/net"
            yield Finding("vfs_of_one_card", what, fix)


def _interface(profile: NetworkProfile, rail: Rail, name: str, host: HostTree) -> Iterator[Finding]:
    if host.path(*host.net(name)) is None:
        what = f"rail {rail.name}: this host has no interface {name}"
        yield Finding(
            "no_interface",
            what,
            "ip link: write its host_interface; while a pod has the whole card, it is not on the host",
        )
        return
    if (state := host.text(*host.net(name, "operstate"))) not in ("up", "unknown", None):
        yield Finding("link_down", f"{name} is {state}", f"ip link set {name} up; see the cable and the switch")
    mtu = host.number(*host.net(name, "mtu"))
    if profile.mtu is not None and mtu is not None and mtu != profile.mtu:
        yield Finding(
            "mtu_mismatch",
            f"the MTU of {name} is {mtu}, the profile's {profile.mtu}",
            f"ip link set {name} mtu {profile.mtu}",
        )
    if profile.fabric == ROCE:
        yield from _lossless(profile, name, host)
        if host.neighbours(name) == 0 and profile.attach != HOST_DEVICE:
            what = f"{name} knows the hardware address of no peer"
            fix = (
                f"ping the peers of rail {rail.name} before jobs start, or: ip neigh replace PEER lladdr MAC dev {name}"
            )
            yield Finding("neighbours_cold", what, f"{fix} nud permanent")
    if profile.attach == SRIOV:
        yield from _functions(profile, name, host)
        for bridge in host.redirecting_bridges(name):
            what = f"the bridge {bridge} above {name} redirects traffic between devices (ACS)"
            fix = f"setpci -s {bridge} ECAP_ACS+0x6.w=0000, or: mlxconfig -d {host.card(name)} set ATS_ENABLED=1"
            yield Finding("acs_redirect", what, fix)


def _lossless(profile: NetworkProfile, name: str, host: HostTree) -> Iterator[Finding]:
    """Yield what keeps RoCE on an interface from being free of loss."""
    trust = host.text(*host.net(name, "qos", "trust"))
    if trust is None:
        yield Finding(UNREADABLE, f"{name}: its driver does not tell its trust mode", f"dcb app show dev {name}")
    elif "dscp" not in trust.lower():
        yield Finding("wrong_trust", f"{name} trusts {trust}, not dscp", f"mlnx_qos -i {name} --trust dscp")
    priority, lossless = profile.priority, host.lossless_priorities(name)
    flags = ",".join(str(int(index == priority)) for index in range(8))
    if lossless is None:
        what = f"{name}: neither mlnx_qos nor dcb tells its flow control"
        yield Finding(UNREADABLE, what, f"mlnx_qos -i {name}; of a copied tree, into pfc/{name}")
    elif priority not in lossless:
        what = f"{name} has no flow control (PFC) for priority {priority}"
        yield Finding("no_pfc", what, f"mlnx_qos -i {name} --pfc {flags}")
    for role in ("roce_np", "roce_rp"):
        enabled = host.number(*host.net(name, "ecn", role, "enable", str(priority)))
        path = f"/sys/class/net/{name}/ecn/{role}/enable/{priority}"
        if enabled is None:
            yield Finding(UNREADABLE, f"{name}: its driver has no {path}", f"see its documentation: ECN, {role}")
        elif not enabled:
            yield Finding("no_ecn", f"{name}: ECN is off for priority {priority} ({role})", f"echo 1 > {path}")


def _functions(profile: NetworkProfile, name: str, host: HostTree) -> Iterator[Finding]:
    made, possible = (host.number(*host.net(name, "device", f"sriov_{key}")) for key in ("numvfs", "totalvfs"))
    wanted = profile.virtual_functions or max(1, host.gpu_count())
    if possible is None or made is None:
        what = f"{name} has no virtual functions: SR-IOV is off in its firmware or in the BIOS"
        yield Finding(
            "vf_maximum", what, f"mlxconfig -d {host.card(name)} set SRIOV_EN=1 NUM_OF_VFS={wanted}, then restart"
        )
    elif possible < wanted:
        what = f"{name} may have {possible} virtual functions, pods need {wanted}"
        yield Finding("vf_maximum", what, f"mlxconfig -d {host.card(name)} set NUM_OF_VFS={wanted}, then restart")
    elif made < wanted:
        what = f"{name} has {made} virtual functions, pods need {wanted}"
        yield Finding("vf_maximum", what, f"echo {wanted} > /sys/class/net/{name}/device/sriov_numvfs")


def _device(profile: NetworkProfile, rail: Rail, hca: str, host: HostTree) -> Iterator[Finding]:
    device = ("sys/class/infiniband", hca)
    if host.path(*device) is None:
        what = f"rail {rail.name}: this host has no RDMA device {hca}"
        yield Finding("no_interface", what, "rdma link: write its hca, or load the driver")
        return
    layer = host.text(*device, "ports/1/link_layer")
    if layer is not None and (layer == "InfiniBand") != (profile.fabric == IB):
        yield Finding("wrong_fabric", f"{hca} is on {layer}", "write another hca, or mlxconfig set LINK_TYPE_P1")
    state = host.text(*device, "ports/1/state")
    if state is not None and "ACTIVE" not in state:
        yield Finding("link_down", f"port 1 of {hca} is {state}", "see the cable, the switch and the subnet manager")
    interfaces = host.names(*device, "device/net")
    if rail.host_interface is not None and interfaces and rail.host_interface not in interfaces:
        what = f"rail {rail.name}: {hca} belongs to {', '.join(interfaces)}, not to {rail.host_interface}"
        yield Finding("wrong_rail", what, "rdma link: write hca and host_interface of the same network card")
    if profile.fabric == ROCE:
        yield from _addresses(profile, rail, hca, host)
        expected = traffic_class(profile)
        found = host.number("sys/kernel/config/rdma_cm", hca, "ports/1/default_roce_tos")
        if expected is not None and found is not None and found != expected:
            what = f"{hca} gives connections the traffic class {found}, the profile {expected}"
            yield Finding("wrong_traffic_class", what, f"cma_roce_tos -d {hca} -t {expected}")


def _addresses(profile: NetworkProfile, rail: Rail, hca: str, host: HostTree) -> Iterator[Finding]:
    """Yield whether the addresses of an RDMA device are of its rail."""
    if rail.subnet is None or profile.attach in (SRIOV, MACVLAN):
        return  # the addresses are those of pods
    subnet, addresses = ip_network(rail.subnet), [address for _, address in host.gids(hca)]
    if any(address in subnet for address in addresses):
        return
    for other in profile.rails:
        if other.subnet is not None and any(address in ip_network(other.subnet) for address in addresses):
            what = f"rail {rail.name}: {hca} has an address of rail {other.name}, in {other.subnet}"
            fix = f"see the cable and the address of {rail.host_interface or hca}, or exchange the rails in the profile"
            yield Finding("wrong_rail", what, fix)
            return
    what = f"{hca} has no RoCE v2 GID in {rail.subnet}"
    yield Finding("no_gid", what, f"ip addr add ADDRESS/{subnet.prefixlen} dev {rail.host_interface or 'INTERFACE'}")


def _gid_indices(profile: NetworkProfile, host: HostTree) -> Iterator[Finding]:
    if profile.fabric != ROCE:
        return
    indices = dict[str, int]()
    for rail in profile.rails:
        around = rail.subnet or profile.address_range
        for index, address in host.gids(rail.hca) if rail.hca is not None and around is not None else ():
            if address in ip_network(around or ""):
                indices.setdefault(rail.hca or "", index)
    if len(set(indices.values())) > 1:
        found = ", ".join(f"{hca}: {index}" for hca, index in indices.items())
        fix = "leave NCCL_IB_GID_INDEX and UCX_IB_GID_INDEX unset, and write address_range: NCCL finds the index itself"
        yield Finding("gid_mismatch", f"the index of the RoCE v2 GID differs: {found}", fix)


def _namespaces(host: HostTree) -> Iterator[Finding]:
    mode = host.text("sys/module/ib_core/parameters/netns_mode")
    if mode == "Y":
        what = "RDMA devices are shared between network namespaces"
        yield Finding("rdma_shared", what, "rdma system set netns exclusive, before any pod has a network")
