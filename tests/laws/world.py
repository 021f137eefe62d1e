"""Drives one State with drawn events, the way the loop would, and checks the laws of safety after every step.

Every event goes into the State and into `Raw`; a round is planned after every batch and recorded as Decided. The world
is adversarial, but not absurd: a fact speaks of a generation that exists or existed.
"""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.reservations import queue_rotation
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Plan, Stop
from ganger.model.job import GangState, Job
from ganger.model.policy import document_of
from ganger.model.queue import Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws, safety
from tests.laws.raw import Raw

PAUSES_MS = (0, 0, 0, 1, 1_000, MINUTE_MS, 11 * MINUTE_MS, 31 * MINUTE_MS, 2 * HOUR_MS)
LEAVING = (
    GangState.REQUEUEING,
    GangState.SUSPENDING,
    GangState.FINISHING,
    GangState.FAILING,
    GangState.STOPPING,
)


class World:
    """state and raw: the same events in both; log: all of them; ended: the state in which gangs ended."""

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...] = ()) -> None:
        self.policy = policy
        self.state, self.raw = State(), Raw()
        self.log: list[e.Stamped] = []
        self.now_ms = 1_000_000_000
        self.wake_ms: int | None = None
        self.steps = 0
        self.ended: dict[str, GangState] = {}
        for queue in queues:
            self.happens(e.QueueSet(queue=queue))
        self.happens(e.NodesListed(nodes=nodes, levels=draws.LEVELS))

    # -- one event, one round ------------------------------------------------------------------------------------------

    def happens(self, event: e.Event) -> bool:
        """Fold one event in, unless it is refused; then nothing must have changed."""
        if refusal(self.state, event) is not None:
            return False
        stamped = e.Stamped(self.state.seq + 1, self.now_ms, event)
        failing = self._judged(event)
        spent = failing.spent if failing else 0
        touched = fold(self.state, stamped)
        self.log.append(stamped)
        self.raw.apply(event)
        gangs = [each for each in touched if isinstance(each, Gang)]
        for gang in gangs:
            safety.account_adds_up(gang, self.now_ms)
        for each in touched:
            if each.ended and not (isinstance(each, Gang) and each.is_head):
                self.raw.ended(each.id, each.state)
                self.ended[each.id] = each.state
        if failing and isinstance(event, e.Failed):
            safety.rule_is_obeyed(self.raw.judge(event), failing, spent)
        safety.state_is_sound(self.state, self.raw)
        if isinstance(event, e.NodeLost):
            told = {gang.id for gang in gangs if gang.job.awaits and gang.start is None}
            assert {gang.id for gang in gangs} - told == {*self.raw.killed} - told, "a lost node takes its gangs alone"
        return True

    def _judged(self, event: e.Event) -> Gang | None:
        """The gang whose fate the event decides, if it is the first failure of one that is up."""
        gang = self.state.gangs.get(event.gang) if isinstance(event, e.Failed) else None
        up = gang is not None and gang.state in (GangState.STARTING, GangState.RUNNING) and gang.failure is None
        return gang if up else None

    def round(self) -> Plan:
        """Plan, check, record; what the loop does after every batch."""
        planned = plan(self.state, self.now_ms, self.policy)
        safety.decisions_are_legal(planned, self.state, self.raw, self.now_ms)
        spent = {name: gang.spent for name, gang in self.state.gangs.items()}
        self.wake_ms = planned.next_wake_ms
        at_once = any(
            isinstance(each, Stop) and self.state.gangs[each.gang].start is None for each in planned.decisions
        )
        at_once |= queue_rotation.is_large_cluster(self.state) and planned.decisions != ()  # another queue has its turn
        assert at_once or not self.is_due(), "a round is due that was just planned"
        if planned.decisions:
            self.happens(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
        assert {name: spent.get(name, 0) for name in self.state.gangs} == {
            name: gang.spent for name, gang in self.state.gangs.items()
        }, "only a failure spends an attempt"
        return planned

    def governed(self, data: st.DataObject) -> "World":
        """Half of the worlds begin with a policy of their own."""
        if data.draw(st.booleans(), label="governed"):
            document = document_of(data.draw(draws.policy_rules(self.state.rules.half_life_ms)), self.state.queues)
            assert self.happens(e.PolicySet(document=document, version=self.state.policy_version + 1))
        return self

    def is_due(self) -> bool:
        """Whether the round before asked for another at once."""
        return self.wake_ms is not None and self.wake_ms <= self.now_ms

    def submit(self, job: Job) -> bool:
        """A job is accepted."""
        return self.happens(e.Submitted(job=job))

    def confirm(self) -> None:
        """Whatever was decided to start, runs."""
        for gang in self.in_state(GangState.STARTING):
            self.happens(e.Started(gang=gang, generation=self.generation(gang), nodes=self.left(gang)))

    def clear(self) -> None:
        """Whatever is being stopped is gone."""
        for gang in self.in_state(*LEAVING):
            self.happens(e.Cleared(gang=gang, generation=self.generation(gang), nodes=self.left(gang)))

    def finish(self, gang: str) -> None:
        """The gang ran to its end everywhere."""
        generation, nodes = self.generation(gang), self.left(gang)
        self.happens(e.Finished(gang=gang, generation=generation, nodes=nodes))
        self.happens(e.Cleared(gang=gang, generation=generation, nodes=nodes))

    def list_again(self) -> None:
        """The server takes over and hears what there is."""
        self.happens(e.ServerStarted(version="0"))
        self.happens(e.NodesListed(nodes=tuple(self.raw.nodes.values()), levels=draws.LEVELS))

    def stop(self, gang: str) -> None:
        """Somebody asks for its end; nobody may say no."""
        assert self.happens(e.StopRequested(gang=gang)), "a live gang takes a stop"

    # -- what there is -------------------------------------------------------------------------------------------------

    def in_state(self, *states: GangState) -> list[str]:
        """Live gangs in one of these states, oldest first."""
        return [gang.id for gang in self.state.gangs.values() if gang.state in states]

    def generation(self, gang: str) -> int:
        """The newest that was decided."""
        return self.raw.generations[gang]

    def left(self, gang: str) -> tuple[str, ...]:
        """Nodes on which something of it may run."""
        return tuple(node for other, node in self.raw.left if other == gang)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def batch(self, data: st.DataObject) -> None:
        """Some time passes, some things happen."""
        pause = data.draw(st.sampled_from((*PAUSES_MS, None)), label="pause")
        if pause is not None:
            self.now_ms += pause
        elif self.wake_ms is not None:
            self.now_ms = max(self.now_ms, self.wake_ms)
        for _ in range(data.draw(st.integers(1, 3), label="events")):
            data.draw(st.sampled_from(EVENTS), label="event")(self, data)

    def pick(self, data: st.DataObject, names: list[str] | tuple[str, ...]) -> str | None:
        """One of them, or None where there is none."""
        return data.draw(st.sampled_from(sorted(names))) if names else None


def _submits(world: World, data: st.DataObject) -> None:
    world.steps += 1
    queues = tuple(name for name in world.state.queues)
    user = data.draw(st.sampled_from(draws.USERS))
    job = draws.job(world.steps, user, data.draw(draws.specs(queues)))
    live = [*world.state.gangs, *world.state.arrays]
    live += [f"{array}[{index}]" for array, rest in world.raw.rest.items() for index in rest]
    if live and data.draw(st.integers(0, 3)) == 0:
        job = replace(job, awaits=data.draw(draws.afters(sorted({*live}))))
    world.submit(job)


def _confirms(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, world.in_state(GangState.STARTING)):
        nodes = data.draw(st.lists(st.sampled_from(world.left(gang)), min_size=1, unique=True))
        world.happens(e.Started(gang=gang, generation=world.generation(gang), nodes=tuple(nodes)))


def _confirms_all(world: World, data: st.DataObject) -> None:
    world.confirm()


def _steps(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.starts)):
        world.steps += 1
        kind = data.draw(st.sampled_from((e.Progressed, e.Checkpointed)))
        world.happens(kind(gang=gang, generation=world.generation(gang), step=world.steps))


