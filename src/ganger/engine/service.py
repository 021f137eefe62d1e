"""The service: one method for each verb. REST calls nothing else; the answers are classes of `model.views`.

Reads are made from the published view of the state and from the log, on the caller's thread: they wait for nobody.
What changes something is an event that the loop takes or refuses.
"""

import json
import os
import pwd
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, get_args

from ganger import __version__
from ganger.core.explain.explain import explain
from ganger.core.explain.max_fit import SizeRequest
from ganger.core.state.gang import RESTING, RUNS
from ganger.core.state.timers import deadline_ms
from ganger.engine.api_tokens import TokenRow, Tokens
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.job_costs import CostQuery
from ganger.engine.eventlog.job_filters import JobFilter, label_terms
from ganger.engine.loop import Loop
from ganger.engine.metrics import BOUNDS_S, Histogram, of_state
from ganger.engine.policy_doc.policy_service import PolicyService, Proposal
from ganger.engine.query.cluster_service import ClusterService
from ganger.engine.query.event_text import job_of, sentence
from ganger.engine.query.job_history import JobHistories
from ganger.engine.query.listing_rows import many, waiting_for
from ganger.engine.query.live_usage import LiveUsage
from ganger.engine.query.log_request import see_attempt, see_there
from ganger.engine.query.state_replica import TrialReplica
from ganger.engine.query.time_report import report
from ganger.engine.submit.build import Submission
from ganger.engine.submit.quota_check import nearest
from ganger.engine.submit.secret_store import SecretStore
from ganger.engine.submit.submit_service import SubmitService
from ganger.error_codes import CODES
from ganger.errors import RequestError
from ganger.model.event import (
    Deleted,
    Described,
    Event,
    PriorityChanged,
    ResumeRequested,
    Stamped,
    StopRequested,
    SuspendRequested,
)
from ganger.model.job import ENDED, GangState, Job, array_of, typed
from ganger.model.views.service_views import (
    DryRun,
    EventRow,
    Explanation,
    JobRow,
    JobView,
    Ledger,
    ReasonView,
    ServerView,
    Stacks,
    Totals,
)
from ganger.ports import Backend, LogLine, LogQuery, Metric
from ganger.settings import Home
from ganger.spec import json_schema as spec_schema

__all__ = [
    "BOUNDS_S",
    "CODES",
    "EVENT_KINDS",
    "Histogram",
    "JobFilter",
    "LogLine",
    "LogQuery",
    "Metric",
    "Page",
    "Proposal",
    "RequestError",
    "Service",
    "SizeRequest",
    "Submission",
    "TokenRow",
    "label_terms",
    "spec_schema",
]

