"""Launchers without processes: the real launcher and its protocol, with ranks that only a script of numbers moves.

`ganger.launcher.runtime.Launcher` runs on the virtual loop in place of its own; `ScriptedGeneration` takes the place of
its generation, whose ranks are operating system processes. A job's command says what its ranks do (`Work`); what
befalls them is drawn from the seed for each attempt and node.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ganger.launcher import runtime
from ganger.launcher.health import leftovers
from ganger.launcher.protocol import link
from ganger.launcher.protocol.link import MessageSender
from ganger.launcher.ranks import exit_records
from ganger.launcher.ranks.exit_records import Records
from ganger.launcher.ranks.process import exit_status
from ganger.launcher.ranks.stop_signals import StopSignals
from ganger.launcher.runtime import Launcher
from ganger.launcher.task_directory import TaskDirectory, now_ms
from ganger.launcher.task_plan import Plan
from tests.seeds.virtual_loop import Network, Process, VirtualLoop, Wire, running_process

NEVER = float("inf")
SIGTERM, SIGKILL = 15, 9
MILESTONE_S = 10.0
"""Interval of progress reports, as in `launcher.ranks.rank_reports`."""


class Line(asyncio.Protocol):
    """A connection of a launcher: `protocol.server_address.ServerConnection`, over the network of the world."""

    is_open, has_more, wants = True, False, 1

    def __init__(self, network: Network, address: Any) -> None:
        self._arrived = bytearray()
        self._is_over = False
        self.on_ready: Callable[[], None] = lambda: None
        self._wire: Wire = network.connect_now(address, self)

    def fileno(self) -> "Line":  # type: ignore[override]
        """Return what the selector knows it by."""
        return self

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        self.on_ready()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self.on_ready()

    def recv(self, most: int) -> bytes:
        """Return what has arrived, b"" at the end of the connection; raise BlockingIOError if that is nothing."""
        if not self._arrived and not self._is_over:
            raise BlockingIOError
        data, self._arrived = bytes(self._arrived), bytearray()
        return data

    def send(self, data: bytes) -> int:
        """Send all of it."""
        self._wire.write(data)
        return len(data)

    def close(self) -> None:
        """Close it."""
        self.on_ready = lambda: None
        self._wire.abort()


class Lines:
    """The selector of a launcher."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None

    def register(self, line: Line, events: int, data: Callable[[], None]) -> None:
        """Have `data` called when something arrives, and the launcher's loop run after it."""

        def ready() -> None:
            data()
            self.wake()

        line.on_ready = ready

    def modify(self, line: Line, events: int, data: Callable[[], None]) -> None:
        """Do nothing: all that is written is taken at once."""

    def unregister(self, line: Line) -> None:
        """Call nothing more."""
        line.on_ready = lambda: None


@dataclass
class ServerAddress:
    """The address of a server, as a launcher knows it: `protocol.server_address.Server`."""

    network: Network
    address: Any
    is_remote: bool

    def dial(self) -> Line | None:
        """Connect, if something listens there."""
        return Line(self.network, self.address) if self.network.is_listening(self.address) else None


