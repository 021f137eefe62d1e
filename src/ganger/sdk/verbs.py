"""What the SDK can do, each verb once: coroutines over a link, which `Client` runs blocking and `AsyncClient` awaits.

Requests that may be sent twice start a server that has gone meanwhile, as a command would; who follows lines, events
or an end waits for one that restarts, and is told when it does not come back.
"""

import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, TypedDict, Unpack, cast

from ganger.client.client_errors import Unreachable, timed_out
from ganger.client.job_name import name_of_command
from ganger.client.local import follow_requests
from ganger.client.local.http import ANSWER_S, SUBMIT_S, Request, query_of, quoted
from ganger.client.local.log_position import Query
from ganger.client.secret_values import secret_values
from ganger.model.job import ENDED, PRIORITIES, GangState, array_of
from ganger.model.views.overview import Order, Overview, Sizes
from ganger.model.views.service_views import (
    DryRun,
    EventRow,
    Explanation,
    JobRow,
    JobView,
    PolicyTrial,
    PolicyVersion,
    PolicyView,
    Stacks,
    Totals,
)
from ganger.sdk.decode import view
from ganger.sdk.job_fields import Command, JobFields, spec_of
from ganger.sdk.outcomes import Outcome, failure_of, read_outcomes
from ganger.sdk.sdk_types import JobFile, LogLine, Report
from ganger.sdk.submission import Policy, plain, proposal, submission
from ganger.sdk.task_command import TaskFunction, command_of
from ganger.settings import Home

PAGE: Final = 200
"""Jobs that are asked for at a time."""

Submittable = JobFile | Mapping[str, Any]
"""What may be submitted: a file that `Job.load` read, or a job as a mapping with the keys of a job file."""


class LogFields(TypedDict, total=False):
    """Which lines: `rank` is 0, "0,2-3", "last" or "all"; unset: those of `role` or `node`, else rank 0 and every
    rank's stderr. `attempt` is a generation, `grep` a regular expression, `tail` how many of the last lines; `since`
    and `until` are Unix ms."""

    rank: int | str
    role: str
    node: str
    attempt: int
    grep: str
    since: int
    until: int
    tail: int


class ListFields(TypedDict, total=False):
    """Which jobs: `state`, one or several with commas; `labels`, a selector such as team=nlp,stage!=prod; `since` (not
    ended before) and `until` (submitted by then) are Unix ms."""

    state: str
    user: str
    queue: str
    name: str
    labels: str
    since: int
    until: int


class ReportFields(TypedDict, total=False):
    """Which jobs: of a `user`, in a `queue`, not ended before `since` (Unix ms)."""

    since: int
    user: str
    queue: str


class FitFields(TypedDict, total=False):
    """Which jobs: in a `queue`, with GPUs of a `gpu_type`, so many `gpus`, `cpu_milli` and `memory_bytes` on each node,
    for `time_ms` at most."""

    queue: str
    gpu_type: str
    gpus: int
    cpu_milli: int
    memory_bytes: int
    time_ms: int


