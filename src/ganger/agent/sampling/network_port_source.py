"""Ports of network adapters, from /sys/class/infiniband and /sys/class/net.

Only what is hardware of the machine and in use: no loopback, no virtual interface and virtual function, no management
controller on USB, and nothing that is switched off. (Kernel: Documentation/ABI/stable/sysfs-class-infiniband, and
testing/sysfs-class-net.)
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ganger.model.node_health.node_sample import PortSample

INFINIBAND_COUNTERS: Final = (
    *("symbol_error", "link_error_recovery", "link_downed", "local_link_integrity_errors"),
    *("excessive_buffer_overrun_errors", "port_rcv_errors", "port_xmit_discards", "port_xmit_wait"),
    *("port_rcv_data", "port_xmit_data"),
)
"""Files in `counters`."""
HARDWARE_COUNTERS: Final = (
    *("rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart", "out_of_sequence", "packet_seq_err"),
    *("implied_nak_seq_err", "req_transport_retries_exceeded", "rx_icrc_encapsulated", "np_cnp_sent"),
    "rp_cnp_handled",
)
"""Files in `hw_counters`. There are many more, and each is a request to the adapter."""
INTERFACE_COUNTERS: Final = (
    *("rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors"),
)
"""Files in `statistics`."""
_IS_ON: Final = 0x1
"""IFF_UP: an administrator, or the system at its start, has switched the interface on."""
_ETHERNET, _INFINIBAND = 1, 32
"""Types of hardware, ARPHRD_*."""
_DISABLED: Final = "Disabled"


class NetworkPortSource:
    """The ports of the node."""

    def __init__(self, sys: Path) -> None:
        self._class = sys / "class"

    def read(self) -> tuple[PortSample, ...]:
        """Return the sample of every port."""
        return (*self._infiniband(), *self._interfaces())

    def _infiniband(self) -> Iterator[PortSample]:
        for device in _entries(self._class / "infiniband"):
            if (device / "device/physfn").exists():
                continue
            for port in _entries(device / "ports"):
                physical = _field(port / "phys_state").partition(": ")[2]
                if physical == _DISABLED or not port.name.isdecimal():
                    continue
                yield PortSample(
                    device=device.name,
                    port=int(port.name),
                    layer=_field(port / "link_layer").lower() or "infiniband",
                    is_up=_field(port / "state").endswith("ACTIVE") and physical == "LinkUp",
                    rate_gbps=_whole(_field(port / "rate").partition(" ")[0]),
                    counters=_counters(port / "counters", INFINIBAND_COUNTERS)
                    | _counters(port / "hw_counters", HARDWARE_COUNTERS),
                )

    def _interfaces(self) -> Iterator[PortSample]:
        for interface in _entries(self._class / "net"):
            hardware = _whole(_field(interface / "type"))
            if hardware not in (_ETHERNET, _INFINIBAND) or not _is_adapter(interface / "device"):
                continue
            if not _flags(interface) & _IS_ON:
                continue
            yield PortSample(
                device=interface.name,
                layer="ethernet" if hardware == _ETHERNET else "infiniband",
                is_up=_field(interface / "carrier") == "1",
                rate_gbps=max(0, _whole(_field(interface / "speed"))) // 1000,
                counters=_counters(interface, ("carrier_changes",))
                | _counters(interface / "statistics", INTERFACE_COUNTERS),
            )


def _is_adapter(device: Path) -> bool:
    """Detect an adapter of the machine, by its link to a device."""
    return device.exists() and not (device / "physfn").exists() and (device / "subsystem").resolve().name != "usb"


def _flags(interface: Path) -> int:
    try:
        return int(_field(interface / "flags"), 16)
    except ValueError:
        return 0


def _counters(directory: Path, names: tuple[str, ...]) -> dict[str, int]:
    fields = ((name, _field(directory / name)) for name in names)
    return {name: int(text) for name, text in fields if text.isdecimal()}


def _entries(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in sorted(os.listdir(directory))]  # noqa: PTH208  # half the cost
    except OSError:
        return []


def _field(path: Path) -> str:
    """Return the text of an attribute; nothing where there is none, or the device refuses: a speed without a link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


def _whole(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return 0
