"""A gang whose ranks call `should_checkpoint` in random order.

Schedule, counts and coordinator are real; network, server and clock are simulated here.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ganger.launcher.ranks.checkpoint_counts import OPEN_S, CheckpointCounts
from ganger.launcher_server.checkpoints.checkpoint_coordinator import Coordinator, Counts, Order
from ganger.model.decision import Cause, Stop
from ganger.train.checkpoint_schedule import CheckpointSchedule

NOTICE = Stop(gang="g", generation=1, cause=Cause.DRAINED, notice_ms=30_000)
TICK_S = 0.01
AWAY_S = OPEN_S / 2
"""Longest absence of a node: after a longer one a launcher would withdraw a proposal that may hold elsewhere."""


class Rank:
    """A rank that reports a step and calls, again and again.

    asks: returns how often it calls at a step
    may_step: tells if a step may start: ranks that exchange data wait for each other
    """

    def __init__(self, number: int, directory: Path, asks: Callable[[], int], *, reports: bool) -> None:
        self.number = number
        self.step = -1
        self.calls = 0
        self.answers: dict[int, list[bool]] = defaultdict(list)
        self._directory = str(directory)
        self._schedule = CheckpointSchedule(self._directory, number)
        self._asks = asks
        self._reports = reports
        self._calls_left = 0
        self._has_counted = False

    def restart(self, step: int) -> None:
        """Run another program as this rank, from the checkpoint of a step on."""
        self._schedule.close()
        self._schedule = CheckpointSchedule(self._directory, self.number)
        self.step, self.calls, self._calls_left, self._has_counted = step, 0, 0, False
        self.answers.clear()

    def act(self, may_step: Callable[[int], bool]) -> None:
        """Publish a count, or read the schedule and answer if it is decided."""
        if self._has_counted:
            self._schedule.read()
            if not self._schedule.waits:
                self.answers[self.step if self._reports else self.calls].append(self._schedule.answer())
                self._has_counted = False
                self._calls_left -= 1
            return
        if self._calls_left == 0:
            if not may_step(self.step + 1):
                return
            self.step += 1
            self._calls_left = self._asks()
        self._schedule.count(self.step if self._reports else -1)
        self.calls += 1
        self._has_counted = True

    def close(self) -> None:
        self._schedule.close()


class Node(CheckpointCounts):
    """A launcher with its ranks and its connection, which is None while it is down.

    `meanwhile` runs before and after each write of a schedule.
    """

    def __init__(self, name: str, directory: Path, now_s: float, meanwhile: Callable[[], None]) -> None:
        self.name = name
        self.to_server: list[bytes] | None = None
        self.from_server: list[bytes] = []
        self.away_since_s = now_s
        self._meanwhile = meanwhile
        super().__init__(str(directory), self, polls=True, now=now_s)  # type: ignore[arg-type]  # it has `send_state`

    def send_state(self, kind: str, **fields: Any) -> None:
        """Send a message as a link does: nothing while the server is away."""
        if self.to_server is not None:
            self.to_server.append(json.dumps({"type": kind, **fields}).encode())

    def connect(self) -> None:
        self.to_server, self.from_server = [], []
        self.announce()

    def drop(self, now_s: float) -> None:
        self.to_server, self.from_server, self.away_since_s = None, [], now_s

    @property
    def schedule_state(self) -> tuple[int, bool]:
        """Id of the schedule that ranks here follow, and whether another one is proposed."""
        return self._id, self._pending is not None

    def _write(self) -> None:
        self._meanwhile()
        super()._write()
        self._meanwhile()


class Gang:
    """A gang in which `chance` decides the order of all actions."""

    def __init__(self, path: Path, chance: random.Random, *, lockstep: bool, reports: bool, period_s: float | None):
        self.chance = chance
        self.now_s = 100.0
        self.nodes: list[Node] = []
        self.ranks: list[Rank] = []
        self._lockstep = lockstep
        self._period_s = period_s
        for index in range(chance.randint(1, 3)):
            directory = path / f"n{index}"
            directory.mkdir()
            self.nodes.append(Node(f"n{index}", directory, self.now_s, self._act_a_little))
            for _ in range(chance.randint(1, 2)):
                asks = (lambda: chance.randint(1, 3)) if reports else (lambda: 1)
                self.ranks.append(Rank(len(self.ranks), directory, asks, reports=reports))
        self.speeds = [1.0 if lockstep else chance.uniform(0.5, 1.0) for _ in self.ranks]
        self.has_notice = False
        self.start_server()

    # -- actions -----------------------------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Replace the server by one that knows nothing."""
        for node in self.nodes:
            node.drop(self.now_s)
        names = [node.name for node in self.nodes]
        self.coordinator = Coordinator(remaining=names, ranks=len(self.ranks), period_s=self._period_s)
        if self.has_notice:
            self.coordinator.stopped(NOTICE)

    def notify(self) -> None:
        """Stop the gang with a notice."""
        self.has_notice = True
        self._send(self.coordinator.stopped(NOTICE))

    def restart_ranks(self) -> None:
        """End all ranks and start them again, as a program between launcher and ranks may."""
        self.check_agreement()
        step = self.chance.randint(-1, min(rank.step for rank in self.ranks))
        for rank in self.ranks:
            rank.restart(step)

    def act(self) -> None:
        """Let some ranks act, and some time pass."""
        self._act_a_little()
        self.now_s += TICK_S * self.chance.random()
        for node in self.nodes:
            node.tick(self.now_s)
        self._send(self.coordinator.tick(self.now_s))

    def deliver(self) -> None:
        """Deliver the next message of a node, in either direction."""
        node = self.chance.choice(self.nodes)
        if node.to_server and self.chance.random() < 0.5:
            message = json.loads(node.to_server.pop(0))
            self._send(self.coordinator.counts_received(node.name, Counts.from_message(message), self.now_s))
        elif node.from_server:
            node.handle(json.loads(node.from_server.pop(0)), self.now_s)

    def reconnect(self, *, after_s: float) -> None:
        """Reconnect nodes that have been away for that long."""
        for node in self.nodes:
            if node.to_server is None and self.now_s >= node.away_since_s + after_s:
                node.connect()

    def close(self) -> None:
        for part in (*self.nodes, *self.ranks):
            part.close()

    def _act_a_little(self) -> None:
        for _ in range(self.chance.randint(0, 3)):
            index = self.chance.randrange(len(self.ranks))
            if self.chance.random() < self.speeds[index]:
                self.ranks[index].act(self._may_step)

    def _may_step(self, step: int) -> bool:
        return not self._lockstep or all(rank.step >= step - 1 for rank in self.ranks)

    def _send(self, orders: Sequence[Order]) -> None:
        for name, kind, fields in orders:
            node = next(node for node in self.nodes if node.name == name)
            if node.to_server is not None:
                node.from_server.append(json.dumps({"type": kind, **fields}).encode())

    # -- invariants --------------------------------------------------------------------------------------------------

    @property
    def is_torn(self) -> bool:
        """True while launchers hold different schedules: faults do most then."""
        return len({node.schedule_state for node in self.nodes}) > 1

    def check_agreement(self) -> None:
        """Check that no two ranks have answered differently at the same count."""
        counts = set().union(*(rank.answers for rank in self.ranks))
        for count in counts if len(self.ranks) > 1 else ():  # a single rank may get another answer per call
            by_rank = [rank.answers[count] for rank in self.ranks if count in rank.answers]
            assert len({answers[0] for answers in by_rank}) <= 1, f"at {count}: {by_rank}"
            assert not any(True in answers[1:] for answers in by_rank), f"repeated at {count}: {by_rank}"

    def saves(self) -> list[list[int]]:
        """Return the counts at which each rank was to save."""
        return [[count for count, answers in rank.answers.items() if any(answers)] for rank in self.ranks]