class Verbs:
    """Everything that may be asked of the server of one state directory. A job is named by its id, or by its name: the
    newest job of that name."""

    def __init__(self, link: follow_requests.Link, home: Home) -> None:
        """Reach for nothing yet."""
        self._link = link
        self._found = False
        self.home = home

    async def run(self, command: Command, /, **fields: Unpack[JobFields]) -> JobView:
        """Submit a command as a job: a shell line, or words that run as they are. Runs in this directory."""
        return await self.submit({**spec_of(fields), "run": command if isinstance(command, str) else list(command)})

    async def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> JobView:
        """Submit a job; `fields` go over it. The job, once it is accepted; BadRequest says everything that is wrong.
        However often the request has to be sent, it makes one job. Unreachable and TimedOut say so where nobody knows
        whether it did."""
        body = submission(job, spec_of(fields))
        return view(JobView, await self._made("/jobs", body, body["request_id"]))

    async def submit_all(self, file: JobFile, /, **fields: Unpack[JobFields]) -> Sequence[JobView]:
        """Submit a file of several jobs, which may come after each other: all of them or, when one is wrong, none."""
        body = submission(file, spec_of(fields))
        told = await self._made("/batches", body, body["request_id"])
        return [view(JobView, each) for each in told["items"]]

    async def call(self, task: TaskFunction[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobView:
        """Submit a call of a function, with these arguments for every rank."""
        command = command_of(self.home, task, args, kwargs)
        name = name_of_command([task.__ganger_task__.__name__])
        return await self.submit({"name": name, **task.fields, "run": command})

    async def dry_run(self, job: Submittable, /, **fields: Unpack[JobFields]) -> DryRun:
        """What would happen if the job were submitted now: where it would start, or what it would wait for."""
        body = submission(job, spec_of(fields))
        told = await self._ask("POST", "/jobs?dryRun=plan", body, key=body["request_id"], timeout_s=SUBMIT_S)
        return view(DryRun, told)

    async def job(self, id: str) -> JobView:
        """A job in full, as it is now."""
        return view(JobView, await self._ask("GET", f"/jobs/{quoted(id)}"))

    async def list(self, **wanted: Unpack[ListFields]) -> AsyncGenerator[JobRow, None]:
        """Every job for which all holds that is wanted, newest first; those that ended long ago too."""
        _check(wanted, ListFields)
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            query = query_of({**wanted, "all": True, "limit": PAGE, "cursor": page["next"] or None})
            page = await self._ask("GET", f"/jobs{query}")
            for row in page["items"]:
                yield view(JobRow, row)

    async def report(self, **wanted: Unpack[ReportFields]) -> Totals:
        """Where the time of jobs went, and that of the GPUs they held: of all that live or have ended."""
        _check(wanted, ReportFields)
        return view(Totals, await self._ask("GET", f"/report{query_of(wanted)}"))

    async def fit(self, **wanted: Unpack[FitFields]) -> Sizes:
        """The largest jobs that would start now, for each type of GPU and each level of the network."""
        _check(wanted, FitFields)
        return view(Sizes, await self._ask("GET", f"/fit{query_of(wanted)}"))

    async def overview(self, *, sort: Order = "turn") -> Overview:
        """The cluster and the queue at one glance: nodes, or domains where there are many, queues, and who is next."""
        return view(Overview, await self._ask("GET", f"/overview{query_of({'sort': sort})}"))

    async def logs(
        self, id: str, *, follow: bool = False, **wanted: Unpack[LogFields]
    ) -> AsyncGenerator[LogLine, None]:
        """Lines that ranks wrote, in order of time; with `follow` until the job has ended, through restarts of the
        server and attempts of the job. Who stops reading leaves the job as it is."""
        _check(wanted, LogFields)
        await self._link.connect()
        lines = follow_requests.log_lines(self._link, id, cast("Query", wanted), follow=follow)
        async with aclosing(lines):
            async for line in lines:
                yield LogLine(line["t"], line["rank"], line["generation"], line["stream"], line["text"])

    async def wait(self, id: str, timeout_s: float | None = None) -> JobView:
        """The job as soon as it has ended, however it did. TimedOut when that takes longer than `timeout_s`: it goes
        on; Unreachable when the server ends meanwhile and none takes its place: the job runs on without it."""
        await self._link.connect()
        ended = await follow_requests.ended(self._link, id, timeout_s)
        if ended is None:
            raise timed_out(f"{id} has not ended within {timeout_s:g} s, and goes on", f"ganger get {id}")
        return view(JobView, ended)

    async def explain(self, id: str) -> Explanation:
        """Why a job waits, for whom, until when at the latest, and what would start it now."""
        return view(Explanation, await self._ask("GET", f"/jobs/{quoted(id)}/explain"))

    async def events(self, id: str, *, follow: bool = False) -> AsyncGenerator[EventRow, None]:
        """What happened to a job, oldest first; with `follow` until it has ended."""
        found, seq = (await self.job(id)).row.id, 0
        element, newest = array_of(found), (await self._ask("GET", "/server"))["seq"]
        # An element that has not begun ends with its array, by an event that names only that.
        async with aclosing(follow_requests.events(self._link, newest, element[0] if element else found)) as news:
            over = False
            while not over:
                over = not follow or (await self.job(found)).row.state in ENDED
                async for event in self._events_after(found, seq):
                    yield event
                    seq = event.seq
                if not over:
                    await anext(news)

    async def metrics(self, id: str) -> AsyncGenerator[Report, None]:
        """Every report of rank 0, oldest first."""
        await self._link.connect()
        async with aclosing(self._link.lines(Request("GET", f"/jobs/{quoted(id)}/metrics"))) as lines:
            async for line in lines:
                each = json.loads(line)
                yield Report(each["t"], each["generation"], each["rank"], each["step"], each["metrics"])

    async def stacks(self, id: str, attempt: int | None = None) -> Stacks:
        """Where every rank was when an attempt was found standing still; of the newest such attempt, unless one is
        named. NotFound when there is none."""
        return view(Stacks, await self._ask("GET", f"/jobs/{quoted(id)}/stacks{query_of({'attempt': attempt})}"))

    async def stop(self, id: str) -> JobView:
        """Ask for a job to end; it may save its work first. The job as it is then."""
        return view(JobView, await self._ask("POST", f"/jobs/{quoted(id)}/stop"))

    async def suspend(self, id: str) -> JobView:
        """Take a job off its nodes, or out of the queue, until it is resumed; it may save its work first."""
        return await self._change(id, suspended=True)

    async def resume(self, id: str) -> JobView:
        """Put a suspended job back into its queue."""
        return await self._change(id, suspended=False)

    async def priority(self, id: str, priority: int | Literal["low", "normal", "high"]) -> JobView:
        """Give a live job another priority, from -1000 to 1000."""
        return await self._change(id, priority=PRIORITIES.get(str(priority), priority))

    async def retry(self, id: str) -> JobView:
        """Run an ended job again, with the same code: the new job."""
        return await self._again(id, "retry", None)

    async def clone(self, id: str, **fields: Unpack[JobFields]) -> JobView:
        """Make a new job from one that lives or has ended: its spec with `fields` over it, the same code."""
        overrides = plain(spec_of(fields))
        return await self._again(id, "clone", {"overrides": overrides, "secrets": secret_values(overrides, os.environ)})

    async def delete(self, id: str) -> None:
        """Take an ended job out of the listings, and its files off the disk."""
        await self._ask("DELETE", f"/jobs/{quoted(id)}")

    async def result(self, id: str, timeout_s: float | None = None) -> Any:
        """Wait for a job, and give what rank 0 of a task returned; None for a job that is a command; of an array a list
        with that of each element, by index. The exception that ended a task is raised, JobFailed when there is none;
        TimedOut when it takes longer than `timeout_s`."""
        job = await self.wait(id, timeout_s)
        found = [
            next((outcome.value for outcome in outcomes if outcome.rank == 0), None)
            for outcomes in await self._outcomes(job)
        ]
        return found[0] if job.row.elements is None else found

    async def results(self, id: str, timeout_s: float | None = None) -> Sequence[Any]:
        """The same for all ranks, in their order; of an array a list of these."""
        job = await self.wait(id, timeout_s)
        found = [[outcome.value for outcome in outcomes] for outcomes in await self._outcomes(job)]
        return found[0] if job.row.elements is None else found

    async def policy(self, version: int | None = None) -> PolicyView:
        """The policy document in force, or an earlier version of it. NotFound when that is not there."""
        target = "/policy" if version is None else f"/policy/versions/{version}"
        return view(PolicyView, await self._ask("GET", target))

    async def policy_versions(self) -> Sequence[PolicyVersion]:
        """Every version of the policy that is kept, the newest first: who made it, when, and what it changed."""
        return [view(PolicyVersion, each) for each in (await self._ask("GET", "/policy/versions"))["items"]]

    async def diff_policy(self, policy: Policy, /, against: int | None = None) -> PolicyTrial:
        """What a document would change, of the policy in force or of a version of it, and whom it would strand."""
        body = proposal(policy) | {"against": against}
        return view(PolicyTrial, await self._ask("POST", "/policy/diff", body))

    async def try_policy(self, policy: Policy, /) -> PolicyTrial:
        """The same, and what the next round would do differently; nothing changes."""
        told = await self._ask("PUT", "/policy?dryRun=plan", proposal(policy), timeout_s=SUBMIT_S)
        return view(PolicyTrial, told)

    async def apply_policy(
        self, policy: Policy, /, *, note: str = "", force: bool = False, if_version: int | None = None
    ) -> PolicyView:
        """Put a document in force, whole, from the next round on; Refused, with their names, when it would strand live
        jobs and is not forced, or when another version than `if_version` is in force."""
        body = proposal(policy) | {"note": note, "force": force, "if_version": if_version}
        return view(PolicyView, await self._ask("PUT", "/policy", body, timeout_s=SUBMIT_S))

    # -- how --------------------------------------------------------------------------------------------------------

    async def _outcomes(self, job: JobView) -> Sequence[Sequence[Outcome]]:
        """Of a job that has ended well, or of each element of an array that has. Raises what it ended with otherwise:
        of an array, with what the first element did that failed, or else was stopped."""
        rows = [job.row] if job.row.elements is None else [row async for row in self._elements(job.row.id)]
        bad = [row for row in rows if row.state != GangState.SUCCEEDED]
        if bad:
            row = min(bad, key=lambda row: row.state != GangState.FAILED)
            raise failure_of(await self.job(row.id), read_outcomes(self.home, row.id, row.generation))
        return [read_outcomes(self.home, row.id, row.generation) for row in rows]

    async def _elements(self, id: str) -> AsyncGenerator[JobRow, None]:
        """Of an array, by index."""
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            query = query_of({"limit": PAGE, "cursor": page["next"] or None})
            page = await self._ask("GET", f"/jobs/{quoted(id)}/elements{query}")
            for row in page["items"]:
                yield view(JobRow, row)

    async def _events_after(self, id: str, seq: int) -> AsyncGenerator[EventRow, None]:
        after: int | None = seq
        while after is not None:
            page = await self._ask("GET", f"/jobs/{quoted(id)}/events{query_of({'after': after})}")
            for item in page["items"]:
                yield view(EventRow, item)
            after = page["next"]

    async def _change(self, id: str, **change: Any) -> JobView:
        return view(JobView, await self._ask("PATCH", f"/jobs/{quoted(id)}", change))

    async def _again(self, id: str, verb: str, body: Any) -> JobView:
        return view(JobView, await self._made(f"/jobs/{quoted(id)}/{verb}", body, os.urandom(16).hex()))

    async def _made(self, target: str, body: Any, key: str) -> Any:
        if not self._found:
            await self._link.connect()
            self._found = True
        return await follow_requests.made(self._link, Request("POST", target, body, SUBMIT_S, key))

    async def _ask(
        self, method: str, target: str, body: Any = None, *, key: str | None = None, timeout_s: float = ANSWER_S
    ) -> Any:
        request = Request(method, target, body, timeout_s, key)
        if not self._found or not request.repeatable:
            await self._link.connect()
            self._found = True
        try:
            return await follow_requests.ask(self._link, request)
        except Unreachable:
            if not request.repeatable:
                raise
            await self._link.connect()
            return await follow_requests.ask(self._link, request)


def _check(wanted: Mapping[str, Any], fields: type) -> None:
    """TypeError, as for any function, when a name is none of the fields: it would be as if nothing had been wanted."""
    if unknown := wanted.keys() - fields.__annotations__.keys():
        known = ", ".join(fields.__annotations__)
        raise TypeError(f"unexpected keyword arguments {sorted(unknown)}; there are {known}")
