"""Verbs of the SDK, each written once: coroutines over a link, which `Client` runs blocking and `AsyncClient` awaits.

Repeatable requests start a server that has gone meanwhile, as the command line does; followers of lines, events or a
job's end wait for a server that restarts, and raise an error if it does not come back.
"""

import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, TypedDict, Unpack, cast

from ganger.client.client_errors import REFUSED, Refused, Unreachable, timed_out
from ganger.client.job_name import name_of_command
from ganger.client.local import follow_requests
from ganger.client.local.http import ANSWER_S, SUBMIT_S, Request, query_of, quoted
from ganger.client.local.log_position import Query
from ganger.client.secret_values import secret_values
from ganger.model.job import ENDED, PRIORITIES, GangState, split_element_id
from ganger.model.views.overview import Order, Overview, Sizes
from ganger.model.views.policy_views import PolicyTrial, PolicyVersion, PolicyView
from ganger.model.views.service_views import DryRun, EventRow, Explanation, JobRow, JobView, MetricsView, Stacks, Totals
from ganger.sdk.decode import view
from ganger.sdk.job_fields import Command, JobFields, spec_of
from ganger.sdk.outcomes import Outcome, failure_of, read_outcomes
from ganger.sdk.sdk_types import JobFile, LogLine, Report
from ganger.sdk.submission import Policy, plain, proposal, submission
from ganger.sdk.task_command import TaskFunction, command_of
from ganger.settings import Home

PAGE: Final = 200
"""Jobs requested at a time."""

Submittable = JobFile | Mapping[str, Any]
"""A submission: a file read by `Job.load`, or a mapping with the keys of a job file."""


class LogFields(TypedDict, total=False):
    """Filters of log lines.

    Attributes:
        rank: 0, "0,2-3", "last" or "all"; by default those of `role` or `node`, else rank 0 and stderr of every rank.
        attempt: A generation.
        grep: A regular expression.
        since, until: Unix ms.
        tail: The number of last lines.
    """

    rank: int | str
    role: str
    node: str
    attempt: int
    grep: str
    since: int
    until: int
    tail: int


class ListFields(TypedDict, total=False):
    """Filters of jobs.

    Attributes:
        state: One or several with commas.
        labels: A label selector: team=nlp,stage!=prod.
        since, until: Unix ms: not ended before `since`, submitted by `until`.
    """

    state: str
    user: str
    queue: str
    name: str
    labels: str
    since: int
    until: int


class ReportFields(TypedDict, total=False):
    """Filters of a report: jobs of a `user`, in a `queue`, not ended before `since` (Unix ms)."""

    since: int
    user: str
    queue: str


class FitFields(TypedDict, total=False):
    """The form of the jobs: in a `queue`, with these resources of each node.

    Attributes:
        time_ms: The time limit.
    """

    queue: str
    gpu_type: str
    gpus: int
    cpu_milli: int
    memory_bytes: int
    time_ms: int


