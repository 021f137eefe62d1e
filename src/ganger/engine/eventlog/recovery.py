"""The state from a log of which some rows cannot be read, or do not follow from those before them. Called by
`engine.eventlog.event_log` at the start of a server.

Such a row is set aside: it changes nothing, and what follows is folded in as far as it follows. Afterwards the state is
brought in line with the table of jobs, which was written in the same transactions: a job that has ended there is over;
one that is at another attempt there begins a new one, because what became of its ranks is not known; and one that is
not in the state waits again. So other jobs lose nothing, and the jobs that the row was about at most an attempt.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ganger.core.fold import fold_arrays, fold_attempt
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.gang import RESTING, Gang
from ganger.core.state.state import State
from ganger.model.decision import Decision, Expect, Plan, ReservedStart, Start, Stop, Wait
from ganger.model.event import Decided, Stamped, Submitted, Unreadable
from ganger.model.job import ENDED, GangState, Job
from ganger.model.queue import DEFAULT


@dataclass(frozen=True, slots=True)
class Listed:
    """A job as the table of jobs has it."""

    state: GangState
    generation: int
    job: Job


@dataclass(slots=True)
class Recovery:
    """Folds the rows of a damaged log.

    begin: makes the state that the rows follow.
    rows: gives the rows after a state.
    aside: the rows that are set aside by number, and why.
    """

    begin: Callable[[], State]
    rows: Callable[[State], Iterable[Stamped]]
    aside: dict[int, str] = field(default_factory=dict)

    def fold(self) -> State:
        """Return the state after all rows that can be folded in. ValueError if a row is missing."""
        while True:
            state = self.begin()
            failed = next((row for row in self.rows(state) if not self._take(state, row)), None)
            if failed is None:
                return state  # else begin again without it: the state may be half changed

    def _take(self, state: State, row: Stamped) -> bool:
        """Fold a row in, or pass it over. Return False if the state is of no use any more."""
        event = row.event
        if row.seq != state.seq + 1:
            raise ValueError(f"the log has a hole: event {row.seq} follows event {state.seq}")
        if isinstance(event, Unreadable):
            self.aside[row.seq] = event.why
            if event.was == "cleared":
                _let_go(state, event.about, row.at_ms)
        elif row.seq not in self.aside:
            if isinstance(event, Decided) and self.aside:
                event = self._following(state, row.seq, event)
            try:
                why = refusal(state, event)
                if why is None:
                    fold(state, _at(state, row, event))
                    return True
            except Exception as error:  # noqa: BLE001 - a row may be anything that decodes
                self.aside[row.seq] = f"it does not follow from those before: {error!r}"
                return False
            self.aside[row.seq] = f"it does not follow from those before: {why}"
        fold(state, _at(state, row, Unreadable(was=event.kind, why=self.aside[row.seq])))
        return True

    def _following(self, state: State, seq: int, decided: Decided) -> Decided:
        """Return what was decided without that which does not follow."""
        kept = tuple(decision for decision in decided.plan.decisions if _follows(state, decision))
        if len(kept) < len(decided.plan.decisions):
            self.aside.setdefault(-seq, "a part of it does not follow from those before")
        return replace(decided, plan=Plan(as_of=decided.plan.as_of, decisions=kept))


def reconcile(state: State, listed: Callable[[str], Listed | None], live: Iterable[tuple[str, Job]]) -> list[str]:
    """Bring a state in line with the table of jobs. Return a sentence for each job that is changed.

    listed: finds a job or an element by id.
    live: jobs that have not ended by the table, oldest first.
    """
    changes = []
    for gang in [gang for gang in state.gangs.values() if not gang.is_head]:
        row = listed(gang.id)
        if row is not None and row.state in ENDED:
            _end(state, gang, row.state)
            changes.append(f"{gang.id} has {row.state}")
        elif row is not None and (row.generation, row.state in RESTING) != (gang.generation, gang.start is None):
            _let_go(state, (gang.id,), state.at_ms)
            gang.generation = max(gang.generation, row.generation)
            changes.append(f"{gang.id} starts anew after attempt {gang.generation}")
    for name, job in live:
        if not state.is_live(name):
            changes.append(_submit(state, job, listed(name)))
    return changes


def _submit(state: State, job: Job, row: Listed | None) -> str:
    if job.spec.queue not in state.queues:
        job = replace(job, spec=replace(job.spec, queue=DEFAULT))
    job = replace(job, awaits=tuple(after for after in job.awaits if state.is_live(after.job)))
    fold(state, Stamped(state.seq + 1, state.at_ms, Submitted(job=job)))
    state.seq -= 1  # it is not in the log
    gang = state.gangs.get(job.id)
    if gang is not None and row is not None:
        gang.generation = row.generation
    return f"{job.id} waits again"


def _follows(state: State, decision: Decision) -> bool:
    match decision:
        case Start(gang=name, generation=generation, nodes=nodes):
            gang = state.stand_in(name)
            waits = gang is not None and gang.state is GangState.PENDING and generation > gang.generation
            return waits and all(node in state.nodes.index for node in nodes)
        case Stop(gang=name, generation=generation):
            return name in state.gangs and state.gangs[name].generation == generation
        case ReservedStart(gang=name):
            return name in state.gangs and state.gangs[name].state is GangState.PENDING
        case Expect(gang=name):
            return name in state.gangs
        case Wait():
            return True


def _let_go(state: State, names: Iterable[str], at_ms: int) -> None:
    """End the attempts of jobs as if their launchers were lost."""
    for name in names:
        gang = state.gangs.get(name)
        if gang is not None and gang.start is not None:
            touched = (gang, *fold_attempt.clear(state, gang, tuple(gang.left), max(at_ms, state.at_ms)))
            _note(state, touched)


def _end(state: State, gang: Gang, how: GangState) -> None:
    """Take a gang out that has ended by the table."""
    if gang.start is not None:
        state.leave(gang, tuple(gang.left))
        state.release(gang)
        state.metered(gang, state.at_ms)
        gang.left, gang.start = [], None
    elif gang.state is GangState.PENDING:
        state.dequeue(gang)
    gang.state = how
    _note(state, (gang, *state.drop(gang, state.at_ms)))


def _note(state: State, touched: Iterable[Gang]) -> None:
    """Bring up to date what follows from gangs that changed outside the fold."""
    for each in fold_arrays.recount(state, touched, state.at_ms):
        if isinstance(each, Gang):
            state.due.note(each, lives=state.gangs.get(each.id) is each)


def _at(state: State, row: Stamped, event: object) -> Stamped:
    """The row with another event, at a time that the state takes."""
    return replace(row, at_ms=max(row.at_ms, state.at_ms), event=event)  # type: ignore[arg-type]
