"""Consolidation against brute force on small clusters: every set of gangs, goal and new place.

The oracle knows the drawn rows alone: which gang has how many GPUs where, and which may be moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle_state import Cycle
from ganger.core.cycle.defrag import find_consolidation
from ganger.core.explain.defrag_plan import defrag_plan
from ganger.core.nodes.largest_gangs import largest_gangs
from ganger.core.preemption.consolidation import Consolidation, cheapest_sets
from ganger.model.job import GangState
from ganger.model.units import MINUTE_MS
from tests.laws.policies import POLICIES
from tests.laws.safety import fingerprint
from tests.pictures.film import Film

GPUS = 4


@dataclass(frozen=True)
class Drawn:
    """A drawn cluster: the rack of each node, the nodes and GPUs on each of every gang, and the movable ones."""

    racks: dict[str, str]
    gangs: dict[str, tuple[tuple[str, ...], int]]
    movable: tuple[str, ...]

    def film(self) -> Film:
        """Return the scenario with the gangs running, each with another amount of unsaved work."""
        rows = dict.fromkeys(self.racks, "")
        for name, (nodes, gpus) in self.gangs.items():
            rows |= {node: rows[node] + gpus * name for node in nodes}
        tokens = [f"{rack}/{node}:{rows[node].ljust(GPUS, '.')}" for node, rack in self.racks.items()]
        tokens += [f"{name},moves=" for name in self.movable]
        film = Film(POLICIES["dynamic"], " ".join(tokens), "")
        for name in self.gangs:
            film.do(f"step {name}")
        for name in self.gangs:
            film.do("+7m")
            film.do(f"saves {name}")
        film.do("+1m")
        return film

    def has_single_nodes(self) -> bool:
        """Return whether every gang that may be moved has one node, so that the search finds the cheapest moves."""
        return all(len(self.gangs[name][0]) == 1 for name in self.movable)

    def cost_ms(self, chosen: tuple[str, ...]) -> int:
        """Return the GPU-milliseconds since each of these gangs has saved: seven minutes for each one after it."""
        order = list(self.gangs)
        minutes = {name: 7 * (len(order) - 1 - order.index(name)) + 1 for name in chosen}
        sizes = {name: len(self.gangs[name][0]) * self.gangs[name][1] for name in chosen}
        return sum(MINUTE_MS * minutes[name] * sizes[name] for name in chosen)

    def free(self) -> dict[str, int]:
        """Return the free GPUs of each node."""
        held = [(node, gpus) for nodes, gpus in self.gangs.values() for node in nodes]
        return {name: GPUS - sum(gpus for node, gpus in held if node == name) for name in self.racks}

    def has_room(self, free: dict[str, int], goal: tuple[int, int]) -> Iterator[tuple[str, ...]]:
        """Yield the nodes of a rack on which a gang of (nodes, GPUs) fits."""
        for rack in dict.fromkeys(self.racks.values()):
            inside = [node for node in self.racks if self.racks[node] == rack and free[node] >= goal[1]]
            yield from combinations(inside, goal[0])

    def may_go_on(self, chosen: tuple[str, ...], free: dict[str, int], avoided: tuple[str, ...]) -> bool:
        """Return whether all of these gangs have a new place at once, on free nodes or their own."""
        if not chosen:
            return True
        nodes, gpus = self.gangs[chosen[0]]
        usable = [node for node in self.racks if node not in avoided and (node in nodes or free[node] >= gpus)]
        for place in combinations(usable, len(nodes)):
            taken = {node: free[node] - (gpus if node in place and node not in nodes else 0) for node in free}
            if self.may_go_on(chosen[1:], taken, avoided):
                return True
        return False

    def plans(self, goal: tuple[int, int]) -> Iterator[tuple[str, ...]]:
        """Yield each set of movable gangs that make room for a gang of (nodes, GPUs) in one rack."""
        for size in range(1, len(self.movable) + 1):
            for chosen in combinations(self.movable, size):
                held = [(node, self.gangs[name][1]) for name in chosen for node in self.gangs[name][0]]
                left = {n: amount + sum(g for node, g in held if node == n) for n, amount in self.free().items()}
                if any(self.may_go_on(chosen, self.free(), place) for place in self.has_room(left, goal)):
                    yield chosen


@st.composite
def drawn(draw: st.DrawFn, most_nodes: int = 1) -> Drawn:
    racks = {f"n{index}": draw(st.sampled_from(("r1", "r2"))) for index in range(draw(st.integers(2, 6)))}
    free, gangs = dict.fromkeys(racks, GPUS), dict[str, tuple[tuple[str, ...], int]]()
    for name in "ABCDE"[: draw(st.integers(1, 5))]:
        gpus = draw(st.sampled_from((1, 2, 3, 4)))
        able = [node for node in racks if free[node] >= gpus]
        count = draw(st.integers(1, most_nodes))
        if len(able) >= count:
            nodes = draw(st.permutations(able))[:count]
            free |= {node: free[node] - gpus for node in nodes}
            gangs[name] = tuple(sorted(nodes)), gpus
    return Drawn(racks, gangs, tuple(name for name in gangs if draw(st.integers(0, 3))))


def consolidation(film: Film, level: str = "rack") -> Consolidation | None:
    with film.state.trial():
        cycle = Cycle(film.state, film.now_ms, film.policy)
        return find_consolidation(cycle, level, None)


def is_valid(cluster: Drawn, plan: Consolidation) -> None:
    """Check a plan against the rows: who moves, that all places are free at once, and apart from the goal's."""
    free, goal_nodes = cluster.free(), {share.node for share in plan.shares}
    for gang, shares in plan.moves:
        before, gpus = cluster.gangs[gang.id]
        places = [share.node for share in shares]
        assert gang.id in cluster.movable, f"{gang.id} moves and did not opt in"
        assert len({*places}) == len(before), "it has as many nodes as before"
        assert not goal_nodes & {*places}, "and none of those that the goal gets"
        for node in {*places} - {*before}:
            free[node] -= gpus
            assert free[node] >= 0, f"{node} is given away twice"