def _fails(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.starts)):
        cause, code, signal = data.draw(st.sampled_from(draws.FAILURES))
        node = data.draw(st.sampled_from(world.left(gang)))
        generation = world.generation(gang)
        failed = e.Failed(gang=gang, generation=generation, node=node, cause=cause, exit_code=code, signal=signal)
        world.happens(replace(failed, match=_found(world, gang, data)))


def _found(world: World, gang: str, data: st.DataObject) -> e.RuleMatch | None:
    """What a backend may have found in the logs: the pattern of one of the gang's rules, on one of its nodes."""
    rules = world.raw.jobs[gang].spec.retry.rules
    at = data.draw(st.sampled_from([None, *(at for at, rule in enumerate(rules) if rule.log)]), label="rule")
    if at is None:
        return None
    node = data.draw(st.sampled_from(world.left(gang)))
    return e.RuleMatch(rule=at, do=rules[at].do, node=node, rank=0, line="uncorrectable ECC")


def _clears(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.starts)):
        nodes = tuple(data.draw(st.lists(st.sampled_from(world.left(gang)), min_size=1, unique=True)))
        if data.draw(st.booleans()):
            world.happens(e.Finished(gang=gang, generation=world.generation(gang), nodes=nodes))
        world.happens(e.Cleared(gang=gang, generation=world.generation(gang), nodes=nodes))


