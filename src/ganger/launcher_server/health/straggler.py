"""Straggler detection: ranks whose steps take longer or, if ranks step together, that work while others wait.

docs/how-to/failures.md, "Straggler", has the rule, and what it does not detect. Pure.

Ranks that synchronize in each step all have the step time of the slowest, so step times alone cannot tell it. There the
share of a step in which each rank runs does: the slowest works all the time, the others rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Self

from ganger.model.decision import Start
from ganger.model.event import Slow
from ganger.model.evidence import StepWork

SLOW_FACTOR: Final = 1.5
DEVIATIONS: Final = 3
TOGETHER: Final = 1.25
BUSY_PERMILLE: Final = 850
HELD_UP_PERMILLE: Final = 750
RESTS: Final = 3
MORE_PERMILLE: Final = 50
FRESH_S: Final = 15.0
"""Nodes report every 10 s, or with each step that takes longer."""
FRESH_STEPS: Final = 2
AT_ONCE_S: Final = 1.0
"""Reports this close together describe the same time: work covers 8 s and more."""


@dataclass(frozen=True, slots=True)
class StepShares:
    """Shares of its steps, in permille, of one rank.

    ran: in which it ran
    busy: in which it ran or waited for a processor
    least: the same, exceeded in nearly all steps
    at_s: when it was reported
    """

    ran: int
    busy: int
    least: int
    at_s: float

    @classmethod
    def of(cls, shares: Sequence[int], at_s: float) -> Self:
        """Convert one rank's work of a `progressed` message."""
        ran, busy, least = shares
        return cls(ran, busy, least, at_s)

    def step(self, step_ms: float) -> StepWork:
        """Return the times within a step of that duration."""
        return StepWork(ran_ms=int(self.ran * step_ms / 1000), queued_ms=int((self.busy - self.ran) * step_ms / 1000))


@dataclass(slots=True)
class StepPaces:
    """Step times and work of a generation's ranks, as reported by its nodes.

    steps: node and step time in ms, by rank
    works: work, by rank
    last_report_s: time of the last report, by node
    reported: ranks that were reported as slow
    unconfirmed: ranks that seem slow, with the nodes that have sent a report since
    """

    steps: dict[int, tuple[str, int]] = field(default_factory=dict)
    works: dict[int, StepShares] = field(default_factory=dict)
    last_report_s: dict[str, float] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    unconfirmed: dict[int, set[str]] = field(default_factory=dict)

    def add_report(
        self, node: str, step_times_ms: Mapping[str, int], busy_shares: Mapping[str, Sequence[int]], at_s: float
    ) -> None:
        """Add the report of a node's ranks."""
        self.steps.update({int(rank): (node, step_ms) for rank, step_ms in step_times_ms.items()})
        self.works.update({int(rank): StepShares.of(shares, at_s) for rank, shares in busy_shares.items()})
        self.last_report_s[node] = at_s
        for nodes in self.unconfirmed.values():
            nodes.add(node)

    def find_slow(self, start: Start, at_s: float) -> list[Slow]:
        """Return the ranks newly found slow, each once.

        A rank is slow as soon as the difference cannot be due to its node having reported at another time than the
        others, when all ranks were slower, or faster.
        """
        suspects = [slow for peers in _steps_by_role(self.steps, start) for slow in self._among(peers, start, at_s)]
        self.unconfirmed = {slow.rank: self.unconfirmed.get(slow.rank, set()) for slow in suspects}
        new_slow = [slow for slow in suspects if slow.rank not in self.reported and self._is_certain(slow)]
        self.reported.update(slow.rank for slow in new_slow)
        return new_slow

    def _is_certain(self, slow: Slow) -> bool:
        is_of_one_time = max(self.last_report_s.values()) - min(self.last_report_s.values()) <= AT_ONCE_S
        return (slow.work is not None and is_of_one_time) or self.unconfirmed[slow.rank] >= set(self.last_report_s)

    def _among(self, peers: dict[int, int], start: Start, at_s: float) -> Iterator[Slow]:
        slow, awaited = slow_ranks(peers), self._awaited(peers, at_s)
        for rank in sorted({*slow, *awaited}):
            others = [other for other in peers if other != rank]
            peers_ms = median(peers[other] for other in others)
            by_work = rank not in slow
            yield Slow(
                gang=start.gang,
                generation=start.generation,
                node=self.steps[rank][0],
                rank=rank,
                step_ms=peers[rank],
                peers_ms=int(peers_ms),
                work=self.works[rank].step(peers[rank]) if by_work else None,
                peers_work=_median_shares([self.works[other] for other in others]).step(peers_ms) if by_work else None,
            )

    def _awaited(self, peers: dict[int, int], at_s: float) -> list[int]:
        """Return the ranks that the others wait for, if the work of all of them is known."""
        works = {rank: self.works[rank] for rank in peers if rank in self.works}
        are_known = len(works) == len(peers) and all(_is_fresh(work, peers[rank], at_s) for rank, work in works.items())
        return awaited_ranks(peers, works) if are_known else []


def slow_ranks(values: Mapping[int, int]) -> list[int]:
    """Return the ranks whose value far exceeds that of their peers, by median and median absolute deviation."""
    slow = []
    for rank, value in values.items():
        peers = [peer_value for other_rank, peer_value in values.items() if other_rank != rank]
        if not peers:
            continue
        peer_median = median(peers)
        deviation = median(abs(peer - peer_median) for peer in peers)
        if value > SLOW_FACTOR * peer_median and value - peer_median > DEVIATIONS * deviation:
            slow.append(rank)
    return slow


def awaited_ranks(steps: Mapping[int, int], works: Mapping[int, StepShares]) -> list[int]:
    """Return the ranks that step together with their peers, work much more, and unlike those never rest."""
    max_ran = max((work.ran for work in works.values()), default=0)
    awaited = []
    for rank in slow_ranks({rank: work.ran for rank, work in works.items()}):
        own, others = works[rank], [other for other in works if other != rank]
        peers, peers_ms = _median_shares([works[other] for other in others]), median(steps[other] for other in others)
        is_together = steps[rank] <= TOGETHER * peers_ms and peers_ms <= TOGETHER * steps[rank]
        has_most = own.ran >= peers.ran + MORE_PERMILLE and own.ran * SLOW_FACTOR >= max_ran
        rests = RESTS * (1000 - own.least) > 1000 - peers.busy or own.busy < BUSY_PERMILLE
        if is_together and has_most and not rests and peers.busy <= HELD_UP_PERMILLE:
            awaited.append(rank)
    return awaited


def _median_shares(works: Sequence[StepShares]) -> StepShares:
    ran, busy = median(work.ran for work in works), median(work.busy for work in works)
    return StepShares(int(ran), int(busy), int(median(work.least for work in works)), min(work.at_s for work in works))


def _is_fresh(work: StepShares, step_ms: int, at_s: float) -> bool:
    return at_s - work.at_s <= FRESH_S + FRESH_STEPS * step_ms / 1000


def _steps_by_role(steps: Mapping[int, tuple[str, int]], start: Start) -> list[dict[int, int]]:
    """Return the step times by rank for each role: roles differ in what they do."""
    by_role: dict[int, dict[int, int]] = {}
    for share in start.shares:
        for rank in share.ranks:
            if rank in steps:
                by_role.setdefault(share.part, {})[rank] = steps[rank][1]
    return list(by_role.values())
