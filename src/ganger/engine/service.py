"""The service: one method for each verb. REST calls nothing else; the answers are classes of `model.views`.

Reads use the published view of the state and the log, on the caller's thread: they wait for no cycle. A change is an
event that the loop accepts or refuses.
"""

import json
import os
import pwd
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, get_args

from ganger import __version__
from ganger.core.explain.explain import explain, with_forecast
from ganger.core.explain.max_fit import SizeRequest
from ganger.core.state.gang import RESTING
from ganger.engine.api_tokens import SUBMIT, TokenRow, Tokens
from ganger.engine.api_tokens import Scope as TokenScope
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.job_costs import CostQuery
from ganger.engine.eventlog.job_table import decode_metrics
from ganger.engine.loop import Loop
from ganger.engine.metrics import BOUNDS_S, Histogram, state_metrics
from ganger.engine.policy_doc.policy_service import PolicyService, Proposal
from ganger.engine.query.cluster_service import ClusterService
from ganger.engine.query.event_text import job_of, past_participle, sentence
from ganger.engine.query.health_service import HealthService
from ganger.engine.query.job_history import JobHistories
from ganger.engine.query.job_lookup import JobViews, find_job, stored_job
from ganger.engine.query.listing_rows import job_count, pending_reason
from ganger.engine.query.live_usage import LiveUsage
from ganger.engine.query.node_telemetry import (
    DEFAULT_POINTS,
    DEFAULT_SPAN_MS,
    MAX_POINTS,
    MAX_SPAN_MS,
    TelemetryService,
)
from ganger.engine.query.output_service import OutputService
from ganger.engine.query.state_replica import TrialReplica
from ganger.engine.query.time_report import report
from ganger.engine.submit.build import Submission
from ganger.engine.submit.feasibility import check_rollback, scaled_nodes
from ganger.engine.submit.quota_check import check_priority
from ganger.engine.submit.received_code import ReceivedCode
from ganger.engine.submit.resume_from import count_in_copy
from ganger.engine.submit.secret_store import SecretStore
from ganger.engine.submit.submit_service import SubmitService
from ganger.error_codes import CODES
from ganger.errors import RequestError
from ganger.model.event import (
    ChangeRequest,
    Deleted,
    Described,
    Event,
    PriorityChanged,
    ResumeRequested,
    ScaleRequested,
    Stamped,
    StopRequested,
    SuspendRequested,
)
from ganger.model.job import ENDED, GangState, Job, shell_quoted_id, split_element_id
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.views.incident_views import Incident
from ganger.model.views.service_views import (
    DryRun,
    EventRow,
    Explanation,
    JobView,
    ReasonView,
    ServerView,
    Totals,
)
from ganger.model.watch.watch_event import RollbackRequested
from ganger.ports import Backend, JobFilter, LogLine, LogQuery, Metric, label_terms
from ganger.settings import Home
from ganger.spec import json_schema as spec_schema
from ganger.spec.array_elements import array_without_successes

__all__ = [
    "BOUNDS_S",
    "CODES",
    "DEFAULT_POINTS",
    "DEFAULT_SPAN_MS",
    "EVENT_KINDS",
    "MAX_POINTS",
    "MAX_SPAN_MS",
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
    "TokenScope",
    "label_terms",
    "spec_schema",
]

LIVE: Final = tuple(state for state in GangState if state not in ENDED)
SUSPENDED: Final = (GangState.SUSPENDED, GangState.SUSPENDING)
EVENT_KINDS: Final = tuple(kind.__dataclass_fields__["kind"].default for kind in get_args(Event))
MAX_CURSOR_DIGITS: Final = 18
"""SQLite's integers go slightly beyond."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing; `next` is the cursor of the next page, None at the end."""

    items: list[Any]
    next: str | None