def _clears_all(world: World, data: st.DataObject) -> None:
    world.clear()


def _comes_late(world: World, data: st.DataObject) -> None:
    """A fact about a generation that is over, or of a gang that is."""
    names = [*world.raw.generations]
    if gang := world.pick(data, names):
        late = world.generation(gang) - data.draw(st.integers(0, 1))
        if gang in world.raw.starts and late == world.generation(gang):
            return
        kind = data.draw(st.sampled_from((e.Started, e.Finished, e.Cleared)))
        assert not world.happens(kind(gang=gang, generation=late, nodes=tuple(world.raw.nodes))), "a stale fact"


def _node(world: World, data: st.DataObject) -> None:
    if name := world.pick(data, list(world.raw.nodes)):
        kinds = (e.NodeLost, e.NodeReturned, e.NodeCordoned, e.NodeUncordoned, e.NodeDrained, _preempted)
        kind = data.draw(st.sampled_from(kinds))
        taken = world.happens(kind(node=name))
        assert taken or kind is not e.NodeDrained, "a node that is there can be drained"


def _preempted(node: str) -> e.NodePreempted:
    return e.NodePreempted(node=node, notice_ms=10_000)


def _maintains(world: World, data: st.DataObject) -> None:
    """Maintenance is planned, or called off."""
    windows = world.raw.windows
    over = [name for name, window in windows.items() if window.until_ms <= world.now_ms]
    if data.draw(st.booleans()):
        world.steps += 1
        nodes = data.draw(st.lists(st.sampled_from(sorted(world.raw.nodes)), min_size=1, unique=True))
        from_ms = world.now_ms + data.draw(st.sampled_from((0, 1, MINUTE_MS, 40 * MINUTE_MS, 3 * HOUR_MS)))
        until_ms = from_ms + data.draw(st.sampled_from((0, 1, MINUTE_MS, 2 * HOUR_MS)))
        taken = safety.maintained(world.raw, from_ms, until_ms)
        is_free = not any(node in taken for node in nodes)
        asked = e.MaintenanceSet(id=f"m{world.steps}", nodes=tuple(nodes), from_ms=from_ms, until_ms=until_ms)
        assert world.happens(asked) == (is_free and until_ms > from_ms), "refused if and only if it cannot be"
    elif name := world.pick(data, list(windows)):
        taken = world.happens(e.MaintenanceCleared(id=name))
        assert taken or name in over, "what is not over can be called off"


