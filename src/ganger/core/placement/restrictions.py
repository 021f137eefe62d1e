"""The restrictions of a part to certain nodes, one by one, and what each node must have as text.

The pending reason names the restrictions that exclude nodes with room for the part, and what-if drops each alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ganger.core.nodes.node_arrays import picks_devices
from ganger.core.nodes.node_table import NodeTable
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, Selector
from ganger.model.units import format_bytes, format_extended

MAX_TAINT_SETS: Final = 3
"""The maximum number of sets of taints, each the set of some node, that are named and tried."""

MAX_NAMED: Final = 3
"""The maximum number of nodes that are named."""


class Restriction(NamedTuple):
    """A restriction of a part to certain nodes.

    text: what each node must have because of it.
    without: the selector without it.
    flags: the change of the job file that drops it.
    condition: the same change, to begin a sentence.
    """

    text: str
    without: Selector
    flags: str
    condition: str


def restrictions(part: Shape, nodes: NodeTable) -> Iterator[Restriction]:
    """Iterate over the part's restrictions: names, labels, networks, taints that it does not tolerate, devices."""
    selector = part.selector
    yield from _requirements(selector)
    yield from _intolerances(selector, nodes)
    if picks_devices(part) and selector.devices:
        condition = f"not bound to GPU {_device_list(selector)}"
        yield Restriction(describe_gpus(part), replace(selector, devices=()), "remove placement.devices", condition)


def _requirements(selector: Selector) -> Iterator[Restriction]:
    """Iterate over the names, labels and networks of which a node must have one."""
    if selector.nodes:
        # A job file may name devices only together with nodes.
        flags = "remove placement.nodes and placement.devices" if selector.devices else "remove placement.nodes"
        names = " or ".join(selector.nodes)
        yield Restriction(f"name {names}", replace(selector, nodes=()), flags, f"not bound to {names}")
    for key, value in selector.labels:
        without = replace(selector, labels=tuple(label for label in selector.labels if label[0] != key))
        text = f"label {key}={value}"
        yield Restriction(text, without, f"remove placement.node_selector.{key}", f"without {text}")
    if selector.required:
        text = f"label {' or '.join(map(str, selector.required))}"
        yield Restriction(text, replace(selector, required=()), "remove placement.affinity.required", f"without {text}")
    if selector.networks:
        text = f"network {' or '.join(selector.networks)}"
        yield Restriction(text, replace(selector, networks=()), "remove placement.network", f"without {text}")


def _intolerances(selector: Selector, nodes: NodeTable) -> Iterator[Restriction]:
    """Iterate over the sets of taints that alone keep the selector from some nodes."""
    for taints in nodes.attributes.untolerated(selector)[:MAX_TAINT_SETS]:
        tolerations = (*selector.tolerations, *taints)
        yield Restriction(
            f"no taint {' or '.join(taints)}",
            replace(selector, tolerations=tolerations),
            f"placement.tolerations=[{', '.join(tolerations)}]",
            f"tolerating taint {' and '.join(taints)}",
        )


def with_selector(shape: Shape, selector: Selector) -> Shape:
    """Return the shape with another selector, which all its parts have in common."""
    return replace(shape, selector=selector, more=tuple(replace(part, selector=selector) for part in shape.more))


def unrestricted(selector: Selector) -> Selector:
    """Return the selector without any restriction."""
    return Selector(sharing=selector.sharing, preferred=selector.preferred, tolerations=("*",))


# -- texts ------------------------------------------------------------------------------------------------------------


def describe_node_need(part: Shape) -> str:
    """Describe what each node must have: `8 free h100 GPUs, 8 free CPUs, 64Gi free memory, label zone=a`."""
    return ", ".join(node_needs(part))


def node_needs(part: Shape) -> list[str]:
    """Return a text for everything that each node must have, but for taints that it must not have."""
    gpus = [describe_gpus(part)] if part.has_gpus else []
    amounts = [*describe_amounts(part.cpu_milli, part.memory_bytes), *describe_extended(part.extended)]
    return [*gpus, *amounts, *describe_terms(part.selector, None)]


def describe_gpus(part: Shape) -> str:
    """Describe the GPUs: `8 free h100 GPUs`, `0.5/10Gi free of one h100 GPU`, with required indices; empty for none."""
    types = " or ".join(filter(None, part.gpu_types))
    type_text = f" {types}" if types else ""
    indices_text = f" of {_device_list(part.selector)}" if part.selector.devices else ""
    if part.has_share:
        return f"{part.share} free of one{type_text} GPU{indices_text}"
    if part.gpus and not types and len(part.gpu_resources) == 1:
        return f"{part.gpus} free {part.gpu_resources[0]}"
    return f"{part.gpus} free{type_text} GPU{'s' if part.gpus > 1 else ''}{indices_text}" if part.gpus else ""


def describe_amounts(cpu_milli: int, memory_bytes: int) -> Iterator[str]:
    """Iterate over a text each for CPUs and memory, unless they are 0."""
    if cpu_milli:
        yield f"{cpu_milli / 1000:g} free CPU{'s' if cpu_milli > 1000 else ''}"
    if memory_bytes:
        yield f"{format_bytes(memory_bytes)} free memory"


def describe_extended(extended: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Iterate over a text for each extended resource."""
    yield from (f"{format_extended(name, amount)} free {name}" for name, amount in extended)


def describe_terms(selector: Selector, nodes: NodeTable | None, *, free: bool = True) -> Iterator[str]:
    """Iterate over the restrictions to certain nodes, with the taints that exclude nodes where `nodes` are known."""
    yield from (restriction.text for restriction in _requirements(selector))
    if nodes is not None:
        yield from (restriction.text for restriction in _intolerances(selector, nodes))
    if free and selector.sharing != SHARED:
        yield "no other job"


def name_list(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _device_list(selector: Selector) -> str:
    return ", ".join(f"#{index}" for index in selector.devices)
