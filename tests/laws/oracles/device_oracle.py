"""Oracle of GPU shares, without arrays: what is on a device by the raw facts, and what fits on the rest of it."""

from ganger.model.cluster import Node
from tests.laws.oracles.job_parts import Part

Held = list[tuple[Part, tuple[int, ...]]]
"""Parts on a node, and the devices of each."""


def is_accepted(part: Part, node: Node) -> bool:
    """Return whether a part takes GPUs of a node's type; without a type, it takes whole devices."""
    if part.gpu_type is None:
        return not node.partial_gpus or not (part.need["gpus"] or any(part.share))
    return part.gpu_type == node.gpu_type.lower()


def on_device(device: int, held: Held) -> tuple[int, int, int]:
    """Return how many have a device whole, and the compute and memory of those that share it."""
    parts_there = [part for part, devices in held if device in devices]
    shares = [part.share for part in parts_there if any(part.share)]
    return len(parts_there) - len(shares), sum(milli for milli, _ in shares), sum(memory for _, memory in shares)


def times_on(part: Part, node: Node, held: Held) -> int:
    """Return how many of a part the devices of a node could take.

    Whole devices must be free of any gang, shares may be on any device that no gang has whole.
    """
    named = part.placement.devices
    ours = [device for device in range(node.gpus) if device not in node.foreign]
    usable = [on_device(device, held) for device in ours if not named or device in named]
    if part.need["gpus"]:
        return sum(usage == (0, 0, 0) for usage in usable) // part.need["gpus"]
    milli, memory = part.share
    return sum(
        min(
            (
                free // requested
                for free, requested in ((1000 - used, milli), (node.gpu_memory_bytes - taken, memory))
                if requested
            ),
        )
        for whole, used, taken in usable
        if not whole
    )
