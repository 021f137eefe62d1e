"""Hang detection: combines the stall reports of a gang's launchers, and fails a gang that makes no progress.

The failure names the rank that holds it up, and is reported after stacks were taken on all nodes. Everything here runs
on the event loop.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ganger.launcher_server.generation_state import Generation, StackRequest
from ganger.launcher_server.health.hang_suspect import HangSuspect, find_suspect, waits_for_others
from ganger.launcher_server.health.stall_messages import RankDetail, StallReport, StoppedRank, details
from ganger.launcher_server.rank_records import Records
from ganger.model.decision import Cause
from ganger.model.event import Failed, Quiet, Slow
from ganger.model.units import format_duration

STACKS_TIMEOUT_S: Final = 1.5
UNKNOWN_CODE: Final = 1
MISSING_MS: Final = 300_000
"""Silence after which a rank that others wait for is not believed to come: it may load or save something."""
SAME_SILENCE_MS: Final = 5_000

RequestStacks = Callable[[str, str, dict[str, Any]], None]
"""Sends `take_stacks` with these fields to the launcher of a gang on a node, if connected."""
ReportFailure = Callable[[Generation, Failed], None]

_KINDS: Final = {
    "stopped": "has been stopped (state T: something sent it a SIGSTOP)",
    "blocked": "has been blocked in the kernel (state D: a disk, a file server or a driver does not answer)",
    "dead": "is dead, but the processes that it was started with still live",
}


class HangDetector:
    """Judges the stall reports; `report_failure` is called with the failure of a generation that hangs."""

    def __init__(
        self,
        records: Records,
        loop: asyncio.AbstractEventLoop,
        request_stacks: RequestStacks,
        report_failure: ReportFailure,
    ) -> None:
        self._records = records
        self._loop = loop
        self._request_stacks = request_stacks
        self._report_failure = report_failure

    def stall_reported(self, generation: Generation, node: str, message: dict[str, Any]) -> Quiet | None:
        """Handle a launcher's stall report; return that the gang is unusually quiet, once for each silence.

        Launchers identify ranks by environment variables, which a job may set to ranks that it does not have: those are
        ignored, here and below.
        """
        generation.stall_reports[node] = StallReport.from_message(message, generation.ranks)
        self._judge(generation)
        return self._quiet(generation)

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
        elif _stopped_ranks(generation) or _new_silence_ms(generation) is not None:
            self._ask_all_nodes(generation)

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
        stopped, silent_ms = _stopped_ranks(generation), _silent_ms(generation)
        if not _can_judge(generation):
            return
        if stopped:
            self._report_failure(generation, self._rank_hangs(generation, *stopped[0], request.details))
        elif silent_ms is not None and self._is_hang(generation, silent_ms, request.details):
            self._report_failure(generation, self._all_silent(generation, silent_ms, request.details))

    def _is_hang(self, generation: Generation, silent_ms: int, ranks: Sequence[RankDetail]) -> bool:
        """Return True if a silent gang hangs, by what its ranks reported or by where their stacks show them.

        Ranks that report nothing may be idle because there is nothing to do. They hang if all of them wait for each
        other; if only some wait, for others that are elsewhere, these get more time.
        """
        if any(report.has_reports for report in generation.stall_reports.values()):
            return True
        frames = self._records.main_frames(generation.gang, generation.number)
        waiting = [rank for rank in ranks if waits_for_others(frames.get(rank.rank, ()))]
        left_ms = silent_ms + MISSING_MS - int(time.time() * 1000)
        if waiting and (len(waiting) == len(ranks) or left_ms <= 0):
            return True
        generation.idle_since_ms = silent_ms
        if waiting:
            generation.silence_timer = self._loop.call_later(left_ms / 1000, self._judge_again, generation)
        return False

    def _judge_again(self, generation: Generation) -> None:
        generation.idle_since_ms = generation.silence_timer = None
        self._judge(generation)

    def _quiet(self, generation: Generation) -> Quiet | None:
        """Return that the gang is unusually quiet, unless that is reported; have stacks taken then."""
        quiet = _quiet_since(generation)
        if quiet is None or not _can_judge(generation):
            return None
        since_ms, usual_ms = quiet
        if generation.quiet_since_ms is not None and since_ms <= generation.quiet_since_ms + SAME_SILENCE_MS:
            return None
        generation.quiet_since_ms = since_ms
        if generation.stack_request is None:
            self._request_stacks_of(generation, list(generation.remaining))
        quiet_ms = max(1000, (int(time.time() * 1000) - since_ms) // 1000 * 1000)
        return Quiet(gang=generation.gang, generation=generation.number, quiet_ms=quiet_ms, usual_ms=usual_ms)

    def _rank_hangs(
        self, generation: Generation, node: str, stopped: StoppedRank, ranks: Sequence[RankDetail]
    ) -> Failed:
        step = next((rank.step for rank in ranks if rank.rank == stopped.rank), None)
        after = "" if step is None else f", after step {step}"
        state, duration = _KINDS[stopped.kind], _duration_since(stopped.since_ms)
        detail = f"rank {stopped.rank} on {node} {state} for {duration}{after}"
        return self._hung(generation, stopped.rank, node, detail, stopped.since_ms)

    def _all_silent(self, generation: Generation, since_ms: int, ranks: Sequence[RankDetail]) -> Failed:
        main_frames = self._records.main_frames(generation.gang, generation.number)
        hang_suspect: HangSuspect | None = find_suspect(sorted(ranks, key=lambda rank: rank.rank), main_frames)
        reports = any(report.has_reports for report in generation.stall_reports.values())
        missing = "made a step" if reports else "written anything or used a processor"
        detail = f"no rank has {missing} for {_duration_since(since_ms)}"
        if hang_suspect is None:
            return self._hung(generation, None, generation.start.nodes[0], detail, since_ms)
        rank, node = hang_suspect.detail.rank, hang_suspect.detail.node
        return self._hung(generation, rank, node, f"{detail}; rank {rank} on {node} {hang_suspect.reason}", since_ms)

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
    """Return the ranks that stopped by themselves, the first one first."""
    stopped = [
        (node, rank)
        for node in generation.remaining
        for rank in generation.stall_reports[node].stopped_ranks
        if rank.kind == "stopped" or rank.is_known or generation.steps  # without a step it may still be starting
    ]
    return sorted(stopped, key=lambda entry: (entry[1].since_ms, entry[1].rank))


def _silent_ms(generation: Generation) -> int | None:
    """Return since when the whole gang is silent, or None; a single rank that reports nothing may wait for anything."""
    stall_reports = [generation.stall_reports[node] for node in generation.remaining]
    reporting = [report for report in stall_reports if report.has_reports]
    if not reporting and sum(len(share.ranks) for share in generation.start.shares) < 2:
        return None
    since = [report.silent_since_ms for report in reporting or stall_reports]
    known = [at_ms for at_ms in since if at_ms is not None]
    return max(known) if len(known) == len(since) else None


def _new_silence_ms(generation: Generation) -> int | None:
    """Return since when the gang is silent, unless that silence was found to be no hang."""
    silent_ms, idle_ms = _silent_ms(generation), generation.idle_since_ms
    return None if silent_ms is None or (idle_ms is not None and silent_ms <= idle_ms + SAME_SILENCE_MS) else silent_ms


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
