"""Followed objects: log lines of a job's pods, and changes of GangJobs as events.

Log lines are read on the thread of the reader, since the reader of pods' logs polls.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from ganger.client.client_errors import REFUSED, USAGE, ClientError, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.controller_requests import query_controller
from ganger.client.kubernetes.find_job import ENDED_STATE, FoundJob, find_job, find_job_with_pods
from ganger.client.kubernetes.job_detail import with_display_names
from ganger.client.kubernetes.job_row import row
from ganger.gang_jobs import object_names, pod_logs
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.gang_jobs.object_names import JOB, gang_of
from ganger.gang_jobs.pod_template import CONTAINER
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Bookmark, CustomObject, Deleted, Key, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS, ListOptions
from ganger.model.job import ENDED, split_element_id
from ganger.patterns import PatternError, pattern
from ganger.ports import LogQuery

Record = dict[str, Any]
Await = Callable[[Coroutine[Any, Any, Any]], Any]
"""Waits for a coroutine on the event loop of the requests, on another thread."""

EVENTS_INTERVAL_S: Final = 1.0
"""Interval at which the controller is asked for new events."""
WATCH_S: Final = 240.0
WATCH_READ_TIMEOUT_S: Final = 300.0


def log_lines(caller: Caller, name: str, query: Mapping[str, str], wait: Await) -> Iterator[Record]:
    """Yield lines that ranks wrote, as the REST interface does. Raises ApiError, ClientError and RequestError."""
    job: FoundJob = wait(find_job_with_pods(caller, name))
    pods, is_followed = _Pods(caller, job, wait), query.get("follow") == "true"
    pods.refresh()
    numbers = {key: int(query[key]) if key in query else None for key in ("attempt", "first", "since", "until", "tail")}
    if is_followed and numbers["attempt"] is None:  # an attempt that starts and ends between two looks is not skipped
        numbers["first"] = numbers["first"] or max(1, row(job.gang_job)["generation"])
    log_query = LogQuery(
        job=job.gang,
        ranks=_ranks(query.get("rank", "all")),
        everything=query.get("rank") == "all",
        role=query.get("role"),
        node=query.get("node"),
        generation=numbers["attempt"],
        first=numbers["first"],
        grep=query.get("grep"),
        since_ms=numbers["since"],
        until_ms=numbers["until"],
        tail=numbers["tail"],
    )
    if query.get("grep") is not None:
        _check_pattern(query["grep"])
    _check_pods(caller, job, numbers["attempt"], pods.known.values())
    if is_followed:
        lines = pod_logs.follow(pods.known, log_query, pods.fetch, pods.has_ended)
    else:
        lines = pod_logs.lines(pods.known, log_query, pods.fetch)
    for line in lines:
        if line is not None:
            yield {
                "t": line.at_ms,
                "rank": line.rank,
                "generation": line.generation,
                "stream": line.stream,
                "text": line.text,
            }


async def events(caller: Caller, after: int, gang: str | None) -> AsyncGenerator[Record | None]:
    """Yield events after `after` as they happen: the controller's, or changes of objects if it does not answer.

    None when the controller has no new ones for a moment.
    """
    try:
        page = await event_page(caller, {"after": str(after)}, gang)
    except ClientError:
        async with aclosing(_changes(caller, after, gang)) as changes:
            async for change in changes:
                yield change
        return
    while True:
        for event in page["items"]:
            after = event["seq"]
            yield event
        if page["next"] is None:
            await asyncio.sleep(EVENTS_INTERVAL_S)
            yield None
        page = await event_page(caller, {"after": str(after)}, gang)


async def event_page(caller: Caller, query: Mapping[str, str], gang: str | None) -> Record:
    """Return a page of the controller's events, of one job or of all. Raises ApiError and ClientError."""
    of_job = {} if gang is None else {"gang": gang_of(gang, caller.namespace)}
    page = json.loads(await query_controller(caller, "GET", f"/events?{urlencode({**query, **of_job})}"))
    return with_display_names(page, caller.namespace)


