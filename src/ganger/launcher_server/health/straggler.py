"""Which ranks are slower than their peers: by what their steps take or, where they step together, by who is at work
while the others wait. Pure; called by `hang`.

The rule, and what it does not detect: docs/reference/failures.md, "Straggler".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Self

from ganger.model.decision import Start
from ganger.model.event import Slow, StepWork

TIMES: Final = 1.5
DEVIATIONS: Final = 3
TOGETHER: Final = 1.25
BUSY_PERMILLE: Final = 850
HELD_UP_PERMILLE: Final = 750
RESTS: Final = 3
MORE_PERMILLE: Final = 50
FRESH_S: Final = 15.0
"""What a node says of its ranks comes each 10 s, or with each step that takes longer."""
FRESH_STEPS: Final = 2
AT_ONCE_S: Final = 1.0
"""What was said so close together is of the same time: work is that of 8 s and more."""


@dataclass(frozen=True, slots=True)
class StepShares:
    """How much of its steps a rank ran, how much it ran or waited for a processor, and how much of nearly all of them,
    in permille; when that was said."""

    ran: int
    busy: int
    least: int
    at_s: float

    @classmethod
    def of(cls, shares: Sequence[int], at_s: float) -> Self:
        """Take what `progressed` says of one rank's work."""
        ran, busy, least = shares
        return cls(ran, busy, least, at_s)

    def step(self, step_ms: float) -> StepWork:
        """Of a step that takes so long."""
        return StepWork(ran_ms=int(self.ran * step_ms / 1000), queued_ms=int((self.busy - self.ran) * step_ms / 1000))


@dataclass(slots=True)
class StepPaces:
    """What the nodes of a generation say of its ranks: node and time of a step in ms, work; when each has spoken. told:
    those found slow; doubted: those that seem to be, and the nodes that have said nothing else since."""

    steps: dict[int, tuple[str, int]] = field(default_factory=dict)
    works: dict[int, StepShares] = field(default_factory=dict)
    spoken: dict[str, float] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    doubted: dict[int, set[str]] = field(default_factory=dict)

    def heard(self, node: str, pace: Mapping[str, int], work: Mapping[str, Sequence[int]], at_s: float) -> None:
        """Take what `progressed` says of a node's ranks."""
        self.steps.update({int(rank): (node, step_ms) for rank, step_ms in pace.items()})
        self.works.update({int(rank): StepShares.of(shares, at_s) for rank, shares in work.items()})
        self.spoken[node] = at_s
        for nodes in self.doubted.values():
            nodes.add(node)

    def news(self, start: Start, at_s: float) -> list[Slow]:
        """The ranks that turn out to be slow, each once: as soon as nothing can be said for them but that their node
        has spoken at another time than the others, when all ranks were slower, or faster."""
        found = [slow for peers in _roles(self.steps, start) for slow in self._among(peers, start, at_s)]
        self.doubted = {slow.rank: self.doubted.get(slow.rank, set()) for slow in found}
        news = [slow for slow in found if slow.rank not in self.told and self._is_sure(slow)]
        self.told.update(slow.rank for slow in news)
        return news

    def _is_sure(self, slow: Slow) -> bool:
        is_of_one_time = max(self.spoken.values()) - min(self.spoken.values()) <= AT_ONCE_S
        return (slow.work is not None and is_of_one_time) or self.doubted[slow.rank] >= set(self.spoken)

    def _among(self, peers: dict[int, int], start: Start, at_s: float) -> Iterator[Slow]:
        slow, awaited = slower(peers), self._waited_for(peers, at_s)
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
                peers_work=_usual([self.works[other] for other in others]).step(peers_ms) if by_work else None,
            )

    def _waited_for(self, peers: dict[int, int], at_s: float) -> list[int]:
        """Only when the work of all of them is known."""
        works = {rank: self.works[rank] for rank in peers if rank in self.works}
        is_known = len(works) == len(peers) and all(_is_fresh(work, peers[rank], at_s) for rank, work in works.items())
        return waited_for(peers, works) if is_known else []


def slower(values: Mapping[int, int]) -> list[int]:
    """Ranks of which a value is much more than that of their peers, by median and median absolute deviation."""
    found = []
    for rank, value in values.items():
        peers = [other for other_rank, other in values.items() if other_rank != rank]
        if not peers:
            continue
        usual = median(peers)
        deviation = median(abs(peer - usual) for peer in peers)
        if value > TIMES * usual and value - usual > DEVIATIONS * deviation:
            found.append(rank)
    return found


def waited_for(steps: Mapping[int, int], works: Mapping[int, StepShares]) -> list[int]:
    """Ranks that step together with their peers, have much more to do than those and, other than those, never rest."""
    most = max((work.ran for work in works.values()), default=0)
    found = []
    for rank in slower({rank: work.ran for rank, work in works.items()}):
        own, others = works[rank], [other for other in works if other != rank]
        usual, usual_ms = _usual([works[other] for other in others]), median(steps[other] for other in others)
        is_together = steps[rank] <= TOGETHER * usual_ms and usual_ms <= TOGETHER * steps[rank]
        has_most = own.ran >= usual.ran + MORE_PERMILLE and own.ran * TIMES >= most
        rests = RESTS * (1000 - own.least) > 1000 - usual.busy or own.busy < BUSY_PERMILLE
        if is_together and has_most and not rests and usual.busy <= HELD_UP_PERMILLE:
            found.append(rank)
    return found


def _usual(works: Sequence[StepShares]) -> StepShares:
    ran, busy = median(work.ran for work in works), median(work.busy for work in works)
    return StepShares(int(ran), int(busy), int(median(work.least for work in works)), min(work.at_s for work in works))


def _is_fresh(work: StepShares, step_ms: int, at_s: float) -> bool:
    return at_s - work.at_s <= FRESH_S + FRESH_STEPS * step_ms / 1000


def _roles(steps: Mapping[int, tuple[str, int]], start: Start) -> list[dict[int, int]]:
    """What a step takes, by rank, of the ranks of each role: roles differ by what they are for."""
    found: dict[int, dict[int, int]] = {}
    for share in start.shares:
        for rank in share.ranks:
            if rank in steps:
                found.setdefault(share.part, {})[rank] = steps[rank][1]
    return list(found.values())
