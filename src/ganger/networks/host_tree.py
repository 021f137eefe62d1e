"""A host's files about its network cards: sysfs, procfs and configfs, below a root.

The root is that of this host, or a copy of another host's files. Links are followed within it only.
"""

import os
import re
import struct
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

LIVE: Final = Path("/")
MAX_FILE_BYTES: Final = 1 << 20
COMMAND_TIMEOUT_S: Final = 10
_EXTENDED, _ACS = 0x100, 0x0D
"""First offset of the extended capabilities of a PCI device, and the number of that of access control."""
_REDIRECTS: Final = 0b1100
"""Bits of the control register: requests, and completions, go through the root complex."""
_ARP_ROW: Final = re.compile(r"\S+\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+\S+\s+\S+\s+(\S+)\s*")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d")
_VLAN_ROW: Final = re.compile(r"(\S+)\s*\|\s*(\d{1,4})\s*\|\s*(\S+)\s*")
_MEMLOCK_ROW: Final = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
CONTAINER_RUNTIMES: Final = {"containerd": "containerd", "crio": "crio", "dockerd": "docker"}
"""Name of the service of systemd by that of the process."""
PCI: Final = "sys/bus/pci/devices"
_COMPLETE: Final = 2
"""Flag of a neighbour whose hardware address is known."""
_PFC_ROW: Final = re.compile(r"PFC configuration:.*?enabled\s+([01 \t]+)", re.DOTALL)
_PFC_FLAG: Final = re.compile(r"\b([0-7]):(on|off)\b")

Address = IPv4Address | IPv6Address


class HostTree:
    """The files of a host."""

    def __init__(self, root: Path = LIVE) -> None:
        self.root = root.resolve()

    def path(self, *parts: str) -> Path | None:
        """Return an existing path with its links followed; None if there is none, or a link leads outside."""
        path = Path(os.path.realpath(self.root.joinpath(*parts)))
        return path if path.is_relative_to(self.root) and os.path.lexists(path) else None

    def text(self, *parts: str) -> str | None:
        """Return the text of a file without spaces around it; None if it cannot be read."""
        data = self.data(*parts)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def data(self, *parts: str) -> bytes | None:
        """Return the bytes of a file, the first of a large one; None if it cannot be read."""
        path = self.path(*parts)
        try:
            if path is None or not path.is_file():
                return None
            with path.open("rb") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError:
            return None

    def number(self, *parts: str) -> int | None:
        """Return the number in a file; None if there is none."""
        text = self.text(*parts)
        return int(text) if text is not None and _NUMBER.fullmatch(text) else None

    def names(self, *parts: str) -> list[str]:
        """Return the names in a folder, sorted; empty without it."""
        path = self.path(*parts)
        try:
            return [] if path is None else sorted(entry.name for entry in path.iterdir())
        except OSError:
            return []

    def net(self, interface: str, *parts: str) -> tuple[str, ...]:
        """Return the path of a file of a network interface."""
        return ("sys/class/net", interface, *parts)

    def card(self, interface: str) -> str | None:
        """Return the PCI address of an interface's network card, of a virtual function that of its physical one."""
        path = self.path(*self.net(interface, "device", "physfn")) or self.path(*self.net(interface, "device"))
        return None if path is None else path.name

    def gids(self, hca: str) -> Iterator[tuple[int, Address]]:
        """Yield the RoCE v2 GIDs of an RDMA device with their index, IPv4 addresses as such."""
        port = ("sys/class/infiniband", hca, "ports/1")
        for index in sorted(int(name) for name in self.names(*port, "gids") if name.isdecimal()):
            kind, gid = self.text(*port, "gid_attrs/types", str(index)), self.text(*port, "gids", str(index))
            try:
                address = ip_address(gid or "")
            except ValueError:
                continue
            if kind == "RoCE v2" and int(address):
                mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
                yield index, mapped or address

    def neighbours(self, interface: str) -> int:
        """Return how many peers of an interface have a known hardware address."""
        rows = (_ARP_ROW.fullmatch(line) for line in (self.text("proc/net/arp") or "").splitlines())
        return sum(row is not None and row[2] == interface and int(row[1], 16) & _COMPLETE > 0 for row in rows)

    def gpus(self) -> list[str]:
        """Return the PCI addresses of GPUs, by the class of their devices."""
        devices = self.names(PCI)
        classes = ((name, self.text(PCI, name, "class") or "") for name in devices)
        return [name for name, text in classes if text.startswith(("0x0302", "0x0380", "0x1200"))]

    def redirecting_bridges(self, address: str) -> list[str]:
        """Return the PCI bridges above a device that redirect traffic between devices."""
        device = self.path(PCI, address)
        bridges = () if device is None else (path for path in device.parents if _PCI_ADDRESS.fullmatch(path.name))
        config = ((path.name, self.data(str(path.relative_to(self.root)), "config")) for path in bridges)
        return [name for name, data in config if data is not None and redirects(data)]

    def vlan(self, interface: str) -> tuple[int, str] | None:
        """Return the number of the VLAN that an interface is in, and the interface below it; None: it is untagged."""
        for line in (self.text("proc/net/vlan/config") or "").splitlines():
            if (row := _VLAN_ROW.fullmatch(line)) and row[1] == interface:
                return int(row[2]), row[3]
        return None

    def locked_memory_limits(self) -> dict[str, str]:
        """Return the limit of locked memory of each container runtime that runs, by its name."""
        limits = {}
        for process in self.names("proc"):
            if process.isdecimal() and (name := self.text("proc", process, "comm")) in CONTAINER_RUNTIMES:
                row = _MEMLOCK_ROW.search(self.text("proc", process, "limits") or "")
                limits[name] = row[1] if row else ""
        return limits

    def kernel_version(self) -> tuple[int, int] | None:
        """Return the two first numbers of the kernel's version."""
        row = re.match(r"(\d{1,4})\.(\d{1,4})", self.text("proc/sys/kernel/osrelease") or "")
        return (int(row[1]), int(row[2])) if row else None

    def lossless_priorities(self, interface: str) -> frozenset[int] | None:
        """Return the priorities with flow control; None if that is not known.

        No file of the kernel has them: this host is asked, and a copied tree has the output of `mlnx_qos -i INTERFACE`
        or `dcb pfc show dev INTERFACE` as `pfc/INTERFACE`.
        """
        text = _ask(interface) if self.root == LIVE else self.text("pfc", interface)
        if row := _PFC_ROW.search(text or ""):
            return frozenset(index for index, flag in enumerate(row[1].split()) if flag == "1")
        flags = _PFC_FLAG.findall(text or "")
        return frozenset(int(priority) for priority, state in flags if state == "on") if flags else None


def redirects(config: bytes) -> bool:
    """Return whether the configuration space of a PCI device has access control that redirects traffic."""
    offset, seen = _EXTENDED, set[int]()
    while offset and offset not in seen and offset + 8 <= len(config):
        seen.add(offset)
        header, _, control = struct.unpack_from("<IHH", config, offset)
        if header & 0xFFFF == _ACS:
            return bool(control & _REDIRECTS)
        offset = header >> 20
    return False


def _ask(interface: str) -> str | None:
    """Return what a program of this host says of flow control; None without one."""
    for command in (["mlnx_qos", "-i", interface], ["dcb", "pfc", "show", "dev", interface]):
        try:
            return subprocess.run(command, capture_output=True, check=True, timeout=COMMAND_TIMEOUT_S).stdout.decode(
                errors="replace"
            )
        except (OSError, subprocess.SubprocessError):
            continue
    return None