async def _changes(caller: Caller, seq: int, gang: str | None) -> AsyncGenerator[Record]:
    """Yield an event for each GangJob as it is now, and for each change of one. Raises ApiError."""
    element = split_element_id(gang) if gang is not None else None
    name = element[0] if element else gang
    options = ListOptions(caller.namespace, fields=f"metadata.name={name}" if name is not None else "")
    known: dict[str, str] = {}
    while True:
        version = ""
        async with aclosing(caller.api.pages(GANG_JOBS, options)) as pages:
            async for page in pages:
                version = page.metadata.resource_version
                for job in page.items or ():
                    if known.get(job.metadata.name) != job.metadata.resource_version:
                        known[job.metadata.name] = job.metadata.resource_version
                        seq += 1
                        yield _event(job, seq)
        watch = caller.api.watch(GANG_JOBS, options, version, timeout_s=WATCH_S, read_timeout_s=WATCH_READ_TIMEOUT_S)
        try:
            async with aclosing(watch) as changes:
                async for change in changes:
                    if not isinstance(change, Bookmark | Deleted):
                        known[change.object.metadata.name] = change.object.metadata.resource_version
                        seq += 1
                        yield _event(change.object, seq)
        except ApiError as error:
            if not (error.expired or error.is_retryable):
                raise
            await asyncio.sleep(EVENTS_INTERVAL_S)


def _event(job: CustomObject, seq: int) -> Record:
    job_row = row(job)
    sentence = f"{job_row['id']} is {job_row['state']}" + (f": {job_row['sentence']}" if job_row["sentence"] else "")
    at_ms = job_row["ended_ms"] or job_row["started_ms"] or job_row["submitted_ms"]
    return {"seq": seq, "at_ms": at_ms, "kind": "changed", "job": job_row["id"], "sentence": sentence, "data": {}}


class _Pods:
    """Pods of a job, for a reader on another thread than the event loop's."""

    def __init__(self, caller: Caller, job: FoundJob, wait: Await) -> None:
        self._caller, self._api, self._job, self._wait = caller, caller.api, job, wait
        self.known: dict[Key, Pod] = {}

    def refresh(self) -> None:
        """Find new pods."""
        metadata = self._job.gang_job.metadata
        options = ListOptions(metadata.namespace, labels=f"{JOB}={metadata.name}")
        self.known |= {pod.metadata.key: pod for pod in self._wait(self._api.list(PODS, options))}

    def has_ended(self) -> bool:
        """Return whether the job or element has ended, after looking for new pods."""
        job = self._wait(find_job(self._caller, self._job.text))
        self.refresh()
        return job.state in (*ENDED, ENDED_STATE)

    def fetch(self, pod: Key, since: str) -> str:
        """Return the log of a pod, for `pod_logs`."""
        query = {"container": CONTAINER, "timestamps": "true"} | ({"sinceTime": since} if since else {})
        try:
            text: str = self._wait(self._api.text(ObjectRef(PODS, pod.namespace, pod.name, "log"), query))
        except ApiError as error:
            if error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                return ""  # its container has not started yet, or is gone
            raise pod_logs.LogUnavailableError(str(error)) from None
        return text


def _check_pods(caller: Caller, job: FoundJob, attempt: int | None, pods: Iterable[Pod]) -> None:
    """Raise ClientError (logs_gone) when no pod is left of what has run: that it wrote nothing is another answer."""
    generation = row(job.gang_job)["generation"]
    asked = attempt or generation
    if job.index is not None or not asked or (asked == generation and job.state not in ENDED):
        return  # its pods may be about to be created
    marks = [mark for pod in pods if (mark := object_names.mark(pod)) is not None and mark.gang == job.gang]
    if not any(attempt in (None, mark.generation) for mark in marks):
        detail = f"no pod is left of attempt {asked} of {job.text}, and the logs of a pod are in it"
        raise client_error("logs_gone", detail, caller.typed("get", job.text), REFUSED)


def _check_pattern(text: str) -> None:
    try:
        pattern(text)
    except PatternError as error:
        raise client_error("bad_pattern", f"--grep: {error}", "ganger logs --help", USAGE) from None


def _ranks(text: str) -> tuple[int, ...] | None:
    """Return the ranks of `0,3-5,last`, -1 for the last; None for `all`."""
    if text == "all":
        return None
    ranks = [-1] if "last" in text else []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)
