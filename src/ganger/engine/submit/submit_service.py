"""The way a job comes in: a submission, a dry run of one, a job run again. Called by `engine.service`.

What is refused leaves nothing behind: no row, no directory. What is accepted is in the log before anybody has an
answer.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Final

from ganger.core.explain.explain import explain
from ganger.core.explain.hypothetical import supposed, would_start
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.launch import argv_of, launch_plans
from ganger.engine.loop import Loop
from ganger.engine.query.state_replica import TrialReplica
from ganger.engine.submit.build import (
    Requests,
    Submission,
    check,
    check_text,
    keep,
    limited,
    new_id,
    origin_of,
    read_spec,
    read_specs,
)
from ganger.engine.submit.quota_check import nearest
from ganger.engine.submit.submit_order import awaited, in_order
from ganger.errors import RequestError
from ganger.model.decision import Start
from ganger.model.event import Submitted
from ganger.model.job import After, Job, JobSpec, Origin, array_of
from ganger.model.views.service_views import DryRun
from ganger.settings import Home
from ganger.spec import spec_to_dict

LISTED_WITHIN_S: Final = 5.0
"""How long a submission to a server that has just started waits for the nodes."""


class SubmitService:
    """Takes jobs in for one user. Safe from any thread."""

    def __init__(self, trial_replica: TrialReplica, loop: Loop, log: EventLog, home: Home, user: str) -> None:
        """Over a loop that is open."""
        self._trial_replica, self._loop, self._log, self._home, self._user = trial_replica, loop, log, home, user
        self._requests = Requests()

    def submit(self, submission: Submission) -> tuple[str, bool]:
        """The id of the job, and whether it is new: a repeat of a request gives the job of the first. Refused says what
        is wrong, or (request_id_reused, 409) that the first was another request."""
        check_text(submission)
        return self._once(submission, _said(submission))

    def submit_all(self, submission: Submission) -> list[tuple[str, bool]]:
        """The same for a file of several jobs, in the order in which they come after each other. What is wrong with one
        is told before any is taken."""
        check_text(submission)
        said = _said(submission)
        with self._requests.alone(submission.request_id):
            specs = read_specs(submission)
            jobs: dict[str, Job] = {}
            for index in in_order(specs):
                request_id = f"{submission.request_id}.{index}" if submission.request_id else ""
                digest = _digest(said | {"index": index}) if request_id else ""
                spec = self._resolved(specs[index], {job.spec.name: job.id for job in jobs.values()})
                job = self._repeated(request_id, digest) or self._checked(
                    spec, replace(submission, request_id=request_id), digest
                )
                jobs[job.id] = job
            return self._taken(list(jobs.values()), submission)

    def again(
        self, job: Job, overrides: dict[str, Any], secrets: Mapping[str, str], request_id: str
    ) -> tuple[str, bool]:
        """The same for a new job from one that was accepted: its spec with `overrides` over it, its secrets and
        `secrets`, and the very snapshot of its code. Refused (code_gone, 409) when that was removed."""
        if "params" in overrides:
            why = f"the parameters of {job.id} were put in when it was submitted, so they cannot be replaced"
            raise RequestError("bad_spec", why, "override what they stand in, or submit the file again")
        known = tuple(after for after in job.spec.after if self._log.job(after.job) is not None)
        job = replace(job, spec=replace(job.spec, after=known))  # what was deleted meanwhile had its say
        if job.index is not None:
            overrides = {"array": str(job.index)} | overrides
        submission = Submission(
            directory=job.origin.directory,
            spec_text=json.dumps(spec_to_dict(job.spec)),
            filename=job.id,
            overrides=overrides,
            environment=job.origin.environment,
            secrets=self._secrets(job) | dict(secrets),
            request_id=request_id,
        )
        check_text(submission)
        return self._once(submission, {"again": job.id, "overrides": overrides}, job)

    def _once(self, submission: Submission, said: dict[str, Any], of: Job | None = None) -> tuple[str, bool]:
        digest = _digest(said) if submission.request_id else ""
        with self._requests.alone(submission.request_id):
            known = self._repeated(submission.request_id, digest)
            if known is not None:
                return known.id, False
            job = self._checked(self._resolved(read_spec(submission), {}), submission, digest, of)
            return self._taken([job], submission)[0]

    def _taken(self, jobs: list[Job], submission: Submission) -> list[tuple[str, bool]]:
        """Keep jobs and put them into the log, but for those that are there."""
        new = {job.id: job for job in jobs if self._log.job(job.id) is None}
        try:
            self._put_in([keep(job, submission, self._home) for job in new.values()])
        except BaseException:
            for name in new:
                if self._log.job(name) is None:
                    shutil.rmtree(self._home.jobs / name, ignore_errors=True)
            raise
        return [(job.id, job.id in new) for job in jobs]

    def _put_in(self, jobs: list[Job]) -> None:
        """Into the log in one turn, each behind those it comes after, with those of `after` that live at that moment.
        One after the other the first could end before the last is there, and whether that is taken would be luck."""
        while jobs:
            together = {job.id for job in jobs}
            jobs = [replace(job, awaits=self._awaited(job.spec.after, together)) for job in jobs]
            done = self._loop.post_all(Submitted(job=job) for job in jobs)
            answers = [(job, each.exception()) for job, each in zip(jobs, done, strict=True)]
            refused = [(job, why) for job, why in answers if why is not None]
            for job, why in refused[:1]:
                if job.awaits == self._awaited(job.spec.after):
                    raise why
            jobs = [job for job, _ in refused]

    def _awaited(self, all_of: Iterable[After], together: Collection[str] = ()) -> tuple[After, ...]:
        """Those that have not ended; the jobs `together` are about to be submitted. Refused (cannot_come_true, 409) for
        one that ended otherwise than is asked."""
        return awaited(all_of, self._log.state_of, together)

    def dry_run(self, submission: Submission, user: str) -> DryRun:
        """What the next round would do with the user's job: the same checks, and the round itself on a state of its
        own."""
        check_text(submission)
        job = self._checked(self._resolved(read_spec(submission), {}), submission, "")
        return self.planned(replace(job, user=user, awaits=self._awaited(job.spec.after)))

    def planned(self, job: Job) -> DryRun:
        """What the next round would do with a job that was checked, and that nobody has taken in."""
        policy = self._loop.policy
        with self._trial_replica.state() as (state, now_ms), supposed(state, job, now_ms) as gang:
            start = would_start(state, gang, now_ms, policy)
            if start is not None:
                return _would_start(job, start, state)
            told = explain(state, job.id, now_ms, policy)
        return DryRun(
            spec=job.spec,
            shape=str(job.spec.shape),
            starts_now=False,
            reason=told.reason,
            earliest_ms=told.earliest_ms,
            changes=told.changes,
            proof=told.proof,
            argv=_first_command(job.spec),
        )

    def _resolved(self, spec: JobSpec, of_file: Mapping[str, str]) -> JobSpec:
        """The spec with ids in `after`: of jobs of the same file, by name, else of the newest job of that name."""
        found = []
        for after in spec.after:
            meant = of_file.get(after.job) or self._log.find(after.job)
            if meant is None:
                recent = self._log.like(after.job)
                near = nearest(after.job, [*recent, *(each.rpartition("-")[0] for each in recent)])
                why = f"after: there is no job {after.job}, by id or name"
                raise RequestError("no_such_dependency", why, near or "ganger ls --all")
            found.append(replace(after, job=meant))
        self._awaited(after for after in found if after.job not in of_file.values())
        return replace(spec, after=tuple(found))

    def _checked(self, spec: JobSpec, submission: Submission, digest: str, of: Job | None = None) -> Job:
        """The job that a submission asks for, with an id; nothing is kept yet. `of`: the job whose code it has."""
        with self._listed() as state:
            spec = limited(spec, state, self._user)
        if of is not None and spec.code is not None and spec.code == of.spec.code:
            origin = self._same_code(of)
        else:
            origin = origin_of(spec, submission, self._home)
        check(spec, submission, origin, self._home)
        return Job(
            id=new_id(spec.name, self._log.find),
            user=self._user,
            spec=spec,
            origin=origin,
            request_id=submission.request_id,
            request_digest=digest,
        )

    def _same_code(self, of: Job) -> Origin:
        """The origin of a job, as one that has the same code."""
        if not (self._home.code / str(of.origin.code_hash)).is_dir():
            why = f"the snapshot of the code of {of.id} was removed"
            raise RequestError("code_gone", why, f"submit it from its directory: {of.origin.directory}")
        return of.origin

    def _secrets(self, job: Job) -> dict[str, str]:
        """The values that a job was given."""
        if not job.spec.secrets:
            return {}
        try:
            values: dict[str, str] = json.loads((self._home.jobs / (job.array or job.id) / "secrets.json").read_text())
        except (OSError, ValueError):
            return {}
        return values

    def _repeated(self, request_id: str, digest: str) -> Job | None:
        """The job that the same request made before. Refused (request_id_reused, 409) when it was another request."""
        known = self._log.by_request(request_id)
        found = self._log.job(known) if known is not None else None
        if found is not None and found[3].request_digest != digest:
            why = f"another request with this id, or idempotency key, made {known}"
            raise RequestError("request_id_reused", why, "send a new id with what is not a repeat", 409)
        return found[3] if found is not None else None

    @contextmanager
    def _listed(self) -> Iterator[State]:
        """The state once the backend has listed its nodes: a server that has just started knows none. After a while the
        state as it is."""
        deadline = time.monotonic() + LISTED_WITHIN_S
        while True:
            with self._loop.view() as state:
                left_s = 0.0 if state.ready else deadline - time.monotonic()
                if left_s <= 0:
                    yield state
                    return
                seq = state.seq
            self._loop.wait(seq, left_s)


def _said(submission: Submission) -> dict[str, Any]:
    """What tells one request from another. Without the values of secrets: what is kept must not help to guess them."""
    names = [field.name for field in fields(submission) if field.name not in ("request_id", "secrets")]
    return {name: getattr(submission, name) for name in names}


def _digest(said: dict[str, Any]) -> str:
    try:
        text = json.dumps(said, sort_keys=True)
    except RecursionError:
        raise RequestError("bad_spec", "the job is nested too deep", "ganger explain-spec") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _would_start(job: Job, start: Start, state: State) -> DryRun:
    """A dry run of a job that would start now, or of its first element."""
    element = array_of(start.gang)
    job = job.element(element[1]) if element else job
    nodes = {node.name: node for node in state.nodes.nodes}
    first = launch_plans(start, job, nodes, job.origin.directory)[0]
    given = job.origin.environment | job.spec.env
    everything = first.environment | first.ranks[0].environment
    return DryRun(
        spec=job.spec,
        shape=str(job.spec.shape),
        starts_now=True,
        nodes=tuple(dict.fromkeys(share.node for share in start.shares)),
        argv=_first_command(job.spec),
        environment={name: value for name, value in everything.items() if given.get(name) != value},
    )


def _first_command(spec: JobSpec) -> tuple[str, ...]:
    """What rank 0 was asked to run."""
    return argv_of(spec.command_of(spec.order[0]))
