"""A State driven by drawn events as the loop would drive it, with the laws of safety checked after every step.

Every event goes into the State and into `RawFacts`; a cycle is planned after every batch and recorded as Decided. The
world is adversarial but not absurd: an event is about a generation that exists or existed.
"""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from ganger import registry
from ganger.core.cycle.cycle import plan
from ganger.core.cycle.publish_reasons import MAX_REASONS
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy, preemption_rules
from ganger.core.reservations import queue_rotation
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Plan, Start, Stop
from ganger.model.evidence import RuleMatch
from ganger.model.job import GangState, Job
from ganger.model.node_health.health_decision import HealthDecision
from ganger.model.policy import document_of
from ganger.model.queue import Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws, safety
from tests.laws.oracles.raw_facts import RawFacts

PAUSES_MS = (0, 0, 0, 1, 1_000, MINUTE_MS, 11 * MINUTE_MS, 31 * MINUTE_MS, 2 * HOUR_MS)
LEAVING = (
    GangState.REQUEUEING,
    GangState.SUSPENDING,
    GangState.FINISHING,
    GangState.FAILING,
    GangState.STOPPING,
)


class World:
    """The same events in a State and in RawFacts, with their log and the states in which gangs ended."""

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...] = ()) -> None:
        self.policy = policy
        self.state, self.raw = State(find_score=registry.score), RawFacts()
        self.log: list[e.Stamped] = []
        self.now_ms = 1_000_000_000
        self.wake_ms: int | None = None
        self.publishes_all = True
        """True if the last cycle considered the reason of every class, not of some in rotation."""
        self.steps = 0
        self.ended: dict[str, GangState] = {}
        for queue in queues:
            self.try_event(e.QueueSet(queue=queue))
        self.try_event(e.NodesListed(nodes=nodes, levels=draws.LEVELS))

    # -- one event, one cycle ------------------------------------------------------------------------------------------

    def try_event(self, event: e.Event) -> bool:
        """Fold an event in unless it is refused, which must change nothing; return whether it was accepted."""
        if refusal(self.state, event) is not None:
            return False
        stamped = e.Stamped(self.state.seq + 1, self.now_ms, event)
        failing = self._judged(event)
        spent, leaves = (failing.retries.used, bool(failing.attempt.vacates)) if failing else (0, False)
        touched = fold(self.state, stamped)
        self.log.append(stamped)
        self.raw.now_ms = self.now_ms
        self.raw.apply(event)
        gangs = [thing for thing in touched if isinstance(thing, Gang)]
        for gang in gangs:
            safety.account_adds_up(gang, self.now_ms)
        for thing in touched:
            if thing.ended and not (isinstance(thing, Gang) and thing.is_head):
                self.raw.end(thing.id, thing.state)
                self.ended[thing.id] = thing.state
        if failing and isinstance(event, e.Failed):
            safety.retry_rule_is_applied(self.raw.retry_action(event), failing, spent, leaves=leaves)
        safety.state_is_consistent(self.state, self.raw)
        if isinstance(event, e.NodeLost):
            touched_ids = {gang.id for gang in gangs if gang.job.awaits and gang.attempt.start is None}
            assert {gang.id for gang in gangs} - touched_ids == {*self.raw.killed} - touched_ids, (
                "a lost node fails its gangs alone"
            )
        return True

    def _judged(self, event: e.Event) -> Gang | None:
        """Return the gang whose fate the event decides, if it is the first failure of a running one."""
        gang = self.state.gangs.get(event.gang) if isinstance(event, e.Failed) else None
        up = gang is not None and gang.state in (GangState.STARTING, GangState.RUNNING) and gang.attempt.failure is None
        return gang if up else None

    def run_cycle(self) -> Plan:
        """Plan, check and record one cycle."""
        self.publishes_all = len(self.state.pending.classes) <= MAX_REASONS
        planned = plan(self.state, self.now_ms, self.policy)
        self.raw.now_ms = self.now_ms
        safety.decisions_are_legal(planned, self.state, self.raw, self.now_ms)
        spent = {name: gang.retries.used for name, gang in self.state.gangs.items()}
        self.wake_ms = planned.next_wake_ms
        at_once = any(
            isinstance(decision, Stop) and self.state.gangs[decision.gang].attempt.start is None
            for decision in planned.decisions
        )
        at_once |= (
            queue_rotation.is_large_cluster(self.state) and planned.decisions != ()
        )  # the rotation reaches another queue
        # Decisions about faulty nodes make a cycle of their own.
        at_once |= any(isinstance(decision, HealthDecision) for decision in planned.decisions)
        # A gang that is kept from starting leaves room for others, which the next cycle tries.
        at_once |= preemption_rules(self.policy, self.state.document) is not None and planned.decisions != ()
        # Once the least number of replica groups has started, the others may start one by one.
        groups = (self.raw.job(decision.gang) for decision in planned.decisions if isinstance(decision, Start))
        at_once |= any(job.spec.replica_groups for job in groups)
        assert at_once or not self.is_due(), "a cycle is due that was just planned"
        if planned.decisions:
            self.try_event(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
        assert {name: spent.get(name, 0) for name in self.state.gangs} == {
            name: gang.retries.used for name, gang in self.state.gangs.items()
        }, "only a failure spends an attempt"
        return planned

    def with_drawn_policy(self, data: st.DataObject) -> "World":
        """Apply a drawn policy in half of the worlds."""
        if data.draw(st.booleans(), label="with_drawn_policy"):
            in_force = self.state.document
            document = document_of(data.draw(draws.policy_rules(in_force.half_life_ms)), in_force.queues)
            assert self.try_event(e.PolicySet(document=document, version=self.state.policy_version + 1))
        return self

    def is_due(self) -> bool:
        """Return whether the last cycle made another due at once."""
        return self.wake_ms is not None and self.wake_ms <= self.now_ms

    def submit(self, job: Job) -> bool:
        """Submit a job; return whether it was accepted."""
        return self.try_event(e.Submitted(job=job))

    def confirm_starts(self) -> None:
        """Confirm that gangs that were started run."""
        for gang in self.in_state(GangState.STARTING):
            self.try_event(e.Started(gang=gang, generation=self.generation(gang), nodes=self.left(gang)))

    def clear_leaving(self) -> None:
        """Clear gangs that are being stopped."""
        for gang in self.in_state(*LEAVING):
            self.try_event(e.Cleared(gang=gang, generation=self.generation(gang), nodes=self.left(gang)))

    def finish(self, gang: str) -> None:
        """Finish a gang everywhere."""
        generation, nodes = self.generation(gang), self.left(gang)
        self.try_event(e.Finished(gang=gang, generation=generation, nodes=nodes))
        self.try_event(e.Cleared(gang=gang, generation=generation, nodes=nodes))

    def restart_server(self) -> None:
        """Restart the server, which lists the nodes."""
        self.try_event(e.ServerStarted(version="0"))
        self.try_event(e.NodesListed(nodes=tuple(self.raw.nodes.values()), levels=draws.LEVELS))

    def stop(self, gang: str, *, now: bool = False) -> None:
        """Stop a gang, which must be accepted."""
        assert self.try_event(e.StopRequested(gang=gang, now=now)), "a live gang takes a stop"

    # -- what there is -------------------------------------------------------------------------------------------------

    def in_state(self, *states: GangState) -> list[str]:
        """Return live gangs in one of these states, oldest first."""
        return [gang.id for gang in self.state.gangs.values() if gang.state in states]

    def generation(self, gang: str) -> int:
        """Return the newest generation that was decided."""
        return self.raw.generations[gang]

    def left(self, gang: str) -> tuple[str, ...]:
        """Return nodes on which something of a gang may run."""
        return tuple(node for other, node in self.raw.left if other == gang)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def draw_events(self, data: st.DataObject) -> None:
        """Let some time pass and some events occur."""
        pause = data.draw(st.sampled_from((*PAUSES_MS, None)), label="pause")
        if pause is not None:
            self.now_ms += pause
        elif self.wake_ms is not None:
            self.now_ms = max(self.now_ms, self.wake_ms)
        for _ in range(data.draw(st.integers(1, 3), label="events")):
            data.draw(st.sampled_from(EVENTS), label="event")(self, data)

    def draw_name(self, data: st.DataObject, names: list[str] | tuple[str, ...]) -> str | None:
        """Draw one of the names, or None if there is none."""
        return data.draw(st.sampled_from(sorted(names))) if names else None


def _submits(world: World, data: st.DataObject) -> None:
    world.steps += 1
    queues = tuple(name for name in world.state.document.queues)
    user = data.draw(st.sampled_from(draws.USERS))
    job = draws.job(world.steps, user, data.draw(draws.specs(queues)))
    live = [*world.state.gangs, *world.state.arrays]
    live += [f"{array}[{index}]" for array, rest in world.raw.rest.items() for index in rest]
    if live and data.draw(st.integers(0, 3)) == 0:
        job = replace(job, awaits=data.draw(draws.afters(sorted({*live}))))
    world.submit(job)


def _confirms(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, world.in_state(GangState.STARTING)):
        nodes = data.draw(st.lists(st.sampled_from(world.left(gang)), min_size=1, unique=True))
        world.try_event(e.Started(gang=gang, generation=world.generation(gang), nodes=tuple(nodes)))


def _confirms_all(world: World, data: st.DataObject) -> None:
    world.confirm_starts()


def _steps(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.starts)):
        world.steps += 1
        kind = data.draw(st.sampled_from((e.Progressed, e.Checkpointed)))
        world.try_event(kind(gang=gang, generation=world.generation(gang), step=world.steps))


