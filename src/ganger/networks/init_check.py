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
from pathlib import Path
from typing import Any, Dict, List, Optional  # noqa: UP035 - the Python is that of the job's image

GET_ADDRESS = 0x8915
"""The request SIOCGIFADDR of Linux."""
IPC_LOCK = 14
"""Number of the capability that lifts the limit of locked memory."""


def faults(expected: Dict[str, Any], root: str = "/") -> List[str]:  # noqa: UP006
    """Return what a pod lacks, one sentence each."""
    found = []
    for rail in expected["rails"]:
        found += _of_rail(Path(root, "sys/class/net", rail["interface"]), rail)
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


def _of_rail(folder: Path, rail: Dict[str, Any]) -> List[str]:  # noqa: UP006
    name = rail["interface"]
    if not folder.is_dir():
        return [f"there is no interface {name}: see the events of the pod and the log of Multus"]
    found = []
    mtu = int((folder / "mtu").read_text())
    if rail["mtu"] and mtu != rail["mtu"]:
        found.append(f"the MTU of {name} is {mtu}, not {rail['mtu']}: see its NetworkAttachmentDefinition")
    subnet = rail["subnet"]
    if subnet and ":" not in subnet:
        address = _address(name)
        if address is None or ipaddress.ip_address(address) not in ipaddress.ip_network(subnet):
            found.append(f"the address of {name} is {address or 'missing'}, outside of {subnet}: see its IPAM")
    return found


def _address(interface: str) -> Optional[str]:  # noqa: UP045
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, GET_ADDRESS, struct.pack("256s", interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _has_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> number & 1)


if __name__ == "__main__":
    lacks = faults(json.loads(sys.argv[1]))
    for line in lacks:
        print("network:", line, file=sys.stderr)  # noqa: T201 - the log of the init container
    sys.exit(1 if lacks else 0)
