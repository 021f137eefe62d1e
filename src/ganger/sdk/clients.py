"""The two clients: Client blocks, AsyncClient is awaited; they have the same methods, which `verbs` has.

Made without a word, a client is for the server of this user's state directory, and starts one where there is none, as
a command does.
"""

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack

from ganger import settings
from ganger.client import Client as LocalClient
from ganger.client.local.blocking_transport import BlockingLink
from ganger.client.local.follow_requests import at_once, each_at_once
from ganger.model.views.overview import Order, Overview, Sizes
from ganger.model.views.service_views import DryRun, PolicyTrial, PolicyVersion, PolicyView, Totals
from ganger.sdk.job_fields import Command, JobFields
from ganger.sdk.job_handles import AsyncJob, Job
from ganger.sdk.sdk_types import JobFile
from ganger.sdk.submission import Policy
from ganger.sdk.task_command import TaskFunction
from ganger.sdk.verbs import FitFields, ListFields, ReportFields, Submittable, Verbs

P = ParamSpec("P")
R = TypeVar("R")


class Client:
    """Runs jobs, and finds those there are. Every request is a connection of its own: safe from any thread.

    home: the state directory; else GANGER_HOME, else ~/.local/state/ganger.
    """

    def __init__(self, home: str | Path | None = None) -> None:
        """Reach for nothing yet."""
        finder = LocalClient(_home(home))
        self._verbs = Verbs(BlockingLink(finder), finder.home)

    def run(self, command: Command, /, **fields: Unpack[JobFields]) -> Job[None]:
        """Submit a command as a job: a shell line, or words that run as they are; it runs in this directory."""
        return Job(self._verbs, at_once(self._verbs.run(command, **fields)).row)

    def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> Job[None]:
        """Submit a file that `Job.load` read, or a mapping with the keys of a job file; `fields` go over it."""
        return Job(self._verbs, at_once(self._verbs.submit(job, **fields)).row)

    def submit_all(self, file: JobFile, /, **fields: Unpack[JobFields]) -> Sequence[Job[None]]:
        """Submit every job of a file that `Job.load` read, those that others come after first; `fields` go over each.
        When something is wrong with one, none is submitted."""
        return [Job(self._verbs, job.row) for job in at_once(self._verbs.submit_all(file, **fields))]

    def call(self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a call of a function that `@task` made a task, with these arguments for every rank."""
        return Job(self._verbs, at_once(self._verbs.call(task, args, kwargs)).row)

    def dry_run(self, job: Submittable, /, **fields: Unpack[JobFields]) -> DryRun:
        """What would happen if the job were submitted now; nothing changes."""
        return at_once(self._verbs.dry_run(job, **fields))

    def job(self, id: str) -> Job[Any]:
        """A job by its id, or the newest job of that name. NotFound when there is none."""
        return Job(self._verbs, at_once(self._verbs.job(id)).row)

    def list(self, **wanted: Unpack[ListFields]) -> Iterator[Job[Any]]:
        """Every job for which all holds that is wanted, newest first."""
        return (Job(self._verbs, row) for row in each_at_once(self._verbs.list(**wanted)))

    def report(self, **wanted: Unpack[ReportFields]) -> Totals:
        """Where the time of jobs went, and that of the GPUs they held: of all that live or have ended."""
        return at_once(self._verbs.report(**wanted))

    def fit(self, **wanted: Unpack[FitFields]) -> Sizes:
        """The largest jobs that would start now, for each type of GPU and each level of the network."""
        return at_once(self._verbs.fit(**wanted))

    def overview(self, *, sort: Order = "turn") -> Overview:
        """The cluster and the queue at one glance: nodes, or domains where there are many, queues, and who is next:
        those who wait by `sort`."""
        return at_once(self._verbs.overview(sort=sort))

    def policy(self, version: int | None = None) -> PolicyView:
        """The policy document in force, or an earlier version of it. NotFound when that is not there."""
        return at_once(self._verbs.policy(version))

    def policy_versions(self) -> Sequence[PolicyVersion]:
        """Every version of the policy that is kept, the newest first: who made it, when, and what it changed."""
        return at_once(self._verbs.policy_versions())

    def diff_policy(self, policy: Policy, /, against: int | None = None) -> PolicyTrial:
        """What a document would change, and which live jobs it would strand. `policy`: YAML, the path of a file, a
        mapping, or the number of an earlier version; compared with the one in force, or with version `against`."""
        return at_once(self._verbs.diff_policy(policy, against))

    def try_policy(self, policy: Policy, /) -> PolicyTrial:
        """The same, and what the next round would do differently; nothing changes."""
        return at_once(self._verbs.try_policy(policy))

    def apply_policy(
        self, policy: Policy, /, *, note: str = "", force: bool = False, if_version: int | None = None
    ) -> PolicyView:
        """Put a document in force, whole, from the next round on. Refused, with their names, when it would strand live
        jobs and is not forced, or when another version than `if_version` is in force."""
        return at_once(self._verbs.apply_policy(policy, note=note, force=force, if_version=if_version))


class AsyncClient:
    """As Client, on an event loop of asyncio. Any number of its coroutines may run at once."""

    def __init__(self, home: str | Path | None = None) -> None:
        """Reach for nothing yet."""
        from ganger.sdk.async_transport import AsynchronousLink

        finder = LocalClient(_home(home))
        self._verbs = Verbs(AsynchronousLink(finder), finder.home)

    async def run(self, command: Command, /, **fields: Unpack[JobFields]) -> AsyncJob[None]:
        """As Client.run."""
        return AsyncJob(self._verbs, (await self._verbs.run(command, **fields)).row)

    async def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> AsyncJob[None]:
        """As Client.submit."""
        return AsyncJob(self._verbs, (await self._verbs.submit(job, **fields)).row)

    async def submit_all(self, file: JobFile, /, **fields: Unpack[JobFields]) -> Sequence[AsyncJob[None]]:
        """As Client.submit_all."""
        return [AsyncJob(self._verbs, job.row) for job in await self._verbs.submit_all(file, **fields)]

    async def call(self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncJob[R]:
        """As Client.call."""
        return AsyncJob(self._verbs, (await self._verbs.call(task, args, kwargs)).row)

    async def dry_run(self, job: Submittable, /, **fields: Unpack[JobFields]) -> DryRun:
        """As Client.dry_run."""
        return await self._verbs.dry_run(job, **fields)

    async def job(self, id: str) -> AsyncJob[Any]:
        """As Client.job."""
        return AsyncJob(self._verbs, (await self._verbs.job(id)).row)

    async def list(self, **wanted: Unpack[ListFields]) -> AsyncGenerator[AsyncJob[Any], None]:
        """As Client.list."""
        async with aclosing(self._verbs.list(**wanted)) as rows:
            async for row in rows:
                yield AsyncJob(self._verbs, row)

    async def report(self, **wanted: Unpack[ReportFields]) -> Totals:
        """As Client.report."""
        return await self._verbs.report(**wanted)

    async def fit(self, **wanted: Unpack[FitFields]) -> Sizes:
        """As Client.fit."""
        return await self._verbs.fit(**wanted)

    async def overview(self, *, sort: Order = "turn") -> Overview:
        """As Client.overview."""
        return await self._verbs.overview(sort=sort)

    async def policy(self, version: int | None = None) -> PolicyView:
        """As Client.policy."""
        return await self._verbs.policy(version)

    async def policy_versions(self) -> Sequence[PolicyVersion]:
        """As Client.policy_versions."""
        return await self._verbs.policy_versions()

    async def diff_policy(self, policy: Policy, /, against: int | None = None) -> PolicyTrial:
        """As Client.diff_policy."""
        return await self._verbs.diff_policy(policy, against)

    async def try_policy(self, policy: Policy, /) -> PolicyTrial:
        """As Client.try_policy."""
        return await self._verbs.try_policy(policy)

    async def apply_policy(
        self, policy: Policy, /, *, note: str = "", force: bool = False, if_version: int | None = None
    ) -> PolicyView:
        """As Client.apply_policy."""
        return await self._verbs.apply_policy(policy, note=note, force=force, if_version=if_version)


def here() -> Client:
    """The client of this environment's state directory."""
    return _client(_home(None).path)


@cache
def _client(home: Path) -> Client:
    return Client(home)


def _home(home: str | Path | None) -> settings.Home:
    return settings.home(os.environ) if home is None else settings.Home(Path(home).expanduser().absolute())
