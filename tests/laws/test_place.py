"""Invariants 11 and 12: placement against brute force on tiny clusters. If any whole place exists, one is found, and it
is a best one."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.undo import Undo
from ganger.model.affinity import Affinity
from ganger.model.cluster import Node, NodeState
from ganger.model.decision import NodeShare
from ganger.model.job import GpuRequest, JobSpec, Placement, Resources
from ganger.model.policy import RESERVED, Pool, Rules
from ganger.model.shape import Shape
from tests.laws import draws
from tests.laws.on_devices import Held, on_device, times_on
from tests.laws.raw import Part, parts
from tests.laws.where import could_lie, lies_well, may_be_had, places, points

LEVELS = len(draws.LEVELS)


@dataclass(frozen=True)
class HalfFull:
    """Nodes; devices taken whole on each; states; nodes that a round keeps for somebody; shares of devices: (node,
    device, compute, memory)."""

    nodes: tuple[Node, ...]
    taken: dict[str, tuple[int, ...]]
    states: dict[str, NodeState]
    held: tuple[str, ...]
    shares: tuple[tuple[str, int, int, int], ...] = ()

    def table(self, rules: Rules | None = None) -> NodeTable:
        """The same as the core has it."""
        table = NodeTable(self.nodes, self.states, Undo(), draws.LEVELS, rules or Rules())
        for number, (name, devices) in enumerate(self.taken.items()):
            if devices:
                used = Shape(nodes=1, gpus=len(devices), cpu_milli=500 * len(devices))
                table.take(number, used, [NodeShare(name, (0,), devices)])
        for number, (name, device, milli, memory) in enumerate(self.shares, start=100):
            used = Shape(nodes=1, gpu_milli=milli, gpu_memory_bytes=memory)
            table.take(number, used, [NodeShare(name, (0,), (device,))])
        table.hold(self.held, held=True)
        return table

    def fits(self, part: Part) -> list[Node]:
        """Nodes that could take one of the part's nodes."""
        return [node for node in self.nodes if node.name not in self.held and self._fits(node, part)]

    def _fits(self, node: Node, part: Part) -> bool:
        said, used = part.placement, len(self.taken[node.name])
        return (
            self.states[node.name] is NodeState.READY
            and may_be_had(node, said)
            and part.gpu_type in (None, node.gpu_type.lower())
            and (part.network is None or part.network in node.networks)
            and (said.sharing == "shared" or not self.on(node.name))
            and (said.sharing != "whole" or node.gpus == (part.need["gpus"] or any(part.share)))
            and ((not part.need["gpu_milli"] and not part.share[1]) or times_on(part, node, self.on(node.name)) > 0)
            and node.cpu_milli - 500 * used >= part.need["cpu_milli"]
            and node.memory_bytes >= part.need["memory_bytes"]
        )

    def on(self, name: str) -> Held:
        """What is on a node; a device that others use is like one that somebody has whole."""
        whole = [({"gpus": 1}, (0, 0), device) for device in (*self.taken[name], *self.node(name).foreign)]
        shares = [({"gpus": 0}, (milli, memory), device) for at, device, milli, memory in self.shares if at == name]
        anywhere = Part(1, {}, None, 1, False, Placement())
        return [(replace(anywhere, need=need, share=of), (device,)) for need, of, device in whole + shares]

    def left(self, name: str) -> tuple[int, int, int]:
        """What is free on a node."""
        node, used = self.node(name), len(self.taken[name])
        shared = {device for at, device, *_ in self.shares if at == name}
        return node.gpus - used - len(shared) - len(node.foreign), node.cpu_milli - 500 * used, node.memory_bytes

    def left_for(self, part: Part, node: Node) -> tuple[int, ...]:
        """The same; for a share before all else what the tightest device has that holds it."""
        on = [on_device(device, self.on(node.name)) for device in range(node.gpus)]
        left = [(1000 - milli, node.gpu_memory_bytes - memory) for whole, milli, memory in on if not whole]
        holds = [each for each in left if each[0] >= part.share[0] and each[1] >= part.share[1]]
        return (*(min(holds) if any(part.share) else ()), *self.left(node.name))

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def path(self, name: str) -> tuple[str, ...]:
        """The domains that a node is in."""
        return self.node(name).domains


