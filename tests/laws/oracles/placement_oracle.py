"""Oracle of placement, by trying every choice, on clusters that are small enough for that.

Deliberately naive: names, counts and combinations, nothing of `ganger.core`.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from ganger.model.affinity import Term
from ganger.model.cluster import Node
from ganger.model.job import JobSpec
from ganger.model.job_sections.placement_spec import Placement
from tests.laws.draws import LEVELS

Room = Mapping[str, int]
"""Number of a part that each node could take, by name."""


def domain(node: Node, level: str) -> tuple[str, ...] | None:
    """Return the path of the domain of a level that a node is in, or None."""
    if level not in LEVELS:
        return None
    path = node.domains[: LEVELS.index(level) + 1]
    return path if path[-1] else None


def may_be_had(node: Node, placement: Placement) -> bool:
    """Return whether a gang may have a node by its name, labels and taints."""
    bears = [*placement.tolerations]
    tolerated = [taint for taint in node.taints if "*" in bears or taint in bears or taint.split("=")[0] in bears]
    if placement.nodes and node.name not in placement.nodes:
        return False
    if placement.affinity.required and not any(is_like(node, term) for term in placement.affinity.required):
        return False
    return placement.node_selector.items() <= node.labels.items() and len(tolerated) == len(node.taints)


def is_like(node: Node, term: Term) -> bool:
    """Return whether the labels of a node match all expressions of a term."""
    return all(
        _is_like(node.labels, expression.key, expression.operator.value, expression.values)
        for expression in term.expressions
    )


def _is_like(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    """Apply one expression by the rules of the Kubernetes API."""
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (key in labels and labels[key] in values) == (operator == "In")
    if key not in labels or not labels[key].isdigit():
        return False
    return (int(labels[key]) > int(values[0])) if operator == "Gt" else (int(labels[key]) < int(values[0]))


def points(node: Node, placement: Placement) -> int:
    """Return the sum of the weights of the preferences that a node matches."""
    return sum(preference.weight for preference in placement.affinity.preferred if is_like(node, preference.match))


def layers(spec: JobSpec) -> list[tuple[str, int]]:
    """Return level and size of the slices, in nodes, the largest first; those of one node are left out."""
    layer = spec.nproc_per_node or spec.resources.gpu.count or 1
    sizes = [
        (placement.level, placement.nodes or max(1, (placement.ranks or 1) // layer))
        for placement in spec.placement.slices
    ]
    return [(level, size) for level, size in sizes if size > 1]


def unit(slices: list[tuple[str, int]]) -> int:
    """Return the number of nodes of the largest slice; one if there are no slices."""
    return slices[0][1] if slices else 1


def units(room: Room, nodes: Mapping[str, Node], slices: list[tuple[str, int]]) -> int:
    """Return how many of the largest slices there is room for."""
    if not slices:
        return sum(room.values())
    (level, size), *inner = slices
    homes = {domain(nodes[name], level) for name in room} - {None}
    inside = [{name: most for name, most in room.items() if domain(nodes[name], level) == home} for home in homes]
    return sum(units(count, nodes, inner) // (size // unit(inner)) for count in inside)


def lies_well(spec: JobSpec, nodes: Iterable[Node], workers: list[Node]) -> str | None:
    """Return what is wrong with these nodes of a gang, those of its workers in the order of ranks, or None."""
    placement = spec.placement
    if placement.mode == "required" and placement.topology:
        homes = {domain(node, placement.topology) for node in nodes}
        if len(homes) != 1 or None in homes:
            return f"it is in {homes}, and must be in one {placement.topology}"
    for level, size in layers(spec):
        for begin in range(0, len(workers), size):
            homes = {domain(node, level) for node in workers[begin : begin + size]}
            if len(homes) != 1 or None in homes:
                return f"a slice is in {homes}, and must be in one {level}"
    return None


def tallies(spec: JobSpec, count: int, room: Room, nodes: Mapping[str, Node], *, sliced: bool) -> list[tuple[int, int]]:
    """Return what must be enough, one after the other, as (needed, there).

    These are nodes, slices, the smallest first, and the largest of these, or nodes, in one domain.
    """
    placement, slices = spec.placement, layers(spec) if sliced else []
    amounts = [(count, sum(room.values()))]
    inner = [slices[position:] for position in reversed(range(len(slices)))]
    amounts += [(count // unit(layer), units(room, nodes, layer)) for layer in inner]
    if placement.mode == "required" and placement.topology:
        homes = {domain(nodes[name], placement.topology) for name in room} - {None}
        inside = [
            {n: most for n, most in room.items() if domain(nodes[n], placement.topology) == home} for home in homes
        ]
        amounts.append((count // unit(slices), max((units(layer, nodes, slices) for layer in inside), default=0)))
    return amounts


def could_lie(spec: JobSpec, count: int, room: Room, nodes: Mapping[str, Node], *, stacked: bool) -> bool:
    """Return whether a part that is the whole gang has a place, tried choice by choice."""
    placement = spec.placement
    if stacked:
        homes = {placement.topology and domain(node, placement.topology) for node in nodes.values()} - {None}
        if placement.mode != "required" or not placement.topology:
            return sum(room.values()) >= count
        return any(
            sum(most for name, most in room.items() if domain(nodes[name], placement.topology) == home) >= count
            for home in homes
        )
    return any(True for _ in places(spec, count, [nodes[name] for name, most in room.items() if most]))


def places(spec: JobSpec, count: int, nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """Yield every choice of that many of these nodes that lies well."""
    for combination in combinations(nodes, count):
        choice = sorted(combination, key=lambda node: node.domains)
        if lies_well(spec, choice, choice) is None:
            yield choice
