"""Invariant 3, of capacity over time: the profile is what the raw fields say of every time.

A few jobs run on a few nodes, some past their limit, some about to leave; maintenance is planned; stays are reserved,
added later, and removed. An oracle counts what is where at each time, and what the profile answers is tried at every
one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.reservations import availability_profile, capacity_forecast
from ganger.core.reservations.availability_profile import AvailabilityProfile, Stay
from ganger.core.reservations.capacity_forecast import LATE_AT_ONCE_MS, LATE_MARGIN_MS, CapacityForecast, Reservation
from ganger.core.reservations.sparse_profile import SparseProfile
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import ReservationCause
from ganger.model.job import JobSpec
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.queue import DEFAULT
from ganger.model.shape import Shape
from ganger.model.terms import Selector
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.examples import examples
from tests.laws import draws
from tests.laws.oracles.job_parts import HCA, amount_of, parts
from tests.laws.policies import POLICIES
from tests.laws.world import LEAVING

TIMES_MS = (1, MINUTE_MS, MINUTE_MS + 1, 7 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS, 70 * HOUR_MS)
PARTS = st.builds(
    Shape,
    nodes=st.integers(1, 3),
    gpus=st.integers(0, 3),
    gpu_type=st.sampled_from((None, None, "h100")),
    cpu_milli=st.sampled_from((0, 500, 2_000)),
    memory_bytes=st.sampled_from((0, 0, 2)),
    extended=st.sampled_from(((), (), ((HCA, 1),), ((HCA, 2),))),
    selector=st.builds(
        Selector,
        sharing=st.sampled_from(("shared", "shared", "exclusive", "whole")),
        labels=st.sampled_from(((), (), (("zone", "a"),))),
        tolerations=st.just(("*",)),
    ),
)
Amounts = tuple[int, int, int, int, bool, bool]
"""Of one node: free GPUs, CPUs, memory and adapters, whether it has a guest, and whether it has an exclusive one."""


@dataclass(frozen=True)
class Held:
    """One share of a node until a time."""

    node: int
    need: tuple[int, int, int]
    devices: tuple[int, ...]
    is_alone: bool
    end_ms: int


class ProfileOracle:
    """The free capacity at a time, by what is there.

    Attributes:
        held: What running gangs hold; those that are overdue leave at `late_ms`.
        stays: What is added besides.
        windows: Maintenance, if it counts.
    """

    def __init__(self, state: State, now_ms: int, late_ms: int, *, windows: bool) -> None:
        self.now_ms, self.nodes = now_ms, state.nodes.nodes
        self.held = [held for gang in state.gangs.values() for held in _holds(state, gang, now_ms, late_ms)]
        self.windows = [*state.maintenance.values()] if windows else []
        self.stays: list[Stay] = []

    def at(self, node: int, ms: int) -> Amounts:
        """Return what a node has at a time."""
        totals, held = self.nodes[node], [share for share in self.held if share.node == node and ms < share.end_ms]
        stays = [stay for stay in self.stays if stay.begin_ms <= ms < stay.end_ms for at in stay.indices if at == node]
        away = any(totals.name in share.nodes and share.from_ms <= ms < share.until_ms for share in self.windows)
        gpus = totals.gpus - len({device for share in held for device in share.devices}) - len(totals.foreign)
        return (
            gpus - sum(stay.part.devices for stay in stays),
            totals.cpu_milli - sum(share.need[0] for share in held) - sum(stay.part.cpu_milli for stay in stays),
            totals.memory_bytes - sum(share.need[1] for share in held) - sum(stay.part.memory_bytes for stay in stays),
            (
                amount_of(totals, HCA)
                - sum(share.need[2] for share in held)
                - sum(dict(stay.part.extended).get(HCA, 0) for stay in stays)
            )
            * any(HCA in node.extended for node in self.nodes),
            bool(held or stays) or away,
            any(share.is_alone for share in held) or any(_is_alone(stay.part) for stay in stays) or away,
        )

    def moments(self) -> list[int]:
        """Return now, and the times after now at which anything changes."""
        times_ms = [share.end_ms for share in self.held]
        times_ms += [ms for stay in self.stays for ms in (stay.begin_ms, stay.end_ms)]
        times_ms += [ms for window in self.windows for ms in (window.from_ms, window.until_ms)]
        return sorted({self.now_ms, *(ms for ms in times_ms if self.now_ms < ms < NEVER_MS)})

    def worst(self, node: int, begin_ms: int, end_ms: int) -> Amounts:
        """Return the least that is free of each resource in an interval, and whether it has guests."""
        amounts = [self.at(node, ms) for ms in (begin_ms, *self.moments()) if begin_ms <= ms < end_ms]
        *resources, guests, alone = zip(*amounts, strict=True)
        gpus, cpu_milli, memory_bytes, adapters = map(min, resources)
        return gpus, cpu_milli, memory_bytes, adapters, any(guests), any(alone)

    def holds(self, node: int, part: Shape, begin_ms: int, for_ms: int) -> bool:
        """Return whether a node has what one of a part needs, for the whole time."""
        free, needed = self.nodes[node], part.selector
        if part.gpu_type not in (None, free.gpu_type.lower()) or not {*needed.labels} <= {*free.labels.items()}:
            return False
        if part.gpus and part.gpu_type is None and free.partial_gpus:
            return False
        if needed.sharing == "whole" and free.gpus != part.devices:
            return False
        if _is_alone(part) and free.foreign:
            return False
        *resources, guests, alone = self.worst(node, begin_ms, min(NEVER_MS, begin_ms + for_ms))
        needs = part.devices, part.cpu_milli, part.memory_bytes
        enough = all(has >= need for has, need in zip(resources, needs, strict=False))
        enough &= all(resources[3] >= need for _, need in part.extended)
        return enough and not alone and not (guests and _is_alone(part))

    def has(self, part: Shape, usable: list[bool], begin_ms: int, for_ms: int) -> bool:
        """Return whether a whole part could begin then, and stay, on usable nodes."""
        able = [index for index, may in enumerate(usable) if may and self.holds(index, part, begin_ms, for_ms)]
        return len(able) >= part.nodes


def _holds(state: State, gang: Gang, now_ms: int, late_ms: int) -> Iterator[Held]:
    if gang.attempt.start is None:
        return
    limit_ms = gang.job.spec.limits.time_ms if gang.attempt.start.time_ms is None else gang.attempt.start.time_ms
    end_ms = NEVER_MS if limit_ms is None else gang.attempt.began_ms + limit_ms - gang.ran_ms
    if gang.state in LEAVING or end_ms <= now_ms:
        end_ms = late_ms
        # Soon after its notice, if that is not over and the profile is to find a start.
        gone_ms = gang.attempt.notice_until_ms + MINUTE_MS
        if gang.state in LEAVING and gone_ms > now_ms and late_ms - now_ms == LATE_MARGIN_MS:
            end_ms = gone_ms
    else:
        ahead = [
            device
            for device in state.maintenance.values()
            if device.from_ms > now_ms and {*device.nodes} & {*gang.attempt.left}
        ]
        end_ms = min([end_ms, *(device.from_ms for device in ahead)])
    all_parts = parts(gang.job.spec)
    for share in gang.attempt.start.shares:
        need = all_parts[share.part].need
        is_alone = gang.job.spec.placement.sharing != "shared"
        if share.node in gang.attempt.left:
            index = state.nodes.index[share.node]
            yield Held(index, (need["cpu_milli"], need["memory_bytes"], need[HCA]), share.devices, is_alone, end_ms)


def _is_alone(part: Shape) -> bool:
    return part.selector.sharing != "shared"


# -- what is drawn -----------------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> tuple[State, int]:
    """Draw a state in which jobs run, and a time that may be later than its newest event."""
    state, now_ms = State(), 1_000_000_000
    pause = st.sampled_from((0, 0, 1, MINUTE_MS, 7 * MINUTE_MS, HOUR_MS))

    def try_event(event: e.Event) -> None:
        if refusal(state, event) is None:
            fold(state, e.Stamped(state.seq + 1, now_ms, event))

    try_event(e.NodesListed(nodes=draw(draws.nodes(4)), levels=draws.LEVELS))
    for number in range(draw(st.integers(0, 5), label="jobs")):
        try_event(e.Submitted(job=draws.job(number, "ann", draw(limited()))))
        if state.gangs and draw(st.integers(0, 4)) == 0:
            try_event(e.StopRequested(gang=draw(st.sampled_from([*state.gangs]))))
        planned = plan(state, now_ms, POLICIES["fifo"])
        if planned.decisions:
            try_event(e.Decided(plan=planned, policy="fifo", version="0"))
        now_ms += draw(pause)
    for number in range(draw(st.integers(0, 2), label="windows")):
        nodes = tuple(draw(st.lists(st.sampled_from(state.nodes.attributes.names), min_size=1, unique=True)))
        from_ms = now_ms + draw(st.sampled_from((0, *TIMES_MS)))
        until_ms = from_ms + draw(st.sampled_from(TIMES_MS))
        try_event(e.MaintenanceSet(id=f"m{number}", nodes=nodes, from_ms=from_ms, until_ms=until_ms))
    return state, now_ms + draw(pause)


@cache
def limited() -> st.SearchStrategy[JobSpec]:
    """Draw a job that often has a limit."""

    def limit(spec: JobSpec, time_ms: int | None) -> JobSpec:
        return replace(spec, limits=Limits(time_ms=time_ms))

    return st.builds(limit, draws.specs((DEFAULT,)), st.none() | st.sampled_from(TIMES_MS))


@st.composite
def stays(draw: st.DrawFn, state: State, now_ms: int) -> Stay:
    """Draw a stay on some nodes; several of a part on a node where it is stacked."""
    part = draw(PARTS)
    indices = draw(st.lists(st.integers(0, len(state.nodes.nodes) - 1), min_size=1, max_size=3))
    begin_ms = now_ms + draw(st.sampled_from((0, *TIMES_MS)))
    for_ms = draw(st.sampled_from((*TIMES_MS, NEVER_MS)))
    return Stay(part, np.array(sorted(indices), dtype=np.int64), begin_ms, min(NEVER_MS, begin_ms + for_ms))


def reservation(several: list[Stay]) -> Reservation:
    """Return a reservation of these stays, all of them as long as the first."""
    first = several[0]
    stays = tuple(replace(stay, begin_ms=first.begin_ms, end_ms=first.end_ms) for stay in several)
    no_gang: Gang = None  # type: ignore[assignment]
    return Reservation(no_gang, first.begin_ms, first.end_ms, (), ReservationCause.RESERVED, stays)


@st.composite
def reservations(draw: st.DrawFn, state: State, now_ms: int) -> list[Reservation]:
    """Draw up to three reservations."""
    drawn = draw(st.lists(st.lists(stays(state, now_ms), min_size=1, max_size=2), max_size=3))
    return [reservation(several) for several in drawn]


def drawn_profiles(data: st.DataObject) -> tuple[AvailabilityProfile, ProfileOracle, Shape]:
    """Draw a profile with reservations, some added later, some removed, and a part asked for all along."""
    state, now_ms = data.draw(clusters())
    oracle = ProfileOracle(state, now_ms, now_ms + LATE_MARGIN_MS, windows=True)
    reserved = data.draw(reservations(state, now_ms))
    profile, part = CapacityForecast(state, now_ms, {}).profile_of_all(reserved), data.draw(PARTS)
    profile.holding_nodes(part, 0, 1)
    oracle.stays = [stay for reservation in reserved for stay in reservation.stays]
    for stay in data.draw(st.lists(stays(state, now_ms), max_size=2), label="added"):
        profile.add(stay)
        oracle.stays.append(stay)
        profile.holding_nodes(part, 0, 1)
    removed = data.draw(
        st.lists(st.sampled_from(range(len(oracle.stays))), unique=True) if oracle.stays else st.just([])
    )
    for index in sorted(removed, reverse=True):
        profile.add(oracle.stays.pop(index), -1)
    return profile, oracle, part


def amounts(profile: AvailabilityProfile, begin: int, end: int) -> list[Amounts]:
    """Return what the profile says of every node."""
    least_free = profile.least_free(profile.indices, begin, end)
    columns = [*least_free.amounts[:3], sum(least_free.extended, np.zeros_like(least_free.gpus))]
    columns += [least_free.guests > 0, least_free.alone > 0]
    return list(zip(*(column.tolist() for column in columns), strict=True))


# -- laws --------------------------------------------------------------------------------------------------------------


@examples(gate=12)
@given(data=st.data())
def test_invariant_3_the_profile_is_what_is_free_at_each_moment(data: st.DataObject) -> None:
    profile, oracle, _ = drawn_profiles(data)
    assert {*oracle.moments()} <= {*profile.edges.tolist()}, "whenever something changes a slot begins"
    ends = [*profile.edges.tolist()[1:], NEVER_MS]
    indices = range(len(oracle.nodes))
    for slot, (begin_ms, end_ms) in enumerate(zip(profile.edges.tolist(), ends, strict=True)):
        assert amounts(profile, slot, slot + 1) == [oracle.worst(index, begin_ms, end_ms) for index in indices]
    begin = data.draw(st.integers(0, len(ends) - 1))
    end = data.draw(st.integers(begin + 1, len(ends)))
    spans = int(profile.edges[begin]), ends[end - 1]
    assert amounts(profile, begin, end) == [oracle.worst(index, *spans) for index in indices]


@examples(gate=12)
@given(data=st.data())
def test_starts_are_found_by_trying_every_moment(data: st.DataObject) -> None:
    profile, oracle, part = drawn_profiles(data)
    for_ms = data.draw(st.sampled_from((*TIMES_MS, NEVER_MS)))
    usable = data.draw(st.lists(st.booleans(), min_size=len(oracle.nodes), max_size=len(oracle.nodes)))
    begins = [int(profile.edges[slot]) for slot in profile.start_slots(part, (part.nodes, for_ms), np.array(usable), 0)]
    assert begins == [ms for ms in profile.edges.tolist() if oracle.has(part, usable, ms, for_ms)]
    other_times_ms = [
        ms + by_ms for ms in oracle.moments() for by_ms in (-for_ms, -1, 1) if ms + by_ms >= oracle.now_ms
    ]
    for ms in (ms for ms in other_times_ms if oracle.has(part, usable, ms, for_ms)):
        assert any(begin_ms <= ms for begin_ms in begins), "it could begin earlier than is found"


@pytest.mark.parametrize("wide", [0, availability_profile.WIDE_NODES])
@examples(gate=12)
@given(data=st.data())
def test_a_node_holds_a_part_until_it_does_not(data: st.DataObject, wide: int) -> None:
    """Check it also where there are so many nodes that it is computed row by row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability_profile, "WIDE_NODES", wide)
        _a_node_holds_a_part_until_it_does_not(data)