class VirtualLauncher(Launcher):
    """A launcher as a process of the world."""

    def __init__(
        self, loop: VirtualLoop, process: Process, task: Path, server: ServerAddress, identity: tuple[str, str, int]
    ) -> None:
        super().__init__(TaskDirectory(str(task)), server, identity, None)  # type: ignore[arg-type]
        self.pid = 0
        self.variables: Callable[[], dict[str, str]] = dict
        """Returns what differs from the real launcher's hello: what files and variables of its pod say."""
        self.on_exit: Callable[[int], None] = lambda code: None
        self._loop, self._process = loop, process
        self._timer: asyncio.TimerHandle | None = None
        self._selector.wake = self.wake  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Start the first generation if its plan is there, as `run` does, and serve."""
        if not self._link.is_remote or Path(self._task.plan(self._first)).exists():
            self._run(self._first, None)
        self.wake()

    def wake(self) -> None:
        """Do what is due, and be called again when more is."""
        if self._current is not None or (self._link.is_up and not self._is_leaving):
            self._idle_since = self._loop.time()
        self._run_once()
        if self._timer is not None:
            self._timer.cancel()
        if self._is_done():
            self._link.close()
            self.on_exit(self._exit_code)
            self._process.kill()
            return
        due = self._due()
        self._timer = None if due == NEVER else self._loop.call_at(max(due, self._loop.time() + 1e-6), self.wake)

    @property
    def has_finished(self) -> bool:
        """True once a generation has run here, and nothing of it is left."""
        return self._current is None and bool(self._finished_generations)

    def terminate(self) -> None:
        """Get SIGTERM."""
        self._was_terminated = True
        self.wake()

    def _listen_to_signals(self) -> tuple[int, int]:
        return 0, 0

    def _reap(self) -> None:
        """Do nothing: there are no children."""

    def _hello(self) -> dict[str, Any]:
        return super()._hello() | {"pid": self.pid, "start_ticks": self.pid} | self.variables()


@dataclass(frozen=True, slots=True)
class Work:
    """What the ranks of a job do.

    Attributes:
        steps, step_s: how many steps they make, and how long one takes.
        save_every: steps from one checkpoint to the next; 0: none is saved.
        stop_s: how long they take to end when told to.
        may_hang: they may hang. Their job has a time limit, as nothing else ends them here.
    """

    steps: int
    step_s: float
    save_every: int
    stop_s: float
    may_hang: bool

    @classmethod
    def drawn(cls, chance: random.Random) -> "Work":
        """Draw what a job does."""
        return cls(
            steps=chance.randrange(3, 30),
            step_s=chance.choice((0.2, 1.0, 3.0)),
            save_every=chance.choice((0, 3)),
            stop_s=chance.choice((0.0, 0.3)),
            may_hang=chance.random() < 0.2,
        )

    @classmethod
    def of(cls, argv: Sequence[str]) -> "Work":
        """Return the work of a command."""
        return cls(**json.loads(argv[-1]))

    def spec(self) -> dict[str, Any]:
        """Return it as keys of a job's spec."""
        limits = {"limits": {"time": "3m"}} if self.may_hang else {}
        return {"run": ["true", json.dumps(asdict(self))], **limits}


