"""Audit of a log whose jobs have all ended.

Errors are sentences: states that differ from the lifecycle table, times that do not add up, cycles that decide
otherwise on replay, an invalid state.
"""

from dataclasses import dataclass, field
from typing import Any

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.replay import replay
from ganger.model.views.service_views import PARTS, Ledger
from ganger.registry import policies
from tests.crash.oracle import ENDED, Life, Oracle

PAGE = 500


@dataclass
class Audit:
    """Errors by subject, as sentences, and the number of events and jobs."""

    states: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    events: int = 0
    jobs: int = 0

    def add(self, other: "Audit") -> None:
        """Add the errors of another log."""
        for name in ("states", "invalid", "otherwise", "accounts", "left"):
            getattr(self, name).extend(getattr(other, name))
        self.events, self.jobs = self.events + other.events, self.jobs + other.jobs

    def sentences(self) -> list[str]:
        """Return all errors."""
        return [*self.states, *self.invalid, *self.otherwise, *self.accounts, *self.left]


def audit_log(log: EventLog, *, validated_every: int = 1) -> Audit:
    """Audit the whole log, from its first event.

    validated_every: events between two validations of the state, each of which takes as long as folding fifty of them.
    """
    audit = Audit(events=log.last_seq())
    oracle = Oracle().read(log.iter_rows(0, log.last_seq()))
    audit.states += oracle.errors
    rows = _listed(log)
    audit.jobs = len(rows)
    for job, life in oracle.lives.items():
        listed = rows.pop(job, {"state": "not listed"})
        if listed["state"] != life.state or life.state not in ENDED:
            audit.states.append(f"{job} is {listed['state']}, by its events {life.state}")
        else:
            audit.accounts += _account(log, job, life)
    audit.states += [f"{job} is listed but was never submitted" for job in rows]
    audit.invalid += [f"device {device} of {node} is held by {job}" for (node, device), job in oracle.held.items()]
    audit.invalid += _folded(log, validated_every)
    difference = replay(log, policies()).difference
    if difference is not None:
        audit.otherwise.append(f"cycle {difference.seq}: {difference.logged} in the log, now {difference.planned}")
    return audit


def _listed(log: EventLog) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    before: int | None = None
    while page := log.jobs(limit=PAGE, before=before):
        rows |= {row["id"]: row for _, _, row in page}
        before = page[-1][0]
    return rows


def _account(log: EventLog, job: str, life: Life) -> list[str]:
    """Check that the parts of a job's time add up to that from submission to end, to the millisecond."""
    _, ledger, _, _ = log.job(job) or (None, Ledger(), None, None)
    parts = [getattr(ledger, f"{part}_ms") for part in PARTS]
    wall_ms = (life.ended_ms or 0) - life.began_ms
    if min(parts) < 0 or sum(parts) != ledger.total_ms or ledger.total_ms != wall_ms:
        return [f"{job} took {wall_ms} ms: {ledger}"]
    return []


def _folded(log: EventLog, validated_every: int) -> list[str]:
    """Check that the state is valid after each event, or after each of so many and the last one."""
    state, last = State(), log.last_seq()
    for row in log.iter_rows(0, last):
        fold(state, row)
        if row.seq % validated_every and row.seq != last:
            continue
        try:
            state.validate()
        except AssertionError as error:
            return [f"after event {row.seq} ({row.event.kind}): {error}"]
    return []