def _fails(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.starts)):
        cause, code, signal = data.draw(st.sampled_from(draws.FAILURES))
        node = data.draw(st.sampled_from(world.left(gang)))
        generation = world.generation(gang)
        failed = e.Failed(gang=gang, generation=generation, node=node, cause=cause, exit_code=code, signal=signal)
        world.try_event(replace(failed, match=_draw_rule_match(world, gang, data)))


def _draw_rule_match(world: World, gang: str, data: st.DataObject) -> RuleMatch | None:
    """Draw what a backend may find in the logs: the pattern of one of the gang's rules, on one of its nodes."""
    rules = world.raw.jobs[gang].spec.retry.rules
    index = data.draw(st.sampled_from([None, *(index for index, rule in enumerate(rules) if rule.log)]), label="rule")
    if index is None:
        return None
    node = data.draw(st.sampled_from(world.left(gang)))
    return RuleMatch(rule=index, do=rules[index].do, node=node, rank=0, line="uncorrectable ECC")


def _is_evicted(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.starts)):
        node, notice_ms = data.draw(st.sampled_from(world.left(gang))), data.draw(st.sampled_from((0, 25_000)))
        world.try_event(e.Evicted(gang=gang, generation=world.generation(gang), node=node, notice_ms=notice_ms))


def _clears(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.starts)):
        nodes = tuple(data.draw(st.lists(st.sampled_from(world.left(gang)), min_size=1, unique=True)))
        if data.draw(st.booleans()):
            world.try_event(e.Finished(gang=gang, generation=world.generation(gang), nodes=nodes))
        world.try_event(e.Cleared(gang=gang, generation=world.generation(gang), nodes=nodes))


