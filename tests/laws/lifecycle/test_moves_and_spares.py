"""Random histories with moves, spares and lost nodes: nothing is held twice, and every attempt has all of its ranks.

Jobs that may be moved are moved by schedule and on request, nodes come and go, spares are lent and take over, and gangs
that lose nodes keep the others. Which gang holds what is counted from the attempts alone.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.explain.defrag_plan import defrag_plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.gang import Gang
from ganger.model import event as e
from ganger.model.cluster import NodeState
from ganger.model.decision import Cause, Move, Plan, Start, Stop
from ganger.model.job import GangState, GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import Defrag, Spares
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.examples import examples
from tests.laws.elastic import test_elastic_gangs as elastic
from tests.laws.policies import POLICIES
from tests.laws.safety import copy_of


@dataclass
class Moving(elastic.Elastics):
    """A state driven by drawn events, checked after each of them; and by gang the node time that it pays for."""

    seen_ms: int = 0
    node_ms: Counter[str] = field(default_factory=Counter)

    def take(self, event: e.Event) -> bool:
        if refusal(self.state, event) is not None:
            return False
        passed_ms, self.seen_ms = self.now_ms - self.seen_ms, self.now_ms
        for name, gang in self.state.gangs.items():
            self.node_ms[name] += passed_ms * len(self.paid_nodes(gang))
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))
        self.check()
        return True

    def check(self) -> None:
        self.state.validate()
        for name, gang in self.state.gangs.items():
            assert gang.held_node_ms(self.now_ms) == self.node_ms[name], f"{name} pays for the nodes that it held"
        holders: dict[tuple[str, int], str] = {}
        runners: dict[tuple[str, int], str] = {}
        for name, gang in self.state.gangs.items():
            attempt, start = gang.attempt, gang.attempt.start
            if start is None:
                continue
            own = [share for share in start.shares if share.node in attempt.left]
            next_ones = [share for share in attempt.target if share.node not in attempt.left]
            taken = {share.node for share in attempt.target}
            beside = [share for share in start.spares if share.node not in taken]
            assert {share.node for share in self.state.allocations[name]} == {
                share.node for share in (*own, *next_ones, *beside)
            }, f"{name} holds what it has, what it gets, and its spares"
            for node, device in ((share.node, device) for share in own for device in share.devices):
                assert runners.setdefault((node, device), name) == name, f"two run on {node}"
            lent = self.lent(gang)
            own = [share for share in own if share.node not in lent]
            for share in (*own, *next_ones, *beside):
                for device in share.devices:
                    assert holders.setdefault((share.node, device), name) == name, f"{share.node} is held twice"
            if gang.retries.kept_until_ms is not None:
                assert {share.node for share in attempt.target} < {share.node for share in start.shares}
                assert not gang.job.spec.spares
            targets = [attempt.target] if attempt.target and gang.retries.kept_until_ms is None else []
            for shares in (start.shares, *targets):
                ranks = [rank for share in shares for rank in share.ranks]
                assert ranks == list(range(gang.job.spec.processes)), f"{name} has all of its ranks, in order"
                assert len({share.node for share in shares}) == gang.job.spec.nodes

    def paid_nodes(self, gang: Gang) -> set[str]:
        """Return the nodes that a gang is on or keeps: its own until it has left all, those that it gets, spares."""
        attempt, start = gang.attempt, gang.attempt.start
        if start is None:
            return set()
        own = start.shares if attempt.left or not attempt.target else ()
        return {share.node for share in (*own, *attempt.target, *start.spares)} - {*self.lent(gang)}

    def lent(self, gang: Gang) -> dict[str, Gang]:
        """Return, by node, the gangs that hold what a gang has borrowed; check that it may have, and pays nothing."""
        attempt, start = gang.attempt, gang.attempt.start
        assert start
        lent: dict[str, Gang] = {}
        for share, name in zip(start.shares, start.lenders, strict=bool(start.lenders)):
            lender = self.state.gangs.get(name)
            other = lender.attempt.start if lender else None
            held = (*other.spares, *lender.attempt.target) if lender and other else ()
            devices = {device for s in held if s.node == share.node for device in s.devices}
            if lender and devices:
                lent[share.node] = lender
                assert devices >= {*share.devices}, "no more than the spare is lent"
                assert gang.job.spec.preemptible
                assert grace_ms(gang.job.spec) <= grace_ms(lender.job.spec)
                assert name != gang.id
        assert {*lent} == {*attempt.lent}
        gpus = sum(len(share.devices) for share in self.state.allocations[gang.id] if share.node not in lent)
        if start.lenders and attempt.left == start.nodes:
            assert self.state.quota_charges[gang.id][0] == 1_000 * gpus, "a lent node is charged to its holder alone"
        return lent

    def check_rest(self) -> None:
        """Check what no cycle is due for: which gangs borrow, and which wait for those that do."""
        for gang in self.state.gangs.values():
            start = gang.attempt.start
            if start and gang.state in elastic.ACTIVE and start.lenders:
                for share, name in zip(start.shares, start.lenders, strict=True):
                    lender = self.state.gangs[name]
                    assert lender.state in (*elastic.ACTIVE, GangState.RESIZING), "it is stopped with the lender"
                    assert share.node in {spare.node for spare in lender.attempt.spares}, "and when the spare is needed"
            if gang.state is GangState.RESIZING and gang.retries.kept_until_ms is not None:
                if not gang.attempt.left:
                    assert self.now_ms < gang.retries.kept_until_ms <= gang.since_ms + 33 * MINUTE_MS
                    assert self.lacks_more_than(gang, len(self.idle_nodes(gang))), "it starts when it can"
            elif gang.state is GangState.RESIZING and not gang.attempt.left:
                target = {share.node for share in gang.attempt.target}
                others = [other for other in self.state.gangs.values() if target & {*other.attempt.lent}]
                assert others, "a gang that has left its nodes starts on its spares at once"
                assert not any(other.state in elastic.ACTIVE for other in others), "or when the borrowers have left"

    def idle_nodes(self, gang: Gang) -> set[str]:
        """Return the nodes in service that nothing is on and that a gang may have; none while one is reserved."""
        table, state = self.state.nodes, self.state
        held = {share.node for shares in state.allocations.values() for share in shares}
        ready = [node for node in table.nodes if table.states[table.index[node.name]] is NodeState.READY]
        racks = {table.nodes[table.index[share.node]].domains for share in gang.attempt.target}
        is_bound = bool(gang.job.spec.placement.topology)
        near = {node.name for node in ready if node.domains in racks or not is_bound}
        return set() if state.reservations else near - held

    def lacks_more_than(self, gang: Gang, nodes: int) -> bool:
        return gang.job.spec.nodes - len(gang.attempt.target) > nodes

    def check_precedence(self, planned: Plan) -> None:
        """Check that no gang starts on what one that keeps nodes could go on with."""
        used = {node for decision in planned.decisions if isinstance(decision, Start) for node in decision.nodes}
        started = {decision.gang for decision in planned.decisions if isinstance(decision, Start | Stop)}
        for gang in self.in_state(GangState.RESIZING):
            idle = self.idle_nodes(gang)
            is_first = all(other.number >= gang.number for other in self.in_state(GangState.RESIZING))
            if gang.retries.kept_until_ms is not None and gang.id not in started and is_first:
                assert self.lacks_more_than(gang, len(idle)) or not self.lacks_more_than(gang, len(idle - used))

    def run_cycles(self) -> list[Plan]:
        while True:
            planned = plan(self.state, self.now_ms, POLICIES["dynamic"])
            self.check_precedence(planned)
            stops = [decision for decision in planned.decisions if isinstance(decision, Stop)]
            starts = [decision.gang for decision in planned.decisions if isinstance(decision, Start)]
            assert len({stop.gang for stop in stops}) == len(stops), "each is stopped once"
            assert not {stop.gang for stop in stops} & {*starts}
            moved = [self.state.gangs[stop.gang] for stop in stops if stop.cause is Cause.MOVED]
            assert all(gang.job.spec.movable and gang.state is GangState.RUNNING for gang in moved)
            if planned.decisions:
                assert self.take(e.Decided(plan=planned, policy="dynamic", version="0"))
            if planned.next_wake_ms != self.now_ms:
                self.check_rest()
                return []

    def request_moves(self) -> None:
        """Ask for what a dry run shows."""
        _, found = defrag_plan(self.state, "rack", None, self.now_ms, POLICIES["dynamic"])
        if found is not None:
            moves = ((gang, shares) for gang, shares in found.moves)
            wanted = tuple(Move(gang=g.id, generation=g.attempt.generation, shares=shares) for g, shares in moves)
            self.take(e.DefragRequested(moves=wanted, gang=found.goal.id))


def grace_ms(spec: JobSpec) -> int:
    return spec.checkpoint.grace_ms if spec.checkpoint else 0


def _rigid(spec: JobSpec, data: st.DataObject) -> JobSpec:
    """Return a job of one size, without roles, that may be moved, or has spares."""
    more: dict[str, Any] = data.draw(st.sampled_from(({}, {"movable": True}, {"spares": 1}, {"spares": 2})))
    return replace(spec, max_nodes=None, elastic=None, roles={}, **more)


def _fill(moving: Moving, data: st.DataObject) -> None:
    """Start a job with a spare, submit more small jobs than there is room for, and have the first one lose a node."""
    grace = st.sampled_from((None, Checkpoint(), Checkpoint(grace_ms=1_000)))
    spec = replace(data.draw(elastic.jobs()), max_nodes=None, elastic=None, roles={}, priority=0, placement=Placement())
    whole = replace(spec, resources=Resources(gpu=GpuRequest(count=2)), limits=Limits())
    small = [replace(whole, nodes=1, checkpoint=data.draw(grace)) for _ in range(len(moving.state.nodes.nodes))]
    for number, each in enumerate((replace(whole, spares=1, checkpoint=Checkpoint()), *small)):
        queued = Job(id=f"s{number}", user="ann", spec=each, origin=Origin(directory="/"))
        moving.take(e.Submitted(job=queued))
        moving.run_cycles()
    for gang in moving.in_state(GangState.STARTING):
        moving.take(e.Started(gang=gang.id, generation=1, nodes=gang.attempt.left))
    moving.run_cycles()
    if data.draw(st.booleans(), label="loses a node") and (nodes := moving.state.gangs["s0"].nodes):
        moving.take(e.NodeLost(node=nodes[0]))
        moving.run_cycles()


@examples(gate=10)
@given(data=st.data())
def test_nothing_is_held_twice_and_every_attempt_has_its_ranks(data: st.DataObject) -> None:
    moving = Moving(elastic.world(data, preempts=data.draw(st.booleans())).state)
    rules = replace(moving.state.document, defrag=Defrag(every_ms=data.draw(st.sampled_from((None, MINUTE_MS)))))
    moving.take(e.PolicySet(document=replace(rules, spares=Spares()), version=moving.state.policy_version + 1))
    if data.draw(st.booleans(), label="a full cluster"):
        _fill(moving, data)
    for _ in range(data.draw(st.integers(1, 14), label="batches")):
        moving.now_ms += data.draw(st.sampled_from((0, 1_000, 3 * MINUTE_MS, HOUR_MS)))
        for event in elastic.facts(moving, data):
            if isinstance(event, e.Submitted):
                job = event.job
                moving.take(e.Submitted(job=replace(job, spec=_rigid(job.spec, data))))
            else:
                moving.take(event)
        if data.draw(st.integers(0, 2), label="request") == 0:
            moving.request_moves()
        moving.run_cycles()
        moving.state = copy_of(moving.state)  # as after a crash
