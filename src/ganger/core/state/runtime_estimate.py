"""How long jobs without a time limit are expected to run: by what those of their user took that have ended.

Owned by `core.state.state`, a fold of the ends of jobs; asked when a gang joins its class. Of each user it knows the
last KEPT run times of jobs alike: of one queue, and with as many GPUs. A gang is expected to run as long as the 90th
percentile of those (nearest rank, in whole minutes); where they are fewer than LEAST, of all that is known of its user;
where these are too few too, nothing is expected of it, and it counts as running for ever. Only jobs count that
succeeded, or ran until their limit: how long one took that failed or was stopped says nothing of the next. What is
expected is no limit: nobody is stopped for it.

Sources: D. Tsafrir, Y. Etsion, D. Feitelson, "Backfilling Using System-Generated Predictions Rather than User Runtime
Estimates" (2007): a user's own last jobs predict best, and a prediction that is outlived is corrected upwards. A high
quantile instead of their average, since who is promised a start waits for those that run longer; by half of its age,
since of run times those that are long already have long to go (M. Harchol-Balter, A. Downey, 1997).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ganger.core.queues.quota import need
from ganger.model.job import Job
from ganger.model.shape import Shape
from ganger.model.units import MINUTE_MS

NEVER_MS: Final = 1 << 62
"""A moment, and a time, beyond all others."""
KEPT: Final = 32
"""Run times of jobs alike that are known."""
SIZES: Final = 16
"""Of how many kinds of jobs of one user; that of which none has ended for longest is forgotten first."""
LEAST: Final = 5
"""Run times from which on they say something."""
PERCENT: Final = 90
STEP_MS: Final = 10 * MINUTE_MS
"""What a job that has outlived its prediction is expected to run on for at least."""

Alike = tuple[str, int]
"""(queue, thousandths of GPUs in all)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """How long the last jobs alike of a user held nodes, over all attempts, in the order in which they ended."""

    user: str
    queue: str
    gpu_milli: int
    times_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRunTime:
    """How long a job without a limit is expected to hold nodes, over all attempts: by `of` jobs of its user; alike: of
    its queue and its size; outlived: it ran longer than that, and this is by how long it has run."""

    run_ms: int
    of: int
    alike: bool
    outlived: bool = False


class RunTimeHistory:
    """Run times by user and likeness, and which gangs wait that are expected to run as these say."""

    def __init__(self, runs: Iterable[RunTimes] = ()) -> None:
        """`runs`: the kind of which one ended last comes last among those of its user. Nobody waits."""
        self._runs: dict[str, dict[Alike, tuple[int, ...]]] = {}
        self._waits: dict[str, dict[Alike, dict[str, None]]] = {}
        self._known: dict[str, dict[Alike, ExpectedRunTime | None]] = {}
        for each in runs:
            self._runs.setdefault(each.user, {})[each.queue, each.gpu_milli] = each.times_ms

    def runs(self) -> list[RunTimes]:
        """All of them, as they are kept."""
        return [
            RunTimes(user=user, queue=queue, gpu_milli=gpu_milli, times_ms=times_ms)
            for user, kinds in self._runs.items()
            for (queue, gpu_milli), times_ms in kinds.items()
        ]

    def copy(self) -> "RunTimeHistory":
        """One that goes its own way."""
        other = RunTimeHistory(self.runs())
        other._waits = {
            user: {alike: dict(names) for alike, names in kinds.items()} for user, kinds in self._waits.items()
        }
        return other

    def expects(self, job: Job, shape: Shape, ran_ms: int) -> ExpectedRunTime | None:
        """Of a job without a limit that has run for so long already; None: nothing tells, or it has a limit."""
        if job.spec.limits.time_ms is not None:
            return None
        found = self._of(job.user, (job.spec.queue, need(shape)[0]))
        return outlived(found, ran_ms) if found is not None and found.run_ms <= ran_ms else found

    def learn(self, job: Job, shape: Shape, ran_ms: int) -> list[str]:
        """A job ended in a way that says how long its like run; gives the waiting gangs of which something else is
        expected now."""
        kinds, alike = self._runs.setdefault(job.user, {}), (job.spec.queue, need(shape)[0])
        waits = self._waits.get(job.user, {})
        before = {kind: self._of(job.user, kind) for kind in waits}
        kinds[alike] = (*kinds.pop(alike, ()), ran_ms)[-KEPT:]
        if len(kinds) > SIZES:
            del kinds[next(iter(kinds))]
        self._known.pop(job.user, None)
        changed = (kind for kind in waits if self._of(job.user, kind) != before[kind])
        return [name for kind in changed for name in waits[kind]]

    def wait(self, name: str, job: Job, shape: Shape) -> None:
        """A gang waits."""
        if job.spec.limits.time_ms is None:
            kinds = self._waits.setdefault(job.user, {})
            kinds.setdefault((job.spec.queue, need(shape)[0]), {})[name] = None

    def leave(self, name: str, job: Job, shape: Shape) -> None:
        """It does not wait any more."""
        if job.spec.limits.time_ms is None:
            alike = (job.spec.queue, need(shape)[0])
            kinds = self._waits[job.user]
            del kinds[alike][name]
            if not kinds[alike]:
                del kinds[alike]
            if not kinds:
                del self._waits[job.user]

    def nobody_waits(self) -> None:
        """Those that wait are told anew."""
        self._waits = {}

    def waiting(self) -> Iterator[tuple[str, Alike, str]]:
        """(user, likeness, id) of those that wait without a limit."""
        return ((user, kind, each) for user, kinds in self._waits.items() for kind in kinds for each in kinds[kind])

    def validate(self, anew: "RunTimeHistory") -> None:
        """Compare with one of the same runs that everybody was told to anew. AssertionError names what differs."""
        assert sorted(self.waiting()) == sorted(anew.waiting()), "who waits without a limit differs"
        assert self.runs() == anew.runs(), "run times differ"
        assert all(len(kinds) <= SIZES for kinds in self._runs.values()), "more kinds of a user are kept than may be"
        assert all(0 < len(each.times_ms) <= KEPT for each in self.runs()), "more run times are kept than may be"
        for user, kinds in self._known.items():
            for alike, found in kinds.items():
                assert found == self._predicted(user, alike), f"what is expected of {user}'s jobs differs"

    def _of(self, user: str, alike: Alike) -> ExpectedRunTime | None:
        if user not in self._runs:
            return None
        known = self._known.setdefault(user, {})
        if alike not in known:
            known[alike] = self._predicted(user, alike)
        return known[alike]

    def _predicted(self, user: str, alike: Alike) -> ExpectedRunTime | None:
        kinds = self._runs[user]
        own = kinds.get(alike, ())
        every = own if len(own) >= LEAST else tuple(ms for times_ms in kinds.values() for ms in times_ms)
        if len(every) < LEAST:
            return None
        longest_ms = sorted(every)[(PERCENT * len(every) + 99) // 100 - 1]
        return ExpectedRunTime(run_ms=-(-longest_ms // MINUTE_MS) * MINUTE_MS, of=len(every), alike=len(own) >= LEAST)


def outlived(expected: ExpectedRunTime, ran_ms: int) -> ExpectedRunTime:
    """What is expected of a gang that has run for so long, which is longer: that it goes on for half of that."""
    return replace(expected, run_ms=ran_ms + max(STEP_MS, ran_ms // 2), outlived=True)