@st.composite
def half_full(draw: st.DrawFn) -> HalfFull:
    """A cluster in which something runs."""
    nodes = draw(draws.nodes(7))
    drawn = {node.name: draw(st.sets(st.integers(0, node.gpus - 1))) if node.gpus else set() for node in nodes}
    taken = {node.name: tuple(drawn[node.name] - {*node.foreign}) for node in nodes}
    states = {node.name: draw(st.sampled_from((NodeState.READY, NodeState.READY, *NodeState))) for node in nodes}
    held = tuple(draw(st.sets(st.sampled_from([n.name for n in nodes]), max_size=1)))
    return HalfFull(nodes, taken, states, held, draw(_shares(nodes, taken)))


@st.composite
def _shares(draw: st.DrawFn, nodes: tuple[Node, ...], taken: dict[str, tuple[int, ...]]) -> tuple[Any, ...]:
    """Shares on devices that nobody has whole, one or two on each."""
    found = []
    for node in nodes:
        for device in range(node.gpus) if draw(st.booleans()) else ():
            if device not in (*taken[node.name], *node.foreign) and draw(st.integers(0, 2)):
                found.append((node.name, device, draw(st.sampled_from((1, 300, 500))), min(4, node.gpu_memory_bytes)))
                if draw(st.booleans()):
                    found.append((node.name, device, draw(st.sampled_from((200, 500))), 0))
    return tuple(found)


RESOURCES = st.builds(
    Resources,
    gpu=st.builds(GpuRequest, count=st.integers(0, 4), type=st.sampled_from((None, None, "h100")))
    | st.builds(GpuRequest, count=st.integers(1, 4), type=st.just("a100"), other_types=st.just(("H100",)))
    | draws.shares(),
    cpu_milli=st.sampled_from((0, 1_000, 2_000)),
    memory_bytes=st.sampled_from((0, 2)),
)
SPECS = st.builds(
    JobSpec, run=st.just("x"), nodes=st.integers(1, 4), nproc_per_node=st.integers(1, 3), resources=RESOURCES
)


@given(cluster=half_full(), spec=SPECS, said=draws.placements())
def test_invariant_12_a_place_is_found_wherever_there_is_one(cluster: HalfFull, spec: JobSpec, said: Placement) -> None:
    spec = draws.possible(replace(spec, placement=said))
    (part,) = parts(spec)
    nodes = {node.name: node for node in cluster.nodes}
    rooms = [{node.name: 1 for node in cluster.fits(kind)} for kind in part.variants]
    possible = [could_lie(spec, part.count, room, nodes, stacked=False) for room in rooms]
    found = place(cluster.table(), spec.shape)
    assert (found is not None) == any(possible)
    if found is None:
        return
    names = [share.node for share in found]
    assert len({*names}) == spec.nodes
    assert {*names} <= {*rooms[possible.index(True)]}, "of the first kind that has room"
    assert [rank for share in found for rank in share.ranks] == list(range(spec.processes))
    for share in found:
        _devices_are_right(cluster, part, share)
    on = [nodes[name] for name in names]
    assert lies_well(spec, on, on) is None
    paths = [node.domains for node in on]
    assert paths == sorted(paths), "ranks follow the network"
    fits = [nodes[name] for name in rooms[possible.index(True)]]
    if said.strategy == "spread" and not (said.slices or said.topology or said.affinity.preferred):
        _is_spread(paths, fits)
    if said.strategy == "balanced" and not (spec.placement.slices or said.affinity.preferred):
        _is_balanced(paths, fits)


