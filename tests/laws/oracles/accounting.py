"""Oracle of time accounting: attempts are cut out of the raw rows of the log, then each stretch is booked.

It looks at a job's log with hindsight and shares nothing with `core.state.time_accounting`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ganger.core.failure.attribution import Blame, attribute
from ganger.model import event as e
from ganger.model.decision import UNADMITTED, Cause, Start, Stop

GOES_ON = (Cause.PREEMPTED, Cause.NODE_PREEMPTED, Cause.DRAINED, Cause.SUSPENDED)


@dataclass(slots=True)
class Attempt:
    """One generation: when it was decided, ran as a whole, did its first step, saved, was halted, was gone.

    `saves` are (when, how long, whether after the halt, when by the node's clock).
    """

    began: int
    nodes: list[str]
    left: list[str]
    unfinished: list[str]
    unstarted: list[str]
    up: int | None = None
    stepped: int | None = None
    stepped_early: bool = False
    observed: bool = False
    saves: list[tuple[int, int, bool, int | None]] = field(default_factory=list)
    halted: int | None = None
    why: str = ""
    since: int | None = None
    failure: e.Failed | None = None
    asked_to_end: bool = False
    gone: int | None = None

    def halt(self, at_ms: int, reason: str, since_ms: int | None = None) -> None:
        if self.halted is None:
            self.halted, self.why, self.since = at_ms, reason, since_ms


def attempts_of(rows: Sequence[e.Stamped], gang: str) -> list[Attempt]:
    """Return every attempt of a gang, oldest first."""
    attempts: list[Attempt] = []
    for row in rows:
        at_ms, event = row.at_ms, row.event
        current = attempts[-1] if attempts and attempts[-1].gone is None else None
        if isinstance(event, e.Decided):
            for decision in event.plan.decisions:
                if isinstance(decision, Start) and decision.gang == gang:
                    nodes = list(decision.nodes)
                    attempts.append(Attempt(at_ms, nodes, [*nodes], [*nodes], [*nodes]))
                elif isinstance(decision, Stop) and decision.gang == gang and current is not None:
                    ends = decision.cause not in GOES_ON
                    current.asked_to_end |= ends
                    current.halt(at_ms, "ends" if ends else f"goes on: {decision.cause}")
        elif current is not None:
            _take(current, event, at_ms, gang, len(attempts))
    return attempts


def _take(attempt: Attempt, event: e.Event, at_ms: int, gang: str, generation: int) -> None:
    if isinstance(event, e.NodeLost) and event.node in attempt.left:
        _gone(attempt, [event.node], at_ms, Cause.NODE_LOST)
    if getattr(event, "gang", None) != gang or getattr(event, "generation", generation) != generation:
        return
    attempt.observed |= getattr(event, "step", None) is not None
    match event:
        case e.Started(nodes=nodes):
            attempt.unstarted = [node for node in attempt.unstarted if node not in nodes]
            if not attempt.unstarted and attempt.up is None and attempt.halted is None:
                attempt.up = at_ms
        case e.Progressed():
            attempt.stepped_early |= attempt.up is None
            if (
                attempt.up is not None
                and attempt.halted is None
                and attempt.stepped is None
                and not attempt.stepped_early
            ):
                attempt.stepped = at_ms
        case e.Checkpointed(took_ms=took):
            attempt.saves.append((at_ms, took, attempt.halted is not None, event.saved_ms))
        case e.Finished(nodes=nodes):
            attempt.unfinished = [node for node in attempt.unfinished if node not in nodes]
        case e.Done():
            attempt.halt(at_ms, "ends")
        case e.Failed(cause=cause, since_ms=since):
            attempt.failure = event if attempt.halted is None else attempt.failure
            attempt.halt(at_ms, f"fails: {cause}", since)
        case e.Cleared(nodes=nodes):
            _gone(attempt, list(nodes), at_ms, Cause.LAUNCHER_LOST)


def _gone(attempt: Attempt, nodes: list[str], at_ms: int, cause: Cause) -> None:
    if any(node in attempt.unfinished and node in attempt.left for node in nodes):
        attempt.halt(at_ms, f"fails: {cause}")
    attempt.left = [node for node in attempt.left if node not in nodes]
    if not attempt.left:
        attempt.gone = at_ms


def failures_of(rows: Sequence[e.Stamped], gangs: Iterable[str], now_ms: int) -> tuple[int, int]:
    """Return how many attempts of these gangs failed, not by an error of the program, and the node time of all."""
    attempts = [attempt for gang in gangs for attempt in attempts_of(rows, gang)]
    failed = [attempt for attempt in attempts if attempt.why.startswith("fails") and not _is_unadmitted(attempt)]
    by_others = [one for one in failed if one.failure is None or attribute(one.failure).blame is not Blame.USER]
    stays = [((now_ms if one.gone is None else one.gone) - one.began) * len(set(one.nodes)) for one in attempts]
    return len(by_others), sum(stays)


def _is_unadmitted(attempt: Attempt) -> bool:
    return attempt.failure is not None and attempt.failure.cause in UNADMITTED


def ledger_of(rows: Sequence[e.Stamped], gang: str, opened: int, now_ms: int, *, failed: bool) -> dict[str, int]:
    """Return the parts up to now, and the time nodes were held.

    With `failed` the job was given up, so that nothing follows.
    """
    parts = dict.fromkeys(
        ("queued", "starting", "productive", "checkpoint", "detect", "recovery", "lost", "unobserved", "held"), 0
    )
    attempts = attempts_of(rows, gang)
    until, observed = opened, False
    for number, attempt in enumerate(attempts):
        waits = "queued" if number == 0 or attempts[number - 1].why == "goes on: suspended" else "recovery"
        parts[waits] += attempt.began - until
        until = now_ms if attempt.gone is None else attempt.gone
        parts["held"] += until - attempt.began
        last = number == len(attempts) - 1
        observed |= attempt.observed
        _paint(parts, attempt, until, first=number == 0, given_up=failed and last, observed=observed)
    if attempts and attempts[-1].gone is None:
        return parts
    waits = "queued" if not attempts or attempts[-1].why == "goes on: suspended" else "recovery"
    parts[waits] += now_ms - until
    return parts


def _paint(parts: dict[str, int], attempt: Attempt, until: int, *, first: bool, given_up: bool, observed: bool) -> None:
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
    for at_ms, took, late, node_ms in attempt.saves:
        if late and not lasts:
            continue
        saved_ms = max(at_most, at_ms if node_ms is None else min(at_ms, node_ms))
        unsaved, at_most = saved_ms - at_most, saved_ms
        parts["checkpoint"] += min(took, unsaved)
        parts["productive"] += unsaved - min(took, unsaved)
    unsaved, detected = works_until - at_most, 0
    if attempt.since is not None and attempt.why.startswith("fails"):
        detected = max(0, min(halted - attempt.since, unsaved))
        parts["detect"] += detected
        unsaved -= detected
    for _, took, late, node_ms in attempt.saves:
        if late and not lasts:
            saved_ms = works_until - detected if node_ms is None else min(node_ms, works_until - detected)
            covered = max(0, saved_ms - at_most)
            parts["checkpoint"] += min(took, covered)
            parts["productive"] += covered - min(took, covered)
            unsaved, at_most = unsaved - covered, at_most + covered
    finished = attempt.why.startswith("goes on") and not attempt.unfinished and not attempt.asked_to_end
    finished = finished and attempt.failure is None
    is_kept = attempt.why in ("", "ends") or attempt.gone is None or finished
    parts["productive" if is_kept else "lost" if observed else "unobserved"] += unsaved
