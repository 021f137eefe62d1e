"""Single jobs: their look-up in the log, with the errors for a missing one, and all their details."""

from dataclasses import replace
from typing import Final

from ganger.core.failure.save_interval import estimate_saves, notice_warning
from ganger.core.state.gang import ACTIVE, Gang
from ganger.core.state.state import State
from ganger.core.state.timers import deadline_ms
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.job_costs import CostQuery
from ganger.engine.loop import Loop
from ganger.engine.query.job_history import JobHistories
from ganger.engine.query.listing_rows import pending_reason
from ganger.engine.query.live_usage import LiveUsage
from ganger.engine.query.time_report import report
from ganger.engine.submit.quota_check import nearest
from ganger.engine.submit.resume_from import count_in_copy, run_directory
from ganger.errors import RequestError
from ganger.model.job import ENDED, GangState, Job, split_element_id
from ganger.model.job_sections.checkpoint_spec import AUTO
from ganger.model.views.service_views import JobRow, JobView, Ledger, SavesView
from ganger.ports import Backend, JobFilter
from ganger.settings import Home

_LIST_COMMAND: Final = "ganger ls"
MAX_EARLIER: Final = 8
"""Newest jobs of the same name among which one is sought whose saves were measured."""


def find_job(log: EventLog, text: str) -> str:
    """Return the id of a job by id, or of the newest of that name. Raise RequestError (no_such_job, 404)."""
    job = log.find(text)
    if job is None:
        element = split_element_id(text)
        array = log.find(element[0]) if element else None
        if element is not None and array is not None:
            raise RequestError("no_such_job", f"{array} has no element {element[1]}", f"ganger ls {array}", 404)
        recent = log.recent_ids()
        names = [name.rpartition("-")[0] for name in recent]
        raise RequestError(
            "no_such_job", f"there is no job {text}", nearest(text, [*recent, *names]) or _LIST_COMMAND, 404
        )
    return job


def stored_job(log: EventLog, id: str) -> tuple[JobRow, Ledger, int | None, Job]:
    """Return what the log keeps of a job that existed a moment ago."""
    stored = log.job(id)
    if stored is None:
        raise RequestError("no_such_job", f"{id} was deleted", _LIST_COMMAND, 404)
    return stored


class JobViews:
    """The jobs of one server in full. Safe from any thread."""

    def __init__(
        self, loop: Loop, log: EventLog, backend: Backend, histories: JobHistories, live_usage: LiveUsage, home: Home
    ) -> None:
        self._loop, self._log, self._backend, self._histories = loop, log, backend, histories
        self._live_usage, self._home = live_usage, home

    def job(self, name: str, *, is_administrator: bool) -> JobView:
        """Return a job by id; the caller's rights decide what is advised."""
        now_ms = self._loop.now_ms()
        row, ledger, step, job = stored_job(self._log, name)
        reason = ends_by_ms = notice_until_ms = saves = idle = None
        with self._loop.view() as state:
            now_ms = max(now_ms, state.at_ms)
            gang = state.gang_or_head(name)
            if gang is not None and row.state not in ENDED:
                ledger = gang.account.ledger(now_ms)
                if gang.state is GangState.PENDING:
                    reason = pending_reason(state, gang, now_ms, is_administrator=is_administrator)
                ends_by_ms = deadline_ms(gang) if gang.state in ACTIVE else None
                notice_until_ms = gang.notice_ends_ms(now_ms)
                row = replace(row, sentence=reason.sentence) if reason and not row.elements else row
                saves = saves_view(state, gang, self._log, now_ms)
                idle = self._live_usage.idle_now(gang, state)
                row = replace(row, metrics=row.metrics.followed_by(self._backend.metrics(name)))
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
            notice_until_ms=notice_until_ms,
            saves=saves,
            idle=idle,
            resumes=resumption_text(self._log, job),
            checkpoint_directory=job.checkpoint_directory(run_directory(job, self._home)),
            checkpoints_in_copy=count_in_copy(job, self._home) if row.state in ENDED else 0,
        )


def resumption_text(log: EventLog, job: Job) -> str:
    """Return from which checkpoint of another job a job begins, empty for none: step 19 of bert-7f3."""
    if not job.resumes:
        return ""
    source = job.resumes[0]
    stored = log.job(source.job)
    step = stored[2] if stored is not None and source.step is None else source.step
    return f"the newest checkpoint of {source.job}" if step is None else f"step {step} of {source.job}"


def saves_view(state: State, gang: Gang, log: EventLog, now_ms: int) -> SavesView | None:
    """Return what is known of a gang's saves, else of those of the newest job of its name and user.

    None if nothing is, and nothing is to be warned of.
    """
    spec, start = gang.job.spec, gang.attempt.start
    if spec.checkpoint is None:
        return None
    nodes = len(start.nodes) if start is not None else sum(part.nodes for part in gang.shape.parts if not part.stacked)
    estimate, earlier = estimate_saves(state, gang, max(1, nodes), now_ms), ""
    if estimate.save_ms is None:
        rows = (row for _, _, row in log.jobs(JobFilter(name=spec.name, user=gang.job.user), MAX_EARLIER))
        row = next((row for row in rows if row.get("save_ms") and row["id"] != gang.id), None)
        if row is None and spec.checkpoint.every_ms != AUTO and not notice_warning(state, gang, 0):
            return None
        if row is not None:
            estimate, earlier = replace(estimate, save_ms=row["save_ms"], longest_ms=row["save_ms"]), row["id"]
    every_ms = spec.checkpoint.every_ms
    if every_ms == AUTO:
        every_ms = estimate.best_interval_ms
    return SavesView(
        estimate=estimate,
        every_ms=every_ms,
        best_every_ms=estimate.best_interval_ms,
        cost=estimate.cost(every_ms) if every_ms else None,
        best_cost=estimate.cost(estimate.best_interval_ms),
        warning=notice_warning(state, gang, estimate.longest_ms or 0, earlier),
    )