LIVE: Final = tuple(state for state in GangState if state not in ENDED)
SUSPENDED: Final = (GangState.SUSPENDED, GangState.SUSPENDING)
EVENT_KINDS: Final = tuple(kind.__dataclass_fields__["kind"].default for kind in get_args(Event))
MAX_CURSOR_DIGITS: Final = 18
"""SQLite counts a little further."""
_LIST: Final = "ganger ls"


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `next` is the cursor of the part that follows, None at the end."""

    items: list[Any]
    next: str | None


class Service(ClusterService, PolicyService):
    """Everything a person or a program may ask of one server. Safe from any thread."""

    def __init__(self, loop: Loop, log: EventLog, backend: Backend, home: Home) -> None:
        """Over a loop that is open, and the log it writes. The user is the one the process belongs to."""
        self._trial_replica = TrialReplica(loop, log)
        super().__init__(loop, backend, _user_name())
        self._log, self._home = log, home
        self._started_ms = loop.now_ms()
        self._changes = threading.Lock()
        self._intake = SubmitService(self._trial_replica, loop, log, home, self._user)
        self._histories = JobHistories(log)
        self.secrets = SecretStore(home.secrets)
        self.presence = LiveUsage(loop.view, backend, self._alive)
        self._tokens = Tokens(home.tokens)

    # -- jobs: submit, look, stop, delete -----------------------------------------------------------------------------

    def submit(self, submission: Submission) -> tuple[JobView, bool]:
        """Accept a job; or, with False, give the one that the same request made before. Refused says what is wrong."""
        name, is_new = self._intake.submit(submission)
        return self.job(name), is_new

    def submit_all(self, submission: Submission) -> list[JobView]:
        """Accept a file of several jobs, or give those that the same request made before."""
        return [self.job(name) for name, _ in self._intake.submit_all(submission)]

    def dry_run(self, submission: Submission, asking: str | None = None) -> DryRun:
        """What the next round would do with the job; nothing changes. asking: whose it is, if not ours."""
        return self._intake.dry_run(submission, asking or self._user)

    def jobs(self, wanted: JobFilter, *, everything: bool, limit: int, cursor: str | None) -> Page:
        """A page of listing rows as JSON-ready dicts, newest first. Without states: all jobs that fit, if `everything`;
        else those that live, and as many of the newest ended ones as fill the page. Refused (no_such_queue, 404)."""
        before = _number(cursor)
        see_states(wanted.states)
        self._see_queue(wanted.queue)
        mixed = not wanted.states and not everything
        found = self._log.jobs(wanted.of_states(LIVE) if mixed else wanted, limit + 1, before)
        more, found = found[limit:], found[:limit]
        if mixed and not more:
            ended = self._log.jobs(wanted.of_states(ENDED), limit - len(found))
            found = sorted([*found, *ended], key=lambda each: -each[0])
        return Page(self._told([row for _, _, row in found]), str(found[-1][0]) if more else None)

    def find(self, text: str) -> str:
        """The id of a job, by id, or of the newest of that name. Refused (no_such_job, 404)."""
        found = self._log.find(text)
        if found is None:
            element = array_of(text)
            array = self._log.find(element[0]) if element else None
            if element is not None and array is not None:
                raise RequestError("no_such_job", f"{array} has no element {element[1]}", f"ganger ls {array}", 404)
            recent = self._log.like(text)
            names = [name.rpartition("-")[0] for name in recent]
            raise RequestError("no_such_job", f"there is no job {text}", nearest(text, [*recent, *names]) or _LIST, 404)
        return found

    def job(self, text: str) -> JobView:
        """A job in full, by id or name."""
        name, now_ms = self.find(text), self._loop.now_ms()
        row, ledger, step, job = self._known(name)
        reason = ends_by_ms = None
        with self._loop.view() as state:
            now_ms = max(now_ms, state.at_ms)
            gang = state.stand_in(name)
            if gang is not None and row.state not in ENDED:
                ledger = gang.account.ledger(now_ms)
                reason = waiting_for(state, gang, now_ms) if gang.state is GangState.PENDING else None
                ends_by_ms = deadline_ms(gang) if gang.state in RUNS else None
                row = replace(row, sentence=reason.sentence) if reason and not row.elements else row
            if row.elements:
                ledger = report(state, self._log, now_ms, CostQuery(seq=state.seq, job=name)).time
        return JobView(
            row=row,
            spec=job.spec,
            directory=job.origin.directory,
            git_commit=job.origin.git_commit,
            git_dirty=job.origin.git_dirty,
            git_diff_hash=job.origin.git_diff_hash,
            code_hash=job.origin.code_hash,
            attempts=() if row.elements else self._histories.attempts(name, ended_ms=row.ended_ms),
            ledger=ledger,
            checkpoint_step=step,
            progress=self._backend.progress(name) if row.state == GangState.RUNNING and not row.elements else None,
            reason=reason,
            ends_by_ms=ends_by_ms,
        )

    def report(self, *, since_ms: int | None, user: str | None, queue: str | None) -> Totals:
        """Where the time of all jobs went, or of a user's, or of a queue's; of those that ended, since `since_ms`.
        Refused (no_such_queue, 404)."""
        self._see_queue(queue)
        with self._loop.view() as state:
            wanted = CostQuery(seq=state.seq, since_ms=since_ms, user=user, queue=queue)
            return report(state, self._log, max(self._loop.now_ms(), state.at_ms), wanted)

    def retry(self, text: str, *, request_id: str = "") -> tuple[JobView, bool]:
        """Run an ended job again, as a new job. Refused (still_live, 409)."""
        again, is_new = self._intake.again(self._known(self._ended_job(text))[3], {}, {}, request_id)
        return self.job(again), is_new

    def clone(
        self, text: str, overrides: dict[str, Any], secrets: Mapping[str, str], *, request_id: str = ""
    ) -> tuple[JobView, bool]:
        """A new job from one that lives or has ended, with `overrides` over its spec and `secrets` beside its own."""
        again, is_new = self._intake.again(self._known(self.find(text))[3], overrides, secrets, request_id)
        return self.job(again), is_new

    def stop(self, text: str) -> JobView:
        """Ask for a job to end. Refused (already_ended, 409)."""
        name = self._alive(text)
        self._ask(StopRequested(gang=name, by=self._user))
        return self.job(name)

    def set_priority(self, text: str, priority: int) -> None:
        """Put a live job into another class. Refused (already_ended, 409)."""
        name = self._alive(text)
        with self._loop.view() as state:
            gang = state.stand_in(name)
            is_so = gang is not None and not gang.is_head and gang.job.spec.priority == priority
        if not is_so:
            self._ask(PriorityChanged(gang=name, priority=priority, by=self._user))

    def suspend(self, text: str, *, suspended: bool) -> None:
        """Take a live job's nodes and hold it, or let it wait for its turn again. Refused (already_ended, 409)."""
        name = self._alive(text)
        with self._loop.view() as state:
            gang = state.stand_in(name)
            # Of an array some elements may be suspended and others not: the core takes those that can.
            is_otherwise = gang is None or gang.is_head or (gang.suspends or gang.state in SUSPENDED) is not suspended
        if is_otherwise:
            asked = SuspendRequested if suspended else ResumeRequested
            self._ask(asked(gang=name, by=self._user))

    def describe(self, text: str, labels: Mapping[str, str | None], notes: str | None) -> None:
        """Change a job's labels, as a merge patch, and, unless None, its notes: also after its end."""
        self._loop.ask(Described(gang=_whole(self.find(text)), labels=dict(labels), notes=notes, by=self._user))

    def delete(self, text: str) -> None:
        """Take an ended job out of the listings, and its files off the disk. Refused (still_live, 409)."""
        self._loop.ask(Deleted(gang=_whole(self._ended_job(text)), by=self._user))

    def elements(self, text: str, *, states: Sequence[str], limit: int, cursor: str | None) -> Page:
        """A page of the elements of an array, by index, as JSON-ready dicts. Refused (not_an_array, 409)."""
        name, after = self.find(text), _number(cursor)
        see_states(states)
        if self._known(name)[0].elements is None:
            raise RequestError("not_an_array", f"{name} is no array", f"ganger get {name}", 409)
        found = self._log.elements(name, states, -1 if after is None else after, limit + 1)
        more, found = found[limit:], found[:limit]
        return Page(self._told([asdict(row) for row in found]), str(found[-1].index) if more else None)

    def explain(self, text: str) -> Explanation:
        """Why a job waits, or one sentence about what it does instead."""
        name = self.find(text)
        with self._trial_replica.state() as (state, now_ms):
            if state.stand_in(name) is not None:
                return explain(state, name, now_ms, self._loop.policy)
        row = self._known(name)[0]
        does = f"it has {_past(row.state)}" if row.state in ENDED else f"all of it has begun: {row.sentence}"
        return Explanation(job=name, state=row.state, sentence=f"{name} does not wait: {does}")

    # -- what a job wrote ----------------------------------------------------------------------------------------------

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        """What ranks of a job have written so far. `query.job` is an id. Refused (no_such_attempt, no_such_rank,
        no_such_role, no_such_node; 404) when it never had them, and (bad_pattern) for a `grep` that cannot be."""
        self._see_there(query, may_come=False)
        return self._backend.lines(query)

    def follow(self, query: LogQuery) -> Iterator[LogLine | None]:
        """The same, then what comes, until the job has ended; None now and then while nothing comes. Waits for an
        attempt that may still come."""
        self._see_there(query, may_come=True)
        return self._backend.follow(query, self._ended(query.job))

    def metrics(self, text: str) -> Iterator[dict[str, Any]]:
        """Every report of rank 0, oldest first."""
        return self._backend.metrics(self.find(text))

    def stacks(self, text: str, attempt: int | None = None) -> Stacks:
        """Where every rank was when an attempt was found standing still; of the newest such attempt, unless one is
        named. Refused (no_stacks, no_such_attempt; 404)."""
        row = self._known(self.find(text))[0]
        see_attempt(attempt or 1, row)
        for generation in (attempt,) if attempt else range(row.generation, 0, -1):
            if found := self._backend.stacks(row.id, generation):
                return found
        which = f"attempt {attempt} of {row.id}" if attempt else row.id
        detail = f"{which} was not found standing still: only then it is written down where its ranks are"
        raise RequestError("no_stacks", detail, f"ganger get {typed(row.id)}", 404)

    # -- events -------------------------------------------------------------------------------------------------------

    def seq(self) -> int:
        """The newest event's."""
        return self._loop.wait(-1, 0)

    def wait(self, after: int, timeout_s: float) -> int:
        """The newest seq as soon as it is beyond `after`, or when the time is over. Blocks the caller's thread."""
        return self._loop.wait(after, timeout_s)

    def events(self, *, after: int, gang: str | None, limit: int, kinds: Sequence[str] = ()) -> list[EventRow]:
        """Rows of the log, oldest first; only those about one job, if an id is given, and of some kinds, if any are."""
        return [_event_row(stamped) for stamped in self._log.rows(after, gang, limit, kinds)]

    @contextmanager
    def unchanged(self, subject: str, since: int | None) -> Iterator[None]:
        """Inside it nobody else changes what they do inside it. `subject` is the id of a job, `queue/NAME` or
        `node/NAME`. Refused (precondition_failed, 412) when something has happened to it after seq `since`."""
        with self._changes:
            newest = self._log.version(subject)
            if since is not None and newest > since:
                why = f"{subject.rpartition('/')[2]} has changed since event {since}: event {newest} did it"
                raise RequestError("precondition_failed", why, "read it again, and send its new ETag", 412)
            yield

    # -- tokens -------------------------------------------------------------------------------------------------------

    def tokens(self) -> list[TokenRow]:
        """Who may come over TCP, oldest first."""
        return self._tokens.rows(self._loop.now_ms())

    def create_token(self, name: str, expires_after_ms: int | None) -> str:
        """A new token, which is never shown again. Refused (token_exists, 409)."""
        now_ms = self._loop.now_ms()
        return self._tokens.create(name, now_ms, None if expires_after_ms is None else now_ms + expires_after_ms)

    def revoke_token(self, name: str) -> None:
        """Make a token good for nothing. Refused (no_such_token, 404)."""
        self._tokens.revoke(name)

    def token_holder(self, token: str) -> str | None:
        """The name of a good token, or None."""
        return self._tokens.holder(token, self._loop.now_ms())

    # -- the server ---------------------------------------------------------------------------------------------------

    def server(self) -> ServerView:
        """The server itself."""
        with self._loop.view() as state:
            pending = sum(many(state, gang) for gang in state.gangs.values() if gang.state is GangState.PENDING)
            running = sum(many(state, gang) for gang in state.gangs.values() if gang.state not in RESTING)
            nodes = len(state.nodes.nodes)
        return ServerView(
            version=__version__,
            pid=os.getpid(),
            home=str(self._home.path),
            seq=self.seq(),
            policy=self._loop.policy.NAME,
            started_ms=self._started_ms,
            health=self._loop.health(),
            pending=pending,
            running=running,
            nodes=nodes,
        )

    def measures(self) -> tuple[Histogram, tuple[Metric, ...]]:
        """How long rounds took, and whatever else is counted of the server's work."""
        with self._loop.view() as state:
            counted = (*of_state(state), self._loop.rounds.decided(), *self._backend.measures())
        return self._loop.rounds.spread(), counted

    # -- parts --------------------------------------------------------------------------------------------------------

    def _ask(self, event: StopRequested | PriorityChanged | SuspendRequested | ResumeRequested) -> None:
        """Ask for a change of a live job. One that has ended meanwhile is refused as if it had before."""
        try:
            self._loop.ask(event)
        except RequestError as refused:
            if refused.code == "conflict":
                self._alive(event.gang)
            raise

    def _alive(self, text: str) -> str:
        """The id of a job that lives."""
        name = self.find(text)
        with self._loop.view() as now:
            is_live = now.is_live(name)
        if not is_live:
            state = self._known(name)[0].state
            raise RequestError("already_ended", f"{name} has {_past(state)} already", f"ganger get {typed(name)}", 409)
        return name

    def _ended_job(self, text: str) -> str:
        """The id of a job that has ended."""
        name = self.find(text)
        state = self._known(name)[0].state
        if state not in ENDED:
            raise RequestError(
                "still_live", f"{name} is {state}: wait for its end, or stop it", f"ganger stop {typed(name)}", 409
            )
        return name

    def _known(self, id: str) -> tuple[JobRow, Ledger, int | None, Job]:
        """What the log keeps of a job that was there a moment ago."""
        found = self._log.job(id)
        if found is None:
            raise RequestError("no_such_job", f"{id} was deleted", _LIST, 404)
        return found

    def _see_there(self, query: LogQuery, *, may_come: bool) -> None:
        """See that the job has what is asked for; an attempt to come only counts if it `may_come`."""
        row, _, _, job = self._known(query.job)
        if row.elements is not None:
            last = job.element(job.spec.array.indices[-1] if job.spec.array else 0)
            raise RequestError(
                "is_array", f"{row.id} is an array: each element has logs of its own", f"ganger logs '{last.id}'"
            )
        with self._loop.view() as state:
            names = state.nodes.names
        see_there(query, row, job.spec, names, may_come=may_come)

    def _see_queue(self, name: str | None) -> None:
        """Refused (no_such_queue, 404) for a queue that is not there, and of which no job tells that it was."""
        if name is not None and not self._log.jobs(JobFilter(queue=name), 1):
            self.queue(name)

    def _told(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Listing rows with the sentences of those that wait: they change without the job."""
        waiting = [row for row in rows if row["state"] == GangState.PENDING]
        if not waiting:
            return rows
        now_ms, reasons = self._loop.now_ms(), dict[str, ReasonView | None]()
        with self._loop.view() as state:
            for row in waiting:
                gang = state.stand_in(row["id"])
                if gang is not None and gang.id not in reasons:  # one head stands for many
                    reasons[gang.id] = waiting_for(state, gang, now_ms)
                reason = reasons[gang.id] if gang else None
                row["sentence"] = reason.sentence if reason else row["sentence"]
        return rows

    def _ended(self, id: str) -> Callable[[], bool]:
        """Tells whether a job has ended, or is gone; looks only when something has happened since."""
        looked, over = -1, False

        def ended() -> bool:
            nonlocal looked, over
            if not over and (newest := self.seq()) != looked:
                found = self._log.job(id)
                looked, over = newest, found is None or found[0].state in ENDED
            return over

        return ended


def _event_row(stamped: Stamped) -> EventRow:
    event = stamped.event
    return EventRow(
        seq=stamped.seq,
        at_ms=stamped.at_ms,
        kind=event.kind,
        job=job_of(event),
        sentence=sentence(event),
        data=json.loads(codec.encode(event)),
    )


def see_states(states: Sequence[str]) -> None:
    """Refused (invalid_request, 422) for what is no state."""
    unknown = [state for state in states if state not in {*GangState}]
    if unknown:
        raise RequestError("invalid_request", f"there is no state {unknown[0]}", f"states: {', '.join(GangState)}", 422)


def _whole(name: str) -> str:
    """The job itself. Refused (is_element, 409) for an element of an array."""
    element = array_of(name)
    if element is not None:
        raise RequestError(
            "is_element", f"{name} is an element: this is done to the whole array", f"ganger get {element[0]}", 409
        )
    return name


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= MAX_CURSOR_DIGITS):
        raise RequestError("bad_cursor", f"{cursor[:80]!r} is not a cursor", "send `next` of the page before", 400)
    return int(cursor)


def _past(state: str) -> str:
    """`it has ...`."""
    return {"stopped": "been stopped"}.get(state, state)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
