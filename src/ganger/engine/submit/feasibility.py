"""Feasibility of a job on the nodes there are, whatever runs on them.

A named level, type, label or network that does not exist is refused, with the nearest name; then what is too large for
a node, for the cluster or for one domain of a level.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.failure import rollback
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.placement.topology_packing import largest_domain_room
from ganger.core.state.gang import Gang
from ganger.errors import RequestError
from ganger.model.affinity import Expression, Operator, Term
from ganger.model.job import shell_quoted_id
from ganger.model.policy import Rules
from ganger.model.shape import Shape
from ganger.model.terms import Layout, Selector, Slices
from ganger.model.units import DEVICE_MILLI, format_bytes, format_cpu, format_resource
from ganger.spec.submission_checks import scaled_size
from ganger.spec.text_fields import did_you_mean

FORMATS: Final[dict[str, Callable[[int], str]]] = {
    "gpus": lambda amount: f"{amount} GPU" if amount == 1 else f"{amount} GPUs",
    "gpu_milli": lambda amount: f"{amount / DEVICE_MILLI:g} GPU" + "s" * (amount != DEVICE_MILLI),
    "cpu_milli": lambda amount: f"{format_cpu(amount)} CPU" if amount == 1000 else f"{format_cpu(amount)} CPUs",
    "memory_bytes": lambda amount: f"{format_bytes(amount)} memory",
}
_MAXIMUM_OPTIONS: Final[dict[str, Callable[[int], str]]] = {
    "gpus": lambda amount: f"--gpu {amount}",
    "cpu_milli": lambda amount: f"--cpu {format_cpu(amount)}",
    # Rounded down: the suggestion must fit.
    "memory_bytes": lambda amount: f"--memory {amount >> 20}Mi" if amount < 8 << 30 else f"--memory {amount >> 30}Gi",
}
_NODE_RESOURCES: Final = ("gpus", "cpu_milli", "memory_bytes")
"""Resources counted per node."""
SEE_NODES: Final = "`ganger node` shows what there is"
_NO_GPUS: Final = (
    "submit without --gpu, or start the server on other nodes: ganger server start --topology FILE for virtual nodes "
    "with GPU slots, --topology none for this machine"
)


def check_nodes(nodes: NodeTable, shape: Shape) -> None:
    """Raise RequestError when the nodes could never hold the shape."""
    for part in shape.parts:
        _check_names(nodes, part, shape.layout)
        _check_size(nodes, part)
        _check_domains(nodes, part, shape.layout)
    if shape.more and place(nodes.with_rules(Rules(topology=nodes.listing.rules.topology)), shape) is None:
        raise RequestError(
            "too_few_nodes",
            f"the job's parts ({shape}) each fit, but not all at once, even if nothing else ran",
            f"submit smaller; {SEE_NODES}",
        )


def check_networks(nodes: NodeTable, shape: Shape) -> None:
    """Raise RequestError (no_such_network) for a part of which no node is on any of its networks."""
    for wanted in filter(None, (part.selector.networks for part in shape.parts)):
        networks = sorted({network: None for node in nodes.nodes for network in node.networks})
        if not {*wanted} & {*networks}:
            message = f"no node is on a network {' or '.join(wanted)}"
            raise _missing_error("no_such_network", message, "networks", networks, wanted[0])


def impossible_on(nodes: NodeTable, shape: Shape) -> str | None:
    """Return why these nodes could never hold the shape, preferred levels aside; None: they could."""
    parts = [part if part.layout.required else replace(part, layout=Layout()) for part in shape.parts]
    try:
        check_nodes(nodes, replace(parts[0], more=tuple(parts[1:])))
    except RequestError as error:
        return error.detail
    return None


def _check_names(nodes: NodeTable, part: Shape, layout: Layout) -> None:
    levels = nodes.topology.levels
    for level in filter(None, (layout.level, *(layer.level for layer in part.slices.layers))):
        if level not in levels:
            raise _missing_error("no_such_level", f"the network has no level {level}", "levels", levels, level)
    for outer, inner in pairwise(layer.level for layer in part.slices.layers):
        if levels.index(inner) <= levels.index(outer):
            message = f"there is no level {inner} inside {outer}, as placement.slices has it"
            raise RequestError(
                "no_such_level", f"{message}; levels here, outermost first: {', '.join(levels)}", SEE_NODES
            )
    if part.has_gpus and not nodes.total.gpus.any():
        request = FORMATS["gpus"](part.gpus) if part.gpus else "a share of a GPU"
        raise RequestError("no_gpus", f"the job asks for {request} per node, and no node has any", _NO_GPUS)
    _check_extended(nodes, part)
    types = sorted({kind: None for kind in nodes.attributes.gpu_types if kind})
    for kind in filter(None, part.gpu_types):
        if kind not in types:
            raise _missing_error("no_such_gpu_type", f"no node has {kind} GPUs", "types", types, kind)
    for name in part.selector.nodes:
        if name not in nodes.index:
            raise _missing_error("no_such_node", f"there is no node {name}", "nodes", nodes.attributes.names, name)
    _check_labels(nodes, part.selector)
    check_networks(nodes, part)


def _check_extended(nodes: NodeTable, part: Shape) -> None:
    """Raise RequestError for extended resources that no node has, or that no node has as many of."""
    for name, amount in part.extended:
        most = int(nodes.extended.total[name].max(initial=0)) if name in nodes.extended.total else 0
        if not most:
            existing = [other for other, amounts in nodes.extended.total.items() if amounts.any()]
            raise _missing_error("no_such_resource", f"no node has {name}", "extended resources", existing, name)
        if amount > most:
            asked = format_resource(name, amount)
            detail = f"the job asks for {asked} per node, and the most that a node has is {format_resource(name, most)}"
            raise RequestError("node_too_small", detail, f"submit with {most} or less; {SEE_NODES}")


def _check_labels(nodes: NodeTable, selector: Selector) -> None:
    """Raise RequestError for labels that no node has; for alternative terms, when none of them holds anywhere."""
    for key, value in selector.labels:
        _check_term(nodes, Term((Expression(key, Operator.IN, (value,)),)))
    if selector.required and not any(nodes.attributes.matches(term).any() for term in selector.required):
        for term in selector.required:
            _check_term(nodes, term)
    for preferred in selector.preferred:
        if not nodes.attributes.matches(preferred.match).any():
            _check_term(nodes, preferred.match)
            message = f"it prefers nodes with labels {preferred.match}, and no node has them together"
            raise RequestError("no_such_label", message, SEE_NODES)


def _check_term(nodes: NodeTable, term: Term) -> None:
    """Raise RequestError for an expression that holds for no node."""
    for expression in term.expressions:
        if nodes.attributes.matches(Term((expression,))).any():
            continue
        values = sorted({node.labels[expression.key]: None for node in nodes.nodes if expression.key in node.labels})
        if values:
            message = f"no node has label {expression}"
            raise _missing_error(
                "no_such_label", message, f"values of {expression.key}", values, "".join(expression.values[:1])
            )
        keys = sorted({key: None for node in nodes.nodes for key in node.labels})
        raise _missing_error("no_such_label", f"no node has a label {expression.key}", "labels", keys, expression.key)


def _missing_error(code: str, message: str, kind: str, existing: Iterable[str], name: str) -> RequestError:
    listed = ", ".join(list(existing)[:12])
    remedy = f"{'name one of these, or ' if listed else ''}leave it out; `ganger node` lists the nodes"
    return RequestError(code, f"{message}; {kind} here: {listed or 'none'}{did_you_mean(name, existing)}", remedy)


def _check_size(nodes: NodeTable, part: Shape) -> None:
    capacity = max(nodes.capacity(choice, nodes.able(choice)) for choice in part.choices)
    if capacity >= part.nodes:
        return
    if capacity:
        unit, remedy = ("processes", "a smaller count") if part.stacked else ("nodes", f"--nodes {capacity} or fewer")
        raise RequestError(
            "too_few_nodes",
            f"the job needs {part.nodes} {unit} with {_per_node_text(part)} each, "
            f"and there {'is' if capacity == 1 else 'are'} {capacity}" + " at most" * part.stacked,
            f"submit with {remedy}; {SEE_NODES}",
        )
    _check_whole_gpus(nodes, part)
    eligible = np.logical_or.reduce(
        [nodes.attributes.accepts(choice) & nodes.eligible(choice.selector) for choice in part.choices]
    )
    if not eligible.any():
        raise _no_eligible_node(nodes, part)
    _check_device(nodes, part, eligible)
    for resource in _NODE_RESOURCES:
        format_amount = FORMATS[resource]
        requested, available = getattr(part, resource), getattr(nodes.total, resource)[eligible]
        maximum = int(available.max())
        if requested > maximum:
            largest = format_amount(maximum)
            detail = f"the job asks for {format_amount(requested)} per node, and the most that a node has is {largest}"
            remedy = f"submit with {_MAXIMUM_OPTIONS[resource](maximum)} or less; {SEE_NODES}"
            raise RequestError("node_too_small", detail, remedy)
    raise RequestError("node_too_small", f"no node has {_per_node_text(part)} together", SEE_NODES)


def _check_whole_gpus(nodes: NodeTable, part: Shape) -> None:
    """Raise RequestError if all GPUs are parts of devices, and the part names no type."""
    with_gpus = nodes.total.gpus > 0
    if part.has_gpus and with_gpus.any() and not (nodes.attributes.accepts(part) & with_gpus).any():
        partial = sorted({node.gpu_type.lower(): None for node in nodes.nodes if node.partial_gpus})
        if part.gpu_type is None and partial:
            detail = (
                "the job asks for GPUs of any type, which are whole devices, and all GPUs here are parts of devices"
            )
            remedy = f"name the type to get parts: --gpu {partial[0]}:{part.devices}"
            raise RequestError("node_too_small", detail, f"{remedy}; {SEE_NODES}")


def _check_device(nodes: NodeTable, part: Shape, eligible: NDArray[np.bool_]) -> None:
    """Check that a named device, or one large enough for the share, exists on some eligible node."""
    devices, max_gpus = part.selector.devices, int(nodes.total.gpus[eligible].max())
    if part.has_gpus and devices and sum(device < max_gpus for device in devices) < part.devices:
        existing = f"0 to {max_gpus - 1}" if max_gpus else "none"
        names = ", ".join(map(str, devices))
        message = f"the job names GPUs {names} and asks for {part.devices} of them; its eligible nodes have: {existing}"
        raise RequestError("no_such_device", message, SEE_NODES)
    if not part.gpu_memory_bytes:
        return
    requested, maximum = format_bytes(part.gpu_memory_bytes), int(nodes.devices.memory_bytes[eligible].max())
    if not maximum:
        message = f"the job asks for {requested} of a GPU's memory, and no node says how much its GPUs have"
        raise RequestError(
            "gpu_too_small", message, "ask for a part of its compute: --gpu-milli 500; or say gpu_memory: 80Gi"
        )
    if part.gpu_memory_bytes > maximum:
        message = (
            f"the job asks for {requested} of a GPU's memory, and the most that a GPU has is {format_bytes(maximum)}"
        )
        raise RequestError("gpu_too_small", message, f"submit with --gpu-memory {maximum >> 20}Mi or less; {SEE_NODES}")


def _no_eligible_node(nodes: NodeTable, part: Shape) -> RequestError:
    """Return the error when no node matches all selectors of the part, or each that does is tainted."""
    constraints = [f"name {' or '.join(part.selector.nodes)}"] if part.selector.nodes else []
    constraints += [f"label {key}={value}" for key, value in part.selector.labels]
    constraints += [f"label {' or '.join(map(str, part.selector.required))}"] * bool(part.selector.required)
    constraints += [f"network {' or '.join(part.selector.networks)}"] * bool(part.selector.networks)
    constraints += [f"{' or '.join(filter(None, part.gpu_types))} GPUs"] * (part.gpu_type is not None)
    tainted = [
        nodes.attributes.accepts(choice) & nodes.eligible(_tolerating_all(choice.selector)) for choice in part.choices
    ]
    tainted_nodes = np.flatnonzero(np.logical_or.reduce(tainted)).tolist()
    if not tainted_nodes:
        return RequestError("node_too_small", f"no node has {', '.join(constraints)} together", SEE_NODES)
    taints = {
        taint: None
        for index in tainted_nodes
        for taint in nodes.nodes[index].taints
        if not part.selector.tolerates(taint)
    }
    subject = f"every node with {', '.join(constraints)}" if constraints else "every node"
    remedy = f"name it in placement.tolerations; {SEE_NODES}"
    return RequestError("tainted", f"{subject} has a taint: {', '.join(sorted(taints)[:4])}", remedy)


def _tolerating_all(selector: Selector) -> Selector:
    return replace(selector, tolerations=("*",))


def scaled_nodes(gang: Gang | None, wanted: str) -> int:
    """Return the size that a request asks for: `4`, or `+1` or `-2` from what the gang has.

    Raise RequestError (is_array, not_elastic, bad_scale; 409). None or a head stands for elements without a gang.
    """
    if gang is not None and gang.job.spec.replica_groups:
        message = "a replica group has one size, and the number of groups is set at submission"
        raise RequestError("not_elastic", message, "clone the job with other --replica-groups", 409)
    if gang is None or gang.is_head:
        message = "elements of an array are scaled one by one, once they have started"
        raise RequestError("is_array", message, "ganger scale 'JOB[0]' 4", 409)
    present = len(gang.elastic_shares(gang.attempt.target)) or gang.size
    return scaled_size(gang.id, gang.job.spec, present, wanted)


def check_rollback(gang: Gang | None, step: int) -> None:
    """Raise RequestError (is_array, no_checkpoint; 409) if a live gang has no checkpoint until a step to return to."""
    if gang is None or gang.is_head:
        message = "elements of an array return to their checkpoints one by one, once they have started"
        raise RequestError("is_array", message, "ganger rollback 'JOB[0]' --to STEP", 409)
    if reason := rollback.refusal(gang, step):
        raise RequestError("no_checkpoint", reason, f"ganger events {shell_quoted_id(gang.id)}", 409)


def _check_domains(nodes: NodeTable, part: Shape, layout: Layout) -> None:
    """Check that all slices have room, smallest first, and that one domain of a required level holds all of it."""
    if part.slices.nodes == 1 and not layout.required:
        return
    capacities = [nodes.capacities(choice, nodes.able(choice)) for choice in part.choices]

    def room(layout: Layout, slices: Slices) -> int:
        return max(largest_domain_room(nodes, times, (layout, slices)) for times in capacities)

    for slices in reversed(part.slices.layers):
        needed, total = part.nodes // slices.nodes, room(Layout(), slices) if slices.nodes > 1 else part.nodes
        if total < needed:
            message = f"the job needs {_count_text(needed, slices)}, {slices.where}, and there is room for {total}"
            raise _too_few_nodes(message, room(Layout(), part.slices) * part.slices.nodes, "smaller slices")
    needed, largest = part.nodes // part.slices.nodes, room(layout, part.slices) if layout.required else part.nodes
    if largest < needed:
        largest_text = f"and the largest {layout.level} has room for {largest}"
        message = f"the job needs {_count_text(needed, part.slices)} in one {layout.level}, {largest_text}"
        raise _too_few_nodes(message, largest * part.slices.nodes, "--mode preferred")


def _count_text(needed: int, slices: Slices) -> str:
    plural = "s" * (needed > 1)
    return f"{needed} node{plural}" if slices.nodes == 1 else f"{needed} slice{plural} of {slices.nodes} nodes"


def _too_few_nodes(message: str, fewer: int, alternative: str) -> RequestError:
    """Return the error, suggesting the largest number of nodes that would do, if any would."""
    remedy = f"--nodes {fewer} or fewer, or {alternative}" if fewer else alternative
    return RequestError("too_few_nodes", message, f"submit with {remedy}; {SEE_NODES}")


def _per_node_text(part: Shape) -> str:
    """Return what each node must have, as text."""
    parts = [f"a share of {part.share} of one GPU"] if part.has_share else []
    parts += [FORMATS[resource](amount) for resource in _NODE_RESOURCES if (amount := getattr(part, resource))]
    parts += [format_resource(name, amount) for name, amount in part.extended]
    kinds = " or ".join(filter(None, part.gpu_types))
    return ", ".join(parts).replace("GPU", f"{kinds} GPU" if kinds else "GPU") or "nothing"