def _a_node_holds_a_part_until_it_does_not(data: st.DataObject) -> None:
    profile, oracle, part = drawn_profiles(data)
    slot_count, ends = len(profile.edges), [*profile.edges.tolist()[1:], NEVER_MS]
    for slot, row in enumerate(profile.held_until(part).tolist()):
        begin_ms = int(profile.edges[slot])
        for index, until in enumerate(row):
            assert until == slot or oracle.holds(index, part, begin_ms, ends[until - 1] - begin_ms)
            assert until == slot_count or not oracle.holds(index, part, begin_ms, ends[until] - begin_ms)


@examples(gate=12)
@given(data=st.data())
def test_on_a_grid_no_more_is_free_than_there_is(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability_profile, "MAX_EXACT_CELLS", 0)
        profile, oracle, part = drawn_profiles(data)
    ends = [*profile.edges.tolist()[1:], NEVER_MS]
    indices = range(len(oracle.nodes))
    changes = [profile.slot_at(ms) for ms in oracle.moments()]
    for slot in sorted({*changes, len(ends) - 1}):
        spans = max(oracle.now_ms, int(profile.edges[slot])), ends[slot]
        for profile_amounts, true_amounts in zip(
            amounts(profile, slot, slot + 1), (oracle.worst(index, *spans) for index in indices), strict=True
        ):
            assert all(less <= more for less, more in zip(profile_amounts[:4], true_amounts[:4], strict=True))
            assert profile_amounts[4:] >= true_amounts[4:]
            assert slot < len(ends) - 1 or profile_amounts == true_amounts, "in the end it is exact"
    for_ms = data.draw(st.sampled_from((*TIMES_MS, NEVER_MS)))
    usable = [True] * len(oracle.nodes)
    for slot in profile.start_slots(part, (part.nodes, for_ms), np.array(usable), 0):
        assert oracle.has(part, usable, max(oracle.now_ms, int(profile.edges[slot])), for_ms)