class Service(ClusterService, HealthService, PolicyService, OutputService):
    """Everything that may be asked of one server. Safe from any thread."""

    def __init__(self, loop: Loop, log: EventLog, backend: Backend, home: Home) -> None:
        """Take a loop that is open, and the log it writes. The user is the owner of the process."""
        self._trial_replica = TrialReplica(loop, log)
        super().__init__(loop, backend, _user_name())
        self._log, self._home = log, home
        self._started_ms = loop.now_ms()
        self._change_lock = threading.Lock()
        self._submit_service = SubmitService(self._trial_replica, loop, log, home, self._user)
        self._histories = JobHistories(log)
        self.secrets = SecretStore(home.secrets)
        self.received_code = ReceivedCode(home.code)
        self.live_usage = LiveUsage(loop.view, backend, self._live_id)
        self._views = JobViews(loop, log, backend, self._histories, self.live_usage, home)
        self.telemetry = TelemetryService(loop.view, loop.now_ms, self._live_id)
        self._tokens = Tokens(home.tokens)

    # -- jobs: submit, read, stop, delete ------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> tuple[JobView, bool]:
        """Accept a job and return True; or return the job that the same request made before, and False.

        Raise RequestError when the job is refused.
        """
        name, is_new = self._submit_service.submit(submission)
        return self.job(name), is_new

    def submit_all(self, submission: Submission) -> list[JobView]:
        """Accept a file of several jobs, or return those that the same request made before."""
        return [self.job(name) for name, _ in self._submit_service.submit_all(submission)]

    def dry_run(self, submission: Submission, asking: str | None = None) -> DryRun:
        """Return what the next cycle would do with the job; nothing changes.

        asking: the user to plan for, if not the server's.
        """
        return self._submit_service.dry_run(submission, asking or self._user)

    def jobs(self, job_filter: JobFilter, *, everything: bool, limit: int, cursor: str | None) -> Page:
        """Return a page of listing rows as JSON-ready dicts, newest first.

        Without states: all matching jobs, if `everything`; else the live ones, and as many of the newest ended ones as
        fill the page. Raise RequestError (no_such_queue, 404).
        """
        before = _cursor_number(cursor)
        check_states(job_filter.states)
        self._check_queue(job_filter.queue)
        mixed = not job_filter.states and not everything
        rows = self._log.jobs(job_filter.of_states(LIVE) if mixed else job_filter, limit + 1, before)
        more, rows = rows[limit:], rows[:limit]
        if mixed and not more:
            ended = self._log.jobs(job_filter.of_states(ENDED), limit - len(rows))
            rows = sorted([*rows, *ended], key=lambda row: -row[0])
        return Page(self._with_live_fields([row for _, _, row in rows]), str(rows[-1][0]) if more else None)

    def find(self, text: str) -> str:
        """Return the id of a job by id, or of the newest of that name. Raise RequestError (no_such_job, 404)."""
        return find_job(self._log, text)

    def job(self, text: str) -> JobView:
        """Return a job in full, by id or name."""
        return self._views.job(self.find(text), is_administrator=self._is_administrator)

    def report(self, *, since_ms: int | None, user: str | None, queue: str | None) -> Totals:
        """Return where the time of jobs went: all, or a user's, or a queue's; of ended ones, since `since_ms`.

        Raise RequestError (no_such_queue, 404).
        """
        self._check_queue(queue)
        with self._loop.view() as state:
            query = CostQuery(seq=state.seq, since_ms=since_ms, user=user, queue=queue)
            return report(state, self._log, max(self._loop.now_ms(), state.at_ms), query)

    def as_caller(self, user: str | None, *, is_administrator: bool) -> "Service":
        """Return this service for a caller: `user`, or, if that is None, the owner of the process.

        Jobs are theirs, changes are recorded as theirs, and a caller who is no administrator is refused and advised
        accordingly.
        """
        other = copy(self)
        other._user = user or self._user  # noqa: SLF001 - its own kind
        other._is_administrator = is_administrator  # noqa: SLF001 - the same
        other._submit_service = self._submit_service.as_caller(other._user, is_administrator=is_administrator)  # noqa: SLF001 - the same
        return other

    def retry(
        self, text: str, params: Mapping[str, str] | None = None, *, request_id: str = ""
    ) -> tuple[JobView, bool]:
        """Run an ended job again, as a new job, from where it came to, with `params` in place of the values it had.

        Of an array in which some elements have succeeded, the new one has the others. Raise RequestError (still_live,
        no_such_parameter; 409).
        """
        _, _, step, job = stored_job(self._log, self._ended_id(text))
        overrides = job.spec.resumption_of(job.id, step) | ({"params": dict(params)} if params else {})
        if (array := job.spec.array) is not None and job.index is None and not job.spec.replica_groups:
            rows = self._log.elements(job.id, (GangState.FAILED, GangState.STOPPED), -1, len(array.indices))
            overrides |= array_without_successes(array, [row.index for row in rows if row.index is not None])
        new_job, is_new = self._submit_service.submit_again(job, overrides, {}, request_id, retry_of=job.id)
        return self.job(new_job), is_new

    def clone(
        self, text: str, overrides: dict[str, Any], secrets: Mapping[str, str], *, request_id: str = ""
    ) -> tuple[JobView, bool]:
        """Submit a new job from a live or ended one, with `overrides` over its spec and `secrets` beside its own.

        It begins where the first of a row of retries began.
        """
        job = first = stored_job(self._log, self.find(text))[3]
        while first.retry_of and (stored := self._log.job(first.retry_of)) is not None:
            first = stored[3]
        if job.retry_of:
            job = replace(job, spec=job.spec.resuming_like(None if first.retry_of else first.spec))
        new_job, is_new = self._submit_service.submit_again(job, overrides, secrets, request_id)
        return self.job(new_job), is_new

    def stop(self, text: str, *, now: bool = False) -> JobView:
        """Ask for a job to end; `now`: without time to save its work. Raise RequestError (already_ended, 409)."""
        name = self._live_id(text)
        self._request_change(StopRequested(gang=name, by=self._user, now=now))
        return self.job(name)

    def set_priority(self, text: str, priority: int) -> None:
        """Set the priority of a live job. Raise RequestError (already_ended, over_user_limit; 409)."""
        name = self._live_id(text)
        with self._loop.view() as state:
            gang = state.gang_or_head(name)
            is_unchanged = gang is not None and not gang.is_head and gang.job.spec.priority == priority
            job = gang.job if gang is not None else state.arrays[name].job if name in state.arrays else None
            _check_whole(name, job)
            if job is not None and not is_unchanged and not self._is_administrator:
                check_priority(state.tree, job.spec.queue, priority)
        if not is_unchanged:
            self._request_change(PriorityChanged(gang=name, priority=priority, by=self._user))

    def scale(self, text: str, wanted: str) -> None:
        """Ask for nodes of a live elastic job: 4, +1, -2. Raise RequestError (not_elastic, bad_scale ...; 409)."""
        name = self._live_id(text)
        with self._loop.view() as state:
            nodes = scaled_nodes(state.gang_or_head(name), wanted)
        self._request_change(ScaleRequested(gang=name, nodes=nodes, by=self._user))

    def roll_back(self, text: str, step: int) -> None:
        """Have a live job return to its newest checkpoint until a step. Raise RequestError (no_checkpoint ...; 409)."""
        name = self._live_id(text)
        with self._loop.view() as state:
            check_rollback(state.gang_or_head(name), step)
        self._request_change(RollbackRequested(gang=name, step=step, by=self._user))

    def suspend(self, text: str, *, suspended: bool) -> None:
        """Suspend a live job, or let it wait for nodes again. Raise RequestError (already_ended, 409)."""
        name = self._live_id(text)
        with self._loop.view() as state:
            gang = state.gang_or_head(name)
            _check_whole(name, gang.job if gang else None)
            # Of an array, the core picks the elements that can change.
            is_suspended = gang and (bool(gang.suspends) or gang.state in SUSPENDED)
            may_change = gang is None or gang.is_head or is_suspended is not suspended
        if may_change:
            event_class = SuspendRequested if suspended else ResumeRequested
            self._request_change(event_class(gang=name, by=self._user))

    def describe(self, text: str, labels: Mapping[str, str | None], notes: str | None) -> None:
        """Change a job's labels, as a merge patch, and, unless None, its notes: also after its end."""
        self._loop.ask(Described(gang=_whole_job(self.find(text)), labels=dict(labels), notes=notes, by=self._user))

    def delete(self, text: str, *, checkpoints: bool = False) -> None:
        """Remove an ended job from the listings, and its files from the disk, with its checkpoints only if asked to.

        Raise RequestError (still_live, has_checkpoints; 409).
        """
        name = _whole_job(self._ended_id(text))
        job = stored_job(self._log, name)[3]
        saved = 0 if checkpoints else count_in_copy(job, self._home)
        if saved:
            noun, typed = "checkpoint" if saved == 1 else "checkpoints", shell_quoted_id(name)
            detail = f"{name} has {saved} {noun} in its copy of the code, which is deleted with it"
            folder = (job.spec.checkpoint or Checkpoint()).dir
            remedy = f"ganger fetch {typed} {folder}, then: ganger delete --checkpoints {typed}"
            raise RequestError("has_checkpoints", detail, remedy, 409)
        self._loop.ask(Deleted(gang=name, by=self._user))

    def elements(self, text: str, *, states: Sequence[str], limit: int, cursor: str | None) -> Page:
        """Return a page of an array's elements, by index, as plain dicts. Raise RequestError (not_an_array, 409)."""
        name, after = self.find(text), _cursor_number(cursor)
        check_states(states)
        if stored_job(self._log, name)[0].elements is None:
            raise RequestError("not_an_array", f"{name} is not an array", f"ganger get {name}", 409)
        rows = self._log.elements(name, states, -1 if after is None else after, limit + 1)
        more, rows = rows[limit:], rows[:limit]
        return Page(self._with_live_fields([asdict(row) for row in rows]), str(rows[-1].index) if more else None)

    def explain(self, text: str) -> Explanation:
        """Return why a job is pending or has failed, or what it does instead."""
        from ganger.engine.query.failure_explanation import NOTED, explain_ended, with_notes  # rarely needed

        name, policy = self.find(text), self._loop.policy
        with self._trial_replica.state() as (state, now_ms):
            if (gang := state.gang_or_head(name)) is not None:
                explanation = explain(state, name, now_ms, policy, is_administrator=self._is_administrator)
                if explanation.state != GangState.PENDING:
                    idle = self.live_usage.idle_event(gang, state, now_ms)
                    return with_notes(explanation, self._log.rows(0, name, kinds=NOTED), idle)
                forecasts = self._trial_replica.start_forecasts(state, now_ms, policy)
                return with_forecast(explanation, state, policy, forecasts)
        row = stored_job(self._log, name)[0]
        if row.state not in ENDED:
            sentence = f"{name} is not pending: all of its elements have started: {row.sentence}"
            return Explanation(job=name, state=row.state, sentence=sentence)
        attempts = () if row.elements else self._histories.attempts(name, ended_ms=row.ended_ms)
        span_ms = self._loop.now_ms() - row.submitted_ms
        incidents = self.incidents(span_ms=span_ms, job=name) if row.state == GangState.FAILED else []
        return explain_ended(row, attempts, self._log.rows(0, name, kinds=("failed",)), incidents)

    def incidents(self, *, span_ms: int, job: str | None = None) -> list[Incident]:
        """Return the incidents of a time up to now, newest first; only those of a job, by id, if it is named."""
        from ganger.engine.incidents.incident_reader import IncidentReader  # rarely needed

        return IncidentReader(self._loop, self._log, self._histories).incidents(span_ms=span_ms, job=job)

    # -- events --------------------------------------------------------------------------------------------------------

    def seq(self) -> int:
        """Return the number of the newest event."""
        return self._loop.wait(-1, 0)

    def wait(self, after: int, timeout_s: float) -> int:
        """Return the newest seq as soon as it is beyond `after`, or after `timeout_s`. Blocks the caller's thread."""
        return self._loop.wait(after, timeout_s)

    def events(self, *, after: int, gang: str | None, limit: int, kinds: Sequence[str] = ()) -> list[EventRow]:
        """Return rows of the log, oldest first; only of one job, by id, and of some kinds, if any are named."""
        return [_event_row(stamped) for stamped in self._log.rows(after, gang, limit, kinds)]

    @contextmanager
    def unchanged(self, subject: str, since: int | None) -> Iterator[None]:
        """Hold off all other changes, after a check that the subject has not changed since seq `since`.

        subject: id of a job, `queue/NAME` or `node/NAME`. Raise RequestError (precondition_failed, 412) when it has
        changed.
        """
        with self._change_lock:
            newest = self._log.version(subject)
            if since is not None and newest > since:
                message = f"{subject.rpartition('/')[2]} has changed since event {since}, by event {newest}"
                raise RequestError("precondition_failed", message, "read it again, and send its new ETag", 412)
            yield

    # -- tokens --------------------------------------------------------------------------------------------------------

    def tokens(self) -> list[TokenRow]:
        """Return the tokens for TCP, oldest first."""
        return self._tokens.rows(self._loop.now_ms())

    def create_token(self, name: str, expires_after_ms: int | None, scope: TokenScope = SUBMIT) -> str:
        """Return a new token, which is never shown again. Raise RequestError (token_exists, 409)."""
        now_ms = self._loop.now_ms()
        expires_ms = None if expires_after_ms is None else now_ms + expires_after_ms
        return self._tokens.create(name, now_ms, expires_ms, scope)

    def revoke_token(self, name: str) -> None:
        """Revoke a token. Raise RequestError (no_such_token, 404)."""
        self._tokens.revoke(name)

    def token(self, token: str) -> TokenRow | None:
        """Return the row of a valid token, or None."""
        return self._tokens.find(token, self._loop.now_ms())

    def on_token_revoked(self, callback: Callable[[str], object]) -> None:
        """Call `callback` with the name of each token that is revoked, on any thread."""
        self._tokens.on_revoke(callback)

    def until_s(self, at_ms: int) -> float:
        """Return the time until `at_ms`, on the clock by which tokens expire."""
        return (at_ms - self._loop.now_ms()) / 1000

    @property
    def user(self) -> str:
        """The user under whom requests to this service are made."""
        return self._user

    # -- the server ----------------------------------------------------------------------------------------------------

    def server(self) -> ServerView:
        """Return the state of the server itself."""
        with self._loop.view() as state:
            pending = sum(job_count(state, gang) for gang in state.gangs.values() if gang.state is GangState.PENDING)
            running = sum(job_count(state, gang) for gang in state.gangs.values() if gang.state not in RESTING)
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

    def server_metrics(self) -> tuple[Histogram, tuple[Metric, ...]]:
        """Return the durations of cycles, and the other metrics of the server's work."""
        with self._loop.view() as state:
            metrics = (*state_metrics(state), self._loop.cycle_metrics.decisions(), *self._backend.backend_metrics())
        return self._loop.cycle_metrics.histogram(), (*metrics, *self.telemetry.metrics())

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _request_change(self, event: ChangeRequest) -> None:
        """Request a change of a live job; raise the error for ended jobs if it has ended meanwhile."""
        try:
            self._loop.ask(event)
        except RequestError as error:
            if error.code == "conflict":
                self._live_id(event.gang)
            raise

    def _live_id(self, text: str) -> str:
        """Return the id of a live job."""
        name = self.find(text)
        with self._loop.view() as current:
            is_live = current.is_live(name)
        if not is_live:
            state = stored_job(self._log, name)[0].state
            detail = f"{name} has {past_participle(state)} already"
            raise RequestError("already_ended", detail, f"ganger get {shell_quoted_id(name)}", 409)
        return name

    def _ended_id(self, text: str) -> str:
        """Return the id of an ended job."""
        name = self.find(text)
        state = stored_job(self._log, name)[0].state
        if state not in ENDED:
            raise RequestError(
                "still_live",
                f"{name} is {state}: wait for its end, or stop it",
                f"ganger stop {shell_quoted_id(name)}",
                409,
            )
        return name

    def _check_queue(self, name: str | None) -> None:
        """Raise RequestError (no_such_queue, 404) for a queue that neither exists nor has any job in the log."""
        if name is not None and not self._log.jobs(JobFilter(queue=name), 1):
            self.queue(name)

    def _with_live_fields(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return listing rows with what changes without an event: reasons of pending jobs, metrics of running ones."""
        for row in rows:
            if row["state"] not in ENDED and (metrics := self._backend.metrics(row["id"])).values:
                row["metrics"] = asdict(decode_metrics(row["metrics"]).followed_by(metrics))
        pending = [row for row in rows if row["state"] == GangState.PENDING]
        if not pending:
            return rows
        now_ms, reasons = self._loop.now_ms(), dict[str, ReasonView | None]()
        with self._loop.view() as state:
            for row in pending:
                gang = state.gang_or_head(row["id"])
                if gang is not None and gang.id not in reasons:  # one head stands for all pending elements
                    reasons[gang.id] = pending_reason(state, gang, now_ms)
                reason = reasons[gang.id] if gang else None
                row["sentence"] = reason.sentence if reason else row["sentence"]
        return rows


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


def check_states(states: Sequence[str]) -> None:
    """Raise RequestError (invalid_request, 422) for an unknown state."""
    unknown = [state for state in states if state not in {*GangState}]
    if unknown:
        raise RequestError("invalid_request", f"there is no state {unknown[0]}", f"states: {', '.join(GangState)}", 422)


def _whole_job(name: str) -> str:
    """Return the name of a whole job. Raise RequestError (is_element, 409) for an element of an array."""
    element = split_element_id(name)
    if element is not None:
        raise RequestError(
            "is_element", f"{name} is an element: this applies to the whole array", f"ganger get {element[0]}", 409
        )
    return name


def _cursor_number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= MAX_CURSOR_DIGITS):
        raise RequestError("bad_cursor", f"{cursor[:80]!r} is not a cursor", "send `next` of the previous page", 400)
    return int(cursor)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _check_whole(name: str, job: Job | None) -> None:
    """Raise RequestError (is_element, 409) for one replica group: alone it would start before the others of its job."""
    if job is not None and job.spec.replica_groups and name != (job.array or job.id):
        message = f"{name} is a replica group, which waits and starts with the others of its job"
        raise RequestError("is_element", message, f"name the job: {job.array or job.id}", 409)