def _clears_all(world: World, data: st.DataObject) -> None:
    world.clear_leaving()


def _comes_late(world: World, data: st.DataObject) -> None:
    """Report a fact about a generation that is over, or of a gang that is."""
    names = [*world.raw.generations]
    if gang := world.draw_name(data, names):
        late = world.generation(gang) - data.draw(st.integers(0, 1))
        if gang in world.raw.starts and late == world.generation(gang):
            return
        kind = data.draw(st.sampled_from((e.Started, e.Finished, e.Cleared)))
        assert not world.try_event(kind(gang=gang, generation=late, nodes=tuple(world.raw.nodes))), "a stale fact"


def _node(world: World, data: st.DataObject) -> None:
    if name := world.draw_name(data, list(world.raw.nodes)):
        kinds = (e.NodeLost, e.NodeReturned, e.NodeCordoned, e.NodeUncordoned, e.NodeDrained, _preempted)
        kind = data.draw(st.sampled_from(kinds))
        taken = world.try_event(kind(node=name))
        assert taken or kind is not e.NodeDrained, "a node that is there can be drained"


def _preempted(node: str) -> e.NodePreempted:
    return e.NodePreempted(node=node, notice_ms=10_000)


def _maintains(world: World, data: st.DataObject) -> None:
    """Plan maintenance, or cancel it."""
    windows = world.raw.windows
    over = [name for name, window in windows.items() if window.until_ms <= world.now_ms]
    if data.draw(st.booleans()):
        world.steps += 1
        nodes = data.draw(st.lists(st.sampled_from(sorted(world.raw.nodes)), min_size=1, unique=True))
        from_ms = world.now_ms + data.draw(st.sampled_from((0, 1, MINUTE_MS, 40 * MINUTE_MS, 3 * HOUR_MS)))
        until_ms = from_ms + data.draw(st.sampled_from((0, 1, MINUTE_MS, 2 * HOUR_MS)))
        taken = safety.maintained(world.raw, from_ms, until_ms)
        is_free = not any(node in taken for node in nodes)
        window = e.MaintenanceSet(id=f"m{world.steps}", nodes=tuple(nodes), from_ms=from_ms, until_ms=until_ms)
        assert world.try_event(window) == (is_free and until_ms > from_ms), "refused if and only if it cannot be"
    elif name := world.draw_name(data, list(windows)):
        taken = world.try_event(e.MaintenanceCleared(id=name))
        assert taken or name in over, "what is not over can be cancelled"


