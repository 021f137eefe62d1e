"""Joins what the launchers of a gang say of ranks that stand still, and tells when the gang does: with the rank that
holds it up, and after stacks were taken on all its nodes. Called by the supervisor, on the event loop.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ganger.launcher_server.generation_state import Generation, Inquiry
from ganger.launcher_server.health.hang_suspect import HangSuspect, suspect
from ganger.launcher_server.health.stall_messages import Detail, StallReport, StoppedRank, details
from ganger.launcher_server.rank_records import Records
from ganger.model.decision import Cause
from ganger.model.event import Failed, Slow
from ganger.model.units import format_duration

STACKS_WITHIN_S: Final = 1.5
UNKNOWN_CODE: Final = 1

Ask = Callable[[str, str, dict[str, Any]], None]
"""Sends `stacks` with these fields to the launcher of a gang on a node, if it is there."""
Tell = Callable[[Generation, Failed], None]

_KINDS: Final = {
    "stopped": "has been stopped (state T: something sent it a SIGSTOP)",
    "blocked": "has been blocked in the kernel (state D: a disk, a file server or a driver does not answer)",
    "dead": "is dead, though what it was started with lives on",
}


class HangDetector:
    """`tell` is called with the failure of a generation that stands still."""

    def __init__(self, records: Records, loop: asyncio.AbstractEventLoop, ask: Ask, tell: Tell) -> None:
        self._records = records
        self._loop = loop
        self._ask = ask
        self._tell = tell

    def heard(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """A launcher said how its ranks stand. It knows processes by variables, which a job may set to ranks that it
        does not have: those are left out, here and below."""
        generation.standings[node] = StallReport.of(message, generation.ranks)
        self._judge(generation)

    def answered(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """A launcher has taken its stacks."""
        inquiry = generation.inquiry
        if inquiry is not None and node in inquiry.owed:
            inquiry.details += details(message, node, generation.ranks)
            inquiry.owed.discard(node)
            if not inquiry.owed:
                self._conclude(generation)

    def paced(self, generation: Generation, node: str, message: dict[str, Any]) -> list[Slow]:
        """A node has made steps, and says what they take and how much it works: the ranks that turn out to be slow,
        each once."""
        self._judge(generation)
        now_s = self._loop.time()
        ranks = generation.ranks
        pace, work = (
            {rank: value for rank, value in message[name].items() if int(rank) in ranks} for name in ("pace", "work")
        )
        generation.paces.heard(node, pace, work, now_s)
        return generation.paces.news(generation.start, now_s)

    def _judge(self, generation: Generation) -> None:
        if not _can_tell(generation) or generation.inquiry is not None:
            return
        if _is_deserted(generation):
            self._tell(generation, self._deserted(generation))
        elif _frozen(generation) or _silent_ms(generation) is not None:
            self._inquire(generation)

    def _inquire(self, generation: Generation) -> None:
        """Have every node write down where its ranks are: nothing is killed before."""
        owed = set(generation.left)
        timer = self._loop.call_later(STACKS_WITHIN_S, self._conclude, generation)
        generation.inquiry = Inquiry(owed=owed, timer=timer)
        for node in list(generation.left):
            self._ask(generation.gang, node, {"generation": generation.number, "py_spy": _py_spy()})

    def _conclude(self, generation: Generation) -> None:
        """Everybody has answered, or has had the time to."""
        inquiry, generation.inquiry = generation.inquiry, None
        if inquiry is None:
            return
        inquiry.timer.cancel()
        frozen, silent_ms = _frozen(generation), _silent_ms(generation)
        if not _can_tell(generation):
            return
        if frozen:
            self._tell(generation, self._one_is_frozen(generation, *frozen[0], inquiry.details))
        elif silent_ms is not None:
            self._tell(generation, self._all_are_silent(generation, silent_ms, inquiry.details))

    def _one_is_frozen(self, generation: Generation, node: str, found: StoppedRank, ranks: Sequence[Detail]) -> Failed:
        step = next((rank.step for rank in ranks if rank.rank == found.rank), None)
        after = "" if step is None else f", after step {step}"
        what = f"rank {found.rank} on {node} {_KINDS.get(found.kind, 'stands still')} for {_for(found.since_ms)}{after}"
        return self._hung(generation, found.rank, node, what, found.since_ms)

    def _all_are_silent(self, generation: Generation, since_ms: int, ranks: Sequence[Detail]) -> Failed:
        places = self._records.places(generation.gang, generation.number)
        named: HangSuspect | None = suspect(sorted(ranks, key=lambda rank: rank.rank), places)
        reports = any(standing.reports for standing in generation.standings.values())
        what = "made a step" if reports else "written anything or used a processor"
        detail = f"no rank has {what} for {_for(since_ms)}"
        if named is None:
            return self._hung(generation, None, generation.start.nodes[0], detail, since_ms)
        rank, node = named.detail.rank, named.detail.node
        return self._hung(generation, rank, node, f"{detail}; rank {rank} on {node} {named.why}", since_ms)

    def _hung(self, generation: Generation, rank: int | None, node: str, detail: str, since_ms: int) -> Failed:
        look = f"ganger logs {generation.gang} --stacks --attempt {generation.number}"
        return Failed(
            gang=generation.gang,
            generation=generation.number,
            node=node,
            cause=Cause.HUNG,
            rank=rank,
            detail=f"{detail}; {look} shows where every rank was",
            tail=() if rank is None else self._last_lines(generation, node, rank),
            since_ms=since_ms,
        )

    def _deserted(self, generation: Generation) -> Failed:
        node = next(share.node for share in generation.start.shares if 0 in share.ranks)
        since = [one.deserted_ms for one in generation.standings.values() if one.deserted_ms is not None]
        return Failed(
            gang=generation.gang,
            generation=generation.number,
            node=node,
            cause=Cause.RANK_FAILED,
            rank=0,
            exit_code=UNKNOWN_CODE,
            detail="all processes that it had started are gone, but the program that starts them (rank 0 on "
            f"{node}) has not ended: how they ended is not known",
            tail=self._last_lines(generation, node, 0),
            since_ms=max(since),
        )

    def _last_lines(self, generation: Generation, node: str, rank: int) -> tuple[str, ...]:
        return self._records.last_lines(generation.gang, node, generation.number, rank)


def _can_tell(generation: Generation) -> bool:
    """Whether it still runs, as far as is known, and every node has said how its ranks stand."""
    known = all(node in generation.standings for node in generation.left)
    return known and bool(generation.left) and generation.stopping is None and not generation.failed


def _is_deserted(generation: Generation) -> bool:
    """Whether nothing is left of what ran on any node, though some of what started it lives."""
    ran = [standing for standing in generation.standings.values() if standing.has_run]
    return bool(ran) and all(standing.deserted_ms is not None for standing in ran)


def _frozen(generation: Generation) -> list[tuple[str, StoppedRank]]:
    """The ranks that stand still by themselves, the first one first."""
    found = [
        (node, each)
        for node in generation.left
        for each in generation.standings[node].frozen
        if each.is_known or generation.steps  # a rank that has made no step may still be at its beginning
    ]
    return sorted(found, key=lambda each: (each[1].since_ms, each[1].rank))


def _silent_ms(generation: Generation) -> int | None:
    """Since when the whole gang is silent; None when it is not. One rank alone that reports nothing may wait for
    whatever it likes."""
    standings = [generation.standings[node] for node in generation.left]
    reporting = [standing for standing in standings if standing.reports]
    if not reporting and sum(len(share.ranks) for share in generation.start.shares) < 2:
        return None
    since = [standing.silent_ms for standing in reporting or standings]
    heard = [at_ms for at_ms in since if at_ms is not None]
    return max(heard) if len(heard) == len(since) else None


def _for(since_ms: int) -> str:
    return format_duration(max(1000, (int(time.time() * 1000) - since_ms) // 1000 * 1000))


def _py_spy() -> str | None:
    """Beside the server's Python, else in its PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")
