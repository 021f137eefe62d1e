"""Hooks as Jobs in the namespace of the controller: each is created once, and its end reported.

A Job is created when the node shows which repair it is for, so the next controller looks for it by its name, and what
it finds is that Job. One that was decided a day ago is not created any more. The time-out is the Job's own, so a hook
is ended by it while no controller runs.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from ganger.backends.kubernetes.repair.hook_job import (
    JOBS,
    MAX_DETAIL_CHARACTERS,
    HookJob,
    TemplateError,
    end_detail,
    has_succeeded,
    job_body,
    job_name,
    read_template,
)
from ganger.backends.kubernetes.repair.mark_writer import MarkWriter
from ganger.gang_jobs.object_names import NODE, REPAIR
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Condition, Key, Object
from ganger.kubeapi.resources import CONFIG_MAPS, PODS, ListOptions
from ganger.kubeapi.workqueue import WorkQueue
from ganger.model.node_health.health_event import RepairEnded
from ganger.ports import RepairCall, Report

_TOO_LATE: Final = "no controller ran for a day: the hook was not begun"
_FINAL: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
_log = logging.getLogger(__name__)


class HookJobs:
    """Runs hooks while `run` runs.

    Args:
        api: client of the API server.
        namespace: where the Jobs run.
        image: their default image.
        marks: the marks of nodes.
        may_act: returns whether this controller leads.
    """

    def __init__(
        self, api: ApiClient, namespace: str, image: str, marks: MarkWriter, may_act: Callable[[], bool]
    ) -> None:
        self._api, self._namespace, self._image = api, namespace, image
        self._marks, self._may_act = marks, may_act
        self._calls: dict[str, tuple[RepairCall, Report]] = {}
        """The newest hook of each node, until its end was reported."""
        self._queue = WorkQueue(self._reconcile)
        self._jobs = Informer(api, JOBS, self._job_changed, ListOptions(namespace=namespace, labels=REPAIR))
        marks.written = self._queue.add

    async def run(self) -> None:
        """Follow the Jobs, and create those that are called for, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._jobs.run())
            group.create_task(self._queue.run())

    def call(self, call: RepairCall, report: Report) -> None:
        """Have a hook run, unless it was run before; its end is reported. Returns at once."""
        self._calls[call.node] = call, report
        self._queue.add(call.node)

    def _job_changed(self, before: HookJob | None, after: HookJob | None) -> None:
        job = after or before
        node = job.metadata.annotations.get(NODE, "") if job is not None else ""
        if node not in self._calls:
            return
        call, _ = self._calls[node]
        if after is None and before is not None and before.metadata.name == job_name(call) and before.end is None:
            self._end(call, has_ended_well=False, detail=f"{call.step}: its Job {before.metadata.name} was deleted")
            return
        self._queue.add(node)

    async def _reconcile(self, node: str) -> None:
        """Create the Job of a node's newest hook, or report its end. Raises ApiError to be retried."""
        if node not in self._calls or not self._may_act():
            return
        call, _ = self._calls[node]
        await self._jobs.synced.wait()
        await self._end_others(call)
        job = self._jobs.objects.get(Key(self._namespace, job_name(call)))
        if job is not None and job.end is not None:
            await self._report_end(call, job, job.end)
        elif job is None and call.is_over:
            self._end(call, has_ended_well=False, detail=f"{call.step}: {_TOO_LATE}")
        elif job is None and self._marks.has_written(call):
            await self._begin(call)

    async def _begin(self, call: RepairCall) -> None:
        """Create a Job. Raises ApiError."""
        try:
            template = await self._template(call)
            await self._api.create(JOBS, job_body(call, self._namespace, self._image, template))
        except TemplateError as error:
            self._end(call, has_ended_well=False, detail=f"{call.step}: {error}")
        except ApiError as error:
            if error.conflict:
                return  # it exists, and is seen soon
            if error.status not in _FINAL:
                raise
            _log.warning("node %s: no Job for the hook %s: %s", call.node, call.step, error)
            self._end(call, has_ended_well=False, detail=f"{call.step}: {error}")

    async def _end_others(self, call: RepairCall) -> None:
        """Delete the Jobs of earlier hooks of the node that have not ended: two are not run at a time."""
        for key, job in list(self._jobs.objects.items()):
            is_other = key.name != job_name(call) and job.metadata.annotations.get(NODE) == call.node
            if is_other and job.end is None:
                await self._api.delete(JOBS, job.metadata)

    async def _template(self, call: RepairCall) -> Object | None:
        if call.template is None:
            return None
        try:
            return read_template(await self._api.get(CONFIG_MAPS, call.template, self._namespace))
        except ApiError as error:
            if not error.missing:
                raise
            raise TemplateError(f"there is no ConfigMap {call.template} in namespace {self._namespace}") from None

    async def _report_end(self, call: RepairCall, job: HookJob, end: Condition) -> None:
        is_success = has_succeeded(end)
        options = ListOptions(namespace=self._namespace, labels=f"batch.kubernetes.io/job-name={job.metadata.name}")
        pods = [] if is_success else await self._api.list(PODS, options)
        self._end(call, has_ended_well=is_success, detail=end_detail(call, end, pods))

    def _end(self, call: RepairCall, *, has_ended_well: bool, detail: str) -> None:
        """Report the end of a hook, if it is still the newest one of its node."""
        known = self._calls.get(call.node)
        if known is None or known[0] is not call:
            return
        _, report = self._calls.pop(call.node)
        detail = detail[:MAX_DETAIL_CHARACTERS]
        report(RepairEnded(node=call.node, repair=call.repair, has_succeeded=has_ended_well, detail=detail))
