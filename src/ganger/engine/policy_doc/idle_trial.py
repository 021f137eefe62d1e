"""Trial of new or changed rules for idle jobs on what is recorded of the last week.

The rules are those that apply to running jobs (`core.queues.idle_jobs`), on the samples that the agents keep. Nothing
is estimated: the notes say what is not recorded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ganger.core.queues.idle_jobs import rules_of_queue
from ganger.core.queues.idle_replay import IdleEnd, RecordedAttempt, replay_idle
from ganger.core.queues.quota import QueueTree
from ganger.core.state.gang import Gang
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.policy_doc.recorded_attempts import KINDS, LoggedAttempt, logged_attempts
from ganger.model.event import Stamped
from ganger.model.idle.idle_rules import STOP, IdleRules
from ganger.model.node_health.node_figures import GpuSamples
from ganger.model.shape import Shape
from ganger.model.units import DAY_MS, DEVICE_MILLI, HOUR_MS, format_duration
from ganger.model.views.policy_views import IdleJobTrial, IdleQueueTrial, IdleTrial
from ganger.model.views.service_views import JobRow
from ganger.ports import JobFilter

SPAN_MS: Final = 7 * DAY_MS
"""Length of the history that rules are tried on; there may be less."""
MAX_JOBS: Final = 100
"""Jobs that are listed; the others are counted."""
_PAGE: Final = 1_000
_WHOLE_GPU_HOURS: Final = 10
"""GPU-hours from which no fractions are shown."""
_NOT_RECORDED: Final = (
    "the history has the work of GPUs and checkpoints, and neither the CPU time of ranks nor sessions, which count as "
    "activity too: these are the most that the rules would have ended"
)

Rules = Mapping[str, IdleRules]
"""By queue: those that are new or changed."""
Work = Mapping[tuple[str, int], GpuSamples]
"""By node and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Record of the work of GPUs, as of one moment.

    work: samples of each device, and
    problem: why there are none, if so.
    are_devices_fixed: it is known of ended attempts too which GPUs they had; else only of those that go on.
    live: the gangs of live jobs, by id.
    is_foreign: returns whether a gang is of others; these are left alone.
    """

    now_ms: int
    log: EventLog
    work: Work
    problem: str
    are_devices_fixed: bool
    live: Mapping[str, Gang]
    is_foreign: Callable[[str], bool]

    @property
    def from_ms(self) -> int | None:
        """The time of the oldest sample, None without any."""
        return min((samples.times_ms[0] for samples in self.work.values()), default=None)


def changed_rules(before: QueueTree, after: QueueTree) -> Rules:
    """Return the rules of each queue that are new, or other than before."""
    found = {queue.name: rules_of_queue(after, queue.name) for queue in after.queues}
    known = {queue.name: rules_of_queue(before, queue.name) for queue in before.queues}
    return {name: rules for name, rules in found.items() if rules is not None and rules != known.get(name)}


def try_idle_rules(rules: Rules, history: History) -> IdleTrial:
    """Return the jobs that rules would have suspended or stopped, had they been in force without exemption."""
    jobs: list[IdleJobTrial] = []
    unmeasured = 0
    from_ms = history.from_ms
    if from_ms is not None:
        for row in _rows(history, rules, from_ms):
            attempts = list(_recorded(row, history))
            ends = [(attempt, end) for attempt, _ in attempts for end in replay_idle(attempt, rules[row.queue])]
            unmeasured += bool(attempts) and not any(gpu.times_ms for attempt, _ in attempts for gpu in attempt.gpus)
            if ends:
                gpu_milli = {attempt.generation: milli for attempt, milli in attempts}
                jobs.append(_job_trial(row, [(end, gpu_milli[attempt.generation]) for attempt, end in ends]))
    jobs.sort(key=lambda job: (-job.gpu_ms, job.job))
    queues = tuple(_queue_trial(queue, rules[queue], jobs, history) for queue in sorted(rules))
    return IdleTrial(
        from_ms=from_ms,
        until_ms=history.now_ms,
        queues=queues,
        jobs=tuple(jobs[:MAX_JOBS]),
        unmeasured=unmeasured,
        notes=tuple(_notes(history, rules, unmeasured, has_jobs=bool(jobs))),
    )


def _rows(history: History, rules: Rules, from_ms: int) -> Iterator[JobRow]:
    """Yield the jobs of queues with rules that ran for a window at least; elements of arrays are jobs here."""
    cursor: int | None = None
    while page := history.log.jobs(JobFilter(since_ms=from_ms), _PAGE, cursor):
        for _, _, data in page:
            row = JobRow(**data)
            if row.queue not in rules or history.is_foreign(row.id):
                continue
            for item in _elements(history.log, row) if row.elements is not None else (row,):
                ended_ms = history.now_ms if item.ended_ms is None else item.ended_ms
                if item.started_ms is not None and ended_ms - item.started_ms >= rules[row.queue].window_ms:
                    yield item
        cursor = page[-1][0]


def _elements(log: EventLog, array: JobRow) -> Iterator[JobRow]:
    after = -1
    while page := log.elements(array.id, (), after, _PAGE):
        yield from page
        after = page[-1].index or 0


def _recorded(row: JobRow, history: History) -> Iterator[tuple[RecordedAttempt, int]]:
    """Yield the attempts of a job that have GPUs, with what is recorded of these, and how many thousandths they are."""
    stored = history.log.job(row.id)
    if stored is None:
        return
    shape = stored[3].spec.shape
    for attempt in logged_attempts(row.id, _events(history.log, row.id), history.live.get(row.id)):
        used = dict.fromkeys((share.node, device) for share in attempt.start.shares for device in share.devices)
        is_known = history.are_devices_fixed or attempt.until_ms is None
        if used and attempt.running_ms is not None:
            recorded = RecordedAttempt(
                generation=attempt.start.generation,
                from_ms=attempt.running_ms,
                until_ms=history.now_ms if attempt.until_ms is None else attempt.until_ms,
                gpus=tuple(history.work.get(device, GpuSamples()) for device in used) if is_known else (),
                saves_ms=tuple(attempt.saves_ms),
            )
            yield recorded, _gpu_milli(attempt, shape)


def _events(log: EventLog, job: str) -> Iterator[Stamped]:
    after = 0
    while page := log.rows(after, job, _PAGE, KINDS):
        yield from page
        after = page[-1].seq


def _gpu_milli(attempt: LoggedAttempt, shape: Shape) -> int:
    return sum(shape.gpu_milli_of(share.part) for share in attempt.start.shares)


def _job_trial(row: JobRow, ends: list[tuple[IdleEnd, int]]) -> IdleJobTrial:
    return IdleJobTrial(
        job=row.id,
        user=row.user,
        queue=row.queue,
        at_ms=ends[0][0].at_ms,
        gpu_ms=sum((end.idle_until_ms - end.at_ms) * gpu_milli for end, gpu_milli in ends) // DEVICE_MILLI,
        is_active_again=any(end.is_active_again for end, _ in ends),
    )


def _queue_trial(queue: str, rules: IdleRules, jobs: list[IdleJobTrial], history: History) -> IdleQueueTrial:
    own = [job for job in jobs if job.queue == queue]
    gpu_ms, active_again = sum(job.gpu_ms for job in own), sum(job.is_active_again for job in own)
    return IdleQueueTrial(
        queue=queue,
        window_ms=rules.window_ms,
        action=rules.action,
        jobs=len(own),
        gpu_ms=gpu_ms,
        active_again=active_again,
        sentence=_queue_sentence(queue, rules, history, (len(own), gpu_ms, active_again)),
    )


def _queue_sentence(queue: str, rules: IdleRules, history: History, figures: tuple[int, int, int]) -> str:
    jobs, gpu_ms, active_again = figures
    from_ms, what = history.from_ms, "stopped" if rules.action == STOP else "suspended"
    if from_ms is None:
        return f"queue {queue}: nothing is known of the past: {history.problem}"
    length_ms = history.now_ms - from_ms
    if length_ms < rules.window_ms:
        window, length = format_duration(rules.window_ms), format_duration(length_ms)
        return f"queue {queue}: nothing can be said of a window of {window}: the history has the last {length}"
    if not jobs:
        return f"queue {queue}: would have {what} no job in the last {format_duration(length_ms)}"
    again = f"; {active_again} of them had work again later" if active_again else ""
    amount = f"{jobs} job{'s' * (jobs != 1)}, {_gpu_hours(gpu_ms)}"
    return f"queue {queue}: would have {what} at most {amount}, in the last {format_duration(length_ms)}{again}"


def _gpu_hours(gpu_ms: int) -> str:
    hours = gpu_ms / HOUR_MS
    return f"{hours:,.0f} GPU-hours" if hours >= _WHOLE_GPU_HOURS else f"{hours:.2f} GPU-hours"


def _notes(history: History, rules: Rules, unmeasured: int, *, has_jobs: bool) -> Iterator[str]:
    """Yield what the figures leave out."""
    if history.from_ms is None:
        yield "apply the rules with exempt_until some days ahead, and try them again when there is a history"
        return
    if has_jobs:
        yield _NOT_RECORDED
    if unmeasured:
        missing = "1 job: it is" if unmeasured == 1 else f"{unmeasured} jobs: they are"
        yield f"no GPU was measured of {missing} not counted"
    for queue, own in sorted(rules.items()):
        if own.exempt_until_ms is not None and own.exempt_until_ms > history.now_ms:
            left = format_duration(own.exempt_until_ms - history.now_ms)
            yield f"queue {queue} is exempt for another {left}: until then nothing happens to its jobs"
