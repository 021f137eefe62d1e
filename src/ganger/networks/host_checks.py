"""Checks of a host against a network profile: read-only, on its files or on a copy of them."""

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Final

from ganger.model.cluster import DRA, HOST_DEVICE, IB, MACVLAN, ROCE, SRIOV
from ganger.model.network_profile import NetworkProfile, Rail
from ganger.networks.findings import UNREADABLE, Finding
from ganger.networks.host_tree import CONTAINER_RUNTIMES, PCI, HostTree
from ganger.networks.variables import traffic_class

NVIDIA_VENDOR: Final = "0x10de"
DMA_BUF_KERNEL: Final = (5, 12)
"""The first kernel whose RDMA subsystem registers the memory of GPUs by DMA-BUF, for drivers with open modules."""


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
    found += _rail_mtus(profile, host)
    found += _gid_indices(profile, host)
    if profile.fabric in (IB, ROCE):
        found += _peer_to_peer(profile, host)
        found += _locked_memory(host)
        if profile.attach in (SRIOV, HOST_DEVICE):
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
        # Devices that move into pods have no neighbours here, and those of IPv6 are in no file.
        is_here = profile.attach not in (HOST_DEVICE, DRA) and ":" not in (rail.subnet or "")
        if is_here and host.neighbours(name) == 0:
            what = f"{name} knows the hardware address of no peer"
            fix = (
                f"ping the peers of rail {rail.name} before jobs start, or: ip neigh replace PEER lladdr MAC dev {name}"
            )
            yield Finding("neighbours_cold", what, f"{fix} nud permanent")
    if profile.attach == SRIOV:
        yield from _functions(profile, name, host)
    elif rail.vlan is not None:  # of a virtual function its own interface is tagged, in the pod
        number, below = host.vlan(name) or (None, name)
        if number != rail.vlan:
            what = f"{name} is {'untagged' if number is None else f'in VLAN {number}'}, rail {rail.name} in {rail.vlan}"
            fix = f"ip link add link {below} name {below}.{rail.vlan} type vlan id {rail.vlan}, and write it as its "
            yield Finding("wrong_vlan", what, f"{fix}host_interface")


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
        # The notification point answers marked packets; the reaction point, DCQCN, slows the sender down by answers.
        code, label = ("no_ecn", "ECN") if role == "roce_np" else ("no_dcqcn", "DCQCN")
        enabled = host.number(*host.net(name, "ecn", role, "enable", str(priority)))
        path = f"/sys/class/net/{name}/ecn/{role}/enable/{priority}"
        if enabled is None:
            yield Finding(UNREADABLE, f"{name}: its driver has no {path}", f"see its documentation: {label}, {role}")
        elif not enabled:
            yield Finding(code, f"{name}: {label} is off for priority {priority} ({role})", f"echo 1 > {path}")


def _functions(profile: NetworkProfile, name: str, host: HostTree) -> Iterator[Finding]:
    made, possible = (host.number(*host.net(name, "device", f"sriov_{key}")) for key in ("numvfs", "totalvfs"))
    wanted = profile.virtual_functions or max(1, len(host.gpus()))
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


def _rail_mtus(profile: NetworkProfile, host: HostTree) -> Iterator[Finding]:
    """Yield rails whose MTU differs from that of the first, where the profile does not say what it is."""
    names = [rail.host_interface for rail in profile.rails if rail.host_interface is not None]
    found = {name: mtu for name in names if (mtu := host.number(*host.net(name, "mtu"))) is not None}
    if profile.mtu is None and len(set(found.values())) > 1:
        what = "the MTU of rails differs: " + ", ".join(f"{name}: {mtu}" for name, mtu in found.items())
        most = max(found.values())
        smaller = [name for name, mtu in found.items() if mtu < most]
        fix = "; ".join(f"ip link set {name} mtu {most}" for name in smaller)
        yield Finding("mtu_mismatch", what, f"{fix}; and write mtu: {most} into the profile")


def _peer_to_peer(profile: NetworkProfile, host: HostTree) -> Iterator[Finding]:
    """Yield what stands between network cards and the memory of GPUs: access control, the IOMMU, the driver.

    A bridge is reported once, with the first device below it. Without GPUs only bridges of virtual functions matter,
    whose traffic to each other goes through them.
    """
    gpus, cards = host.gpus(), dict[str, str]()
    for rail in profile.rails:
        if rail.host_interface is not None and (card := host.card(rail.host_interface)) is not None:
            cards.setdefault(card, rail.host_interface)
    devices = {**(cards if gpus or profile.attach == SRIOV else {}), **{address: f"GPU {address}" for address in gpus}}
    seen = set[str]()
    for address, name in devices.items():
        for bridge in host.redirecting_bridges(address):
            if bridge not in seen:
                seen.add(bridge)
                what = f"the bridge {bridge} above {name} redirects traffic between devices (ACS)"
                fix = f"setpci -s {bridge} ECAP_ACS+0x6.w=0000"
                ats = f", or: mlxconfig -d {address} set ATS_ENABLED=1" if address in cards else ""
                yield Finding("acs_redirect", what, fix + ats)
    if not gpus:
        return
    kinds = {address: host.text(PCI, address, "iommu_group/type") for address in devices}
    translated = [devices[address] for address, kind in kinds.items() if kind not in (None, "identity")]
    if translated:
        what = f"the IOMMU translates addresses of {', '.join(translated)}"
        fix = "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, and restart the node"
        yield Finding("iommu_translates", what, fix)
    if all(host.text(PCI, address, "vendor") != NVIDIA_VENDOR for address in gpus):
        return  # the drivers of others need no further module
    driver, kernel = host.text("proc/driver/nvidia/version"), host.kernel_version()
    if host.path("sys/module/nvidia_peermem") is not None:
        return
    if driver is None or kernel is None:
        yield Finding(UNREADABLE, "the driver of NVIDIA is not loaded", "nvidia-smi, then check again")
    elif "Open Kernel Module" not in driver or kernel < DMA_BUF_KERNEL:
        what = "neither nvidia-peermem is loaded, nor have driver and kernel DMA-BUF"
        fix = "modprobe nvidia-peermem, and write its name into /etc/modules-load.d/nvidia-peermem.conf"
        yield Finding("no_gpudirect", what, f"{fix}; or install the open kernel modules on a kernel from 5.12 on")


def _locked_memory(host: HostTree) -> Iterator[Finding]:
    """Yield container runtimes whose containers may not lock memory without the capability IPC_LOCK."""
    limits = host.locked_memory_limits()
    if not limits:
        what = f"no container runtime runs here, of {', '.join(CONTAINER_RUNTIMES)}"
        yield Finding(UNREADABLE, what, "ulimit -l, in a container of the node")
    for runtime, limit in limits.items():
        if limit != "unlimited":
            what = f"{runtime} and its containers may lock {limit or '?'} bytes of memory"
            service = CONTAINER_RUNTIMES[runtime]
            fix = f"systemctl edit {service}: [Service] LimitMEMLOCK=infinity, then: systemctl restart {service}"
            yield Finding("memlock_limited", what, fix)


def _namespaces(host: HostTree) -> Iterator[Finding]:
    mode = host.text("sys/module/ib_core/parameters/netns_mode")
    if mode == "Y":
        what = "RDMA devices are shared between network namespaces"
        yield Finding("rdma_shared", what, "rdma system set netns exclusive, before any pod has a network")
