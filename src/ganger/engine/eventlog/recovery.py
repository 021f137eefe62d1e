"""Recovery of the state from a log with rows that cannot be read, or do not follow from those before them.

Such a row is set aside: it changes nothing, and later rows are folded as far as they follow. Afterwards the state is
brought in line with the table of jobs, which was written in the same transactions: a job that has ended there is over;
one that is at another attempt there starts a new one, because the fate of its ranks is unknown; and one that is not in
the state is pending again. So other jobs lose nothing, and the jobs of the damaged row at most an attempt.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ganger.core.fold import fold_arrays, fold_attempt
from ganger.core.fold.fold import fold, note, refusal
from ganger.core.node_health.health_lifecycle import HEALTH
from ganger.core.state import spares
from ganger.core.state.gang import RESTING, Gang
from ganger.core.state.state import State
from ganger.model.decision import Decision, Defragmented, Expect, Plan, ReservedStart, SpareNodes, Start, Stop, Wait
from ganger.model.event import Decided, Stamped, Submitted, Unreadable
from ganger.model.job import ENDED, GangState, Job
from ganger.model.node_health.health_decision import ActOnNode, GroupFaults, OpenHealthBreaker
from ganger.model.node_health.health_record import HealthState
from ganger.model.queue import DEFAULT


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as in the table of jobs."""

    state: GangState
    generation: int
    job: Job


@dataclass(slots=True)
class Recovery:
    """Folds the rows of a damaged log.

    begin: returns the state that the rows follow.
    rows: returns the rows after a state.
    aside: rows that are set aside, by number, with the reason.
    """

    begin: Callable[[], State]
    rows: Callable[[State], Iterable[Stamped]]
    aside: dict[int, str] = field(default_factory=dict)

    def fold(self) -> State:
        """Return the state after all rows that can be folded. Raise ValueError if a row is missing."""
        while True:
            state = self.begin()
            failed = next((row for row in self.rows(state) if not self._fold_row(state, row)), None)
            if failed is None:
                return state  # else start over without it: the state may be half changed

    def _fold_row(self, state: State, row: Stamped) -> bool:
        """Fold a row, or set it aside. Return False if the state is no longer usable."""
        event = row.event
        if row.seq != state.seq + 1:
            raise ValueError(f"the log has a hole: event {row.seq} follows event {state.seq}")
        if isinstance(event, Unreadable):
            self.aside[row.seq] = event.reason
            if event.event_kind == "cleared":
                _release(state, event.subjects, row.at_ms)
        elif row.seq not in self.aside:
            if isinstance(event, Decided) and self.aside:
                event = self._without_invalid(state, row.seq, event)
            try:
                reason = refusal(state, event)
                if reason is None:
                    fold(state, _with_event(state, row, event))
                    return True
            except Exception as error:  # noqa: BLE001 - a row may be anything that decodes
                self.aside[row.seq] = f"it does not follow from the events before: {error!r}"
                return False
            self.aside[row.seq] = f"it does not follow from the events before: {reason}"
        fold(state, _with_event(state, row, Unreadable(event_kind=event.kind, reason=self.aside[row.seq])))
        return True

    def _without_invalid(self, state: State, seq: int, decided: Decided) -> Decided:
        """Return a decision without its parts that do not follow."""
        valid = tuple(decision for decision in decided.plan.decisions if _follows(state, decision))
        if len(valid) < len(decided.plan.decisions):
            self.aside.setdefault(-seq, "a part of it does not follow from the events before")
        return replace(decided, plan=Plan(as_of=decided.plan.as_of, decisions=valid))


def reconcile(state: State, find_entry: Callable[[str], JobEntry | None], live: Iterable[tuple[str, Job]]) -> list[str]:
    """Bring a state in line with the table of jobs. Return a sentence for each job that is changed.

    find_entry: finds a job or an element by id.
    live: jobs that have not ended by the table, oldest first.
    """
    changes = []
    for gang in [gang for gang in state.gangs.values() if not gang.is_head]:
        row = find_entry(gang.id)
        if row is not None and row.state in ENDED:
            _end(state, gang, row.state)
            changes.append(f"{gang.id} has {row.state}")
        elif row is not None and (row.generation, row.state in RESTING) != (
            gang.attempt.generation,
            gang.attempt.start is None,
        ):
            _release(state, (gang.id,), state.at_ms)
            gang.attempt.generation = max(gang.attempt.generation, row.generation)
            changes.append(f"{gang.id} starts again after attempt {gang.attempt.generation}")
    for name, job in live:
        if not state.is_live(name):
            changes.append(_submit(state, job, find_entry(name)))
    return changes


def _submit(state: State, job: Job, row: JobEntry | None) -> str:
    if job.spec.queue not in state.document.queues:
        job = replace(job, spec=replace(job.spec, queue=DEFAULT))
    job = replace(job, awaits=tuple(after for after in job.awaits if state.is_live(after.job)))
    fold(state, Stamped(state.seq + 1, state.at_ms, Submitted(job=job)))
    state.seq -= 1  # it is not in the log
    gang = state.gangs.get(job.id)
    if gang is not None and row is not None:
        gang.attempt.generation = row.generation
    return f"{job.id} is pending again"


def _follows(state: State, decision: Decision) -> bool:
    match decision:
        case Start(gang=name, generation=generation, nodes=nodes):
            gang = state.gang_or_head(name)
            if gang is None or gang.state not in (GangState.PENDING, GangState.RESIZING):
                return False
            return generation > gang.attempt.generation and all(node in state.nodes.index for node in nodes)
        case Stop(gang=name, generation=generation) | SpareNodes(gang=name, generation=generation):
            return name in state.gangs and state.gangs[name].attempt.generation == generation
        case ReservedStart(gang=name):
            return name in state.gangs and state.gangs[name].state is GangState.PENDING
        case Expect(gang=name):
            return name in state.gangs
        case ActOnNode(node=name, action=action, is_dry=is_dry):
            record = state.health.by_node.get(name)
            health = HealthState.HEALTHY if record is None else record.state
            return name in state.nodes.index and (is_dry or (health, action) in HEALTH)
        case Wait() | Defragmented() | GroupFaults() | OpenHealthBreaker():
            return True


def _release(state: State, names: Iterable[str], at_ms: int) -> None:
    """End the attempts of jobs as if their launchers were lost."""
    for name in names:
        gang = state.gangs.get(name)
        if gang is not None and gang.attempt.start is not None:
            touched = (gang, *fold_attempt.clear(state, gang, gang.attempt.left, max(at_ms, state.at_ms)))
            _note(state, touched)


def _end(state: State, gang: Gang, end_state: GangState) -> None:
    """Remove a gang that has ended by the table."""
    if gang.attempt.start is not None:
        state.leave(gang, gang.attempt.left)
        state.release(gang)
        state.end_usage(gang, state.at_ms)
        gang.attempt.left, gang.attempt.start = (), None
    elif gang.state is GangState.PENDING:
        state.dequeue(gang)
    gang.state = end_state
    _note(state, (gang, *state.drop(gang, state.at_ms)))


def _note(state: State, touched: Iterable[Gang]) -> None:
    """Update the derived data of gangs that changed outside the fold."""
    note(state, fold_arrays.recount(state, touched, state.at_ms))
    note(state, spares.recall(state, state.at_ms))


def _with_event(state: State, row: Stamped, event: object) -> Stamped:
    """Return the row with another event, at a time that the state accepts."""
    return replace(row, at_ms=max(row.at_ms, state.at_ms), event=event)  # type: ignore[arg-type]