@given(cluster=half_full(), spec=SPECS, said=draws.placements(), affinity=draws.affinities())
def test_no_other_place_is_preferred(cluster: HalfFull, spec: JobSpec, said: Placement, affinity: Affinity) -> None:
    """Of all places on the first kind of nodes that has room, of these in one domain of the level asked for if there is
    any, that whose worst node is best."""
    spec = draws.possible(replace(spec, placement=replace(said, affinity=affinity)))
    (part,) = parts(spec)
    found = place(cluster.table(), spec.shape)
    every = (list(places(spec, part.count, cluster.fits(kind))) for kind in part.variants)
    able = next(filter(None, every), [])
    if found is None:
        return
    if spec.placement.topology in draws.LEVELS:
        inside = replace(spec, placement=replace(spec.placement, mode="required"))
        able = [choice for choice in able if lies_well(inside, choice, []) is None] or able
    worst = min(points(cluster.node(share.node), spec.placement) for share in found)
    assert worst == max(min(points(node, spec.placement) for node in choice) for choice in able)


@given(cluster=half_full(), spec=SPECS, said=draws.placements())
def test_the_first_pool_that_holds_it_all_has_it(cluster: HalfFull, spec: JobSpec, said: Placement) -> None:
    """And a place is found wherever there is one, in one pool or in several."""
    gpu = replace(spec.resources.gpu, other_types=())
    spec = replace(spec, resources=replace(spec.resources, gpu=gpu))
    spec = draws.possible(replace(spec, placement=replace(said, network=said.network[:1])))
    (part,) = parts(spec)
    nodes = {node.name: node for node in cluster.nodes}
    fits = {node.name: 1 for node in cluster.fits(part)}
    first = {name: 1 for name in fits if nodes[name].labels.get("zone") == "a"}
    found = place(cluster.table(Rules(pools=(Pool(name="a", kind=RESERVED, nodes={"zone": "a"}),))), spec.shape)
    assert (found is not None) == could_lie(spec, part.count, fits, nodes, stacked=False)
    for pool in (first, {name: 1 for name in fits if name not in first}):
        if could_lie(spec, part.count, pool, nodes, stacked=False):
            assert found
            assert {share.node for share in found} <= {*pool}
            return


def _devices_are_right(cluster: HalfFull, part: Part, share: NodeShare) -> None:
    """The lowest that are free; for a share the device with the least left, in compute, then memory, that holds it."""
    node, held = cluster.node(share.node), cluster.on(share.node)
    named = part.placement.devices or range(node.gpus)
    on = {device: on_device(device, held) for device in range(node.gpus) if device in named}
    if not any(part.share):
        free = [device for device, its in on.items() if its == (0, 0, 0)]
        assert share.devices == tuple(free[: part.need["gpus"]]), "the lowest free devices"
        return
    left = {
        at: (1000 - milli, node.gpu_memory_bytes - memory, at) for at, (whole, milli, memory) in on.items() if not whole
    }
    holds = [each for each in left.values() if each[0] >= part.share[0] and each[1] >= part.share[1]]
    assert share.devices == (min(holds)[2],), "the device with the least left"


def _is_spread(paths: list[tuple[str, ...]], fits: list[Node]) -> None:
    """The least that any domain of the first level has could not be more, nor the next least, and so on."""
    room = Counter(node.domains[:1] for node in fits)
    given = Counter(path[:1] for path in paths)
    for home, least in ((home, given[home]) for home in room):
        richer = [other for other in room if given[other] > least + 1]
        assert least == room[home] or not richer, f"{home} has {least}, {richer} more"


def _is_balanced(paths: list[tuple[str, ...]], fits: list[Node]) -> None:
    """In the domain that holds it all as few of the next level as can be, and these as equal as they can be."""
    depth = _common(paths)
    room = Counter(node.domains[: depth + 1] for node in fits if node.domains[:depth] == paths[0][:depth])
    if depth == LEVELS or len(paths) == 1:
        return
    given = Counter(path[: depth + 1] for path in paths)
    choices = [choice for choice in combinations(room, len(given)) if sum(room[home] for home in choice) >= len(paths)]
    assert not any(sum(sorted(room.values())[-few:]) >= len(paths) for few in range(1, len(given)))
    assert min(given.values()) == max(_fairest(sorted(room[home] for home in choice), len(paths)) for choice in choices)


def _fairest(rooms: list[int], count: int) -> int:
    """The most that the one with the least can get."""
    return max(least for least in range(1, count + 1) if least <= rooms[0] and least * len(rooms) <= count)