def _lists(world: World, data: st.DataObject) -> None:
    """The server comes back, the cluster grew or shrank, or others came, or went."""
    if data.draw(st.booleans()):
        world.happens(e.ServerStarted(version="0"))
        assert plan(world.state, world.now_ms, world.policy).decisions == (), "nothing is planned before the listing"
    same = tuple(world.raw.nodes.values())
    nodes = data.draw(st.just(same) | draws.used_otherwise(same) | draws.nodes(), label="nodes")
    lost = tuple(sorted(data.draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=1), label="lost")))
    world.happens(e.NodesListed(nodes=nodes, levels=draws.LEVELS, lost=lost))


def _stops(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.jobs)):
        world.stop(gang)


def _suspends(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.jobs)):
        world.happens(e.SuspendRequested(gang=gang))


def _resumes(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.suspended)):
        assert world.happens(e.ResumeRequested(gang=gang)), "what was suspended can be resumed"


def _reorders(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.jobs)):
        priority = data.draw(st.sampled_from((-100, 0, 100)))
        assert world.happens(e.PriorityChanged(gang=gang, priority=priority))


def _asks_array(world: World, data: st.DataObject) -> None:
    """Of a whole array, or of one element, also of one that nobody has touched."""
    if array := world.pick(data, list(world.state.arrays)):
        name = data.draw(st.sampled_from([array, *(f"{array}[{index}]" for index in world.raw.rest.get(array, ()))]))
        asked = data.draw(
            st.sampled_from(
                (
                    e.StopRequested(gang=name),
                    e.SuspendRequested(gang=name),
                    e.ResumeRequested(gang=name),
                    e.PriorityChanged(gang=name, priority=100),
                )
            )
        )
        taken = world.happens(asked)
        assert taken or not isinstance(asked, e.StopRequested | e.PriorityChanged)
        of_it = [gang for gang in world.state.gangs.values() if gang.array == array]
        for gang in of_it:  # of a whole array, those that can
            if not gang.suspends and gang.state not in (GangState.SUSPENDED, GangState.SUSPENDING):
                world.raw.suspended.pop(gang.id, None)


def _is_done(world: World, data: st.DataObject) -> None:
    if gang := world.pick(data, list(world.raw.starts)):
        world.happens(e.Done(gang=gang, generation=world.generation(gang)))


def _edits(world: World, data: st.DataObject) -> None:
    names = [*world.state.queues]
    name = data.draw(st.sampled_from([*draws.QUEUES, "root"]))
    if data.draw(st.integers(0, 3)) == 0:
        world.happens(e.QueueDeleted(queue=name))
    else:
        world.happens(e.QueueSet(queue=data.draw(draws.queue(name, tuple(names)))))


def _applies(world: World, data: st.DataObject) -> None:
    """Another policy document, that may leave a queue out."""
    state = world.state
    queues = dict(state.queues)
    gone = data.draw(st.sampled_from([None, *(name for name in draws.QUEUES if name in queues)]), label="gone")
    if gone is not None:
        parent = queues.pop(gone).parent
        queues = {name: replace(each, parent=parent) if each.parent == gone else each for name, each in queues.items()}
    document = document_of(data.draw(draws.policy_rules(state.rules.half_life_ms)), queues)
    forced = data.draw(st.booleans())
    strands = any(job.spec.queue == gone for job in world.raw.jobs.values())
    taken = world.happens(e.PolicySet(document=document, version=state.policy_version + 1, forced=forced))
    assert taken == (forced or not strands), "refused if and only if somebody would be without a queue"


def _nothing(world: World, data: st.DataObject) -> None:
    """Only time passes."""


EVENTS: tuple[Callable[[World, st.DataObject], None], ...] = (
    *(_submits,) * 6,
    *(_confirms_all, _clears_all, _fails, _clears) * 2,
    *(_confirms, _steps, _steps, _comes_late, _node, _lists, _stops, _edits, _applies, _nothing),
    _maintains,
    *(_suspends, _resumes, _reorders, _is_done, _asks_array),
)
"""What may happen, the likelier the oftener."""
