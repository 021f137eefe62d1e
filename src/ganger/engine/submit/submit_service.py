"""The submit service: a submission, a dry run of one, a job run again.

A refused submission leaves nothing behind: no row, no directory. An accepted one is in the log before the caller has an
answer.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final

from ganger.core.explain.explain import explain, with_forecast
from ganger.core.explain.hypothetical import decisions_for, hypothetical_gang
from ganger.core.forecast.start_forecast import StartForecasts
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.launch import argv_of, launch_plans
from ganger.engine.loop import Loop
from ganger.engine.query.job_lookup import resumption_text, saves_view
from ganger.engine.query.state_replica import TrialReplica
from ganger.engine.submit.build import (
    RequestLocks,
    Submission,
    check,
    check_text,
    keep,
    limited,
    origin_of,
    read_spec,
    read_specs,
)
from ganger.engine.submit.quota_check import nearest
from ganger.engine.submit.resume_from import check_in_place, check_source, live_step, run_directory, sources_of
from ganger.errors import RequestError
from ganger.model.decision import Start, Stop
from ganger.model.event import Submitted
from ganger.model.job import ENDED, After, Job, JobSpec, Origin, shell_quoted_id, split_element_id
from ganger.model.job_sections.checkpoint_spec import ResumeSource, split_resume_from
from ganger.model.views.service_views import DryRun, Preempted
from ganger.settings import Home, job_environment
from ganger.spec import change_spec, spec_to_dict
from ganger.spec.submission_checks import new_id, pending_dependencies, submission_order

NODES_TIMEOUT_S: Final = 5.0
"""Time for which a submission to a server that has just started waits for the nodes."""


class SubmitService:
    """Accepts jobs for one user. Safe from any thread."""

    _is_administrator = True

    def __init__(self, trial_replica: TrialReplica, loop: Loop, log: EventLog, home: Home, user: str) -> None:
        """Take a loop that is open."""
        self._trial_replica, self._loop, self._log, self._home, self._user = trial_replica, loop, log, home, user
        self._requests = RequestLocks()

    def as_caller(self, user: str, *, is_administrator: bool) -> "SubmitService":
        """Return this service for another caller."""
        other = copy(self)
        other._user, other._is_administrator = user, is_administrator  # noqa: SLF001 - its own kind
        return other

    def submit(self, submission: Submission) -> tuple[str, bool]:
        """Return the id of the job, and whether it is new: a repeated request gets the job of the first.

        Raise RequestError when it is refused, or (request_id_reused, 409) when the first was another request.
        """
        check_text(submission)
        return self._submit_once(submission, _request_content(submission))

    def submit_all(self, submission: Submission) -> list[tuple[str, bool]]:
        """Submit a file of several jobs, dependencies first. All are checked before any is accepted."""
        check_text(submission)
        content = _request_content(submission)
        with self._requests.alone(submission.request_id):
            specs = read_specs(submission)
            jobs: dict[str, Job] = {}
            for index in submission_order(specs):
                request_id = f"{submission.request_id}.{index}" if submission.request_id else ""
                digest = _digest(content | {"index": index}) if request_id else ""
                file_jobs = {job.spec.name: job for job in jobs.values()}
                job = self._job_of_request(request_id, digest) or self._build_job(
                    specs[index], replace(submission, request_id=request_id), digest, file_jobs
                )
                jobs[job.id] = job
            return self._accept(list(jobs.values()), submission)

    def submit_again(
        self, job: Job, overrides: dict[str, Any], secrets: Mapping[str, str], request_id: str, *, retry_of: str = ""
    ) -> tuple[str, bool]:
        """Submit a new job from an accepted one, with the very snapshot of its code; `retry_of`: to go on with it.

        Its spec gets `overrides`, its secrets `secrets`. Raise RequestError (code_removed, 409) when the snapshot was
        removed, (no_such_parameter, 409), and (is_element, 409) for one replica group.
        """
        existing = tuple(after for after in job.spec.after if self._log.job(after.job) is not None)
        job = replace(
            job, spec=replace(job.spec, after=existing)
        )  # a dependency deleted since then was satisfied before
        if job.index is not None and job.spec.replica_groups:
            message = f"{job.id} is a replica group, which trains only beside the others of its job"
            raise RequestError("is_element", message, f"name the job: {job.array}", 409)
        if job.index is not None:
            overrides = {"array": str(job.index)} | overrides
        submission = Submission(
            directory=job.origin.directory or None,
            spec=spec_to_dict(job.spec),
            overrides=overrides,
            environment=job.origin.environment,
            secrets=self._stored_secrets(job) | dict(secrets),
            request_id=request_id,
        )
        check_text(submission)
        return self._submit_once(submission, {"again": job.id, "overrides": overrides}, job, retry_of)

    def _submit_once(
        self, submission: Submission, content: dict[str, Any], template: Job | None = None, retry_of: str = ""
    ) -> tuple[str, bool]:
        digest = _digest(content) if submission.request_id else ""
        with self._requests.alone(submission.request_id):
            existing = self._job_of_request(submission.request_id, digest)
            if existing is not None:
                return existing.id, False
            if template is None:
                spec = read_spec(submission)
            else:
                shown = f"ganger get {shell_quoted_id(template.id)}"
                spec = change_spec(submission.spec or {}, template.id, submission.overrides, shown)
            job = self._build_job(spec, submission, digest, template=template)
            return self._accept([replace(job, retry_of=retry_of)], submission)[0]

    def _accept(self, jobs: list[Job], submission: Submission) -> list[tuple[str, bool]]:
        """Keep jobs and post them to the loop, except those that exist already."""
        new = {job.id: job for job in jobs if self._log.job(job.id) is None}
        try:
            self._post_all([keep(job, submission, self._home) for job in new.values()])
        except BaseException:
            for name in new:
                if self._log.job(name) is None:
                    shutil.rmtree(self._home.jobs / name, ignore_errors=True)
            raise
        return [(job.id, job.id in new) for job in jobs]

    def _post_all(self, jobs: list[Job]) -> None:
        """Post jobs in one cycle, dependencies first, each with its dependencies that are live at that moment.

        Posted one by one the first could end before the last is submitted, and the outcome would be a race.
        """
        while jobs:
            together = {job.id for job in jobs}
            jobs = [replace(job, awaits=self._pending_dependencies(job.spec.after, together)) for job in jobs]
            futures = self._loop.post_all(Submitted(job=job) for job in jobs)
            answers = [(job, future.exception()) for job, future in zip(jobs, futures, strict=True)]
            refused = [(job, error) for job, error in answers if error is not None]
            for job, error in refused[:1]:
                if job.awaits == self._pending_dependencies(job.spec.after):
                    raise error
            jobs = [job for job, _ in refused]

    def _pending_dependencies(self, dependencies: Iterable[After], together: Collection[str] = ()) -> tuple[After, ...]:
        """Return the dependencies that have not ended; the jobs `together` are about to be submitted.

        Raise RequestError (dependency_failed, 409) for one that can no longer be satisfied.
        """
        return pending_dependencies(dependencies, self._log.state_of, together)

    def dry_run(self, submission: Submission, user: str) -> DryRun:
        """Return what the next cycle would do with the user's job, after the checks of a submission."""
        check_text(submission)
        job = self._build_job(read_spec(submission), submission, "")
        return self.plan(replace(job, user=user, awaits=self._pending_dependencies(job.spec.after)))

    def plan(self, job: Job) -> DryRun:
        """Return what the next cycle would do with a job that was checked but not submitted."""
        policy = self._loop.policy
        with self._trial_replica.state() as (state, now_ms), hypothetical_gang(state, job, now_ms) as gang:
            start, stops = decisions_for(state, gang, now_ms, policy)
            saves = saves_view(state, gang, self._log, now_ms)
            if start is not None:
                resumes = resumption_text(self._log, job)
                return replace(_starting_dry_run(job, start, state), saves=saves, resumes=resumes)
            preempted = tuple(_preempted(state, stop) for stop in stops)
            forecasts = StartForecasts(state, policy, now_ms)
            explanation = explain(state, job.id, now_ms, policy, is_administrator=self._is_administrator)
            explanation = with_forecast(explanation, state, policy, forecasts)
        return DryRun(
            spec=job.spec,
            shape=str(job.spec.shape),
            resumes=resumption_text(self._log, job),
            starts_now=False,
            reason=explanation.reason,
            forecast=explanation.forecast,
            changes=explanation.changes,
            smallest_tried=explanation.smallest_tried,
            preempted=preempted,
            argv=_first_command(job.spec),
            saves=saves,
        )

    def _resolve_dependencies(self, spec: JobSpec, file_jobs: Mapping[str, Job]) -> JobSpec:
        """Return the spec with ids in `after`: of jobs of the file, else of the newest job of that name."""
        resolved = tuple(replace(after, job=self._resolve("after", after.job, file_jobs)) for after in spec.after)
        of_file = {job.id for job in file_jobs.values()}
        for after in resolved:
            element = split_element_id(after.job)
            stored = self._log.job(element[0]) if element else None
            if element and stored is not None and stored[3].spec.replica_groups:
                message = f"after: {after.job} is a replica group, which starts and ends with the others of its job"
                raise RequestError("is_element", message, f"name the job: {element[0]}", 409)
        self._pending_dependencies(after for after in resolved if after.job not in of_file)
        return replace(spec, after=resolved)

    def _resolve(self, key: str, name: str, file_jobs: Mapping[str, Job]) -> str:
        """Return the id of a job that a spec names. Raise RequestError (no_such_dependency)."""
        target = file_jobs[name].id if name in file_jobs else self._log.find(name)
        if target is None:
            recent = self._log.recent_ids()
            hint = nearest(name, [*recent, *(job_id.rpartition("-")[0] for job_id in recent)])
            message = f"{key}: there is no job {name}, by id or name"
            raise RequestError("no_such_dependency", message, hint or "ganger ls --all")
        return target

    def _resume_sources(
        self, spec: JobSpec, file_jobs: Mapping[str, Job], template: Job | None
    ) -> tuple[JobSpec, tuple[ResumeSource, ...]]:
        """Return the spec with the id of the job that it resumes from, and where its checkpoints are.

        Raise RequestError (no_such_dependency, no_checkpoint, is_array).
        """
        text = spec.checkpoint.resume_from if spec.checkpoint is not None else None
        if spec.checkpoint is None or text is None:
            return spec, ()
        before = template.spec.checkpoint if template is not None else None
        name, step = split_resume_from(text)
        if template is not None and before is not None and before.resume_from == text and self._log.find(name) is None:
            return spec, template.resumes  # that job was deleted since then; its checkpoints may still be there
        source = self._resolve("checkpoint.resume_from", name, file_jobs)
        stored = self._log.job(source)
        job = stored[3] if stored is not None else next(job for job in file_jobs.values() if job.id == source)
        if stored is not None and stored[0].state in ENDED:
            check_source(job, step, stored[2])
        elif step is None and source not in {after.job for after in spec.after}:
            step = live_step(job, stored[2] if stored is not None else None)
        spec = replace(
            spec, checkpoint=replace(spec.checkpoint, resume_from=source if step is None else f"{source}:{step}")
        )
        return spec, sources_of(spec, job, step, run_directory(job, self._home))

    def _build_job(
        self,
        spec: JobSpec,
        submission: Submission,
        digest: str,
        file_jobs: Mapping[str, Job] = MappingProxyType({}),
        template: Job | None = None,
    ) -> Job:
        """Return the job of a submission, with an id; nothing is stored yet.

        file_jobs: the jobs of the same file that came before it, by name.
        template: the job whose code it reuses.
        """
        spec, resumes = self._resume_sources(self._resolve_dependencies(spec, file_jobs), file_jobs, template)
        with self._state_with_nodes() as state:
            spec = limited(spec, state, self._user, is_administrator=self._is_administrator)
        if submission.directory is None:
            submission = replace(submission, environment=job_environment(os.environ))
        if template is not None and spec.code is not None and spec.code == template.spec.code:
            origin = self._origin_of(template)
        else:
            origin = origin_of(spec, submission, self._home)
        if spec.code is None and origin.code_hash is not None:
            spec = replace(spec, code=".")  # a directory of its own
        check(spec, submission, origin, self._home)
        job = Job(
            id=new_id(spec.name, self._log.find),
            user=self._user,
            spec=spec,
            origin=origin,
            request_id=submission.request_id,
            request_digest=digest,
            resumes=resumes,
        )
        if spec.checkpoint is not None and spec.checkpoint.in_place:
            with self._loop.view() as state:
                check_in_place(job, state.gangs.values(), lambda job: run_directory(job, self._home))
        return job

    def _origin_of(self, template: Job) -> Origin:
        """Return the origin of a job, for another one with the same code."""
        if not (self._home.code / str(template.origin.code_hash)).is_dir():
            message = f"the snapshot of the code of {template.id} was removed"
            remedy = f"submit it from its directory: {template.origin.directory or 'on another machine'}"
            raise RequestError("code_removed", message, remedy)
        return template.origin

    def _stored_secrets(self, job: Job) -> dict[str, str]:
        """Return the values of a job's secrets."""
        if not job.spec.secrets:
            return {}
        try:
            values: dict[str, str] = json.loads((self._home.jobs / (job.array or job.id) / "secrets.json").read_text())
        except (OSError, ValueError):
            return {}
        return values

    def _job_of_request(self, request_id: str, digest: str) -> Job | None:
        """Return the job that the same request made before. Raise RequestError (request_id_reused, 409)."""
        name = self._log.by_request(request_id)
        stored = self._log.job(name) if name is not None else None
        if stored is not None and stored[3].request_digest != digest:
            message = f"another request with this id, or idempotency key, made {name}"
            raise RequestError("request_id_reused", message, "send a new id with a new request", 409)
        return stored[3] if stored is not None else None

    @contextmanager
    def _state_with_nodes(self) -> Iterator[State]:
        """Hold the state once the backend has listed its nodes, or after a timeout.

        A server that has just started knows no nodes.
        """
        deadline = time.monotonic() + NODES_TIMEOUT_S
        while True:
            with self._loop.view() as state:
                remaining_s = 0.0 if state.ready else deadline - time.monotonic()
                if remaining_s <= 0:
                    yield state
                    return
                seq = state.seq
            self._loop.wait(seq, remaining_s)