@examples(gate=20)
@given(data=st.data())
def test_a_sparse_profile_equals_a_dense_one(data: st.DataObject) -> None:
    state, now_ms = data.draw(clusters())
    reserved, more, part = (
        data.draw(reservations(state, now_ms)),
        data.draw(st.lists(stays(state, now_ms))),
        data.draw(PARTS),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability_profile, "MAX_EXACT_CELLS", 0)
        sparse = CapacityForecast(state, now_ms, {}).profile_of_all(reserved)
        patch.setattr(
            capacity_forecast,
            "SparseProfile",
            lambda nodes, edges, held, stays, _: AvailabilityProfile(nodes, edges, held, stays),
        )
        dense = CapacityForecast(state, now_ms, {}).profile_of_all(reserved)
    assert isinstance(sparse, SparseProfile)
    assert not isinstance(dense, SparseProfile)
    usable, for_ms = (
        np.array([data.draw(st.booleans()) for _ in state.nodes.nodes]),
        data.draw(st.sampled_from(TIMES_MS)),
    )
    for sign, stay in ((0, None), *((+1, stay) for stay in more), *((-1, stay) for stay in more)):
        for profile in (sparse, dense) if stay else ():
            profile.add(stay, sign)
        for slot in range(len(dense.edges)):
            assert sparse.holding_nodes(part, slot, for_ms).tolist() == dense.holding_nodes(part, slot, for_ms).tolist()
            assert amounts(sparse, slot, slot + 1) == amounts(dense, slot, slot + 1)
        arguments = (part.nodes, for_ms), usable, data.draw(st.integers(0, len(dense.edges) - 1))
        assert [*sparse.start_slots(part, *arguments)] == [*dense.start_slots(part, *arguments)]


