"""Measurement of pairs of nodes by all-reduce: nccl between GPUs, gloo between CPUs. One rank of each node.

torch is loaded when it is needed: whatever a task has of ganger loads without it. Each pair is a process group of its
own, so that a node that fails takes no other group with it. Steps begin
together: a node that waits for a bad partner would come too late to its next one, and look bad to that.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from importlib import import_module

from ganger.train.preflight.group_testing import PairResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ganger.train.preflight.group_testing import Findings, GroupTesting, Pair

    Store = Any
    Exchange = Callable[[Store, int], float]

MESSAGE_BYTES = 16 << 20
REPEATS = 4
PAIR_TIMEOUT_S = 10.0
"""For meeting the partner, and for each all-reduce: of 16 MB it takes milliseconds, on any network for training."""
STEP_TIMEOUT_S = 3 * PAIR_TIMEOUT_S
OUTCOME_TIMEOUT_S = 20 * STEP_TIMEOUT_S
"""For rank 0, which waits for each silent node."""


class PairMeasurement:
    """One node's part in the rounds; the node of rank 0 also decides on the pairs.

    Attributes:
        store: All nodes meet in it.
        rank, size: The node's number, and how many there are.
        silent: Nodes that did not answer in time, as far as rank 0 knows: they are left out from then on.
    """

    def __init__(self, store: Store, rank: int, size: int, exchange: Exchange | None = None) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.silent: dict[str, None] = {}
        self._exchange = exchange or all_reduce

    def lead(self, testing: GroupTesting, rounds: int) -> Findings:
        """Carry out the rounds as rank 0, and return what they found."""
        while testing.rounds < rounds:
            schedule = [
                [pair for pair in step if not any(node in self.silent for node in pair)]
                for step in testing.next_round()
            ]
            self.store.set(f"schedule/{testing.rounds}", json.dumps(schedule))
            own = self._measure(testing.rounds, schedule)
            testing.record(self._collect(testing.rounds, schedule, own))
        self.store.set(f"schedule/{rounds}", json.dumps(None))
        return testing.findings()

    def end(self, outcome: str) -> None:
        """Let the other nodes know the outcome as rank 0, and wait until they do: the store ends with this process."""
        self.store.set("outcome", outcome)
        self._wait_for(*(f"end/{rank}" for rank in range(1, self.size) if str(rank) not in self.silent))

    def await_end(self) -> str:
        """Return the outcome of rank 0."""
        self.store.wait(["outcome"], timedelta(seconds=OUTCOME_TIMEOUT_S))
        outcome = str(self.store.get("outcome").decode())
        self.store.set(f"end/{self.rank}", "")
        return outcome

    def follow(self) -> None:
        """Carry out the rounds that rank 0 asks for until it has no more."""
        number = 0
        while (schedule := self._next_schedule(number)) is not None:
            self.store.set(f"results/{number}/{self.rank}", json.dumps(self._measure(number, schedule)))
            number += 1

    def _next_schedule(self, number: int) -> list[list[Pair]] | None:
        self.store.wait([f"schedule/{number}"], timedelta(seconds=OUTCOME_TIMEOUT_S))
        return json.loads(self.store.get(f"schedule/{number}"))  # type: ignore[no-any-return]

    def _measure(self, number: int, schedule: list[list[Pair]]) -> list[float | None]:
        """Return the rate of this node's test in each step in bytes a second: 0 if it failed, None without one."""
        rates: list[float | None] = []
        for index, step in enumerate(schedule):
            pair = next((pair for pair in step if str(self.rank) in pair), None)
            rates.append(pair and self._test(f"{number}/{index}/{'-'.join(pair)}", pair.index(str(self.rank))))
            self._meet(f"{number}/{index}", len({node for step in schedule for pair in step for node in pair}))
        return rates

    def _test(self, name: str, place: int) -> float:
        try:
            return self._exchange(distributed().PrefixStore(name, self.store), place)
        except RuntimeError:  # the partner failed, or this node did: the rounds will tell
            return 0.0

    def _meet(self, name: str, nodes: int) -> None:
        """Wait until all nodes of a round are done with a step, or for as long as a step may take."""
        if self.store.add(f"done/{name}", 1) >= nodes:
            self.store.set(f"all/{name}", "")
            return
        self._wait_for(f"all/{name}")  # if in vain, one of them is silent, which the results show

    def _wait_for(self, *keys: str) -> bool:
        """Wait for keys of the store, as long as a step may take; return whether they are all there."""
        try:
            self.store.wait([*keys], timedelta(seconds=STEP_TIMEOUT_S))
        except RuntimeError:
            return False
        return True

    def _collect(self, number: int, schedule: list[list[Pair]], own: list[float | None]) -> list[PairResult]:
        """Return the results of a round: the rate of the slower node of each pair."""
        rates: dict[str, list[float | None]] = {"0": own}
        for node in {node: None for step in schedule for pair in step for node in pair if node != "0"}:
            if self._wait_for(f"results/{number}/{node}"):
                rates[node] = json.loads(self.store.get(f"results/{number}/{node}"))
            else:
                self.silent[node] = None
        nothing = [0.0] * len(schedule)
        return [
            PairResult(pair, min(rates.get(node, nothing)[index] or 0.0 for node in pair))
            for index, step in enumerate(schedule)
            for pair in step
        ]


def distributed() -> Any:
    """Return torch.distributed. Raise ImportError in an environment without it."""
    return import_module("torch.distributed")


def all_reduce(store: Store, place: int) -> float:
    """Exchange data with the partner of a pair, and return bytes a second. Raise RuntimeError if that fails."""
    torch, timeout = import_module("torch"), timedelta(seconds=PAIR_TIMEOUT_S)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    store.set_timeout(timeout)
    group = (
        _nccl(store, place, timeout)
        if device.type == "cuda"
        else distributed().ProcessGroupGloo(store, place, 2, timeout)
    )
    data = torch.ones(MESSAGE_BYTES // 4, device=device)
    group.allreduce([data]).wait()  # connects
    begin_s = time.monotonic()
    for _ in range(REPEATS):
        group.allreduce([data]).wait()
    if device.type == "cuda":
        torch.cuda.synchronize()
    took_s = time.monotonic() - begin_s
    # Ones that were added 1 + REPEATS times: a network that corrupts data is worse than one that is down.
    if not bool((data == 2.0 ** (1 + REPEATS)).all()):
        message = "the all-reduce of a pair gave a wrong result"
        raise RuntimeError(message)
    return REPEATS * MESSAGE_BYTES / took_s


def _nccl(store: Store, place: int, timeout: timedelta) -> Any:
    options = distributed().ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 - the only way to set it for a group that is made by hand
    return distributed().ProcessGroupNCCL(store, place, 2, options)
