"""Hang detection: combines the stall reports of a gang's launchers, and fails a gang that makes no progress.

The failure names the rank that holds it up, and is reported after stacks were taken on all nodes. Everything here runs
on the event loop.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ganger.launcher_server.generation_state import Generation, StackRequest
from ganger.launcher_server.health.hang_suspect import find_suspect
from ganger.launcher_server.health.stack_samples import StackSamples
from ganger.launcher_server.health.stall_messages import (
    RankDetail,
    StallReport,
    StoppedRank,
    details,
    merge_pauses,
)
from ganger.launcher_server.rank_records import Records
from ganger.model.decision import Cause
from ganger.model.event import Failed, Quiet, Slow
from ganger.model.units import format_duration

STACKS_TIMEOUT_S: Final = 1.5
UNKNOWN_CODE: Final = 1
HANG_TIME_MS: Final = 600_000
"""Time after which idle ranks hang: also the time-out of NCCL's operations."""
SAMPLE_S: Final = 60.0
MIN_SAMPLE_S: Final = 5.0
"""Also the time between the first two samples of ranks that make no step: launchers report so much earlier
(`launcher.health.hang_detection.CONFIRM_S`)."""
SAMPLES_OF_HANG: Final = 4
IDLE_SLACK_MS: Final = 1_000
"""A rank is known to be idle so much later than it is, beyond the time between two scans of its processes."""
PLACES_MS: Final = 300_000
"""Silence of the log after which it is reported that one rank stands elsewhere than the others."""
SAME_SILENCE_MS: Final = 5_000

ADVICE: Final = (
    '; if it was at work: declare that in the script, with ganger.train.phase("eval"):, or set a longer'
    " limits: {hang_time: 1h}"
)

RequestStacks = Callable[[str, str, dict[str, Any]], None]
"""Sends `take_stacks` with these fields to the launcher of a gang on a node, if connected."""
ReportFailure = Callable[[Generation, Failed], None]
ReportQuiet = Callable[[Quiet], None]

_KINDS: Final = {
    "stopped": "has been stopped (state T: something sent it a SIGSTOP)",
    "blocked": "has been blocked in the kernel (state D: a disk, a file server or a driver does not answer)",
    "dead": "is dead, but the processes that it was started with still live",
}