class Verbs:
    """All requests to one server, which `place` names: by its state directory, or its URL.

    A job is named by its id, or by its name: the newest job of that name.
    """

    def __init__(self, link: follow_requests.Link, home: Home, place: str, *, is_cluster: bool) -> None:
        """Create the verbs without connecting."""
        self._link, self._home, self._is_cluster = link, home, is_cluster
        self._found = False
        self.place = place

    async def run(self, command: Command, /, **fields: Unpack[JobFields]) -> JobView:
        """Submit a command as a job that runs in this directory: a shell line, or words that are executed as is."""
        return await self.submit({**spec_of(fields), "run": command if isinstance(command, str) else list(command)})

    async def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> JobView:
        """Submit a job with `fields` over it, and return it once it is accepted; BadRequest has all errors.

        The request is sent again if necessary and still creates one job. Unreachable and TimedOut say so if it is
        unknown whether it did.
        """
        body = await self._submission(job, fields)
        return view(JobView, await self._made("/jobs", body, body["request_id"]))

    async def submit_all(self, file: JobFile, /, **fields: Unpack[JobFields]) -> Sequence[JobView]:
        """Submit a file of several jobs, which may depend on each other: all of them or, if one is invalid, none."""
        body = await self._submission(file, fields)
        response = await self._made("/batches", body, body["request_id"])
        return [view(JobView, job) for job in response["items"]]

    async def call(self, task: TaskFunction[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobView:
        """Submit a call of a function, with these arguments for every rank."""
        command = command_of(self._local_home(), task, args, kwargs)
        name = name_of_command([task.__ganger_task__.__name__])
        return await self.submit({"name": name, **task.fields, "run": command})

    async def dry_run(self, job: Submittable, /, **fields: Unpack[JobFields]) -> DryRun:
        """Return what would happen if the job were submitted now: where it would start, or why it would wait."""
        body = await self._submission(job, fields)
        response = await self._ask("POST", "/jobs?dryRun=plan", body, key=body["request_id"], timeout_s=SUBMIT_S)
        return view(DryRun, response)

    async def job(self, id: str) -> JobView:
        """Return a job with all its details."""
        return view(JobView, await self._ask("GET", f"/jobs/{quoted(id)}"))

    async def list(self, **filters: Unpack[ListFields]) -> AsyncGenerator[JobRow, None]:
        """Yield every job that matches all these fields, newest first, including jobs that ended long ago."""
        _check(filters, ListFields)
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            query = query_of({**filters, "all": True, "limit": PAGE, "cursor": page["next"] or None})
            page = await self._ask("GET", f"/jobs{query}")
            for row in page["items"]:
                yield view(JobRow, row)

    async def report(self, **filters: Unpack[ReportFields]) -> Totals:
        """Return where the time of jobs, and of the GPUs they held, went: of live and ended jobs."""
        _check(filters, ReportFields)
        return view(Totals, await self._ask("GET", f"/report{query_of(filters)}"))

    async def fit(self, **filters: Unpack[FitFields]) -> Sizes:
        """Return the largest jobs that would start now, for each GPU type and each topology level."""
        _check(filters, FitFields)
        return view(Sizes, await self._ask("GET", f"/fit{query_of(filters)}"))

    async def overview(self, *, sort: Order = "policy") -> Overview:
        """Return an overview: nodes, or domains if there are many, queues, and pending jobs."""
        return view(Overview, await self._ask("GET", f"/overview{query_of({'sort': sort})}"))

    async def logs(
        self, id: str, *, follow: bool = False, **filters: Unpack[LogFields]
    ) -> AsyncGenerator[LogLine, None]:
        """Yield lines that ranks wrote, in order of time.

        With `follow`, until the job has ended, across restarts of the server and attempts of the job. A reader may stop
        at any time without effect on the job.
        """
        _check(filters, LogFields)
        await self._link.connect()
        lines = follow_requests.log_lines(self._link, id, cast("Query", filters), follow=follow)
        async with aclosing(lines):
            async for line in lines:
                yield LogLine(line["t"], line["rank"], line["generation"], line["stream"], line["text"])

    async def wait(self, id: str, timeout_s: float | None = None) -> JobView:
        """Return the job as soon as it has ended, in any state.

        Raise TimedOut if that takes longer than `timeout_s`, and Unreachable if the server ends meanwhile and none
        replaces it: the job continues in both cases.
        """
        await self._link.connect()
        ended = await follow_requests.ended(self._link, id, timeout_s)
        if ended is None:
            raise timed_out(f"{id} has not ended within {timeout_s:g} s; it still runs", f"ganger get {id}")
        return view(JobView, ended)

    async def explain(self, id: str) -> Explanation:
        """Return why a job is pending, which jobs it waits for, its reserved start, and what would start it now."""
        return view(Explanation, await self._ask("GET", f"/jobs/{quoted(id)}/explain"))

    async def events(self, id: str, *, follow: bool = False) -> AsyncGenerator[EventRow, None]:
        """Yield the events of a job, oldest first; with `follow`, until it has ended."""
        job_id, seq = (await self.job(id)).row.id, 0
        element, newest = split_element_id(job_id), (await self._ask("GET", "/server"))["seq"]
        # An element that has not begun ends with its array, by an event that names only that.
        async with aclosing(
            follow_requests.events_or_idle(self._link, newest, element[0] if element else job_id)
        ) as news:
            is_over = False
            while not is_over:
                is_over = not follow or (await self.job(job_id)).row.state in ENDED
                async for event in self._events_after(job_id, seq):
                    yield event
                    seq = event.seq
                if not is_over:
                    await anext(news)

    async def metrics(self, id: str) -> MetricsView:
        """Return the metrics that the job has reported: last, lowest and highest value of each, and its curve."""
        return view(MetricsView, await self._ask("GET", f"/jobs/{quoted(id)}/metrics"))

    async def reports(self, id: str) -> AsyncGenerator[Report, None]:
        """Yield every report of rank 0, oldest first."""
        await self._link.connect()
        async with aclosing(self._link.lines(Request("GET", f"/jobs/{quoted(id)}/reports"))) as lines:
            async for line in lines:
                report = json.loads(line)
                yield Report(report["t"], report["generation"], report["rank"], report["step"], report["metrics"])

    async def stacks(self, id: str, attempt: int | None = None) -> Stacks:
        """Return the stacks of all ranks when a hang was detected: in the newest such attempt, or in `attempt`.

        Raise NotFound if there are none.
        """
        return view(Stacks, await self._ask("GET", f"/jobs/{quoted(id)}/stacks{query_of({'attempt': attempt})}"))

    async def stop(self, id: str, *, now: bool = False) -> JobView:
        """Stop a job, which may save its work first unless `now`, and return it."""
        return view(JobView, await self._ask("POST", f"/jobs/{quoted(id)}/stop{query_of({'now': now or None})}"))

    async def suspend(self, id: str) -> JobView:
        """Take a job off its nodes, or out of the queue, until it is resumed; it may save its work first."""
        return await self._change(id, suspended=True)

    async def resume(self, id: str) -> JobView:
        """Put a suspended job back into its queue."""
        return await self._change(id, suspended=False)

    async def priority(self, id: str, priority: int | Literal["low", "normal", "high"]) -> JobView:
        """Change the priority of a live job: low, normal, high, or from -1000 to 1000."""
        return await self._change(id, priority=PRIORITIES.get(str(priority), priority))

    async def scale(self, id: str, nodes: int | str) -> JobView:
        """Ask for a number of nodes of a live elastic job: 4, or "+1" or "-2" from what it has."""
        return await self._change(id, nodes=str(nodes))

    async def rollback(self, id: str, step: int) -> JobView:
        """Restart a live job from its newest checkpoint at or before `step`; newer ones are set aside."""
        return await self._change(id, rollback=step)

    async def retry(self, id: str, *, params: Mapping[str, str | int | float | bool] | None = None) -> JobView:
        """Run an ended job again, with the same code, and return the new job; `params`: other values of parameters."""
        values = {name: str(value) for name, value in (params or {}).items()}
        return await self._again(id, "retry", {"params": values} if values else None)

    async def clone(self, id: str, **fields: Unpack[JobFields]) -> JobView:
        """Create a new job from a live or ended one: its spec with `fields` over it, and the same code."""
        overrides = plain(spec_of(fields))
        return await self._again(id, "clone", {"overrides": overrides, "secrets": secret_values(overrides, os.environ)})

    async def delete(self, id: str, *, checkpoints: bool = False) -> None:
        """Remove an ended job from the listings, and its files from the disk.

        checkpoints: also those in its copy of the code, with which it is refused otherwise.
        """
        await self._ask("DELETE", f"/jobs/{quoted(id)}" + query_of({"checkpoints": checkpoints or None}))

    async def result(self, id: str, timeout_s: float | None = None) -> Any:
        """Wait for a job, and return what rank 0 of a task returned; None for a job that is a command.

        For an array, return a list with that of each element, by index. Raise the exception that ended a task,
        JobFailed if there is none; TimedOut if it takes longer than `timeout_s`.
        """
        job = await self.wait(id, timeout_s)
        results = [
            next((outcome.value for outcome in outcomes if outcome.rank == 0), None)
            for outcomes in await self._outcomes(job)
        ]
        return results[0] if job.row.elements is None else results

    async def results(self, id: str, timeout_s: float | None = None) -> Sequence[Any]:
        """Wait for the end, and return what every rank returned, in rank order; for an array, a list of these."""
        job = await self.wait(id, timeout_s)
        results = [[outcome.value for outcome in outcomes] for outcomes in await self._outcomes(job)]
        return results[0] if job.row.elements is None else results

    async def policy(self, version: int | None = None) -> PolicyView:
        """Return the policy document in force, or an earlier version of it; raise NotFound if that does not exist."""
        target = "/policy" if version is None else f"/policy/versions/{version}"
        return view(PolicyView, await self._ask("GET", target))

    async def policy_versions(self) -> Sequence[PolicyVersion]:
        """Return every stored version of the policy, the newest first: who set it, when, and what it changed."""
        return [view(PolicyVersion, version) for version in (await self._ask("GET", "/policy/versions"))["items"]]

    async def diff_policy(self, policy: Policy, /, against: int | None = None) -> PolicyTrial:
        """Return what a document would change in the policy in force or a version, and which jobs it would strand."""
        body = proposal(policy) | {"against": against}
        return view(PolicyTrial, await self._ask("POST", "/policy/diff", body))

    async def try_policy(self, policy: Policy, /) -> PolicyTrial:
        """Return what a document would change, also in the next scheduling cycle; nothing changes."""
        response = await self._ask("PUT", "/policy?dryRun=plan", proposal(policy), timeout_s=SUBMIT_S)
        return view(PolicyTrial, response)

    async def apply_policy(
        self, policy: Policy, /, *, note: str = "", force: bool = False, if_version: int | None = None
    ) -> PolicyView:
        """Put a complete document in force from the next scheduling cycle on.

        Raise Refused if it would strand live jobs, which the error names, and is not forced, or if another version than
        `if_version` is in force.
        """
        body = proposal(policy) | {"note": note, "force": force, "if_version": if_version}
        response = await self._ask("PUT", "/policy", body, timeout_s=SUBMIT_S)
        return view(PolicyView, response) if not self._is_cluster else await self.policy()

    # -- how --------------------------------------------------------------------------------------------------------

    async def _outcomes(self, job: JobView) -> Sequence[Sequence[Outcome]]:
        """Return the outcomes of a succeeded job, or of each element of a succeeded array; raise its failure otherwise.

        For an array, that is the failure of the first element that failed, or else of the first that was stopped.
        """
        rows = [job.row] if job.row.elements is None else [row async for row in self._elements(job.row.id)]
        bad = [row for row in rows if row.state != GangState.SUCCEEDED]
        if bad:
            row = min(bad, key=lambda row: row.state != GangState.FAILED)
            raise failure_of(await self.job(row.id), read_outcomes(self._local_home(), row.id, row.generation))
        return [read_outcomes(self._local_home(), row.id, row.generation) for row in rows]

    def _local_home(self) -> Home:
        """Return the state directory, which keeps arguments and results; raise Refused if it is on another machine.

        They are pickles: loading what another machine sends would run what its other users put there.
        """
        if self.place != str(self._home.path):
            detail = f"what a function takes and returns is kept on the server's machine, and that is {self.place}"
            raise Refused("local_only", detail, "submit a script, with code=...", REFUSED)
        return self._home

    async def _submission(self, job: Submittable, fields: JobFields) -> dict[str, Any]:
        """Return the request for a job as it is sent."""
        body = submission(job, spec_of(fields))
        await self._connect()
        return await self._link.bring(body)

    async def _connect(self) -> None:
        if not self._found:
            await self._link.connect()
            self._found = True

    async def _elements(self, id: str) -> AsyncGenerator[JobRow, None]:
        """Yield the elements of an array, by index."""
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
        await self._connect()
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


def _check(filters: Mapping[str, Any], fields: type) -> None:
    """Raise TypeError for names that are no fields: without it, an unknown filter would match everything."""
    if unknown := filters.keys() - fields.__annotations__.keys():
        known = ", ".join(fields.__annotations__)
        raise TypeError(f"unexpected keyword arguments {sorted(unknown)}; there are {known}")
