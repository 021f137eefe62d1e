"""What is on one device by the raw facts, and what its rest is good for: the oracle of shares, without arrays."""

from typing import TYPE_CHECKING

from ganger.model.cluster import Node

if TYPE_CHECKING:
    from tests.laws.raw import Part


Held = list[tuple["Part", tuple[int, ...]]]
"""What is on a node: parts, and the devices of each."""


def on_device(device: int, held: Held) -> tuple[int, int, int]:
    """Of one device: how many have it whole, and what those that share it have of its compute and memory."""
    there = [part for part, devices in held if device in devices]
    shares = [part.share for part in there if any(part.share)]
    return len(there) - len(shares), sum(milli for milli, _ in shares), sum(memory for _, memory in shares)


def times_on(part: "Part", node: Node, held: Held) -> int:
    """How many of a part the devices of a node could take: those that it may have and others do not, whole ones that
    nobody has any of, or shares of any that nobody has whole."""
    named = part.placement.devices
    ours = [device for device in range(node.gpus) if device not in node.foreign]
    usable = [on_device(device, held) for device in ours if not named or device in named]
    if part.need["gpus"]:
        return sum(each == (0, 0, 0) for each in usable) // part.need["gpus"]
    milli, memory = part.share
    return sum(
        min(
            (has // asked for has, asked in ((1000 - used, milli), (node.gpu_memory_bytes - taken, memory)) if asked),
        )
        for whole, used, taken in usable
        if not whole
    )
