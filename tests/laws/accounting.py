"""Where a job's time went, found again from raw rows of the log: attempts are cut out of them with hindsight, then each
stretch of time is painted. Shares nothing with `core.state.time_accounting`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ganger.model import event as e
from ganger.model.decision import Cause, Start, Stop

GOES_ON = (Cause.PREEMPTED, Cause.NODE_PREEMPTED, Cause.DRAINED, Cause.SUSPENDED)


@dataclass(slots=True)
class Attempt:
    """One generation: when it was decided, ran whole, did its first step, saved (when, how long, whether after its
    halt), was halted, was gone."""

    began: int
    nodes: list[str]
    left: list[str]
    unfinished: list[str]
    unstarted: list[str]
    up: int | None = None
    stepped: int | None = None
    stepped_early: bool = False
    saves: list[tuple[int, int, bool]] = field(default_factory=list)
    halted: int | None = None
    why: str = ""
    since: int | None = None
    asked_to_end: bool = False
    gone: int | None = None

    def halt(self, at: int, why: str, since: int | None = None) -> None:
        if self.halted is None:
            self.halted, self.why, self.since = at, why, since


def attempts_of(rows: Sequence[e.Stamped], gang: str) -> list[Attempt]:
    """Every attempt of a gang, oldest first."""
    found: list[Attempt] = []
    for row in rows:
        at, event = row.at_ms, row.event
        now = found[-1] if found and found[-1].gone is None else None
        if isinstance(event, e.Decided):
            for decision in event.plan.decisions:
                if isinstance(decision, Start) and decision.gang == gang:
                    nodes = list(decision.nodes)
                    found.append(Attempt(at, nodes, [*nodes], [*nodes], [*nodes]))
                elif isinstance(decision, Stop) and decision.gang == gang and now is not None:
                    ends = decision.cause not in GOES_ON
                    now.asked_to_end |= ends
                    now.halt(at, "ends" if ends else f"goes on: {decision.cause}")
        elif now is not None:
            _take(now, event, at, gang, len(found))
    return found


def _take(now: Attempt, event: e.Event, at: int, gang: str, generation: int) -> None:
    if isinstance(event, e.NodeLost) and event.node in now.left:
        _gone(now, [event.node], at, Cause.NODE_LOST)
    if getattr(event, "gang", None) != gang or getattr(event, "generation", generation) != generation:
        return
    match event:
        case e.Started(nodes=nodes):
            now.unstarted = [node for node in now.unstarted if node not in nodes]
            if not now.unstarted and now.up is None and now.halted is None:
                now.up = at
        case e.Progressed():
            now.stepped_early |= now.up is None
            if now.up is not None and now.halted is None and now.stepped is None and not now.stepped_early:
                now.stepped = at
        case e.Checkpointed(took_ms=took):
            now.saves.append((at, took, now.halted is not None))
        case e.Finished(nodes=nodes):
            now.unfinished = [node for node in now.unfinished if node not in nodes]
        case e.Done():
            now.halt(at, "ends")
        case e.Failed(cause=cause, since_ms=since):
            now.halt(at, f"fails: {cause}", since)
        case e.Cleared(nodes=nodes):
            _gone(now, list(nodes), at, Cause.LAUNCHER_LOST)


def _gone(now: Attempt, nodes: list[str], at: int, cause: Cause) -> None:
    if any(node in now.unfinished and node in now.left for node in nodes):
        now.halt(at, f"fails: {cause}")
    now.left = [node for node in now.left if node not in nodes]
    if not now.left:
        now.gone = at


def ledger_of(rows: Sequence[e.Stamped], gang: str, opened: int, now: int, *, failed: bool) -> dict[str, int]:
    """The parts up to `now`, and the time nodes were held. `failed`: it was given up, so that nothing follows."""
    parts = dict.fromkeys(("queued", "starting", "productive", "checkpoint", "detect", "recovery", "lost", "held"), 0)
    attempts = attempts_of(rows, gang)
    until = opened
    for number, attempt in enumerate(attempts):
        waits = "queued" if number == 0 or attempts[number - 1].why == "goes on: suspended" else "recovery"
        parts[waits] += attempt.began - until
        until = now if attempt.gone is None else attempt.gone
        parts["held"] += until - attempt.began
        last = number == len(attempts) - 1
        _paint(parts, attempt, until, first=number == 0, given_up=failed and last)
    if attempts and attempts[-1].gone is None:
        return parts
    waits = "queued" if not attempts or attempts[-1].why == "goes on: suspended" else "recovery"
    parts[waits] += now - until
    return parts


def _paint(parts: dict[str, int], attempt: Attempt, until: int, *, first: bool, given_up: bool) -> None:
    way = "starting" if first else "recovery"
    halted = until if attempt.halted is None else attempt.halted
    lasts = attempt.why in ("", "ends", "goes on: suspended")
    works_from = attempt.up if attempt.stepped is None else attempt.stepped
    works_until = until if lasts else halted
    if works_from is None:
        parts[way] += works_until - attempt.began
    else:
        parts[way] += works_from - attempt.began
    if not lasts:
        parts["lost" if given_up else "recovery"] += until - halted
    if works_from is None:
        return
    unsaved, at_most = 0, works_from
    for at, took, late in attempt.saves:
        if late and not lasts:
            continue
        unsaved, at_most = max(0, at - at_most), max(at, at_most)
        parts["checkpoint"] += min(took, unsaved)
        parts["productive"] += unsaved - min(took, unsaved)
    unsaved = works_until - at_most
    if attempt.since is not None and attempt.why.startswith("fails"):
        detected = max(0, min(halted - attempt.since, unsaved))
        parts["detect"] += detected
        unsaved -= detected
    for _, took, late in attempt.saves:
        if late and not lasts:
            parts["checkpoint"] += min(took, unsaved)
            parts["productive"] += unsaved - min(took, unsaved)
            unsaved = 0
    kept = attempt.why in ("", "ends") or attempt.gone is None
    parts["productive" if kept else "lost"] += unsaved
