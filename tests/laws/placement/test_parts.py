"""Gangs of several parts against brute force on tiny clusters: one starts if and only if there is a place for it.

Parts are placed one after the other, in every order (`core.placement.place`): of ten thousand drawn clusters with a
place about five have only such as no order leads to. The reason of such a gang must be true: its parts are in each
other's way.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.explain.explain import current_reason
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import GpuRequest, JobSpec, Resources, Role
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.pending_reason import ReasonCode
from ganger.policies import fifo
from tests.laws import draws
from tests.laws.oracles.job_parts import Part, parts
from tests.laws.oracles.placement_oracle import lies_well

ANYWHERE, ONE_RACK = Placement(), Placement(topology="rack", mode="required")
Taken = tuple[tuple[Part, Node], ...]

# nodes as "GPUs/CPUs rack"; parts as "how many x GPUs/CPUs of each", workers (a node each) first, then roles (stacked)
EVERY = {
    "both parts fill one node": ("8/8 r1", "1x6/6 2x1/1", ANYWHERE, True),
    "no GPU is left for the role": ("8/8 r1", "1x8/4 1x1/1", ANYWHERE, False),
    "no CPU is left for the role": ("8/8 r1", "1x4/8 1x0/1", ANYWHERE, False),
    "the role goes where there are no GPUs": ("8/8 r1, 0/4 r1", "1x8/8 4x0/1", ANYWHERE, True),
    "roles fill what workers leave": ("4/9 r1, 4/9 r1, 4/9 r1", "3x3/1 3x1/1", ANYWHERE, True),
    "what workers leave is in pieces": ("4/9 r1, 4/9 r1, 4/9 r1", "3x3/1 1x2/1", ANYWHERE, False),
    "the role must have the only large node": ("4/9 r1, 8/9 r1", "1x4/1 1x8/1", ANYWHERE, True),
    "a worker each, though one node could hold them": ("8/9 r1, 1/9 r1", "2x2/1 1x1/1", ANYWHERE, False),
    "three parts fill three nodes": ("5/9 r1, 3/9 r1, 4/9 r2", "2x3/1 2x2/1 2x1/1", ANYWHERE, True),
    "three parts, and a GPU too few": ("5/9 r1, 3/9 r1, 3/9 r2", "2x3/1 2x2/1 2x1/1", ANYWHERE, False),
    "three parts that CPUs keep apart": ("8/2 r1, 8/2 r1, 8/4 r2", "2x1/2 1x1/2 2x4/1", ANYWHERE, True),
    "all of it in the only rack that holds it": ("4/9 r1, 4/9 r1, 4/9 r2, 5/9 r2", "2x3/1 3x1/1", ONE_RACK, True),
    "room for each part in a rack, for all in none": ("4/9 r1, 4/9 r1, 4/9 r2, 4/9 r2", "2x3/1 3x1/1", ONE_RACK, False),
}


@pytest.mark.parametrize(("nodes", "gang", "placement", "has_place"), EVERY.values(), ids=EVERY)
def test_it_starts_if_and_only_if_there_is_a_place(
    nodes: str, gang: str, placement: Placement, *, has_place: bool
) -> None:
    sizes = [(*map(int, part_nodes.split()[0].split("/")), part_nodes.split()[1]) for part_nodes in nodes.split(", ")]
    workers, *roles = (tuple(map(int, part.replace("/", "x").split("x"))) for part in gang.split())
    spec, cluster = _spec(workers, roles, placement), _nodes(sizes)
    assert _has_place(spec, cluster) == has_place, "the oracle itself"
    assert _starts(_state(spec, cluster)) == has_place


def _amounts(gpus: int = 2) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(st.integers(1, 3), st.integers(0, gpus), st.integers(0, 2))


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 5), st.integers(2, 6), st.sampled_from(("r1", "r2"))), min_size=1, max_size=4
    ),
    workers=_amounts(),
    roles=st.lists(_amounts(), min_size=1, max_size=2),
    placement=st.sampled_from((ANYWHERE, ONE_RACK)),
)
def test_invariant_12_it_starts_where_there_is_a_place_or_its_parts_are_in_each_others_way(
    sizes: list[tuple[int, int, str]],
    workers: tuple[int, int, int],
    roles: list[tuple[int, int, int]],
    placement: Placement,
) -> None:
    spec, nodes = _spec(workers, roles, placement), _nodes(sizes)
    state = _state(spec, nodes)
    if not _has_place(spec, nodes):
        assert not _starts(state)
    elif not _starts(state):
        reason = current_reason(state, state.gangs["j1"], 1, fifo)
        assert reason.code is ReasonCode.NO_CAPACITY
        assert reason.have >= reason.need


def _nodes(sizes: list[tuple[int, int, str]]) -> tuple[Node, ...]:
    return tuple(
        Node(name=f"n{index}", gpus=gpus, cpu_milli=1000 * cpus, memory_bytes=1, domains=("s1", rack))
        for index, (gpus, cpus, rack) in enumerate(sizes)
    )


def _spec(workers: tuple[int, int, int], roles: list[tuple[int, int, int]], text: Placement) -> JobSpec:
    def request(gpus: int, cpus: int) -> Resources:
        return Resources(gpu=GpuRequest(count=gpus), cpu_milli=1000 * cpus)

    names = ("ps", "chief")[: len(roles)]
    named = {
        name: Role(count=count, resources=request(*role)) for name, (count, *role) in zip(names, roles, strict=True)
    }
    count, *role = workers
    return JobSpec(run="x", nodes=count, nproc_per_node=1, resources=request(*role), roles=named, placement=text)


def _state(spec: JobSpec, nodes: tuple[Node, ...]) -> State:
    state = State()
    for event in (e.NodesListed(nodes=nodes, levels=draws.LEVELS), e.Submitted(job=draws.job(1, "ann", spec))):
        fold(state, e.Stamped(state.seq + 1, 1, event))
    return state


def _starts(state: State) -> bool:
    return any(isinstance(decision, Start) for decision in plan(state, 1, fifo).decisions)


def _has_place(spec: JobSpec, nodes: tuple[Node, ...]) -> bool:
    """Return whether some choice of nodes for every part requests no more than any node has, and lies as it must."""
    return any(True for _ in _places(spec, nodes, parts(spec), ()))


def _places(spec: JobSpec, nodes: tuple[Node, ...], rest: list[Part], taken: Taken) -> Iterator[Taken]:
    if not rest:
        if lies_well(spec, [node for _, node in taken], []) is None:
            yield taken
        return
    # Processes of a role may share a node; every worker has one of its own.
    choices = combinations_with_replacement if rest[0].stacked else combinations
    for choice in choices(nodes, rest[0].count):
        free_nodes = (*taken, *((rest[0], node) for node in choice))
        if all(_holds(node, free_nodes) for node in choice):
            yield from _places(spec, nodes, rest[1:], free_nodes)


def _holds(node: Node, taken: Taken) -> bool:
    used: Counter[str] = Counter()
    for part, taken_node in taken:
        if taken_node is node:
            used.update(part.need)
    return used["gpus"] <= node.gpus and used["cpu_milli"] <= node.cpu_milli
