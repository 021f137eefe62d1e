"""Events of GangJobs, for `kubectl describe` and `kubectl get events`: scheduled, pending, preempted, restarted, ended.

There is one Event for each job and reason: it has the newest message and how often it came. So a job that fails and
starts for days, or a reason that comes and goes, writes little. Events are lost without harm: a failed write is logged
once and not repeated.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ganger.backends.kubernetes.foreign.foreign_gang import is_foreign_gang
from ganger.controller.jobs.conditions import time_of
from ganger.core.state.gang import Gang
from ganger.engine.query.event_text import failure_end_text, idle_text, stop_text
from ganger.gang_jobs.custom_resources import API_VERSION, PROGRAM
from ganger.gang_jobs.object_names import key_of, named_in
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import CustomObject, Key
from ganger.kubeapi.resources import EVENTS
from ganger.kubeapi.workqueue import WorkQueue
from ganger.model.decision import Cause, Start, Stop
from ganger.model.event import Decided, Event
from ganger.model.idle.idle_event import Idle, IdleStep
from ganger.model.job import ENDED, GangState
from ganger.model.pending_reason import CROWDED, ReasonCode
from ganger.model.views.service_views import JobRow

INTERVAL_S: Final = 10.0
"""Minimum time between two writes of one Event."""
WORKERS: Final = 4
"""Events written at once: they leave the API server to what matters."""
MAX_SERIES: Final = 10_000
"""Events that are remembered; those beyond begin to count again."""
MAX_MESSAGE_CHARACTERS: Final = 1_000
_STOPS: Final = {
    Cause.PREEMPTED: "Preempted",
    Cause.DRAINED: "Drained",
    Cause.NODE_PREEMPTED: "Drained",
    Cause.EVICTED: "Evicted",
    Cause.MOVED: "Moved",
    Cause.ROLLED_BACK: "RolledBack",
    Cause.DIVERGED: "Diverged",
    Cause.STALLED: "Stalled",
    Cause.IDLE_SUSPEND: "IdleSuspended",
    Cause.IDLE_STOP: "IdleStopped",
    Cause.SUSPENDED: "Suspended",
    Cause.RESIZED: "Resized",
    Cause.TIME_LIMIT: "TimeLimit",
    Cause.QUEUE_TIME: "TimeLimit",
}
"""Reasons of decided stops; other stops follow a failure or a request, which have events of their own."""
_ENDS: Final[Mapping[str, str]] = {state: state.capitalize() for state in ENDED}
_WARNINGS: Final = (
    "Preempted",
    "AttemptFailed",
    "TimeLimit",
    "Failed",
    "RolledBack",
    "Diverged",
    "Stalled",
    "IdleSuspended",
    "IdleStopped",
    "Idle",
)
_log = logging.getLogger(__name__)


class Notice(NamedTuple):
    """Something to tell of a job.

    gang: id of the job, or of an element of it.
    reason: a word in camel case, of a small set.
    message: one sentence.
    identity: what a repetition of the same has in common.
    """

    gang: str
    reason: str
    message: str
    identity: str


def decision_notices(event: Event) -> list[Notice]:
    """Return the notices of a plan: starts, and stops that were decided; and that of a warning."""
    if isinstance(event, Idle) and event.step is IdleStep.WARNED:
        return [_attempt_notice(event.gang, "Idle", event.generation, f"the job {idle_text(event)}")]
    notices = []
    for decision in event.plan.decisions if isinstance(event, Decided) else ():
        if isinstance(decision, Start):
            nodes = ", ".join(decision.nodes[:4]) + (f" and {len(decision.nodes) - 4} more" * (len(decision.nodes) > 4))
            notices.append(_attempt_notice(decision.gang, "Scheduled", decision.generation, f"starts on {nodes}"))
        elif isinstance(decision, Stop) and decision.cause in _STOPS:
            reason = _STOPS[decision.cause]
            notices.append(_attempt_notice(decision.gang, reason, decision.generation, object_stop_text(decision)))
    return notices


def variables_notice(start: Start, changes: Iterable[str]) -> Notice:
    """Return the notice of what a job's variables change of those of its network profile."""
    return _attempt_notice(start.gang, "NetworkVariables", start.generation, "; ".join(changes))


