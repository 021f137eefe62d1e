"""Check of a pod's network before its ranks start. It runs as an init container: `python3 -c SOURCE EXPECTED`.

It needs nothing but Python: its source is the argument of an interpreter in the job's image. A rank that finds a rail
missing falls back to another network without a message, and the job is slow.
"""

import fcntl
import ipaddress
import json
import resource
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple  # noqa: UP035 - the Python is that of the job's image

GET_ADDRESS = 0x8915
"""The request SIOCGIFADDR of Linux."""
IPC_LOCK = 14
"""Number of the capability that lifts the limit of locked memory."""
NLMSG_ERROR, RTM_GETROUTE, NLM_F_REQUEST, RTM_F_LOOKUP_TABLE = 2, 26, 1, 0x1000
RTA_DST, RTA_SRC, RTA_OIF, RTA_TABLE = 1, 2, 4, 15
"""Numbers of rtnetlink, by which the kernel says which way it would send a packet."""
MAIN_TABLE = 254
ARP_COMPLETE = 2
"""Flag of a neighbour whose hardware address is known."""
DISCARD_PORT = 9
NEIGHBOUR_S = 3.0
"""Time for a gateway to answer: the kernel asks three times, a second apart."""
POLL_S = 0.05


class Kernel:
    """Answers of the kernel about the network of this process."""

    def __init__(self, root: str = "/") -> None:
        """Read files below a root."""
        self.root = root

    def address(self, interface: str) -> Optional[str]:  # noqa: UP045
        """Return the IPv4 address of an interface."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                answer = fcntl.ioctl(asking, GET_ADDRESS, struct.pack("256s", interface.encode()))
            except OSError:
                return None
        return socket.inet_ntoa(answer[20:24])

    def route(self, source: str, target: str) -> Optional[Tuple[str, int]]:  # noqa: UP006, UP045
        """Return by which interface, and which routing table, a packet leaves; None: there is no route."""
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
            asking.bind((0, 0))
            asking.send(route_request(source, target))
            found = read_route(asking.recv(65536))
        return None if found is None else (socket.if_indextoname(found[0]), found[1])

    def answers(self, source: str, gateway: str, interface: str) -> bool:
        """Return whether a gateway tells its hardware address: a packet to it has the kernel ask."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                asking.bind((source, 0))
                asking.sendto(b"", (gateway, DISCARD_PORT))
            except OSError:
                return False
        until = time.monotonic() + NEIGHBOUR_S
        while not self._knows(gateway, interface):
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def _knows(self, neighbour: str, interface: str) -> bool:
        rows = (line.split() for line in Path(self.root, "proc/net/arp").read_text().splitlines()[1:])
        return any(row[0] == neighbour and row[5] == interface and int(row[2], 16) & ARP_COMPLETE for row in rows)


def route_request(source: str, target: str) -> bytes:
    """Return the question which way a packet takes, and by which table that is so."""
    header = struct.pack("BBBBBBBBI", socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, RTM_F_LOOKUP_TABLE)
    for kind, address in ((RTA_DST, target), (RTA_SRC, source)):
        header += struct.pack("HH4s", 8, kind, socket.inet_aton(address))
    return struct.pack("IHHII", 16 + len(header), RTM_GETROUTE, NLM_F_REQUEST, 1, 0) + header


def read_route(answer: bytes) -> Optional[Tuple[int, int]]:  # noqa: UP006, UP045
    """Return the index of the interface, and the table, of an answer; None: there is no such route."""
    if struct.unpack_from("H", answer, 4)[0] == NLMSG_ERROR:
        return None
    found, offset = {RTA_TABLE: answer[16 + 4]}, 16 + 12
    while offset + 8 <= len(answer):
        length, kind = struct.unpack_from("HH", answer, offset)
        if kind in (RTA_OIF, RTA_TABLE):
            found[kind] = struct.unpack_from("I", answer, offset + 4)[0]
        offset += max(4, length + 3 & ~3)
    return (found[RTA_OIF], found[RTA_TABLE]) if RTA_OIF in found else None


