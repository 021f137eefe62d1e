"""Where a gang may be, by trying: the oracle of placement, on clusters that are small enough for every choice.

Deliberately naive: names, counts and combinations, nothing of `ganger.core`.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from ganger.model.affinity import Term
from ganger.model.cluster import Node
from ganger.model.job import JobSpec, Placement
from tests.laws.draws import LEVELS

Room = Mapping[str, int]
"""How many of a part each node could take, by name."""


def domain(node: Node, level: str) -> tuple[str, ...] | None:
    """The path of the domain of that level that a node is in; None for one that is in none."""
    if level not in LEVELS:
        return None
    path = node.domains[: LEVELS.index(level) + 1]
    return path if path[-1] else None


def may_be_had(node: Node, said: Placement) -> bool:
    """Whether a gang may have a node by its name, labels and taints."""
    bears = [*said.tolerations]
    tolerated = [taint for taint in node.taints if "*" in bears or taint in bears or taint.split("=")[0] in bears]
    if said.nodes and node.name not in said.nodes:
        return False
    if said.affinity.required and not any(is_like(node, term) for term in said.affinity.required):
        return False
    return said.node_selector.items() <= node.labels.items() and len(tolerated) == len(node.taints)


def is_like(node: Node, term: Term) -> bool:
    """Whether the labels of a node are as all expressions of a term say."""
    return all(_is_like(node.labels, each.key, each.operator.value, each.values) for each in term.expressions)


def _is_like(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    """By the words of the API of Kubernetes."""
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (key in labels and labels[key] in values) == (operator == "In")
    if key not in labels or not labels[key].isdigit():
        return False
    return (int(labels[key]) > int(values[0])) if operator == "Gt" else (int(labels[key]) < int(values[0]))


def points(node: Node, said: Placement) -> int:
    """The weights of what a gang prefers that a node is."""
    return sum(each.weight for each in said.affinity.preferred if is_like(node, each.match))


def layers(spec: JobSpec) -> list[tuple[str, int]]:
    """Level and size of the slices, in nodes, the largest first; those of one node are left out."""
    each = spec.nproc_per_node or spec.resources.gpu.count or 1
    found = [(said.level, said.nodes or max(1, (said.ranks or 1) // each)) for said in spec.placement.slices]
    return [(level, size) for level, size in found if size > 1]


def unit(slices: list[tuple[str, int]]) -> int:
    """How many nodes the largest slice has; one where there are none."""
    return slices[0][1] if slices else 1


def units(room: Room, nodes: Mapping[str, Node], slices: list[tuple[str, int]]) -> int:
    """How many of the largest slices there is room for."""
    if not slices:
        return sum(room.values())
    (level, size), *inner = slices
    homes = {domain(nodes[name], level) for name in room} - {None}
    inside = [{name: most for name, most in room.items() if domain(nodes[name], level) == home} for home in homes]
    return sum(units(each, nodes, inner) // (size // unit(inner)) for each in inside)


def lies_well(spec: JobSpec, nodes: Iterable[Node], workers: list[Node]) -> str | None:
    """What is wrong with these nodes of a gang, those of its workers in the order of ranks; None if nothing is."""
    said = spec.placement
    if said.mode == "required" and said.topology:
        homes = {domain(node, said.topology) for node in nodes}
        if len(homes) != 1 or None in homes:
            return f"it is in {homes}, and must be in one {said.topology}"
    for level, size in layers(spec):
        for begin in range(0, len(workers), size):
            homes = {domain(node, level) for node in workers[begin : begin + size]}
            if len(homes) != 1 or None in homes:
                return f"a slice is in {homes}, and must be in one {level}"
    return None


def tallies(spec: JobSpec, count: int, room: Room, nodes: Mapping[str, Node], *, sliced: bool) -> list[tuple[int, int]]:
    """What must be enough, one after the other, as (needed, there): nodes, slices, the smallest first, the largest of
    these, or nodes, in one domain."""
    said, slices = spec.placement, layers(spec) if sliced else []
    found = [(count, sum(room.values()))]
    inner = [slices[at:] for at in reversed(range(len(slices)))]
    found += [(count // unit(each), units(room, nodes, each)) for each in inner]
    if said.mode == "required" and said.topology:
        homes = {domain(nodes[name], said.topology) for name in room} - {None}
        inside = [{n: most for n, most in room.items() if domain(nodes[n], said.topology) == home} for home in homes]
        found.append((count // unit(slices), max((units(each, nodes, slices) for each in inside), default=0)))
    return found


def could_lie(spec: JobSpec, count: int, room: Room, nodes: Mapping[str, Node], *, stacked: bool) -> bool:
    """Whether a part that is the whole gang has a place: tried out, choice by choice."""
    said = spec.placement
    if stacked:
        homes = {said.topology and domain(node, said.topology) for node in nodes.values()} - {None}
        if said.mode != "required" or not said.topology:
            return sum(room.values()) >= count
        return any(
            sum(most for name, most in room.items() if domain(nodes[name], said.topology) == home) >= count
            for home in homes
        )
    return any(True for _ in places(spec, count, [nodes[name] for name, most in room.items() if most]))


def places(spec: JobSpec, count: int, nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """Every choice of so many different ones of these nodes that lies well."""
    for choice in combinations(nodes, count):
        chosen = sorted(choice, key=lambda node: node.domains)
        if lies_well(spec, chosen, chosen) is None:
            yield chosen
