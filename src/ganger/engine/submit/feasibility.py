"""Whether the nodes there are could ever hold a job, whoever else ran on them. Called by `engine.submit.quota_check`.

What is named and not there (a level, a type, a label, a network) is refused with the name that is nearest; then what is
too large for a node, for the cluster or for one domain of a level.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.placement.topology_packing import most
from ganger.errors import RequestError
from ganger.model.affinity import Expression, Operator, Term
from ganger.model.policy import Rules
from ganger.model.shape import Shape
from ganger.model.terms import Layout, Selector, Slices
from ganger.model.units import DEVICE_MILLI, format_bytes, format_cpu
from ganger.spec.text_fields import did_you_mean

SAY: Final[dict[str, Callable[[int], str]]] = {
    "gpus": lambda amount: f"{amount} GPU" if amount == 1 else f"{amount} GPUs",
    "gpu_milli": lambda amount: f"{amount / DEVICE_MILLI:g} GPU" + "s" * (amount != DEVICE_MILLI),
    "cpu_milli": lambda amount: f"{format_cpu(amount)} CPU" if amount == 1000 else f"{format_cpu(amount)} CPUs",
    "memory_bytes": lambda amount: f"{format_bytes(amount)} memory",
}
_AT_MOST: Final[dict[str, Callable[[int], str]]] = {
    "gpus": lambda amount: f"--gpu {amount}",
    "cpu_milli": lambda amount: f"--cpu {format_cpu(amount)}",
    # Rounded down: what is suggested must fit.
    "memory_bytes": lambda amount: f"--memory {amount >> 20}Mi" if amount < 8 << 30 else f"--memory {amount >> 30}Gi",
}
_OF_NODE: Final = ("gpus", "cpu_milli", "memory_bytes")
"""What is counted of a node."""
_SEE_NODES: Final = "`ganger node` shows what there is"
_NO_GPUS: Final = "submit without --gpu, or let nodes show GPU slots: ganger server start --topology FILE"


def check_nodes(nodes: NodeTable, shape: Shape) -> None:
    """Refused when the nodes could never hold it as it stands."""
    for part in shape.parts:
        _check_names(nodes, part, shape.layout)
        _check_size(nodes, part)
        _check_domains(nodes, part, shape.layout)
    if shape.more and place(nodes.with_rules(Rules(topology=nodes.rules.topology)), shape) is None:
        raise RequestError(
            "too_few_nodes",
            f"its parts ({shape}) have room each, but not all at once, even if nothing else ran",
            f"submit smaller; {_SEE_NODES}",
        )


def impossible_on(nodes: NodeTable, shape: Shape) -> str | None:
    """Why these nodes could never hold it, whatever level it would rather stay in; None: they could."""
    parts = [part if part.layout.required else replace(part, layout=Layout()) for part in shape.parts]
    try:
        check_nodes(nodes, replace(parts[0], more=tuple(parts[1:])))
    except RequestError as refused:
        return refused.detail
    return None


def _check_names(nodes: NodeTable, part: Shape, layout: Layout) -> None:
    levels = nodes.topology.levels
    for level in filter(None, (layout.level, *(each.level for each in part.slices.layers))):
        if level not in levels:
            raise _missing("no_such_level", f"the network has no level {level}", "levels", levels, level)
    for outer, inner in pairwise(each.level for each in part.slices.layers):
        if levels.index(inner) <= levels.index(outer):
            what = f"there is no level {inner} inside {outer}, as placement.slices has it"
            raise RequestError(
                "no_such_level", f"{what}; levels here, outermost first: {', '.join(levels)}", _SEE_NODES
            )
    if part.has_gpus and not nodes.gpus.any():
        asked = SAY["gpus"](part.gpus) if part.gpus else "a share of a GPU"
        raise RequestError("no_gpus", f"it asks for {asked} per node, and no node has any", _NO_GPUS)
    types = sorted({kind: None for kind in nodes.gpu_types if kind})
    for kind in filter(None, (part.gpu_type, *part.other_types)):
        if kind not in types:
            raise _missing("no_such_gpu_type", f"no node has {kind} GPUs", "types", types, kind)
    for name in part.selector.nodes:
        if name not in nodes.index:
            raise _missing("no_such_node", f"there is no node {name}", "nodes", nodes.names, name)
    _check_labels(nodes, part.selector)
    networks = sorted({network: None for node in nodes.nodes for network in node.networks})
    for network in part.selector.networks:
        if network not in networks:
            raise _missing("no_such_network", f"no node is on a network {network}", "networks", networks, network)


def _check_labels(nodes: NodeTable, selector: Selector) -> None:
    """Refused when there are labels in it that no node has; of terms any one of which is to hold, when none does."""
    for key, value in selector.labels:
        _check_term(nodes, Term((Expression(key, Operator.IN, (value,)),)))
    if selector.required and not any(nodes.traits.holds(term).any() for term in selector.required):
        for term in selector.required:
            _check_term(nodes, term)
    for preferred in selector.preferred:
        if not nodes.traits.holds(preferred.match).any():
            _check_term(nodes, preferred.match)
            what = f"it prefers nodes with labels {preferred.match}, and no node has them together"
            raise RequestError("no_such_label", what, _SEE_NODES)


def _check_term(nodes: NodeTable, term: Term) -> None:
    """Refused when there is an expression in it that holds for no node at all."""
    for each in term.expressions:
        if nodes.traits.holds(Term((each,))).any():
            continue
        values = sorted({node.labels[each.key]: None for node in nodes.nodes if each.key in node.labels})
        if values:
            what = f"no node has label {each}"
            raise _missing("no_such_label", what, f"values of {each.key}", values, "".join(each.values[:1]))
        keys = sorted({key: None for node in nodes.nodes for key in node.labels})
        raise _missing("no_such_label", f"no node has a label {each.key}", "labels", keys, each.key)


def _missing(code: str, what: str, kind: str, there: Iterable[str], name: str) -> RequestError:
    here = ", ".join(list(there)[:12]) or "none"
    return RequestError(code, f"{what}; {kind} here: {here}{did_you_mean(name, there)}", _SEE_NODES)


def _check_size(nodes: NodeTable, part: Shape) -> None:
    able = max(nodes.capacity(choice, nodes.able(choice)) for choice in part.choices)
    if able >= part.nodes:
        return
    if able:
        what, remedy = ("processes", "a smaller count") if part.stacked else ("nodes", f"--nodes {able} or fewer")
        raise RequestError(
            "too_few_nodes",
            f"it needs {part.nodes} {what} with {_each(part)} each, and there {'is' if able == 1 else 'are'} {able}"
            + " at most" * part.stacked,
            f"submit with {remedy}; {_SEE_NODES}",
        )
    meant = np.logical_or.reduce(
        [nodes.of_type(choice.gpu_type) & nodes.meant(choice.selector) for choice in part.choices]
    )
    if not meant.any():
        raise _nobody_may(nodes, part)
    _check_device(nodes, part, meant)
    for resource in _OF_NODE:
        say = SAY[resource]
        asked, has = getattr(part, resource), getattr(nodes, resource)[meant]
        best = int(has.max())
        if asked > best:
            detail = f"it asks for {say(asked)} per node, and the most that a node has is {say(best)}"
            remedy = f"submit with {_AT_MOST[resource](best)} or less; {_SEE_NODES}"
            raise RequestError("node_too_small", detail, remedy)
    raise RequestError("node_too_small", f"no node has {_each(part)} together", _SEE_NODES)


def _check_device(nodes: NodeTable, part: Shape, meant: NDArray[np.bool_]) -> None:
    """A device that it names, or one that is large enough for its share, is on some node that it may have."""
    devices, most = part.selector.devices, int(nodes.gpus[meant].max())
    if part.has_gpus and devices and sum(device < most for device in devices) < part.devices:
        there = f"0 to {most - 1}" if most else "none"
        names = ", ".join(map(str, devices))
        what = f"it names GPUs {names} and asks for {part.devices} of them; the nodes that it may have have: {there}"
        raise RequestError("no_such_device", what, _SEE_NODES)
    if not part.gpu_memory_bytes:
        return
    asked, best = format_bytes(part.gpu_memory_bytes), int(nodes.devices.memory_bytes[meant].max())
    if not best:
        what = f"it asks for {asked} of a GPU's memory, and no node says how much its GPUs have"
        raise RequestError(
            "gpu_too_small", what, "ask for a part of its compute: --gpu-milli 500; or say gpu_memory: 80Gi"
        )
    if part.gpu_memory_bytes > best:
        what = f"it asks for {asked} of a GPU's memory, and the most that a GPU has is {format_bytes(best)}"
        raise RequestError("gpu_too_small", what, f"submit with --gpu-memory {best >> 20}Mi or less; {_SEE_NODES}")


def _nobody_may(nodes: NodeTable, part: Shape) -> RequestError:
    """No node has all the labels, a network and a type that it may have, and no taint that it does not tolerate."""
    said = [f"name {' or '.join(part.selector.nodes)}"] if part.selector.nodes else []
    said += [f"label {key}={value}" for key, value in part.selector.labels]
    said += [f"label {' or '.join(map(str, part.selector.required))}"] * bool(part.selector.required)
    said += [f"network {' or '.join(part.selector.networks)}"] * bool(part.selector.networks)
    said += [f"{' or '.join(filter(None, (part.gpu_type, *part.other_types)))} GPUs"] * (part.gpu_type is not None)
    tainted = [nodes.of_type(each.gpu_type) & nodes.meant(_bearing_all(each.selector)) for each in part.choices]
    away = np.flatnonzero(np.logical_or.reduce(tainted)).tolist()
    if not away:
        return RequestError("node_too_small", f"no node has {', '.join(said)} together", _SEE_NODES)
    taints = {taint: None for at in away for taint in nodes.nodes[at].taints if not part.selector.tolerates(taint)}
    which = f"every node with {', '.join(said)}" if said else "every node"
    remedy = f"name it in placement.tolerations; {_SEE_NODES}"
    return RequestError("tainted", f"{which} has a taint: {', '.join(sorted(taints)[:4])}", remedy)


def _bearing_all(selector: Selector) -> Selector:
    return replace(selector, tolerations=("*",))


def _check_domains(nodes: NodeTable, part: Shape, layout: Layout) -> None:
    """Slices must have room, the smallest first; and one domain of a level that is required must hold all of it."""
    if part.slices.nodes == 1 and not layout.required:
        return
    every = [nodes.capacities(choice, nodes.able(choice)) for choice in part.choices]

    def room(layout: Layout, slices: Slices) -> int:
        return max(most(nodes, times, (layout, slices)) for times in every)

    for slices in reversed(part.slices.layers):
        need, total = part.nodes // slices.nodes, room(Layout(), slices) if slices.nodes > 1 else part.nodes
        if total < need:
            what = f"it needs {_counted(need, slices)}, {slices.where}, and there is room for {total}"
            raise _too_few(what, room(Layout(), part.slices) * part.slices.nodes, "smaller slices")
    need, best = part.nodes // part.slices.nodes, room(layout, part.slices) if layout.required else part.nodes
    if best < need:
        most_there = f"and the largest {layout.level} has room for {best}"
        what = f"it needs {_counted(need, part.slices)} in one {layout.level}, {most_there}"
        raise _too_few(what, best * part.slices.nodes, "--mode preferred")


def _counted(need: int, slices: Slices) -> str:
    plural = "s" * (need > 1)
    return f"{need} node{plural}" if slices.nodes == 1 else f"{need} slice{plural} of {slices.nodes} nodes"


def _too_few(what: str, fewer: int, otherwise: str) -> RequestError:
    """With the most nodes that would do, if any would."""
    remedy = f"--nodes {fewer} or fewer, or {otherwise}" if fewer else otherwise
    return RequestError("too_few_nodes", what, f"submit with {remedy}; {_SEE_NODES}")


def _each(part: Shape) -> str:
    """What each node must have, in words."""
    parts = [f"a share of {part.share} of one GPU"] if part.has_share else []
    parts += [SAY[resource](amount) for resource in _OF_NODE if (amount := getattr(part, resource))]
    kinds = " or ".join(filter(None, (part.gpu_type, *part.other_types)))
    return ", ".join(parts).replace("GPU", f"{kinds} GPU" if kinds else "GPU") or "nothing"