@given(cluster=half_full(), spec=SPECS)
def test_place_is_tight(cluster: HalfFull, spec: JobSpec) -> None:
    (part,) = parts(spec)
    for kind in part.variants:
        if len(fits := cluster.fits(kind)) >= spec.nodes:
            break
    else:
        return
    found = place(cluster.table(), spec.shape)
    assert found is not None
    names = [share.node for share in found]
    if spec.nodes == 1:
        _one_is_tight(cluster, kind, fits, names[0])
        return
    paths = [cluster.path(name) for name in names]
    choices = [[node.domains for node in choice] for choice in combinations(fits, spec.nodes)]
    depth = max(map(_common, choices))
    assert _common(paths) == depth, "the lowest level that holds it all"
    room = Counter(node.domains[:depth] for node in fits)
    home = paths[0][:depth]
    assert room[home] == min(size for size in room.values() if size >= spec.nodes), "the tightest domain"
    inside = [choice for choice in choices if all(path[:depth] == home for path in choice)]
    fewest = min(len({path[: depth + 1] for path in choice}) for choice in inside)
    assert len({path[: depth + 1] for path in paths}) == fewest, "as few domains below it as possible"
    if depth == LEVELS:
        _nodes_are_tight(cluster, kind, [node for node in fits if node.domains[:depth] == home], names)


def _nodes_are_tight(cluster: HalfFull, part: Part, here: list[Node], names: list[str]) -> None:
    """Inside the lowest domain: those with the least left, and of equal ones those under less suspicion."""
    chosen = max((cluster.left_for(part, cluster.node(name)), cluster.node(name).suspicion) for name in names)
    spared = [(cluster.left_for(part, node), node.suspicion) for node in here if node.name not in names]
    assert all(chosen <= other for other in spared), "the nodes with the least left"


def _one_is_tight(cluster: HalfFull, part: Part, fits: list[Node], name: str) -> None:
    """A single node: the one that is left with the least; of such, in the domain that is left with the least; of such,
    the one under least suspicion."""
    least = min(cluster.left_for(part, node) for node in fits)
    equal = [node for node in fits if cluster.left_for(part, node) == least]
    for depth in range(LEVELS, 0, -1):
        room = Counter(node.domains[:depth] for node in fits)
        least_room = min(room[node.domains[:depth]] for node in equal)
        equal = [node for node in equal if room[node.domains[:depth]] == least_room]
    doubt = min(node.suspicion for node in equal)
    assert name in [node.name for node in equal if node.suspicion == doubt]


def _common(paths: list[tuple[str, ...]]) -> int:
    """How many levels, outermost first, they have in common."""
    return max(depth for depth in range(LEVELS + 1) if len({path[:depth] for path in paths}) == 1)


@given(cluster=half_full(), spec=SPECS, said=draws.placements(), more=draws.nodes(3))
def test_invariant_11_more_free_nodes_never_make_the_level_worse(
    cluster: HalfFull, spec: JobSpec, said: Placement, more: tuple[Node, ...]
) -> None:
    said = replace(said, strategy="pack", network=said.network[:1], affinity=replace(said.affinity, preferred=()))
    spec = draws.possible(replace(spec, placement=said))
    spec = replace(spec, resources=replace(spec.resources, gpu=replace(spec.resources.gpu, other_types=())))
    before = place(cluster.table(), spec.shape)
    if before is None:
        return
    added = [replace(node, name=f"m{at}") for at, node in enumerate(more)]
    larger = HalfFull(
        (*cluster.nodes, *added),
        cluster.taken | {node.name: () for node in added},
        cluster.states | {node.name: NodeState.READY for node in added},
        cluster.held,
        cluster.shares,
    )
    after = place(larger.table(), spec.shape)
    assert after is not None
    depths = [
        LEVELS + 1 if spec.nodes == 1 else _common([of.path(share.node) for share in found])
        for of, found in ((cluster, before), (larger, after))
    ]
    assert depths[1] >= depths[0], "on a level as low as before, or lower"