def _lists(world: World, data: st.DataObject) -> None:
    """List nodes again: the server restarts, the cluster grows or shrinks, or foreign pods come or go."""
    if world.raw.nodes and data.draw(st.booleans(), label="one changes"):
        nodes = data.draw(draws.used_otherwise(tuple(world.raw.nodes.values())), label="nodes")
        changed = data.draw(st.sampled_from(nodes), label="changed")
        changed = replace(changed, unready=data.draw(st.sampled_from(("", "its kubelet is silent")), label="unready"))
        assert world.try_event(e.NodeChanged(listed=changed))
        return
    if data.draw(st.booleans()):
        world.try_event(e.ServerStarted(version="0"))
        assert plan(world.state, world.now_ms, world.policy).decisions == (), "nothing is planned before the listing"
    same = tuple(world.raw.nodes.values())
    nodes = data.draw(st.just(same) | draws.used_otherwise(same) | draws.nodes(), label="nodes")
    lost = tuple(sorted(data.draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=1), label="lost")))
    world.try_event(e.NodesListed(nodes=nodes, levels=draws.LEVELS, lost=lost))


def _stops(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.jobs)):
        world.stop(gang, now=data.draw(st.booleans()))


def _suspends(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.jobs)):
        world.try_event(e.SuspendRequested(gang=gang))


def _resumes(world: World, data: st.DataObject) -> None:
    suspended = [name for name in world.raw.suspended if not _is_ending(world, name)]
    if gang := world.draw_name(data, suspended):
        assert world.try_event(e.ResumeRequested(gang=gang)), "what was suspended can be resumed"


def _is_ending(world: World, name: str) -> bool:
    """Return whether a suspended job ends after all, by itself or on request, while something of it still runs."""
    gang = world.state.gangs.get(name)
    ending = (GangState.STOPPING, GangState.FAILING, GangState.FINISHING)
    return gang is not None and (gang.end_cause is not None or gang.state in ending)