class HangDetector:
    """Judges the stall reports.

    `report_failure` is called with the failure of a generation that hangs, `report_quiet` with each unusual silence.
    """

    def __init__(
        self,
        records: Records,
        loop: asyncio.AbstractEventLoop,
        request_stacks: RequestStacks,
        report_failure: ReportFailure,
        report_quiet: ReportQuiet,
    ) -> None:
        self._records = records
        self._loop = loop
        self._request_stacks = request_stacks
        self._report_failure = report_failure
        self._report_quiet = report_quiet

    def stall_reported(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Handle a launcher's stall report.

        Launchers identify ranks by environment variables, which a job may set to ranks that it does not have: those are
        ignored, here and below.
        """
        report = generation.stall_reports[node] = StallReport.from_message(message, generation.ranks)
        generation.pauses = merge_pauses(generation.pauses, report.pauses)
        self._judge(generation)
        self._follow_samples(generation)
        quiet = _quiet_since(generation)
        if quiet is not None:
            self._tell_quiet(generation, *quiet)

    def stacks_received(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Handle the stacks that a launcher has taken."""
        request = generation.stack_request
        if request is not None and node in request.awaited:
            request.details += details(message, node, generation.ranks)
            request.awaited.discard(node)
            if not request.awaited:
                self._conclude(generation)

    def steps_made(self, generation: Generation, node: str, message: dict[str, Any]) -> list[Slow]:
        """Handle the step times and work of a node's ranks; return the ranks found slow, each once."""
        self._judge(generation)
        now_s = self._loop.time()
        ranks = generation.ranks
        step_times_ms, busy_shares = (
            {rank: value for rank, value in message[name].items() if int(rank) in ranks}
            for name in ("step_times_ms", "busy_shares")
        )
        generation.paces.add_report(node, step_times_ms, busy_shares, now_s)
        return generation.paces.find_slow(generation.start, now_s)

    def _judge(self, generation: Generation) -> None:
        if not _can_judge(generation) or generation.stack_request is not None:
            return
        if _has_lost_ranks(generation):
            self._report_failure(generation, self._ranks_lost(generation))
        elif _stopped_ranks(generation):
            self._ask_all_nodes(generation)

    def _follow_samples(self, generation: Generation) -> None:
        """Sample the stacks while a gang makes no step, or reports none and writes nothing."""
        can_judge, samples = _can_judge(generation), generation.stack_samples
        silent_ms = _silent_ms(generation) if can_judge else None
        is_sampled = silent_ms is not None or (can_judge and _unwritten_ms(generation) is not None)
        is_of_steps = samples is not None and samples.silent_ms is not None
        if is_sampled == (samples is not None) and is_of_steps == (silent_ms is not None):
            return
        if generation.judgement_timer is not None:
            generation.judgement_timer.cancel()
            generation.judgement_timer = None
        generation.stack_samples = StackSamples(silent_ms, int(time.time() * 1000)) if is_sampled else None
        if is_sampled and silent_ms is not None:
            self._take_sample(generation)
        elif is_sampled:
            self._sample_in(_sample_s(generation), generation)

    def _sample_in(self, delay_s: float, generation: Generation) -> None:
        generation.judgement_timer = self._loop.call_later(delay_s, self._take_sample, generation)

    def _take_sample(self, generation: Generation) -> None:
        """Take a sample of the stacks, and the next one after a while."""
        generation.judgement_timer = None
        if generation.stack_samples is not None and _can_judge(generation):
            if generation.stack_request is None:
                self._ask_all_nodes(generation)
            self._sample_in(_sample_s(generation), generation)

    def _ask_all_nodes(self, generation: Generation) -> None:
        """Have every node write its stacks: no rank is killed before that."""
        awaited = set(generation.remaining)
        timer = self._loop.call_later(STACKS_TIMEOUT_S, self._conclude, generation)
        generation.stack_request = StackRequest(awaited=awaited, timer=timer)
        self._request_stacks_of(generation, list(generation.remaining))

    def _request_stacks_of(self, generation: Generation, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._request_stacks(generation.gang, node, {"generation": generation.number, "py_spy": _py_spy()})

    def _conclude(self, generation: Generation) -> None:
        """Report the hang: all nodes have answered, or the time is over."""
        request, generation.stack_request = generation.stack_request, None
        if request is None:
            return
        request.timer.cancel()
        if not _can_judge(generation):
            return
        stopped = _stopped_ranks(generation)
        if stopped:
            self._report_failure(generation, self._rank_hangs(generation, *stopped[0], request.details))
        elif generation.stack_samples is not None and not request.awaited:
            self._sampled(generation, generation.stack_samples, request.details)

    def _sampled(self, generation: Generation, samples: StackSamples, ranks: Sequence[RankDetail]) -> None:
        """Report a hang that the samples prove, else where the ranks stand, once for each silence."""
        at_ms, hang_time_ms = int(time.time() * 1000), _hang_time_ms(generation)
        samples.add(ranks, self._records.main_frames(generation.gang, generation.number), at_ms)
        quiet_ms = _unwritten_ms(generation) if samples.silent_ms is None else samples.silent_ms
        if hang := _hang_of(samples, generation.job.spec.limits.hang_time_ms, at_ms):
            self._report_failure(generation, self._no_progress(generation, *hang, ranks))
        elif (
            quiet_ms is not None
            and at_ms - quiet_ms >= min(PLACES_MS, hang_time_ms or PLACES_MS)
            and samples.places(at_ms)
        ):
            self._tell_quiet(generation, quiet_ms, None)

    def _tell_quiet(self, generation: Generation, since_ms: int, usual_ms: int | None) -> None:
        """Report that the gang is unusually quiet, unless that is reported; have stacks taken then."""
        is_known = generation.quiet_since_ms is not None and since_ms <= generation.quiet_since_ms + SAME_SILENCE_MS
        if is_known or not _can_judge(generation):
            return
        generation.quiet_since_ms = since_ms
        if generation.stack_request is None:
            self._request_stacks_of(generation, list(generation.remaining))
        at_ms, samples = int(time.time() * 1000), generation.stack_samples
        self._report_quiet(
            Quiet(
                gang=generation.gang,
                generation=generation.number,
                quiet_ms=max(1000, (at_ms - since_ms) // 1000 * 1000),
                usual_ms=usual_ms,
                places="" if samples is None else samples.places(at_ms),
            )
        )

    def _rank_hangs(
        self, generation: Generation, node: str, stopped: StoppedRank, ranks: Sequence[RankDetail]
    ) -> Failed:
        step = next((rank.step for rank in ranks if rank.rank == stopped.rank), None)
        after = "" if step is None else f", after step {step}"
        state, duration = _KINDS[stopped.kind], _duration_since(stopped.since_ms)
        detail = f"rank {stopped.rank} on {node} {state} for {duration}{after}"
        return self._hung(generation, stopped.rank, node, detail, stopped.since_ms)

    def _no_progress(self, generation: Generation, detail: str, since_ms: int, ranks: Sequence[RankDetail]) -> Failed:
        main_frames = self._records.main_frames(generation.gang, generation.number)
        advice = "" if generation.stack_samples is None or generation.stack_samples.silent_ms is None else ADVICE
        suspect = find_suspect(sorted(ranks, key=lambda rank: rank.rank), main_frames, len(generation.ranks))
        if suspect is None:
            failed = self._hung(generation, None, generation.start.nodes[0], detail, since_ms)
        else:
            rank, node = suspect.detail.rank, suspect.detail.node
            failed = self._hung(generation, rank, node, f"{detail}; rank {rank} on {node} {suspect.reason}", since_ms)
        return replace(failed, detail=f"{failed.detail}{advice}")

    def _hung(self, generation: Generation, rank: int | None, node: str, detail: str, since_ms: int) -> Failed:
        command = f"ganger logs {generation.gang} --stacks --attempt {generation.number}"
        return Failed(
            gang=generation.gang,
            generation=generation.number,
            node=node,
            cause=Cause.HUNG,
            rank=rank,
            detail=f"{detail}; {command} shows where every rank was",
            tail=() if rank is None else self._last_lines(generation, node, rank),
            since_ms=since_ms,
        )

    def _ranks_lost(self, generation: Generation) -> Failed:
        node = next(share.node for share in generation.start.shares if 0 in share.ranks)
        reports = generation.stall_reports.values()
        since = [report.ranks_lost_since_ms for report in reports if report.ranks_lost_since_ms is not None]
        return Failed(
            gang=generation.gang,
            generation=generation.number,
            node=node,
            cause=Cause.RANK_FAILED,
            rank=0,
            exit_code=UNKNOWN_CODE,
            detail=f"all processes that rank 0 on {node} had started are gone, but it has not ended; how they ended is "
            "unknown",
            tail=self._last_lines(generation, node, 0),
            since_ms=max(since),
        )

    def _last_lines(self, generation: Generation, node: str, rank: int) -> tuple[str, ...]:
        return self._records.last_lines(generation.gang, node, generation.number, rank)


def _can_judge(generation: Generation) -> bool:
    """Return True if the generation is running, as far as is known, and every node has sent a stall report."""
    is_known = all(node in generation.stall_reports for node in generation.remaining)
    return is_known and bool(generation.remaining) and generation.stopping is None and not generation.failed


def _has_lost_ranks(generation: Generation) -> bool:
    """Return True if nothing is left of what ran on any node, though some of what started it lives."""
    reports = [report for report in generation.stall_reports.values() if report.has_run]
    return bool(reports) and all(report.ranks_lost_since_ms is not None for report in reports)


def _stopped_ranks(generation: Generation) -> list[tuple[str, StoppedRank]]:
    """Return the ranks that stopped by themselves, the first one first.

    A SIGSTOP is somebody's wish, so it ends no job that is never to be ended as a hang.
    """
    is_never_hung = generation.job.spec.limits.hang_time_ms == 0
    stopped = [
        (node, rank)
        for node in generation.remaining
        for rank in generation.stall_reports[node].stopped_ranks
        if (rank.kind == "stopped" and not is_never_hung)
        or (rank.kind != "stopped" and (rank.is_known or generation.steps))  # without a step it may still be starting
    ]
    return sorted(stopped, key=lambda entry: (entry[1].since_ms, entry[1].rank))


def _silent_ms(generation: Generation) -> int | None:
    """Return since when all ranks that report steps are silent, or None."""
    reports = (generation.stall_reports[node] for node in generation.remaining)
    since = [report.silent_since_ms for report in reports if report.has_reports]
    known = [at_ms for at_ms in since if at_ms is not None]
    return max(known) if known and len(known) == len(since) else None


def _unwritten_ms(generation: Generation) -> int | None:
    """Return since when no rank has written anything, of several ranks that report nothing; else None."""
    reports = [generation.stall_reports[node] for node in generation.remaining]
    known = [report.unwritten_since_ms for report in reports if report.unwritten_since_ms is not None]
    return max(known) if len(known) == len(reports) and len(generation.ranks) > 1 else None


def _hang_of(samples: StackSamples, hang_time_ms: int | None, at_ms: int) -> tuple[str, int] | None:
    """Return how and since when the gang hangs by the samples, or None. `hang_time_ms` is the job's own, 0 for never.

    An evaluation, a save, a download or a compilation looks like a hang to all but the ranks themselves. So without a
    time that the user has set, only idle ranks hang, which neither work nor write: after 10 minutes, and as soon as
    they have made no step for as long as their launchers accept, if a rank waits for them in a collective operation. A
    time of the user counts by itself, for steps are all that tells a dead loop.
    """
    stands_since_ms, silent_ms = samples.hangs_since_ms(at_ms), samples.silent_ms
    if hang_time_ms == 0 or (silent_ms is not None and samples.count < 2):
        return None
    waiting = "" if stands_since_ms is None else f"{samples.waiting_text()}, and no rank does anything else"
    if silent_ms is None:
        if stands_since_ms is None or at_ms - stands_since_ms < (hang_time_ms or HANG_TIME_MS):
            return None
        detail = f"{samples.waiting_text()} since {_duration_since(stands_since_ms)}, and no rank does anything else"
        return f"{detail} (limits.hang_time)", stands_since_ms
    detail = f"no rank has made a step for {_duration_since(silent_ms)}"
    if hang_time_ms is not None:
        return (f"{detail} (limits.hang_time)", silent_ms) if at_ms - silent_ms >= hang_time_ms else None
    accepted_ms = samples.begun_ms - silent_ms - IDLE_SLACK_MS
    if stands_since_ms is not None and at_ms - max(silent_ms, stands_since_ms) >= accepted_ms:
        return f"{detail}; {waiting}", silent_ms
    idle_since_ms = samples.idle_since_ms(at_ms)
    if idle_since_ms is not None and at_ms - max(silent_ms, idle_since_ms) >= HANG_TIME_MS:
        return (
            f"{detail}, and none has used a processor or written anything for {_duration_since(idle_since_ms)}",
            silent_ms,
        )
    return None


def _hang_time_ms(generation: Generation) -> int:
    """Return the time after which idle ranks hang, 0 for never."""
    hang_time_ms = generation.job.spec.limits.hang_time_ms
    return HANG_TIME_MS if hang_time_ms is None else hang_time_ms


def _sample_s(generation: Generation) -> float:
    """Return the time to the next sample: longer while the ranks move.

    Ranks that make no step are sampled again at once, to see if they stand, and then at intervals that grow with their
    silence, and when it has lasted as long as the job's own time.
    """
    samples = generation.stack_samples
    if samples is not None and samples.silent_ms is not None:
        at_ms = int(time.time() * 1000)
        silent_s, left_s = (
            (at_ms - samples.silent_ms) / 1000,
            (samples.silent_ms + _hang_time_ms(generation) - at_ms) / 1000,
        )
        is_first = at_ms - samples.begun_ms < MIN_SAMPLE_S * 1000
        delay_s = MIN_SAMPLE_S if is_first else max(MIN_SAMPLE_S, min(SAMPLE_S, silent_s / SAMPLES_OF_HANG))
        return left_s if 0 < left_s < delay_s else delay_s
    within_hang_s = (_hang_time_ms(generation) or HANG_TIME_MS) / 1000 / SAMPLES_OF_HANG
    moves = 0 if samples is None else samples.moves
    return max(MIN_SAMPLE_S, min(SAMPLE_S, within_hang_s)) * float(1 << moves)


def _quiet_since(generation: Generation) -> tuple[int, int | None] | None:
    """Return since when the gang is unusually quiet, and its usual time between outputs.

    A node whose ranks never write proves nothing, as long as another one is quiet against its habit.
    """
    reports = [generation.stall_reports[node] for node in generation.remaining if node in generation.stall_reports]
    quiet = [report for report in reports if report.quiet_since_ms is not None]
    usual_ms = max((report.usual_gap_ms for report in quiet if report.usual_gap_ms is not None), default=None)
    others = [report for report in reports if report.quiet_since_ms is None]
    if not quiet or any(usual_ms is None or report.usual_gap_ms is not None for report in others):
        return None
    return max(report.quiet_since_ms or 0 for report in quiet), usual_ms


def _duration_since(since_ms: int) -> str:
    return format_duration(max(1000, (int(time.time() * 1000) - since_ms) // 1000 * 1000))


def _py_spy() -> str | None:
    """Return py-spy from the directory of the server's Python, else from PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")