def faults(expected: Dict[str, Any], root: str = "/", kernel: Optional[Kernel] = None) -> List[str]:  # noqa: UP006, UP045
    """Return what a pod lacks, one sentence each, with what to do."""
    kernel = kernel or Kernel(root)
    found, tables = [], {}  # type: List[str], Dict[int, str]
    own = {kernel.address(rail["interface"]) for rail in expected["rails"]}
    for rail in expected["rails"]:
        name, folder = rail["interface"], Path(root, "sys/class/net", rail["interface"])
        if not folder.is_dir():
            found.append(f"there is no interface {name}: see the events of the pod and the log of Multus")
            continue
        mtu = int((folder / "mtu").read_text())
        if rail["mtu"] and mtu != rail["mtu"]:
            found.append(f"the MTU of {name} is {mtu}, not {rail['mtu']}: see its NetworkAttachmentDefinition")
        subnet = rail["subnet"]
        if not subnet or ":" in subnet:
            continue
        address = kernel.address(name)
        if address is None or ipaddress.ip_address(address) not in ipaddress.ip_network(subnet):
            found.append(f"the address of {name} is {address or 'missing'}, outside of {subnet}: see its IPAM")
            continue
        if expected["routed"]:
            found += _arp_faults(Path(root, "proc/sys/net/ipv4/conf"), name, expected["routed"])
            found += _route_faults(rail, address, own, kernel, tables, expected["routed"]["fix"])
        if rail["gateway"] and not kernel.answers(address, rail["gateway"], name):
            found.append(
                f"the gateway {rail['gateway']} of {name} does not answer: see the port of the switch and its VLAN; by "
                f"hand: ping -I {name} {rail['gateway']}; ip neigh show dev {name}"
            )
    devices = Path(root, "sys/class/infiniband")
    count = len(list(devices.iterdir())) if devices.is_dir() else 0
    wanted = expected["rdma_devices"]
    if count < wanted:
        found.append(f"{count} RDMA devices for {wanted} rails: see the device plugin, and `rdma system` on the node")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if expected["locked_memory"] and limit != resource.RLIM_INFINITY and not _has_capability(IPC_LOCK):
        remedy = "set LimitMEMLOCK=infinity in the service of the container runtime"
        found.append(f"locked memory is limited to {limit} bytes: {remedy}")
    return found


def _arp_faults(conf: Path, name: str, routed: Dict[str, Any]) -> List[str]:  # noqa: UP006
    """Return the settings of an interface by which others answer for it; the kernel takes the larger of two files."""
    found = []
    for key, value in routed["sysctls"].items():
        files = [conf / folder / key for folder in ("all", name)]
        actual = max([int(file.read_text()) for file in files if file.exists()], default=0)
        # rp_filter: 1 drops what comes by another way than the way back; 0 and 2 do not.
        if actual == 1 if key == "rp_filter" else actual < int(value):
            found.append(
                f"{key} of {name} is {actual}, not {value}: {routed['fix']}; by hand, in the pod: "
                f"sysctl -w net.ipv4.conf.{name}.{key}={value}"
            )
    return found


def _route_faults(
    rail: Dict[str, Any],  # noqa: UP006
    address: str,
    own: Set[Optional[str]],  # noqa: UP006, UP045
    kernel: Kernel,
    tables: Dict[int, str],  # noqa: UP006
    fix: str,
) -> List[str]:  # noqa: UP006
    """Return what is wrong with the ways of packets from a rail's address: within its subnet, and beyond it.

    `own` are the addresses of all rails; `tables` has the rail of each routing table that was seen.
    """
    name, subnet = rail["interface"], ipaddress.ip_network(rail["subnet"])
    fix += (
        f"; by hand, in the pod: ip rule add from {address} table TABLE; ip route add {subnet} dev {name} table TABLE"
    )
    if rail["gateway"]:
        fix += f"; ip route add default via {rail['gateway']} dev {name} table TABLE"
    # To addresses of this pod the kernel sends by `lo`, so another one of the subnet is asked for; a /32 has none.
    others = [str(subnet[index]) for index in (*range(1, len(own) + 2), 0) if index < subnet.num_addresses]
    near = rail["gateway"] or next((other for other in others if other not in own), "")
    for target in filter(None, [near, rail["beyond"]]):
        found = kernel.route(address, target)
        if found is None:
            return [f"there is no route from {address} ({name}) to {target}: {fix}"]
        interface, table = found
        if interface != name:
            return [f"packets from {address} ({name}) to {target} leave by {interface}: {fix}"]
        if table == MAIN_TABLE:
            return [f"{name} has no routing table of its own: {fix}"]
        if tables.setdefault(table, name) != name:
            return [f"{name} and {tables[table]} share the routing table {table}: {fix}"]
    return []


def _has_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> number & 1)


if __name__ == "__main__":
    lacks = faults(json.loads(sys.argv[1]))
    for line in lacks:
        print("network:", line, file=sys.stderr)  # noqa: T201 - the log of the init container
    sys.exit(1 if lacks else 0)
