"""The way a job comes in: a submission, a dry run of one. Called by `engine.service`.

What is refused leaves nothing behind: no row, no directory. What is accepted is in the log before anybody has an
answer.
"""

import hashlib
import json
import shutil
import time
from dataclasses import asdict
from typing import Final

from ganger.core.explain import explain
from ganger.core.plan import plan
from ganger.core.state import State
from ganger.engine.launch import launch_plans
from ganger.engine.log import EventLog
from ganger.engine.loop import Loop, copy_of
from ganger.engine.refusal import Refused
from ganger.engine.submission import (
    Requests,
    Submission,
    check,
    check_text,
    keep,
    limited,
    new_id,
    origin_of,
    read_spec,
)
from ganger.model.decision import Start
from ganger.model.event import Stamped, Submitted
from ganger.model.job import Job
from ganger.model.view import DryRun
from ganger.settings import Home

LISTED_WITHIN_S: Final = 5.0
"""How long a submission to a server that has just started waits for the nodes."""


class Intake:
    """Takes jobs in for one user. Safe from any thread."""

    def __init__(self, loop: Loop, log: EventLog, home: Home, user: str) -> None:
        """Over a loop that is open."""
        self._loop, self._log, self._home, self._user = loop, log, home, user
        self._requests = Requests()

    def submit(self, submission: Submission) -> tuple[str, bool]:
        """The id of the job, and whether it is new: a repeat of a request gives the job of the first. Refused says what
        is wrong, or (request_id_reused, 409) that the first was another request."""
        check_text(submission)
        digest = _digest(submission) if submission.request_id else ""
        with self._requests.alone(submission.request_id):
            known = self._log.by_request(submission.request_id)
            if known is not None:
                self._see_same(known, digest)
                return known, False
            job = self._checked(submission, digest)
            try:
                job = keep(job, submission, self._home)
                self._loop.ask(Submitted(job=job))
            except BaseException:
                shutil.rmtree(self._home.jobs / job.id, ignore_errors=True)
                raise
        return job.id, True

    def dry_run(self, submission: Submission) -> DryRun:
        """What the next round would do with the job: the same checks, and the round itself on a copy of the state."""
        check_text(submission)
        job = self._checked(submission, "")
        state, now_ms = copy_of(self._loop.view()), self._loop.now_ms()
        state.apply(Stamped(state.seq + 1, now_ms, Submitted(job=job)))
        starts = [
            decision
            for decision in plan(state, now_ms, self._loop.policy).decisions
            if isinstance(decision, Start) and decision.gang == job.id
        ]
        if starts:
            return _would_start(job, starts[0], state)
        told = explain(state, job.id, now_ms, self._loop.policy)
        return DryRun(
            spec=job.spec,
            shape=str(job.spec.shape),
            starts_now=False,
            reason=told.reason,
            earliest_ms=told.earliest_ms,
            argv=("/bin/sh", "-c", run) if isinstance(run := job.spec.run, str) else run,
        )

    def _checked(self, submission: Submission, digest: str) -> Job:
        """The job that a submission asks for, with an id; nothing is kept yet."""
        spec = limited(read_spec(submission), self._listed(), self._user)
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

    def _see_same(self, known: str, digest: str) -> None:
        """See that a request with an id that is known is a repeat."""
        found = self._log.job(known)
        if found is not None and found[3].request_digest != digest:
            why = f"another request with this id, or idempotency key, made {known}"
            raise Refused("request_id_reused", why, "send a new id with what is not a repeat", 409)

    def _listed(self) -> State:
        """The state once the backend has listed its nodes: a server that has just started knows none. After a while the
        state as it is."""
        deadline = time.monotonic() + LISTED_WITHIN_S
        state = self._loop.view()
        while not state.ready and (left_s := deadline - time.monotonic()) > 0:
            self._loop.wait(state.seq, left_s)
            state = self._loop.view()
        return state


def _digest(submission: Submission) -> str:
    """Tells one request from another. Without the values of secrets: what is kept must not help to guess them."""
    said = {name: value for name, value in asdict(submission).items() if name not in ("request_id", "secrets")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _would_start(job: Job, start: Start, state: State) -> DryRun:
    """A dry run of a job that would start now."""
    nodes = {node.name: node for node in state.nodes.nodes}
    first = launch_plans(start, job, nodes, job.origin.directory)[0]
    given = job.origin.environment | job.spec.env
    everything = first.environment | first.ranks[0].environment
    return DryRun(
        spec=job.spec,
        shape=str(job.spec.shape),
        starts_now=True,
        nodes=tuple(share.node for share in start.shares),
        argv=first.argv,
        environment={name: value for name, value in everything.items() if given.get(name) != value},
    )
