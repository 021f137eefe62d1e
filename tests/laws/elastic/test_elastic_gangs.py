"""Laws of elastic gangs: within their range at every moment, never over-allocated, in the way of no other start.

The oracle counts from decisions and reports alone who holds what: a start, what a resize adds to it, and what has been
cleared since.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from ganger import registry
from ganger.core.cycle import resizing
from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.policy_doc.policy_validation import policy_from_dict, policy_to_dict
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, NodeShare, Plan, PreemptionRule, ReservedStart, Start, Stop
from ganger.model.job import GangState, GpuRequest, Job, JobSpec, Origin, Resources, Role
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import Elastic, Placement
from ganger.model.job_sections.retry_spec import Limits, Retry
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws.policies import POLICIES
from tests.laws.safety import copy_of

ACTIVE = (GangState.STARTING, GangState.RUNNING)
few = settings(max_examples=max(10, settings().max_examples // 4))
Held = dict[str, set[tuple[str, int, int]]]
"""By gang, the GPUs that it holds: node, part, index."""


def gpus_of(shares: tuple[NodeShare, ...]) -> set[tuple[str, int, int]]:
    return {(share.node, share.part, device) for share in shares for device in share.devices}


def sizes_of(spec: JobSpec) -> tuple[int, range]:
    """Return the part that has a range, and its sizes: the workers come after a chief and before other roles."""
    worker = spec.roles.get("worker")
    low, high = (worker.count, worker.max_count) if worker else (spec.nodes, spec.max_nodes)
    return int("chief" in spec.roles), range(low, (high or low) + 1, spec.elastic.step if spec.elastic else 1)


def size_of(spec: JobSpec, gpus: set[tuple[str, int, int]]) -> int:
    """Return how many nodes, or processes of one GPU each, of the part with a range have these GPUs."""
    own = [gpu for gpu in gpus if gpu[1] == sizes_of(spec)[0]]
    return len(own) if "worker" in spec.roles else len({node for node, _, _ in own})


def check_size(spec: JobSpec, shares: tuple[NodeShare, ...]) -> None:
    """Check that the part with a range is within it, and that each other role has its number of processes."""
    part, sizes = sizes_of(spec)
    others = sum(role.count for name, role in spec.roles.items() if name != "worker")
    assert sum(share.part == part for share in shares) in sizes
    assert sum(share.part != part for share in shares) == others


@dataclass
class Elastics:
    """A state driven by drawn events, and by gang what it holds by decisions and reports alone.

    own: what its newest start gave it.
    """

    state: State = field(default_factory=lambda: State(find_score=registry.score))
    now_ms: int = 1_000_000_000
    number: int = 0
    own: Held = field(default_factory=dict)
    held: Held = field(default_factory=dict)
    targets: Held = field(default_factory=dict)

    def take(self, event: e.Event) -> bool:
        """Fold an event unless it is refused; check that the state holds what the oracle does."""
        if refusal(self.state, event) is not None:
            return False
        whole = [gang.id for gang in self.in_state(*ACTIVE) if gang.attempt.left == gang.nodes]
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))
        match event:
            case e.Decided(plan=decided):
                for decision in decided.decisions:
                    self._decide(decision)
            case e.Cleared(gang=name, nodes=nodes):
                self._leave(name, nodes)
            case e.NodeLost(node=node):
                for name in [*self.held]:
                    self._lose(name, node, is_whole=name in whole)
        for name in [*self.targets]:
            if name not in self.state.gangs or self.state.gangs[name].state is not GangState.RESIZING:
                self._abandon(name)
        self.check()
        return True

    def _decide(self, decision: object) -> None:
        match decision:
            case Start(gang=name, shares=shares):
                self.targets.pop(name, None)
                self.own[name] = self.held[name] = gpus_of(shares)
            case Stop(gang=name, shares=shares) if shares:
                self.targets[name] = gpus_of(shares)
                self.held[name] = self.held[name] | self.targets[name]

    def _lose(self, name: str, node: str, *, is_whole: bool) -> None:
        """Check that a gang which still has its minimum goes on with that, and does not queue again."""
        had = self.targets.get(name) or (self.own[name] if is_whole else set())
        lost = {gpu for gpu in had if gpu[0] == node}
        if lost and (gang := self.state.gangs.get(name)) is not None:
            (part, sizes), spec = sizes_of(gang.job.spec), gang.job.spec
            given = -(-size_of(spec, lost) // sizes.step) * sizes.step
            if all(gpu[1] == part for gpu in lost) and size_of(spec, had) - given in sizes:
                assert gang.state not in (GangState.REQUEUEING, GangState.PENDING)
            if gang.state is GangState.RESIZING:
                self.targets[name] = gpus_of(gang.attempt.target)
                assert self.targets[name] <= had - lost
                if len(sizes) > 1:  # one of a single size may keep its healthy nodes, and lacks some
                    check_size(spec, gang.attempt.target)
        self._leave(name, (node,))

    def _leave(self, name: str, nodes: tuple[str, ...]) -> None:
        kept = self.targets.get(name, set())
        self.held[name] = {gpu for gpu in self.held.get(name, ()) if gpu[0] not in nodes or gpu in kept}

    def _abandon(self, name: str) -> None:
        """Forget what a gang that is resized no more was to get."""
        del self.targets[name]
        left = self.state.gangs[name].attempt.left if name in self.state.gangs else ()
        self.held[name] = {gpu for gpu in self.own[name] if gpu[0] in left}

    def check(self) -> None:
        """Check sizes and holdings."""
        self.state.validate()
        holders: dict[tuple[str, int], str] = {}
        for name, gpus in self.held.items():
            for node, _, device in gpus:
                assert holders.setdefault((node, device), name) == name, f"GPU {device} of {node} is held twice"
        for name, gang in self.state.gangs.items():
            shares = self.state.allocations.get(name, ())
            assert gpus_of(shares) == self.held.get(name, set())
            if gang.attempt.start is not None:
                check_size(gang.job.spec, gang.attempt.start.shares)
            if gang.state in ACTIVE:
                assert sum(part.nodes * part.gpus for part in gang.shape.parts) == len(self.held[name])

    def run_cycles(self) -> list[Plan]:
        """Run cycles until none is due at once; check each plan."""
        plans: list[Plan] = []
        while True:
            planned = plan(self.state, self.now_ms, POLICIES["dynamic"])
            self._check_plan(planned)
            if planned.decisions:
                assert self.take(e.Decided(plan=planned, policy="dynamic", version="0"))
            plans.append(planned)
            if planned.next_wake_ms != self.now_ms:
                return plans

    def _check_plan(self, planned: Plan) -> None:
        """Check sizes and ranks of a plan, and that it starts and reserves what it would if none grew."""
        with mock.patch.object(resizing, "grow", lambda _cycle, starts: (starts, [])):
            alone = plan(self.state, self.now_ms, POLICIES["dynamic"])
        for kind in (Start, ReservedStart):
            own, other = ([d for d in p.decisions if isinstance(d, kind)] for p in (planned, alone))
            assert [d.gang for d in own] == [d.gang for d in other], "growth delays no start and no reservation"
        assert [d for d in planned.decisions if isinstance(d, ReservedStart)] == [
            d for d in alone.decisions if isinstance(d, ReservedStart)
        ]
        for decision in planned.decisions:
            if isinstance(decision, Start) or (isinstance(decision, Stop) and decision.shares):
                spec, shares = self.state.gangs[decision.gang].job.spec, decision.shares
                check_size(spec, shares)
                own = [share.node for share in shares if share.part == sizes_of(spec)[0]]
                assert "worker" in spec.roles or len({*own}) == len(own), "on nodes of their own"
                ranks = [rank for share in shares for rank in share.ranks]
                assert ranks == list(range(len(ranks))), "ranks in order, each once"
                assert all(len(share.ranks) == len(share.devices) for share in shares)

    def in_state(self, *states: GangState) -> list[Gang]:
        return [gang for gang in self.state.gangs.values() if gang.state in states]


@st.composite
def jobs(draw: st.DrawFn, *, have_roles: bool = True) -> JobSpec:
    step, nodes = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    units = draw(st.integers(0, 3))
    size = nodes, nodes + units * step if units else None
    request, roles = Resources(gpu=GpuRequest(count=1)), dict[str, Role]()
    if have_roles and draw(st.booleans()):
        roles[draw(st.sampled_from(("chief", "ps")))] = Role(count=draw(st.integers(1, 2)), resources=request)
        if draw(st.booleans()):
            roles["worker"] = Role(count=size[0], max_count=size[1], resources=request)
    return JobSpec(
        run="train",
        nodes=1 if "worker" in roles else size[0],
        max_nodes=None if "worker" in roles else size[1],
        roles=roles,
        elastic=Elastic(step=step) if units else None,
        priority=draw(st.sampled_from((-50, 0, 50))),
        resources=Resources(gpu=GpuRequest(count=draw(st.integers(1, 2)))),
        placement=Placement(topology="rack", mode="required") if draw(st.integers(0, 4)) == 0 else Placement(),
        limits=Limits(time_ms=draw(st.sampled_from((None, 20 * MINUTE_MS, 9 * HOUR_MS)))),
        checkpoint=draw(st.sampled_from((None, Checkpoint()))),
        retry=Retry(max=5),
    )


def world(data: st.DataObject, *, preempts: bool) -> Elastics:
    elastics = Elastics()
    racks = data.draw(st.lists(st.sampled_from(("r1", "r2")), min_size=2, max_size=6), label="racks")
    nodes = [Node(name=f"n{n}", domains=(rack,), gpus=2, gpu_type="h100") for n, rack in enumerate(sorted(racks), 1)]
    elastics.take(e.NodesListed(nodes=tuple(replace(n, cpu_milli=64_000, memory_bytes=1 << 40) for n in nodes)))
    if preempts:
        rules = policy_to_dict(elastics.state.document) | {"preemption": {"priority": "all"}}
        elastics.take(e.PolicySet(document=policy_from_dict(rules, "it").document, version=1))
    return elastics


def facts(elastics: Elastics, data: st.DataObject) -> Iterator[e.Event]:
    """Draw what happens next."""
    kind = data.draw(st.sampled_from(KINDS), label="kind")
    if kind == "submits":
        elastics.number += 1
        job = Job(id=f"j{elastics.number}", user="ann", spec=data.draw(jobs()), origin=Origin(directory="/"))
        yield e.Submitted(job=job)
    elif kind in ("lost", "returned", "drained", "uncordoned"):
        node = data.draw(st.sampled_from(sorted(elastics.state.nodes.index)))
        yield {
            "lost": e.NodeLost,
            "returned": e.NodeReturned,
            "drained": e.NodeDrained,
            "uncordoned": e.NodeUncordoned,
        }[kind](node=node)
    elif kind == "all clear":
        for gang in elastics.in_state(*GangState):
            if gang.attempt.left and gang.state not in ACTIVE:
                yield e.Cleared(gang=gang.id, generation=gang.attempt.generation, nodes=gang.attempt.left)
    elif kind == "all up":
        for gang in elastics.in_state(GangState.STARTING):
            yield e.Started(gang=gang.id, generation=gang.attempt.generation, nodes=gang.attempt.left)
    elif elastics.state.gangs:
        gang = elastics.state.gangs[data.draw(st.sampled_from(sorted(elastics.state.gangs)))]
        yield from _of_gang(kind, gang, data)


KINDS = (
    *("submits", "submits", "all up", "all up", "all clear", "all clear", "scales", "some clear", "fails", "finishes"),
    *("stops", "suspends", "resumes", "lost", "lost", "returned", "returned", "drained", "uncordoned"),
)


def _of_gang(kind: str, gang: Gang, data: st.DataObject) -> Iterator[e.Event]:
    left, about = gang.attempt.left, {"gang": gang.id, "generation": gang.attempt.generation}
    if kind == "scales":
        yield e.ScaleRequested(gang=gang.id, nodes=data.draw(st.integers(1, 6)))
    elif kind == "stops":
        yield e.StopRequested(gang=gang.id)
    elif kind == "suspends":
        yield e.SuspendRequested(gang=gang.id)
    elif kind == "resumes":
        yield e.ResumeRequested(gang=gang.id)
    elif left and kind == "some clear" and gang.state not in ACTIVE:
        yield e.Cleared(**about, nodes=(data.draw(st.sampled_from(left)),))
    elif left and kind == "fails":
        yield e.Failed(**about, node=left[0], cause=Cause.RANK_FAILED, signal=9)
    elif left and kind == "finishes":
        yield e.Finished(**about, nodes=left)
        yield e.Cleared(**about, nodes=left)


@few
@given(data=st.data(), preempts=st.booleans())
def test_an_elastic_gang_is_within_its_range_and_in_no_others_way(data: st.DataObject, *, preempts: bool) -> None:
    elastics = world(data, preempts=preempts)
    for _ in range(data.draw(st.integers(1, 14), label="batches")):
        elastics.now_ms += data.draw(st.sampled_from((0, 1_000, 3 * MINUTE_MS, HOUR_MS)))
        for event in facts(elastics, data):
            elastics.take(event)
        elastics.run_cycles()
        elastics.state = copy_of(elastics.state)  # as after a crash


@few
@given(data=st.data())
def test_surplus_goes_before_whole_gangs(data: st.DataObject) -> None:
    """Nodes are all alike here: as many as a job needs, or none of a whole gang is taken."""
    elastics = world(data, preempts=True)
    for _ in range(data.draw(st.integers(1, 8), label="jobs")):
        elastics.number += 1
        spec = data.draw(jobs(have_roles=False))
        spec = replace(spec, resources=Resources(gpu=GpuRequest(count=2)), placement=Placement())
        spec = replace(spec, elastic=Elastic() if spec.max_nodes else None)
        job = Job(id=f"j{elastics.number}", user="ann", spec=spec, origin=Origin(directory="/"))
        before = {gang.id: gang.shape.nodes - gang.job.spec.nodes for gang in elastics.in_state(*ACTIVE)}
        idle = len(elastics.state.nodes.index) - sum(map(len, elastics.held.values()))
        elastics.take(e.Submitted(job=job))
        for planned in elastics.run_cycles():
            stops = [decision for decision in planned.decisions if isinstance(decision, Stop)]
            whole = [stop for stop in stops if stop.rule is PreemptionRule.PRIORITY]
            taken = {stop.gang: len(stop.shares) for stop in stops if stop.rule is PreemptionRule.SURPLUS}
            sizes = {stop.gang: len(elastics.state.gangs[stop.gang].attempt.start.shares) for stop in (*whole, *stops)}
            ended = [sizes[stop.gang] for stop in whole]
            rest = sum(surplus for name, surplus in before.items() if name not in {stop.gang for stop in stops})
            freed = sum(ended) + sum(sizes[name] - kept for name, kept in taken.items())
            needed = sum(elastics.state.gangs[name].job.spec.nodes for name in {stop.preemptor for stop in stops})
            spare = freed + idle - needed
            assert all(size > spare + rest for size in ended), f"{rest} is left, and gangs of {ended} are stopped"
            assert all(elastics.state.gangs[name].job.spec.nodes <= kept for name, kept in taken.items())
        for gang in elastics.in_state(*GangState):
            if gang.attempt.left and gang.state not in ACTIVE:
                elastics.take(e.Cleared(gang=gang.id, generation=gang.attempt.generation, nodes=gang.attempt.left))
        elastics.run_cycles()
        for gang in elastics.in_state(GangState.STARTING):
            elastics.take(e.Started(gang=gang.id, generation=gang.attempt.generation, nodes=gang.attempt.left))