@examples(gate=20)
@given(data=st.data())
def test_the_near_profile_has_what_is_free_at_reserved_starts(data: st.DataObject) -> None:
    state, now_ms = data.draw(clusters())
    reserved = data.draw(reservations(state, now_ms))
    if not reserved:
        return
    profile = CapacityForecast(state, now_ms, {}).profile_near(reserved)
    oracle = ProfileOracle(state, now_ms, now_ms + LATE_AT_ONCE_MS, windows=False)
    oracle.stays += [stay for reservation in reserved for stay in reservation.stays]
    readded = data.draw(st.sampled_from(reserved), label="taken back, and laid down again")
    for sign in (-1, 1):
        for stay in readded.stays:
            profile.add(stay, sign)
    assert profile.edges.tolist() == sorted({now_ms, *(reservation.start_ms for reservation in reserved)})
    ends = [*profile.edges.tolist()[1:], NEVER_MS]
    for slot, (begin_ms, end_ms) in enumerate(zip(profile.edges.tolist(), ends, strict=True)):
        worst = [oracle.worst(index, begin_ms, end_ms) for index in profile.indices.tolist()]
        assert amounts(profile, slot, slot + 1) == worst
        assert not profile.is_feasible() or all(min(node[:4]) >= 0 for node in worst), "a node has too little"
