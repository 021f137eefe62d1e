"""Invariants 11 and 12: placement against brute force on tiny clusters.

If any whole place exists, one is found, and it is a best one.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ganger import registry
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.undo import Undo
from ganger.model.affinity import Affinity
from ganger.model.cluster import Node, NodeState
from ganger.model.decision import NodeShare
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.policy import RESERVED, Pool, Rules
from ganger.model.shape import Shape
from tests.laws import draws
from tests.laws.oracles.device_oracle import Held, is_accepted, on_device, times_on
from tests.laws.oracles.job_parts import HCA, Part, amount_of, parts
from tests.laws.oracles.placement_oracle import could_lie, lies_well, may_be_had, places, points

LEVELS = len(draws.LEVELS)
IMAGE = "b"


@dataclass(frozen=True)
class HalfFull:
    """A cluster in use.

    Attributes:
        nodes: The nodes.
        taken: Devices taken whole on each.
        states: The state of each.
        held: Nodes that a cycle holds for a gang.
        shares: Shares of devices: (node, device, compute, memory).
    """

    nodes: tuple[Node, ...]
    taken: dict[str, tuple[int, ...]]
    states: dict[str, NodeState]
    held: tuple[str, ...]
    shares: tuple[tuple[str, int, int, int], ...] = ()

    def table(self, rules: Rules | None = None) -> NodeTable:
        """Return the node table of the core."""
        table = NodeTable(self.nodes, self.states, Undo(), draws.LEVELS, rules or Rules())
        table.score_cache.find_score = registry.score
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
        """Return nodes that could take one of the part's nodes."""
        return [node for node in self.nodes if node.name not in self.held and self._fits(node, part)]

    def _fits(self, node: Node, part: Part) -> bool:
        placement, used = part.placement, len(self.taken[node.name])
        return (
            self.states[node.name] is NodeState.READY
            and may_be_had(node, placement)
            and is_accepted(part, node)
            and (part.network is None or part.network in node.networks)
            and (placement.sharing == "shared" or not self.on(node.name))
            and (placement.sharing != "whole" or node.gpus == (part.need["gpus"] or any(part.share)))
            and ((not part.need["gpu_milli"] and not part.share[1]) or times_on(part, node, self.on(node.name)) > 0)
            and node.cpu_milli - 500 * used >= part.need["cpu_milli"]
            and node.memory_bytes >= part.need["memory_bytes"]
            and amount_of(node, HCA) >= part.need[HCA]
        )

    def on(self, name: str) -> Held:
        """Return what is on a node; a device used by foreign pods is like one that a gang has whole."""
        whole = [({"gpus": 1}, (0, 0), device) for device in (*self.taken[name], *self.node(name).foreign)]
        shares = [
            ({"gpus": 0}, (milli, memory), device)
            for node_name, device, milli, memory in self.shares
            if node_name == name
        ]
        anywhere = Part(1, {}, None, 1, False, Placement())
        return [(replace(anywhere, need=need, share=share), (device,)) for need, share, device in whole + shares]

    def left(self, name: str) -> tuple[int, int, int]:
        """Return what is free on a node."""
        node, used = self.node(name), len(self.taken[name])
        shared = {device for node_name, device, *_ in self.shares if node_name == name}
        return node.gpus - used - len(shared) - len(node.foreign), node.cpu_milli - 500 * used, node.memory_bytes

    def left_for(self, part: Part, node: Node) -> tuple[int, ...]:
        """Return the same; for a share first what the tightest device has that holds it."""
        on = [on_device(device, self.on(node.name)) for device in range(node.gpus)]
        left = [(1000 - milli, node.gpu_memory_bytes - memory) for whole, milli, memory in on if not whole]
        holds = [
            device_left for device_left in left if device_left[0] >= part.share[0] and device_left[1] >= part.share[1]
        ]
        return (*(min(holds) if any(part.share) else ()), *self.left(node.name))

    def node(self, name: str) -> Node:
        """Return the node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def path(self, name: str) -> tuple[str, ...]:
        """Return the domains that a node is in."""
        return self.node(name).domains


@st.composite
def half_full(draw: st.DrawFn) -> HalfFull:
    """Draw a cluster in which something runs."""
    nodes = draw(draws.nodes(7))
    drawn = {node.name: draw(st.sets(st.integers(0, node.gpus - 1))) if node.gpus else set() for node in nodes}
    taken = {node.name: tuple(drawn[node.name] - {*node.foreign}) for node in nodes}
    states = {node.name: draw(st.sampled_from((NodeState.READY, NodeState.READY, *NodeState))) for node in nodes}
    held = tuple(draw(st.sets(st.sampled_from([n.name for n in nodes]), max_size=1)))
    return HalfFull(nodes, taken, states, held, draw(_shares(nodes, taken)))


@st.composite
def _shares(draw: st.DrawFn, nodes: tuple[Node, ...], taken: dict[str, tuple[int, ...]]) -> tuple[Any, ...]:
    """Draw shares on devices that no gang has whole, one or two on each."""
    shares = []
    for node in nodes:
        for device in range(node.gpus) if draw(st.booleans()) else ():
            if device not in (*taken[node.name], *node.foreign) and draw(st.integers(0, 2)):
                shares.append((node.name, device, draw(st.sampled_from((1, 300, 500))), min(4, node.gpu_memory_bytes)))
                if draw(st.booleans()):
                    shares.append((node.name, device, draw(st.sampled_from((200, 500))), 0))
    return tuple(shares)


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


@given(cluster=half_full(), spec=SPECS, placement=draws.placements())
def test_invariant_12_a_place_is_found_wherever_there_is_one(
    cluster: HalfFull, spec: JobSpec, placement: Placement
) -> None:
    spec = draws.possible(replace(spec, placement=placement))
    (part,) = parts(spec)
    nodes = {node.name: node for node in cluster.nodes}
    rooms = [{node.name: 1 for node in cluster.fits(kind)} for kind in part.variants]
    possible = [could_lie(spec, part.count, room, nodes, stacked=False) for room in rooms]
    shares = place(cluster.table(), spec.shape)
    assert (shares is not None) == any(possible)
    if shares is None:
        return
    names = [share.node for share in shares]
    assert len({*names}) == spec.nodes
    assert {*names} <= {*rooms[possible.index(True)]}, "of the first kind that has room"
    assert [rank for share in shares for rank in share.ranks] == list(range(spec.processes))
    for share in shares:
        _devices_are_right(cluster, part, share)
    on = [nodes[name] for name in names]
    assert lies_well(spec, on, on) is None
    paths = [node.domains for node in on]
    assert paths == sorted(paths), "ranks follow the network"
    fits = [nodes[name] for name in rooms[possible.index(True)]]
    if placement.strategy == "spread" and not (placement.slices or placement.topology or placement.affinity.preferred):
        _is_spread(paths, fits)
    if placement.strategy == "balanced" and not (spec.placement.slices or placement.affinity.preferred):
        _is_balanced(paths, fits)


@given(cluster=half_full(), spec=SPECS, placement=draws.placements(), affinity=draws.affinities())
def test_no_other_place_is_preferred(
    cluster: HalfFull, spec: JobSpec, placement: Placement, affinity: Affinity
) -> None:
    """Check that the worst node of the placement is as good as in any other place.

    Compared are places on the first kind of nodes that has room, of these in one domain of the requested level if there
    is any.
    """
    spec = draws.possible(replace(spec, placement=replace(placement, affinity=affinity)))
    (part,) = parts(spec)
    shares = place(cluster.table(), spec.shape)
    all_places = (list(places(spec, part.count, cluster.fits(kind))) for kind in part.variants)
    able = next(filter(None, all_places), [])
    if shares is None:
        return
    if spec.placement.topology in draws.LEVELS:
        inside = replace(spec, placement=replace(spec.placement, mode="required"))
        able = [choice for choice in able if lies_well(inside, choice, []) is None] or able
    worst = min(points(cluster.node(share.node), spec.placement) for share in shares)
    assert worst == max(min(points(node, spec.placement) for node in choice) for choice in able)


@given(cluster=half_full(), spec=SPECS, placement=draws.placements())
def test_the_first_pool_that_holds_it_all_has_it(cluster: HalfFull, spec: JobSpec, placement: Placement) -> None:
    """Check that a place is found wherever there is one, in one pool or in several."""
    gpu = replace(spec.resources.gpu, other_types=())
    spec = replace(spec, resources=replace(spec.resources, gpu=gpu))
    spec = draws.possible(replace(spec, placement=replace(placement, network=placement.network[:1])))
    (part,) = parts(spec)
    nodes = {node.name: node for node in cluster.nodes}
    fits = {node.name: 1 for node in cluster.fits(part)}
    first = {name: 1 for name in fits if nodes[name].labels.get("zone") == "a"}
    shares = place(cluster.table(Rules(pools=(Pool(name="a", kind=RESERVED, nodes={"zone": "a"}),))), spec.shape)
    assert (shares is not None) == could_lie(spec, part.count, fits, nodes, stacked=False)
    for pool in (first, {name: 1 for name in fits if name not in first}):
        if could_lie(spec, part.count, pool, nodes, stacked=False):
            assert shares
            assert {share.node for share in shares} <= {*pool}
            return


def _devices_are_right(cluster: HalfFull, part: Part, share: NodeShare) -> None:
    """Check that devices are the lowest free ones; for a share the one with the least left that holds it."""
    node, held = cluster.node(share.node), cluster.on(share.node)
    named = part.placement.devices or range(node.gpus)
    on = {device: on_device(device, held) for device in range(node.gpus) if device in named}
    if not any(part.share):
        free = [device for device, usage in on.items() if usage == (0, 0, 0)]
        assert share.devices == tuple(free[: part.need["gpus"]]), "the lowest free devices"
        return
    left = {
        index: (1000 - milli, node.gpu_memory_bytes - memory, index)
        for index, (whole, milli, memory) in on.items()
        if not whole
    }
    holds = [rest for rest in left.values() if rest[0] >= part.share[0] and rest[1] >= part.share[1]]
    assert share.devices == (min(holds)[2],), "the device with the least left"


def _is_spread(paths: list[tuple[str, ...]], fits: list[Node]) -> None:
    """Check that the least count of any domain of the first level could not be more, nor the next least, and so on."""
    room = Counter(node.domains[:1] for node in fits)
    counts = Counter(path[:1] for path in paths)
    for home, least in ((home, counts[home]) for home in room):
        richer = [other_home for other_home in room if counts[other_home] > least + 1]
        assert least == room[home] or not richer, f"{home} has {least}, {richer} more"


def _is_balanced(paths: list[tuple[str, ...]], fits: list[Node]) -> None:
    """Check that the domain's next level is used in as few domains as possible, as equally as possible."""
    depth = _common(paths)
    room = Counter(node.domains[: depth + 1] for node in fits if node.domains[:depth] == paths[0][:depth])
    if depth == LEVELS or len(paths) == 1:
        return
    counts = Counter(path[: depth + 1] for path in paths)
    choices = [choice for choice in combinations(room, len(counts)) if sum(room[home] for home in choice) >= len(paths)]
    assert not any(sum(sorted(room.values())[-home_count:]) >= len(paths) for home_count in range(1, len(counts)))
    assert min(counts.values()) == max(
        _fairest(sorted(room[home] for home in choice), len(paths)) for choice in choices
    )


