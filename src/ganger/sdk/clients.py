"""The two clients: Client blocks, AsyncClient is awaited; their methods are the same, those of `verbs`.

Without arguments, a client is for the server that GANGER_SERVER names, or else for that of this user's state directory,
which it starts if there is none, as the command line does.
"""

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack

from ganger import settings
from ganger.client import Client as GangerClient
from ganger.client import open_client
from ganger.client.local.follow_requests import at_once, each_at_once
from ganger.model.views.overview import Order, Overview, Sizes
from ganger.model.views.policy_views import PolicyTrial, PolicyVersion, PolicyView
from ganger.model.views.service_views import DryRun, Totals
from ganger.sdk.job_fields import Command, JobFields
from ganger.sdk.job_handles import AsyncJob, Job
from ganger.sdk.sdk_types import JobFile
from ganger.sdk.submission import Policy
from ganger.sdk.task_command import TaskFunction
from ganger.sdk.verbs import FitFields, ListFields, ReportFields, Submittable, Verbs

P = ParamSpec("P")
R = TypeVar("R")


class Client:
    """Submits jobs, and finds existing ones. Thread-safe: every request uses a connection of its own.

    Attributes:
        home: The state directory; by default GANGER_HOME, else ~/.local/state/ganger.
        server: https://HOST:PORT of a server on another machine, after `ganger login`; by default GANGER_SERVER.
        context: Instead, the context of a kubeconfig: jobs are GangJobs of that Kubernetes cluster.
        namespace: That of the jobs in the cluster; by default that of the context.
    """

    def __init__(
        self,
        home: str | Path | None = None,
        *,
        server: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        """Create a client without connecting; raise Refused if there is no login for the server."""
        client = _opened(home, server, context, namespace)
        self._verbs = Verbs(client.link, client.home, client.place, is_cluster=context is not None)

    def run(self, command: Command, /, **fields: Unpack[JobFields]) -> Job[None]:
        """Submit a command as a job that runs in this directory: a shell line, or words that are executed as is."""
        return Job(self._verbs, at_once(self._verbs.run(command, **fields)).row)

    def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> Job[None]:
        """Submit a file read by `Job.load`, or a mapping with the keys of a job file; `fields` override its keys."""
        return Job(self._verbs, at_once(self._verbs.submit(job, **fields)).row)

    def submit_all(self, file: JobFile, /, **fields: Unpack[JobFields]) -> Sequence[Job[None]]:
        """Submit every job of a file read by `Job.load`, dependencies first; `fields` override keys of each.

        If one is invalid, none is submitted.
        """
        return [Job(self._verbs, job.row) for job in at_once(self._verbs.submit_all(file, **fields))]

    def call(self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a call of a function decorated with `@task`, with these arguments for every rank."""
        return Job(self._verbs, at_once(self._verbs.call(task, args, kwargs)).row)

    def dry_run(self, job: Submittable, /, **fields: Unpack[JobFields]) -> DryRun:
        """Return what would happen if the job were submitted now; nothing changes."""
        return at_once(self._verbs.dry_run(job, **fields))

    def job(self, id: str) -> Job[Any]:
        """Return a job by its id, or the newest job of that name; raise NotFound if there is none."""
        return Job(self._verbs, at_once(self._verbs.job(id)).row)

    def list(self, **filters: Unpack[ListFields]) -> Iterator[Job[Any]]:
        """Return every job that matches all these fields, newest first."""
        return (Job(self._verbs, row) for row in each_at_once(self._verbs.list(**filters)))

    def report(self, **filters: Unpack[ReportFields]) -> Totals:
        """Return where the time of jobs, and of the GPUs they held, went: of live and ended jobs."""
        return at_once(self._verbs.report(**filters))

    def fit(self, **filters: Unpack[FitFields]) -> Sizes:
        """Return the largest jobs that would start now, for each GPU type and each topology level."""
        return at_once(self._verbs.fit(**filters))

    def overview(self, *, sort: Order = "policy") -> Overview:
        """Return an overview: nodes, or domains if there are many, queues, and pending jobs in the order `sort`."""
        return at_once(self._verbs.overview(sort=sort))

    def policy(self, version: int | None = None) -> PolicyView:
        """Return the policy document in force, or an earlier version of it; raise NotFound if that does not exist."""
        return at_once(self._verbs.policy(version))

    def policy_versions(self) -> Sequence[PolicyVersion]:
        """Return every stored version of the policy, the newest first: who set it, when, and what it changed."""
        return at_once(self._verbs.policy_versions())

    def diff_policy(self, policy: Policy, /, against: int | None = None) -> PolicyTrial:
        """Return what a document would change, and which live jobs it would strand.

        Args:
            policy: YAML, the path of a file, a mapping, or the number of an earlier version.
            against: The version to compare with; by default the one in force.
        """
        return at_once(self._verbs.diff_policy(policy, against))

    def try_policy(self, policy: Policy, /) -> PolicyTrial:
        """Return what a document would change, also in the next scheduling cycle; nothing changes."""
        return at_once(self._verbs.try_policy(policy))

    def apply_policy(
        self, policy: Policy, /, *, note: str = "", force: bool = False, if_version: int | None = None
    ) -> PolicyView:
        """Put a complete document in force from the next scheduling cycle on.

        Raise Refused if it would strand live jobs, which the error names, and is not forced, or if another version than
        `if_version` is in force.
        """
        return at_once(self._verbs.apply_policy(policy, note=note, force=force, if_version=if_version))


class AsyncClient:
    """The same as Client for an asyncio event loop. Any number of its coroutines may run concurrently."""

    def __init__(
        self,
        home: str | Path | None = None,
        *,
        server: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        """Create a client without connecting; raise Refused if there is no login for the server."""
        from ganger.sdk.async_transport import AsynchronousLink, ThreadedLink

        client = _opened(home, server, context, namespace)
        link = AsynchronousLink(client) if context is None else ThreadedLink(client.link)
        self._verbs = Verbs(link, client.home, client.place, is_cluster=context is not None)

    async def run(self, command: Command, /, **fields: Unpack[JobFields]) -> AsyncJob[None]:
        """See Client.run."""
        return AsyncJob(self._verbs, (await self._verbs.run(command, **fields)).row)

    async def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> AsyncJob[None]:
        """See Client.submit."""
        return AsyncJob(self._verbs, (await self._verbs.submit(job, **fields)).row)

    async def submit_all(self, file: JobFile, /, **fields: Unpack[JobFields]) -> Sequence[AsyncJob[None]]:
        """See Client.submit_all."""
        return [AsyncJob(self._verbs, job.row) for job in await self._verbs.submit_all(file, **fields)]

    async def call(self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncJob[R]:
        """See Client.call."""
        return AsyncJob(self._verbs, (await self._verbs.call(task, args, kwargs)).row)

    async def dry_run(self, job: Submittable, /, **fields: Unpack[JobFields]) -> DryRun:
        """See Client.dry_run."""
        return await self._verbs.dry_run(job, **fields)

    async def job(self, id: str) -> AsyncJob[Any]:
        """See Client.job."""
        return AsyncJob(self._verbs, (await self._verbs.job(id)).row)

    async def list(self, **filters: Unpack[ListFields]) -> AsyncGenerator[AsyncJob[Any], None]:
        """See Client.list."""
        async with aclosing(self._verbs.list(**filters)) as rows:
            async for row in rows:
                yield AsyncJob(self._verbs, row)

    async def report(self, **filters: Unpack[ReportFields]) -> Totals:
        """See Client.report."""
        return await self._verbs.report(**filters)

    async def fit(self, **filters: Unpack[FitFields]) -> Sizes:
        """See Client.fit."""
        return await self._verbs.fit(**filters)

    async def overview(self, *, sort: Order = "policy") -> Overview:
        """See Client.overview."""
        return await self._verbs.overview(sort=sort)

    async def policy(self, version: int | None = None) -> PolicyView:
        """See Client.policy."""
        return await self._verbs.policy(version)

    async def policy_versions(self) -> Sequence[PolicyVersion]:
        """See Client.policy_versions."""
        return await self._verbs.policy_versions()

    async def diff_policy(self, policy: Policy, /, against: int | None = None) -> PolicyTrial:
        """See Client.diff_policy."""
        return await self._verbs.diff_policy(policy, against)

    async def try_policy(self, policy: Policy, /) -> PolicyTrial:
        """See Client.try_policy."""
        return await self._verbs.try_policy(policy)

    async def apply_policy(
        self, policy: Policy, /, *, note: str = "", force: bool = False, if_version: int | None = None
    ) -> PolicyView:
        """See Client.apply_policy."""
        return await self._verbs.apply_policy(policy, note=note, force=force, if_version=if_version)


def here() -> Client:
    """Return the client of this environment's server."""
    return _client(settings.home(os.environ).path, settings.server(os.environ))


@cache
def _client(home: Path, server: str | None) -> Client:
    return Client(home, server=server)


def _opened(home: str | Path | None, server: str | None, context: str | None, namespace: str | None) -> GangerClient:
    at_server = server or (settings.server(os.environ) if home is None else None)
    state = settings.home(os.environ) if home is None else settings.Home(Path(home).expanduser().absolute())
    return open_client(state, at_server, context=context, namespace=namespace)
