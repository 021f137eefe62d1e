"""Text of the kernel's log, made safe to match and to show, and the GPUs that it names by their PCI addresses."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ganger.model.node_health.node_sample import GpuSample, KernelLine

MAX_MATCHED: Final = 1000
"""Characters of a line that are matched."""
MAX_SHOWN: Final = 300
MAX_GPUS: Final = 128
"""GPUs that are remembered."""
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]+")
_ADDRESS: Final = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE
)


class KnownGpu(NamedTuple):
    """A GPU of the node."""

    number: int
    device: str


def matched_text(line: KernelLine) -> str:
    """Return the part of a line that patterns are searched in."""
    return line.text[:MAX_MATCHED]


def shown(text: str) -> str:
    """Return text for people: printable, and short."""
    clean = _UNPRINTABLE.sub(" ", text[:MAX_SHOWN])
    return clean if len(text) <= MAX_SHOWN else f"{clean} ..."


def device_of(gpu: GpuSample) -> str:
    """Return the device name of a GPU: its UUID, else its address, else its index."""
    return gpu.uuid or pci_address(gpu.bus_id) or f"gpu{gpu.index}"


def pci_address(text: str) -> str:
    """Return the first PCI address in a text as 0000:3b:00, "" if there is none."""
    match = _ADDRESS.search(text)
    if match is None:
        return ""
    return f"{match['domain'][-4:]}:{match['bus']}:{match['slot']}".lower()


def known_gpus(known: Mapping[str, KnownGpu], gpus: tuple[GpuSample, ...]) -> Mapping[str, KnownGpu]:
    """Return GPUs by their PCI addresses: those of this sample, and those of earlier ones that are no longer listed."""
    present = {address: KnownGpu(gpu.index, device_of(gpu)) for gpu in gpus if (address := pci_address(gpu.bus_id))}
    if present.keys() == known.keys() and present == known:
        return known
    gone = {address: gpu for address, gpu in known.items() if address not in present}
    return dict(list({**gone, **present}.items())[-MAX_GPUS:])