def object_stop_text(stop: Stop) -> str:
    """Return why a generation is stopped, for readers of its object."""
    if not stop.preemptor or is_foreign_gang(stop.gang):
        return stop_text(stop)
    return stop_text(replace(stop, preemptor=named_in(key_of(stop.gang).namespace, stop.preemptor)))


def failure_notice(gang: Gang) -> Notice | None:
    """Return the notice of the failure that ended the attempt of a gang; None where it was stopped before."""
    failure = gang.attempt.failure
    if failure is None or failure.cause in _STOPS or gang.attempt.stop_sent in _STOPS:
        return None
    return _attempt_notice(gang.id, "AttemptFailed", gang.attempt.generation, failure_end_text(gang))


def state_notice(row: JobRow, status: Mapping[str, Any]) -> Notice | None:
    """Return the notice of a job that ended, or that waits for a reason."""
    if (end := _ENDS.get(row.state)) is not None:
        return Notice(row.id, end, row.sentence, "")
    return pending_notice(row.id, status) if row.state == GangState.PENDING else None


def pending_notice(gang: str, status: Mapping[str, Any]) -> Notice | None:
    """Return the notice of a pending reason: a change of its sentence alone, such as a count, is none."""
    reason = status.get("reason")
    return Notice(gang, "Pending", status["message"], wait_kind(reason)) if reason else None


def wait_kind(reason: str) -> str:
    """Return what a pending reason has in common with those with which it alternates while jobs come and go."""
    return ReasonCode.NO_CAPACITY if reason in CROWDED else reason


def _attempt_notice(gang: str, reason: str, generation: int, text: str) -> Notice:
    message = f"attempt {generation}: {text}"
    return Notice(gang, reason, message, message)


@dataclass(slots=True)
class _Series:
    """Content of one Event: the newest notice, and how often it came."""

    notice: Notice
    first_ms: int
    last_ms: int
    count: int = 1
    written_s: float = -INTERVAL_S


class JobEvents:
    """Writes Events while `run` runs and this controller leads. `job_of` returns the GangJob of a key, if it exists."""

    def __init__(
        self, api: ApiClient, job_of: Callable[[Key], CustomObject | None], may_act: Callable[[], bool]
    ) -> None:
        self._api, self._job_of, self._may_act = api, job_of, may_act
        self._event_loop = asyncio.get_running_loop()
        self._series: OrderedDict[tuple[Key, str], _Series] = OrderedDict()
        self._queue = WorkQueue(self._write, WORKERS)
        self._has_failed = False

    async def run(self) -> None:
        """Write until cancelled."""
        await self._queue.run()

    def record(self, notices: Iterable[Notice], at_ms: int) -> None:
        """Have notices written; from any thread."""
        if items := tuple(notices):
            self._event_loop.call_soon_threadsafe(self._record, items, at_ms)

    def _record(self, notices: Iterable[Notice], at_ms: int) -> None:
        for notice in notices:
            if is_foreign_gang(notice.gang):
                continue
            key = key_of(notice.gang), notice.reason
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = _Series(notice, at_ms, at_ms)
            elif series.notice.identity == notice.identity:
                continue
            else:
                series.notice, series.last_ms, series.count = notice, at_ms, series.count + 1
                self._series.move_to_end(key)
            self._queue.add_after(key, max(0.0, series.written_s + INTERVAL_S - self._event_loop.time()))
        while len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    async def _write(self, key: tuple[Key, str]) -> None:
        series, job = self._series.get(key), self._job_of(key[0])
        if series is None or job is None or not self._may_act():
            return
        series.written_s = self._event_loop.time()
        try:
            await self._api.apply(EVENTS, _event(job, series))
        except ApiError as error:
            if not self._has_failed and not error.missing:  # its namespace may be ending
                _log.warning("events of GangJobs cannot be written, logged once: %s", error)
            self._has_failed = True


def _event(job: CustomObject, series: _Series) -> dict[str, Any]:
    about, notice = job.metadata, series.notice
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name}.{about.uid[:8]}.{notice.reason.lower()}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": "GangJob",
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        },
        "type": "Warning" if notice.reason in _WARNINGS else "Normal",
        "reason": notice.reason,
        "message": notice.message[:MAX_MESSAGE_CHARACTERS],
        "count": series.count,
        "firstTimestamp": time_of(series.first_ms),
        "lastTimestamp": time_of(series.last_ms),
        "source": {"component": PROGRAM.name},
        "reportingComponent": PROGRAM.name,
    }
