"""What is wrong with a log when everybody has ended, in sentences: states that are not what the table says, time that
does not add up, cycles that come out otherwise, a state that is not sound. Used by `kill_anything`; not a bench itself.
"""

from dataclasses import dataclass, field
from typing import Any

from bench.oracle import ENDED, Life, Oracle
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.replay import replay
from ganger.model.views.service_views import PARTS, Ledger
from ganger.registry import policies

PAGE = 500


@dataclass
class Audit:
    """Sentences by what they are about, and how many events there were."""

    states: list[str] = field(default_factory=list)
    unsound: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    events: int = 0
    jobs: int = 0

    def add(self, other: "Audit") -> None:
        """Those of another log too."""
        for name in ("states", "unsound", "otherwise", "accounts", "left"):
            getattr(self, name).extend(getattr(other, name))
        self.events, self.jobs = self.events + other.events, self.jobs + other.jobs

    def sentences(self) -> list[str]:
        """All of them."""
        return [*self.states, *self.unsound, *self.otherwise, *self.accounts, *self.left]


def audited(log: EventLog) -> Audit:
    """The whole log, from its first event."""
    found = Audit(events=log.last_seq())
    oracle = Oracle().read(log.iter_rows(0, log.last_seq()))
    found.states += oracle.wrong
    rows = _listed(log)
    found.jobs = len(rows)
    for job, life in oracle.lives.items():
        listed = rows.pop(job, {"state": "not listed"})
        if listed["state"] != life.state or life.state not in ENDED:
            found.states.append(f"{job} is {listed['state']}, by its events {life.state}")
        else:
            found.accounts += _account(log, job, life)
    found.states += [f"{job} is listed, and nobody submitted it" for job in rows]
    found.unsound += [f"device {device} of {node} is held by {job}" for (node, device), job in oracle.held.items()]
    found.unsound += _folded(log)
    difference = replay(log, policies()).difference
    if difference is not None:
        found.otherwise.append(f"cycle {difference.seq}: {difference.logged} in the log, now {difference.planned}")
    return found


def _listed(log: EventLog) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    before: int | None = None
    while page := log.jobs(limit=PAGE, before=before):
        rows |= {row["id"]: row for _, _, row in page}
        before = page[-1][0]
    return rows


def _account(log: EventLog, job: str, life: Life) -> list[str]:
    """Its parts add up to the time from its submission to its end, to the millisecond."""
    _, ledger, _, _ = log.job(job) or (None, Ledger(), None, None)
    parts = [getattr(ledger, f"{part}_ms") for part in PARTS]
    wall_ms = (life.ended_ms or 0) - life.began_ms
    if min(parts) < 0 or sum(parts) != ledger.total_ms or ledger.total_ms != wall_ms:
        return [f"{job} took {wall_ms} ms: {ledger}"]
    return []


def _folded(log: EventLog) -> list[str]:
    """The state is sound after each event."""
    state = State()
    for row in log.iter_rows(0, log.last_seq()):
        fold(state, row)
        try:
            state.validate()
        except AssertionError as error:
            return [f"after event {row.seq} ({row.event.kind}): {error}"]
    return []