def _reorders(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.jobs)):
        priority = data.draw(st.sampled_from((-100, 0, 100)))
        assert world.try_event(e.PriorityChanged(gang=gang, priority=priority))


def _restricts(world: World, data: st.DataObject) -> None:
    """Restrict a job, as its volumes do once they are bound; one that has its nodes is left alone."""
    if gang := world.draw_name(data, [name for name in world.raw.jobs if name not in world.state.arrays]):
        required = data.draw(draws.affinities()).required
        assert world.try_event(e.NodesRestricted(gang=gang, required=required)) == (gang not in world.raw.starts)


def _scales(world: World, data: st.DataObject) -> None:
    """Ask for another number of nodes; the laws of `elastic` have jobs that take it."""
    if gang := world.draw_name(data, list(world.state.gangs)):
        nodes = world.state.gangs[gang].job.spec.nodes
        assert not world.try_event(e.ScaleRequested(gang=gang, nodes=nodes + 1)), "its size is fixed"


def _asks_array(world: World, data: st.DataObject) -> None:
    """Request something of a whole array, or of one element, also of one that no request was about yet."""
    if array := world.draw_name(data, list(world.state.arrays)):
        name = data.draw(st.sampled_from([array, *(f"{array}[{index}]" for index in world.raw.rest.get(array, ()))]))
        request = data.draw(
            st.sampled_from(
                (
                    e.StopRequested(gang=name),
                    e.SuspendRequested(gang=name),
                    e.ResumeRequested(gang=name),
                    e.PriorityChanged(gang=name, priority=100),
                )
            )
        )
        taken = world.try_event(request)
        assert taken or not isinstance(request, e.StopRequested | e.PriorityChanged)
        of_it = [gang for gang in world.state.gangs.values() if gang.array == array]
        for gang in of_it:  # of a whole array, those that it applies to
            if not gang.suspends and gang.state not in (GangState.SUSPENDED, GangState.SUSPENDING):
                world.raw.suspended.pop(gang.id, None)


def _is_done(world: World, data: st.DataObject) -> None:
    if gang := world.draw_name(data, list(world.raw.starts)):
        world.try_event(e.Done(gang=gang, generation=world.generation(gang)))


def _edits(world: World, data: st.DataObject) -> None:
    names = [*world.state.document.queues]
    name = data.draw(st.sampled_from([*draws.QUEUES, "root"]))
    if data.draw(st.integers(0, 3)) == 0:
        world.try_event(e.QueueDeleted(queue=name))
    else:
        world.try_event(e.QueueSet(queue=data.draw(draws.queue(name, tuple(names)))))


def _applies(world: World, data: st.DataObject) -> None:
    """Apply another policy document, which may leave a queue out."""
    state = world.state
    queues = dict(state.document.queues)
    removed = data.draw(st.sampled_from([None, *(name for name in draws.QUEUES if name in queues)]), label="gone")
    if removed is not None:
        parent = queues.pop(removed).parent
        queues = {
            name: replace(queue, parent=parent) if queue.parent == removed else queue for name, queue in queues.items()
        }
    document = document_of(data.draw(draws.policy_rules(state.document.half_life_ms)), queues)
    forced = data.draw(st.booleans())
    strands = any(job.spec.queue == removed for job in world.raw.jobs.values())
    taken = world.try_event(e.PolicySet(document=document, version=state.policy_version + 1, forced=forced))
    assert taken == (forced or not strands), "refused if and only if a job would be without a queue"


def _nothing(world: World, data: st.DataObject) -> None:
    """Let only time pass."""


EVENTS: tuple[Callable[[World, st.DataObject], None], ...] = (
    *(_submits,) * 6,
    *(_confirms_all, _clears_all, _fails, _clears) * 2,
    *(_confirms, _steps, _steps, _is_evicted, _comes_late, _node, _lists, _stops, _edits, _applies, _nothing),
    _maintains,
    *(_suspends, _resumes, _reorders, _scales, _restricts, _is_done, _asks_array),
)
"""Events that may occur, the likelier the more often."""