def _fairest(rooms: list[int], count: int) -> int:
    """Return the most that the domain with the least can get."""
    return max(least for least in range(1, count + 1) if least <= rooms[0] and least * len(rooms) <= count)


@given(cluster=half_full(), spec=SPECS)
def test_place_is_tight(cluster: HalfFull, spec: JobSpec) -> None:
    (part,) = parts(spec)
    for kind in part.variants:
        if len(fits := cluster.fits(kind)) >= spec.nodes:
            break
    else:
        return
    table = cluster.table()
    with table.preferring(IMAGE):
        shares = place(table, spec.shape)
    assert shares is not None
    names = [share.node for share in shares]
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
    """Check that the nodes in the lowest domain have the least left, then the least suspicion, then the image."""

    def key(node: Node) -> tuple[Any, ...]:
        return cluster.left_for(part, node), node.suspicion, IMAGE not in node.images

    worst_chosen = max(key(cluster.node(name)) for name in names)
    spared = [key(node) for node in here if node.name not in names]
    assert all(worst_chosen <= spared_node for spared_node in spared), "the nodes with the least left"


def _one_is_tight(cluster: HalfFull, part: Part, fits: list[Node], name: str) -> None:
    """Check that a single node has the least left, in the domain with the least left.

    Of several such nodes it is under the least suspicion, and of these one that has the image.
    """
    least = min(cluster.left_for(part, node) for node in fits)
    equal = [node for node in fits if cluster.left_for(part, node) == least]
    for depth in range(LEVELS, 0, -1):
        room = Counter(node.domains[:depth] for node in fits)
        least_room = min(room[node.domains[:depth]] for node in equal)
        equal = [node for node in equal if room[node.domains[:depth]] == least_room]
    best = min((node.suspicion, IMAGE not in node.images) for node in equal)
    assert name in [node.name for node in equal if (node.suspicion, IMAGE not in node.images) == best]


def _common(paths: list[tuple[str, ...]]) -> int:
    """Return how many levels, outermost first, the paths have in common."""
    return max(depth for depth in range(LEVELS + 1) if len({path[:depth] for path in paths}) == 1)


@given(cluster=half_full(), spec=SPECS, placement=draws.placements(), more=draws.nodes(3))
def test_invariant_11_more_free_nodes_never_make_the_level_worse(
    cluster: HalfFull, spec: JobSpec, placement: Placement, more: tuple[Node, ...]
) -> None:
    placement = replace(
        placement, strategy="pack", network=placement.network[:1], affinity=replace(placement.affinity, preferred=())
    )
    spec = draws.possible(replace(spec, placement=placement))
    spec = replace(spec, resources=replace(spec.resources, gpu=replace(spec.resources.gpu, other_types=())))
    before = place(cluster.table(), spec.shape)
    if before is None:
        return
    added = [replace(node, name=f"m{index}") for index, node in enumerate(more)]
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
        LEVELS + 1 if spec.nodes == 1 else _common([drawn.path(share.node) for share in shares])
        for drawn, shares in ((cluster, before), (larger, after))
    ]
    assert depths[1] >= depths[0], "on a level as low as before, or lower"