@given(cluster=drawn() | drawn(2), nodes=st.integers(1, 4), gpus=st.sampled_from((1, 2, 3, 4)))
def test_a_pending_gang_gets_the_cheapest_moves_there_are(cluster: Drawn, nodes: int, gpus: int) -> None:
    film = cluster.film()
    film.do(f"Z:{nodes}x{gpus},in=rack,must")
    before = fingerprint(film.state)
    plan = consolidation(film)
    assert fingerprint(film.state) == before
    fits = any(True for _ in cluster.has_room(cluster.free(), (nodes, gpus)))
    possible = [] if fits else list(cluster.plans((nodes, gpus)))
    if plan is None or plan.goal.id != "Z":
        assert not possible or not cluster.has_single_nodes(), f"{possible[0]} could be moved"
        return
    is_valid(cluster, plan)
    assert plan.is_cheapest == cluster.has_single_nodes()
    chosen, least_ms = tuple(sorted(gang.id for gang, _ in plan.moves)), min(map(cluster.cost_ms, possible))
    assert chosen in possible
    assert plan.cost_ms == cluster.cost_ms(chosen)
    assert not plan.is_cheapest or plan.cost_ms == least_ms


@given(cluster=drawn() | drawn(2))
def test_the_largest_gang_in_a_rack_becomes_larger_by_as_much_as_can_be(cluster: Drawn) -> None:
    film = cluster.film()
    plan, (row,) = consolidation(film), [r for r in largest_gangs(film.state.nodes) if (r.gpus, r.level) == (4, "rack")]
    sizes = range(row.nodes_defragmented, row.nodes, -1)
    reachable = [nodes for nodes in sizes if any(True for _ in cluster.plans((nodes, GPUS)))]
    largest = max(reachable, default=row.nodes)
    if plan is not None:
        is_valid(cluster, plan)
        assert row.nodes < plan.goal.shape.nodes <= largest
    if cluster.has_single_nodes():
        assert (plan.goal.shape.nodes if plan else row.nodes) == largest


@given(cluster=drawn() | drawn(2), nodes=st.integers(1, 4), gpus=st.sampled_from((2, 4)), stop=st.booleans())
def test_all_moved_gangs_go_on_at_their_places_and_the_pending_one_starts(
    cluster: Drawn, nodes: int, gpus: int, stop: bool
) -> None:
    film = cluster.film()
    film.do(f"Z:{nodes}x{gpus},in=rack,must")
    film.run_cycles()
    _, plan = defrag_plan(film.state, "rack", None, film.now_ms, film.policy)
    if plan is None:
        return
    moves, goal = {gang.id: {share.node for share in shares} for gang, shares in plan.moves}, plan.goal.id
    film.apply(film.defrag_request())
    film.do("Y:2x1")
    film.run_cycles()
    states = {name: film.state.gangs[name].state for name in cluster.gangs}
    assert {name for name, state in states.items() if state is GangState.RESIZING} == {*moves}, "these and no others"
    if stop:
        film.do(f"stop {next(iter(moves))}")
        film.run_cycles()
    for name in moves:
        film.do(f"gone {name}")
        film.run_cycles()
    for name in [*moves][int(stop) :]:
        assert {*film.state.gangs[name].nodes} == moves[name], f"{name} has its place"
    assert not goal or {*film.state.gangs[goal].nodes} <= {*film.state.nodes.index} - set().union(*moves.values())
    assert not goal or film.state.gangs[goal].state is GangState.STARTING
    again = consolidation(film)
    is_taken = not goal and film.state.gangs["Y"].state is not GangState.PENDING  # what was cleared for no job
    assert again is None or again.goal.id == "Y" or again.goal.shape.nodes > plan.goal.shape.nodes or stop or is_taken


@given(costs=st.lists(st.integers(0, 9), max_size=7).map(sorted), budget=st.none() | st.integers(0, 30))
def test_sets_come_in_the_order_of_their_cost(costs: list[int], budget: int | None) -> None:
    sets = list(cheapest_sets(costs, budget))
    totals = [sum(costs[index] for index in chosen) for chosen in sets]
    assert totals == sorted(totals)
    everything = (chosen for size in range(1, len(costs) + 1) for chosen in combinations(range(len(costs)), size))
    within = [chosen for chosen in everything if budget is None or sum(costs[index] for index in chosen) <= budget]
    assert sorted(sets) == sorted(within)