class Ranks:
    """What the ranks of all jobs do, and the laws that bind them.

    Attributes:
        calm: nothing befalls ranks from now on.
        saved: newest checkpoint of each gang.
        broken: called with each law that does not hold.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calm = False
        self.saved: dict[str, int] = {}
        self.broken: Callable[[str], None] = lambda law: None
        self.sizes: dict[str, tuple[int, int]] = {}
        """Least and most nodes of each gang that may have several numbers of them."""
        self.running: dict[tuple[str, str], ScriptedGeneration] = {}
        self.struck: dict[str, int] = {}

    def misfortune(self, gang: str, generation: int, node: str) -> random.Random:
        """Return what decides over the ranks of an attempt on a node, whatever else happens in the world."""
        return random.Random(f"{self.seed} {gang} {generation} {node}")

    def strike(self, kind: str) -> None:
        """Count a fault."""
        self.struck[kind] = self.struck.get(kind, 0) + 1

    def started(self, new: "ScriptedGeneration") -> None:
        """Check that nothing runs that must not run beside these ranks, and that the gang is as large as it may be."""
        least, most = self.sizes.get(new.gang, (new.nodes, new.nodes))
        if not least <= new.nodes <= most:
            self.broken(f"{new.gang}.{new.number} runs on {new.nodes} nodes, not {least} to {most}")
        for (gang, node), other in self.running.items():
            if other is new or other.process.is_dead or not other.is_live:
                continue
            if gang == new.gang and other.number != new.number:
                self.broken(
                    f"{gang}.{new.number} starts on {new.node} while ranks of {gang}.{other.number} run on {node}"
                )
            if node == new.node and other.devices & new.devices:
                self.broken(
                    f"{gang}.{other.number} and {new.gang}.{new.number} both use "
                    f"devices {sorted(other.devices & new.devices)} of {node}"
                )
        self.running[new.gang, new.node] = new

    def ended(self, generation: "ScriptedGeneration") -> None:
        """Note that no rank of a generation is left on its node."""
        if self.running.get((generation.gang, generation.node)) is generation:
            del self.running[generation.gang, generation.node]

    def whole(self, gang: str, number: int, nodes: int) -> bool:
        """Return whether ranks of a generation run on all of its nodes, or have finished there."""
        alive = [
            generation
            for (name, _), generation in self.running.items()
            if name == gang and generation.number == number
            if generation.has_finished or (generation.is_well and not generation.process.is_dead)
        ]
        return len(alive) == nodes


class ScriptedGeneration:
    """One generation on one node: `launcher.generation.Generation`, without processes."""

    def __init__(self, ranks: Ranks, process: Process, task: TaskDirectory, plan: Plan, sender: MessageSender) -> None:
        self.number, self.gang, self.node = plan.generation, plan.gang, plan.node
        self.is_over, self.exit_code = False, 0
        self.is_well = self.has_finished = False
        """Its ranks run, or all of them have ended well; all of them have."""
        self.process = process
        self._ranks, self._task, self._plan, self._sender = ranks, task, plan, sender
        self._records = Records(task.generation(plan.generation), plan.generation)
        self._numbers = [rank.rank for rank in plan.ranks]
        devices = {rank.environment.get("CUDA_VISIBLE_DEVICES", "") for rank in plan.ranks}
        self.devices = {device for text in devices for device in text.split(",") if device}
        self.nodes = int(plan.environment.get("GANGER_NODES", plan.ranks[0].environment.get("GANGER_NODES", "1")))
        self._work = Work.of(plan.argv)
        chance = ranks.misfortune(self.gang, self.number, self.node)
        self._startup_s = chance.choice((0.01, 0.3, 2.0))
        self._step = ranks.saved.get(self.gang, 0)
        self._fault, self._fault_step = "", -1
        if not ranks.calm and chance.random() < 0.15:
            kinds = ("exit", "signal", "error", "start", *(["hang"] * 4 if self._work.may_hang else ()))
            self._fault = chance.choice(kinds)
            self._fault_step = self._step + chance.randrange(1, 6)
        self._failing_rank = chance.choice(self._numbers)
        self._is_stubborn = chance.random() < 0.1
        self._due = NEVER
        self._stage = -1
        self._is_hung = False
        self._stop: StopSignals | None = None
        self._notice_until = NEVER
        self._reported_s = -NEVER
        self._alive: set[int] = set()
        self._failed = False

    @property
    def is_live(self) -> bool:
        """True while ranks of it run."""
        return bool(self._alive)

    @property
    def due(self) -> float:
        """Time of the next `tick`."""
        return self._due if self._stop is None else min(self._due, self._stop.due)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def begin(self) -> None:
        """Start the ranks some time later."""
        try:
            self._records.prepare(self._plan)
        except OSError as error:
            self._cannot_start(f"the directory cannot be used: {error.strerror}")
            return
        if self._fault == "start" and not self._ranks.calm:
            self._ranks.strike("rank does not start")
            self._cannot_start("the program does not exist")
            return
        self._due = self._now + self._startup_s

    def _cannot_start(self, detail: str) -> None:
        self._failed, self.exit_code = True, 127
        self._sender.send_fact("start_failed", detail=detail, exit_code=127, tail=[])
        self._clear()

    def announce(self) -> None:
        """Repeat to a server which stage this node is ready with."""
        if self._plan.stages > 1 and self._stage >= 0 and self._stop is None:
            self._sender.send_state("ready", stage=min(self._stage, self._plan.stages - 2), agent_port=None)

    def proceed(self, stage: int, agents: dict[str, Any]) -> None:
        """Start the next stage: every node is ready with `stage`."""
        if stage == self._stage and self._stop is None and self._stage < self._plan.stages - 1:
            self._start_stage()

    def take_stacks(self, py_spy: str | None) -> None:
        """Do nothing: there are no stacks."""

    def schedule_checkpoints(self, message: dict[str, Any]) -> None:
        """Do nothing: a server that hears nothing goes on without."""

    def ended(self, statuses: dict[int, int]) -> None:
        """Do nothing: there are no processes."""

    def _start_stage(self) -> None:
        self._stage += 1
        if self._stage < self._plan.stages - 1:
            self.announce()
            return
        self._alive = set(self._numbers)
        self.is_well = True
        self._ranks.started(self)
        pids = {str(rank): [self._pid(rank), 1] for rank in self._numbers}
        self._records.started(pids)
        self._sender.send_fact("started", pids=pids)
        if self._step:
            self._sender.send_fact("resumed", step=self._step, skipped=[], older_step=None, source="")
        self._due = self._now + self._work.step_s

    def _pid(self, rank: int) -> int:
        return 100_000 + 1_000 * self.number + rank

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.is_over:
            return
        if self._stop is not None and (number := self._stop.step(now)) is not None:
            self._signal(number)
        if now >= self._due and not self.is_over:
            self._due = NEVER
            if self._stop is not None and self._stop.sent is not None:
                self._end_ranks(SIGTERM, left=True)
            elif self._stage < 0:
                self._start_stage()
            elif self._alive:
                self._make_step(now)

    def _make_step(self, now: float) -> None:
        self._due = now + self._work.step_s
        if self._is_hung or self._failed or not self._ranks.whole(self.gang, self.number, self.nodes):
            return  # they wait for the others
        self._step += 1
        if self._step == self._fault_step and self._stop is None and not self._ranks.calm and self._strike():
            return
        if now - self._reported_s >= MILESTONE_S:
            self._reported_s = now
            self._sender.send_fact("progressed", step=self._step, metrics={}, milestone=True)
        is_saving = self._work.save_every and self._step % self._work.save_every == 0
        if 0 in self._numbers and (is_saving or self._notice_until != NEVER):
            if self._step < self._ranks.saved.get(self.gang, 0):
                self._ranks.broken(f"{self.gang}.{self.number} saves step {self._step} after a later one")
            self._ranks.saved[self.gang] = self._step
            self._sender.send_fact("checkpointed", step=self._step, took_ms=10, saved_ms=now_ms(), parts=1)
        if self._notice_until != NEVER and not self._is_stubborn:
            Path(self._records.path("rank-0.noticed")).touch()
            self._end_ranks(0, left=True)
        elif self._step >= self._work.steps:
            self._end_ranks(0, left=False)

    def _strike(self) -> bool:
        """Have the ranks fail as drawn; return False if nothing comes of it."""
        self._ranks.strike(f"rank: {self._fault}")
        if self._fault == "hang":
            self._is_hung = True
            return True
        code, error = {"exit": (3, None), "signal": (-11, None)}.get(
            self._fault, (1, {"type": "ValueError", "message": "x", "file": "train.py", "line": 7})
        )
        self._failed, self.is_well = True, False
        fields = self._fields(code, error)
        self._record(self._failing_rank, fields, left=False)
        self._alive.discard(self._failing_rank)
        self.exit_code = 1
        self._sender.send_fact("rank_failed", rank=self._failing_rank, **fields, tail=["the end"])
        if not self._alive:
            self._clear()
        return True

    def _fields(self, code: int, error: Any = None) -> dict[str, Any]:
        common = {"at_ms": now_ms(), "step": self._step, "out_of_memory": False, "error": error, "error_line": ""}
        return exit_status(code) | common

    def _record(self, rank: int, fields: dict[str, Any], *, left: bool) -> None:
        self._records.exit(rank, {"pid": self._pid(rank), "left": left, **fields}, ["the end"])
        if self._sender.is_remote:
            self._sender.send_repeated("exit_record", rank=rank, pid=self._pid(rank), left=left, **fields)

    def stop(self, cause: str, notice_s: float, kill_after_s: float, saved_step: int | None = None) -> None:
        """Stop the ranks by notice, SIGTERM and SIGKILL."""
        if self.is_over:
            return
        now = self._now
        if not self._alive:
            notice_s = 0
        if self._stop is None:
            self._stop = StopSignals(now, notice_s, kill_after_s)
            if notice_s > 0:
                self._notice_until = now + notice_s
                self._records.notice(cause, notice_s)
        else:
            self._stop.hasten(now, notice_s, kill_after_s)
        if saved_step is not None:
            self._stop.end_ranks(now)
        if not self._alive:
            self._clear()
        else:
            self.tick(now)

    def _signal(self, number: int) -> None:
        if number == SIGKILL:
            self._end_ranks(SIGKILL, left=True)
        elif not self._is_stubborn:
            self._due = self._now + self._work.stop_s

    def _end_ranks(self, how: int, *, left: bool) -> None:
        """End all ranks, with exit code 0 or by a signal."""
        for rank in sorted(self._alive):
            self._record(rank, self._fields(-how), left=left)
        self._alive.clear()
        if not left and not self._failed:
            self.has_finished = True
            if any(rank.ends for rank in self._plan.ranks):
                self._sender.send_fact("done")
            self._sender.send_fact("finished")
        self._clear()

    def _clear(self) -> None:
        self._records.end_notice()
        leftovers.record_cleared(self._task, self.number)
        self.is_over = True
        self._due = NEVER
        if not self.is_well or self._stop is not None:
            self._ranks.ended(self)
        self._sender.send_fact("cleared", killed=[], grace_ms=0)


def install(ranks: Ranks, chance: random.Random, patch: Callable[[Any, str, Any], None]) -> None:
    """Have launchers of this world run scripted ranks; `patch` sets an attribute until the world ends."""

    def generation(task: TaskDirectory, plan: Plan, sender: MessageSender, shared: Any) -> ScriptedGeneration:
        process = running_process()
        assert process is not None
        return ScriptedGeneration(ranks, process, task, plan, sender)

    patch(runtime, "Generation", generation)
    patch(runtime, "selectors", SimpleNamespace(DefaultSelector=Lines))
    for module in (runtime, link, leftovers, exit_records):
        patch(module, "note", lambda text: None)
    patch(link, "_jitter", lambda: chance.uniform(0.5, 1.5))
