"""Laws of a round: it leaves the state as it was, depends on nothing but state and time, and says when to come back."""

from dataclasses import replace

from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.codec import decode, encode, encode_image
from ganger.model import event as e
from ganger.model.decision import Cause, Decision, Plan, ReservedStart, Start, Stop, Wait
from ganger.model.units import DAY_MS
from tests.laws.answers import keeps, waiting
from tests.laws.safety import copy_of, fingerprint
from tests.laws.world import World


def planned_purely(world: World) -> Plan:
    """The round's plan; the same from a second try and from a snapshot, the state as before. The number of the newest
    event decides at most which gangs are told why they wait."""
    before = fingerprint(world.state)
    planned = plan(world.state, world.now_ms, world.policy)
    assert fingerprint(world.state) == before, "a round leaves the state as it found it"
    world.state.seq += 1
    again = plan(world.state, world.now_ms, world.policy)
    world.state.seq -= 1
    assert _acts(again) == _acts(planned), "a round planned twice"
    assert again.next_wake_ms == planned.next_wake_ms
    assert plan(copy_of(world.state), world.now_ms, world.policy) == planned, "a snapshot plans like the original"
    return planned


def _acts(planned: Plan) -> list[Decision]:
    return [each for each in planned.decisions if not isinstance(each, Wait)]


def nothing_is_due_before_the_wake(world: World) -> None:
    """Time alone starts and stops nobody before the round said that it is due again."""
    if any(keeps(world, gang) for gang in waiting(world) if world.state.ready):
        # What is kept is chosen anew each round; it may fall on other nodes once those after it have started.
        return
    last_ms = world.now_ms + DAY_MS if world.wake_ms is None else world.wake_ms - 1
    for at_ms in (world.now_ms, last_ms):
        early = plan(world.state, at_ms, world.policy).decisions
        assert [d for d in early if isinstance(d, Start | Stop)] == [], f"due at {at_ms}, wake at {world.wake_ms}"


def nothing_is_taken_for_the_unadmitted(world: World) -> None:
    """If the cluster refused the pods of every waiting gang, a round preempts no gang and reserves no start."""
    state = copy_of(world.state)
    for gang in waiting(world):
        refused = state.gangs[gang.id]
        state.dequeue(refused)
        refused.unadmitted = 1
        state.enqueue(refused)
    decisions = plan(state, world.now_ms, world.policy).decisions
    assert not [each for each in decisions if isinstance(each, Stop) and each.cause is Cause.PREEMPTED]
    assert not [each for each in decisions if isinstance(each, ReservedStart) and each.start_ms is not None]


def log_replays(world: World) -> None:
    """The state is the fold of its log, which survives being written and read."""
    state = State()
    for row in world.log:
        event = decode(encode(row.event))
        assert event == row.event
        fold(state, e.Stamped(row.seq, row.at_ms, event))
    assert encode_image(state.image()) == encode_image(world.state.image())
    assert fingerprint(state)[1:] == fingerprint(world.state)[1:]


def order_of_input_says_nothing(world: World, shuffle: list[int]) -> None:
    """Nodes listed in another order, queues in another: the same plan."""
    state = State()
    for row in world.log:
        event = row.event
        if isinstance(event, e.NodesListed):
            nodes = sorted(event.nodes, key=lambda node: shuffle[int(node.name[1:]) % len(shuffle)])
            event = replace(event, nodes=tuple(nodes))
        fold(state, e.Stamped(row.seq, row.at_ms, event))
    state.queues = dict(sorted(state.queues.items(), reverse=True))
    state.recount()
    assert plan(state, world.now_ms, world.policy) == plan(world.state, world.now_ms, world.policy)
