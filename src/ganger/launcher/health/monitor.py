"""Keeps an eye on the ranks of a generation here, and tells the server what stands still. Called by `generation`.

`vitals` sees, `watch` judges, `stacks` shows where the ranks are; the server joins what the nodes of a gang say.
"""

from __future__ import annotations

import json
import os

from ganger.launcher.health.busy import BusySamples
from ganger.launcher.health.proc_stats import ProcStats, run_times_ns
from ganger.launcher.health.stall import Activity, Attention, Pauses, QuietRank, RankWatch, ServerSilence, silent_since
from ganger.launcher.logs.log_records import note
from ganger.launcher.task_directory import now_ms, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.health.proc_stats import ProcStat
    from ganger.launcher.health.stacks import Stacks
    from ganger.launcher.protocol.link import Speaker

LOOK_S = 0.25
FIND_S = 5.0
FIND_QUIET_S = 2.5  # where nothing is reported, it is all that is known
IDLE_PERMILLE = 10
MUCH_BYTES = 256 << 10
"""To read or write between two `find`: more than what waits for others does, or prints."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STARTERS = (
    *("mpirun", "mpiexec", "prterun", "prted", "orterun", "orted"),
    *("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pro"),
)
"""Programs that have nothing to do but to start ranks and to wait for them; names as /proc has them."""


class Monitor:
    """Over the generation with this directory, from the moment its first program runs here. `harmless` are the ranks
    whose failure does no harm: they may stand still."""

    def __init__(self, directory: str, tell: Speaker, harmless: frozenset[int], now: float) -> None:
        self._look_at = now + LOOK_S
        self._find_at = now
        self._directory = directory
        self._tell = tell
        self._harmless = harmless
        self._started: dict[int, int] = {}  # rank -> pid of what the launcher started as it and has not ended
        self._over: set[int] = set()
        self._vitals = ProcStats(directory)
        self._attention = Attention(now)
        self._kept = os.path.join(os.path.dirname(directory), "pauses.json")
        self._pauses = Pauses(_read(self._kept))
        self._ranks: dict[int, RankWatch] = {}
        self._work: dict[int, BusySamples] = {}
        self._quiet: dict[int, QuietRank] = {}
        self._activity = Activity(self._pauses)
        self._desertion = ServerSilence()
        self._found: list[tuple[float, dict[int, int]]] = []  # when, and the processor time of each rank, by `find`
        self._bytes: dict[int, int] = {}  # that each rank has read and written, by `find`
        self._log_bytes = -1
        self._silent_s: float | None = None
        self._standing: dict[str, Any] = {}
        self._stacks: Stacks | None = None
        self._tails: dict[int, list[str]] | None = None

    @property
    def due(self) -> float:
        """When `tick` has something to do, in monotonic seconds."""
        return self._look_at if self._stacks is None else min(self._look_at, self._stacks.due)

    def started(self, pids: dict[int, int]) -> None:
        """The ranks that the launcher has started itself: rank -> pid."""
        self._started = dict(pids)

    def ended(self, rank: int) -> None:
        """Such a rank is over; what it leaves behind is not watched."""
        self._started.pop(rank, None)
        self._over.add(rank)

    def heard(self, rank: int, record: dict[str, Any], now: float) -> None:
        """A rank reported something."""
        if rank not in self._ranks:
            self._ranks[rank] = RankWatch(self._pauses)
        self._ranks[rank].heard(record, self._attention.look(now))

    def pace(self) -> dict[int, int]:
        """What a step takes, in ms, of each rank that has made enough of them."""
        paces = {rank: watch.pace_ms() for rank, watch in self._ranks.items()}
        return {rank: pace for rank, pace in paces.items() if pace is not None}

    def work(self, now: float) -> dict[int, list[int]]:
        """How much of its steps each rank is at work, as `BusySamples.shares` has it, of each that is known well
        enough."""
        at_s = self._attention.look(now)
        shares = {rank: work.shares(at_s) for rank, work in self._work.items()}
        return {rank: found for rank, found in shares.items() if found is not None}

    def tick(self, now: float) -> None:
        """Look, when it is time to, and tell what has changed."""
        if self._stacks is not None and self._stacks.is_done(now):
            self._tell.state("stacked", ranks=self._details(self._stacks))
            self._stacks = None
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(now, self._attention.look(now))

    def announce(self) -> None:
        """To a server that may not know it: how the ranks here stand."""
        if self._standing:
            self._tell.state("standing", **self._standing)

    def take_stacks(self, py_spy: str | None, now: float, tails: dict[int, list[str]] | None) -> None:
        """Write down where every rank is, then tell; `py_spy` is the program of that name. With `tails`, the last lines
        of each rank, the server is told these too, and where each rank's first thread is: it cannot read the files."""
        from ganger.launcher.health.stacks import Stacks  # rarely wanted

        if self._stacks is None:
            self._vitals.find()
            pids = {rank: self._speakers(rank) for rank in self._vitals.of_ranks if rank not in self._over}
            self._stacks = Stacks(self._directory, pids, py_spy, now)
            self._tails = tails

    def stopped(self, cause: str) -> None:
        """The generation is told to end: keep what was learned for the next one."""
        if cause == "hung" and self._silent_s is not None:
            steps = [watch.step for _, watch in self._watched() if watch.step is not None]
            self._pauses.doubted(max(steps, default=None))
        if self._pauses.longest_s or self._silent_s is not None:
            try:
                write_json(self._kept, self._pauses.record())
            except OSError as error:
                note(f"the pauses that were learned cannot be kept: {error.strerror}")

    def _look(self, now: float, at_s: float) -> None:
        is_found = now >= self._find_at or (bool(self._vitals.others) and not self._vitals.any_rank_lives())
        if is_found:
            self._find(now, at_s)
        frozen = [found for rank, watch in self._watched() for found in self._frozen(rank, watch, at_s)]
        frozen += self._frozen_quietly(at_s)
        if self._reports():
            there = [watch for _, watch in self._watched() if not watch.is_over]
            self._silent_s = silent_since(there, self._pauses, at_s)
        elif is_found:
            self._silent_s = self._activity.look(at_s, pulse=self._has_pulse())
        starter = any(vital.name in STARTERS for vital in self._vitals.others)
        deserted_s = self._desertion.look(at_s, has_ranks=bool(self._vitals.of_ranks), has_starter=starter)
        self._say(frozen, deserted_s, at_s)

    def _say(self, frozen: list[tuple[int, str, float]], deserted_s: float | None, at_s: float) -> None:
        def unix_ms(since_s: float) -> int:
            return now_ms() - int((at_s - since_s) * 1000)

        standing = {
            "has_run": self._desertion.has_run,
            "reports": self._reports(),
            "frozen": [[rank, kind, unix_ms(since_s), self._knows()] for rank, kind, since_s in frozen],
            "silent_ms": None if self._silent_s is None else unix_ms(self._silent_s),
            "deserted_ms": None if deserted_s is None else unix_ms(deserted_s),
        }
        is_news = _gist(standing) != _gist(self._standing)
        self._standing = standing
        if is_news:
            self.announce()

    def _watched(self) -> list[tuple[int, RankWatch]]:
        return [
            (rank, watch)
            for rank, watch in self._ranks.items()
            if rank not in self._over and rank not in self._harmless
        ]

    def _reports(self) -> bool:
        return any(watch.steps for _, watch in self._watched())

    def _frozen(self, rank: int, watch: RankWatch, at_s: float) -> list[tuple[int, str, float]]:
        seen = self._vitals.look(watch.pids)
        watch.is_over = bool(watch.pids) and not any(vital.lives for vital in seen.values())
        rest = None
        if watch.is_over and not watch.has_ended and rank in self._started:
            self._vitals.find()  # rarely so: whether what it was started with does anything
            rest = [(vital.pid, vital.ticks) for vital in self._vitals.of_ranks.get(rank, ())]
        self._see_work(self._work.setdefault(rank, BusySamples()), watch, at_s)
        found = watch.stands(seen, rest, at_s)
        return [] if found is None else [(rank, *found)]

    def _see_work(self, work: BusySamples, watch: RankWatch, at_s: float) -> None:
        if not watch.is_in_step:
            work.interrupted()
        elif watch.pids and work.is_due(watch.steps):
            pid = watch.pids[-1]
            work.seen((pid, watch.interruptions), watch.steps, run_times_ns(pid), at_s)

    def _frozen_quietly(self, at_s: float) -> list[tuple[int, str, float]]:
        """Of the ranks that report nothing."""
        steps = [watch.step_s() for _, watch in self._watched() if watch.is_learned]
        found = []
        for rank, vitals in self._vitals.of_ranks.items():
            if rank in self._harmless or rank in self._over or (rank in self._ranks and self._ranks[rank].steps):
                continue
            seen = self._vitals.look([max(vitals, key=_work).pid])
            stands = self._quiet.setdefault(rank, QuietRank()).stands(list(seen.values()), max(steps, default=0), at_s)
            found += [] if stands is None else [(rank, *stands)]
        return found

    def _knows(self) -> bool:
        """Whether the ranks here are known to have come so far that they should not stand still."""
        return self._activity.is_steady or any(watch.is_learned for _, watch in self._watched())

    def _find(self, now: float, at_s: float) -> None:
        self._find_at = now + (FIND_S if self._reports() else FIND_QUIET_S)
        self._vitals.find()
        ticks = {rank: sum(vital.ticks for vital in vitals) for rank, vitals in self._vitals.of_ranks.items()}
        self._found = [*self._found[-2:], (at_s, ticks)]
        for rank, watch in self._watched():
            before, self._bytes[rank] = self._bytes.get(rank, 0), self._vitals.transferred(rank)
            if self._bytes[rank] - before >= MUCH_BYTES:
                watch.transfers(at_s)

    def _has_pulse(self) -> bool:
        """Whether a rank has written or used a processor since the last `find`."""
        before, self._log_bytes = self._log_bytes, _log_bytes(self._directory)
        if self._log_bytes != before or len(self._found) < 2 or not self._vitals.of_ranks:
            return True  # or nothing can be seen of them
        (then_s, then), (at_s, ticks) = self._found[-2:]
        used = sum(abs(ticks.get(rank, 0) - then.get(rank, 0)) for rank in {*ticks, *then})
        return used * 1000 >= IDLE_PERMILLE * (at_s - then_s) * TICKS_PER_S

    def _busy_permille(self) -> dict[int, int]:
        """How much of a processor each rank has used lately."""
        if len(self._found) < 2:
            return {}
        (then_s, then), (at_s, ticks) = self._found[0], self._found[-1]
        possible = max(1.0, (at_s - then_s) * TICKS_PER_S)
        return {rank: int(1000 * max(0, used - then.get(rank, used)) / possible) for rank, used in ticks.items()}

    def _speakers(self, rank: int) -> list[int]:
        """The processes that stand for a rank: those that report, else the one that has worked most."""
        vitals = self._vitals.of_ranks[rank]
        watch = self._ranks.get(rank)
        reporting = [vital.pid for vital in vitals if watch is not None and vital.pid in watch.pids]
        return reporting or [max(vitals, key=_work).pid]

    def _details(self, stacks: Stacks) -> dict[int, dict[str, Any]]:
        busy = self._busy_permille()
        details: dict[int, dict[str, Any]] = {
            rank: {
                "step": self._ranks[rank].step if rank in self._ranks else None,
                "state": state,
                "busy_permille": busy.get(rank, 0),
            }
            for rank, state in stacks.states.items()
        }
        if self._tails is not None:
            for rank, detail in details.items():
                detail.update(place=stacks.places.get(rank, []), tail=self._tails.get(rank, []))
        return details


def _work(vital: ProcStat) -> tuple[int, int, int]:
    """What has worked most; at the very beginning, what was started last."""
    return vital.ticks, vital.start_ticks, vital.pid


def _gist(standing: dict[str, Any]) -> dict[str, Any]:
    """What is news when it differs: of times, only whether there is one."""
    gist = {name: value is not None if name.endswith("_ms") else value for name, value in standing.items()}
    return {**gist, "frozen": [(rank, kind, known) for rank, kind, _, known in standing.get("frozen", ())]}


def _log_bytes(directory: str) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries if ".log" in entry.name)
    except OSError:
        return 0


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8", opener=_open_at_once) as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _open_at_once(path: str, flags: int) -> int:
    """Do not wait for the other end of a pipe, which a rank may have put there."""
    return os.open(path, flags | os.O_NONBLOCK)
