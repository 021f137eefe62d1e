"""Laws of a cycle: it leaves the state as it was, depends on state and time alone, and says when the next is due."""

from dataclasses import replace

from ganger import registry
from ganger.core.cycle.cycle import REPORTS, plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.state import State
from ganger.engine.eventlog.codec import decode, encode, encode_image
from ganger.model import event as e
from ganger.model.decision import Cause, Decision, Plan, ReservedStart, Start, Stop, Wait
from ganger.model.job import GangState
from ganger.model.job_metrics import JobMetrics
from ganger.model.units import DAY_MS
from tests.laws.reason_laws import may_hold_capacity, pending_gangs
from tests.laws.safety import copy_of, fingerprint
from tests.laws.world import World


def plan_purely(world: World) -> Plan:
    """Return the cycle's plan, checked against a second one and that of a snapshot, with the state as before.

    The number of the newest event decides at most which pending reasons are published.
    """
    before = fingerprint(world.state)
    planned = plan(world.state, world.now_ms, world.policy)
    assert fingerprint(world.state) == before, "a cycle leaves the state unchanged"
    world.state.seq += 1
    replanned = plan(world.state, world.now_ms, world.policy)
    world.state.seq -= 1
    assert _acts(replanned) == _acts(planned), "a cycle planned twice"
    assert replanned.next_wake_ms == planned.next_wake_ms
    assert plan(copy_of(world.state), world.now_ms, world.policy) == planned, "a snapshot plans like the original"
    return planned


def _acts(planned: Plan) -> list[Decision]:
    return [decision for decision in planned.decisions if not isinstance(decision, Wait)]


def nothing_is_due_before_the_wake_time(world: World) -> None:
    """Check that time alone starts and stops no gang before the cycle's wake time."""
    if any(may_hold_capacity(world, gang) for gang in pending_gangs(world) if world.state.ready):
        # What is held is chosen anew each cycle; it may fall on other nodes once later gangs have started.
        return
    last_ms = world.now_ms + DAY_MS if world.wake_ms is None else world.wake_ms - 1
    for at_ms in (world.now_ms, last_ms):
        early = plan(world.state, at_ms, world.policy).decisions
        assert [d for d in early if isinstance(d, Start | Stop)] == [], f"due at {at_ms}, wake at {world.wake_ms}"


def reports_change_no_plan(world: World) -> None:
    """Check that a cycle after a report of each kind about each gang decides what it would have decided without."""
    state, planned = copy_of(world.state), plan(copy_of(world.state), world.now_ms, world.policy)
    for name in world.in_state(GangState.STARTING, GangState.RUNNING):
        of_gang = {"gang": name, "generation": world.generation(name)}
        first_nodes, nodes = world.left(name)[:1], world.left(name)
        reports = [e.Started(**of_gang, nodes=first_nodes), e.Started(**of_gang, nodes=nodes)]
        reports += [e.Progressed(**of_gang, step=1 << 40), e.Checkpointed(**of_gang, step=1 << 40)]
        reports += [e.Resumed(**of_gang, step=None), e.Finished(**of_gang, nodes=nodes)]
        reports += [e.Slow(**of_gang, node=nodes[0], rank=0, step_ms=2, peers_ms=1)]
        reports += [e.CopyDropped(**of_gang, node=nodes[0], peer="n", step=1, reason="it has no room")]
        reports += [e.MetricsKept(**of_gang, metrics=JobMetrics())]
        reports += [e.Quiet(**of_gang, quiet_ms=2, usual_ms=None)]
        reports += [e.CodeEdited(**of_gang, directory="/", files=("train.py",))]
        for report in reports:
            assert isinstance(report, REPORTS)
            if refusal(state, report) is None:
                fold(state, e.Stamped(state.seq + 1, world.now_ms, report))
    replanned = plan(state, world.now_ms, world.policy)
    assert _acts(replanned) == _acts(planned)
    assert replanned.next_wake_ms == planned.next_wake_ms


def nothing_is_taken_for_the_unadmitted(world: World) -> None:
    """Check that a cycle preempts and reserves nothing if the cluster refused the pods of every pending gang."""
    state = copy_of(world.state)
    for gang in pending_gangs(world):
        refused = state.gangs[gang.id]
        state.dequeue(refused)
        refused.retries = replace(refused.retries, unadmitted=1)
        state.enqueue(refused)
    decisions = plan(state, world.now_ms, world.policy).decisions
    assert not [decision for decision in decisions if isinstance(decision, Stop) and decision.cause is Cause.PREEMPTED]
    assert not [
        decision for decision in decisions if isinstance(decision, ReservedStart) and decision.start_ms is not None
    ]


def log_replays(world: World) -> None:
    """Check that the state is the fold of its log, which survives being written and read."""
    state = State(find_score=registry.score)
    for row in world.log:
        event = decode(encode(row.event))
        assert event == row.event
        fold(state, e.Stamped(row.seq, row.at_ms, event))
    assert encode_image(state.image()) == encode_image(world.state.image())
    assert fingerprint(state)[1:] == fingerprint(world.state)[1:]


def input_order_does_not_matter(world: World, shuffle: list[int]) -> None:
    """Check that nodes and queues listed in another order give the same plan."""
    state = State(find_score=registry.score)
    for row in world.log:
        event = row.event
        if isinstance(event, e.NodesListed):
            nodes = sorted(event.nodes, key=lambda node: shuffle[int(node.name[1:]) % len(shuffle)])
            event = replace(event, nodes=tuple(nodes))
        fold(state, e.Stamped(row.seq, row.at_ms, event))
    state.document = replace(state.document, queues=dict(sorted(state.document.queues.items(), reverse=True)))
    state.recount()
    assert plan(state, world.now_ms, world.policy) == plan(world.state, world.now_ms, world.policy)