def _request_content(submission: Submission) -> dict[str, Any]:
    """Return what distinguishes requests. Without the values of secrets, which a stored hash must not help to guess."""
    names = [field.name for field in fields(submission) if field.name not in ("request_id", "secrets")]
    return {name: getattr(submission, name) for name in names}


def _digest(content: dict[str, Any]) -> str:
    try:
        text = json.dumps(content, sort_keys=True)
    except RecursionError:
        raise RequestError("bad_spec", "the job is nested too deep", "ganger explain-spec") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _starting_dry_run(job: Job, start: Start, state: State) -> DryRun:
    """Return the dry run of a job that would start now, or of its first element."""
    element = split_element_id(start.gang)
    job = job.element(element[1]) if element else job
    nodes = {node.name: node for node in state.nodes.nodes}
    first = launch_plans(start, job, nodes, job.origin.directory)[0]
    user_variables = job.origin.environment | job.spec.env
    variables = first.environment | first.ranks[0].environment
    return DryRun(
        spec=job.spec,
        shape=str(job.spec.shape),
        starts_now=True,
        nodes=tuple(dict.fromkeys(share.node for share in start.shares)),
        argv=_first_command(job.spec),
        environment={name: value for name, value in variables.items() if user_variables.get(name) != value},
    )


def _first_command(spec: JobSpec) -> tuple[str, ...]:
    """Return the command of rank 0."""
    return argv_of(spec.command_of(spec.order[0]))


def _preempted(state: State, stop: Stop) -> Preempted:
    """Return a job that would be stopped, or that would give up nodes."""
    gang = state.gangs[stop.gang]
    given = gang.size - len(gang.elastic_shares(stop.shares)) if stop.shares else 0
    return Preempted(
        job=stop.gang, rule=stop.rule or "", notice_ms=stop.notice_ms, unsaved_ms=stop.unsaved_ms, nodes=given
    )
