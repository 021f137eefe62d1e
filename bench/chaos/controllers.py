"""Two controllers, a leader and a standby, of which each that ends is replaced, as their Deployment does."""

import asyncio
import math
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.kubernetes.kwok import Controller, controller

REPLICAS: Final = 2
POLL_S: Final = 0.1


class Controllers:
    """The two controllers.

    Attributes:
        led_s: time since when the present leader leads; infinite without a leader.
        started: number of processes.
        exits: last lines of the output of those that exited by themselves.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._running: dict[Controller, ExitStack] = {}
        self._paused: set[Controller] = set()
        self._struck: set[Controller] = set()
        self._leader: Controller | None = None
        self.led_s = math.inf
        self.started, self.exits = 0, Counter[str]()

    async def keep(self) -> None:
        """Keep both running until cancelled."""
        try:
            while True:
                for ended in [running for running in self._running if not running.runs]:
                    if ended not in self._struck:
                        self.exits[_last_words(ended)] += 1
                    self._close(ended)
                while len(self._running) < REPLICAS:
                    self._start()
                self._find_leader()
                await asyncio.sleep(POLL_S)
        finally:
            for running in list(self._running):
                self.go_on(running)
                self._close(running)

    @property
    def leader(self) -> Controller | None:
        """The one that leads."""
        return self._leader

    @property
    def standby(self) -> Controller | None:
        """One that does not lead."""
        return next((running for running in self._running if running is not self._leader), None)

    def strike(self, running: Controller, number: signal.Signals) -> None:
        """Send a signal to one of them."""
        if running.runs:
            self._struck.add(running)
            if number == signal.SIGSTOP:
                self._paused.add(running)
            running.process.send_signal(number)

    def go_on(self, running: Controller) -> None:
        """Let one that was stopped go on."""
        if running in self._paused and running.runs:
            running.process.send_signal(signal.SIGCONT)
        self._paused.discard(running)

    def _start(self) -> None:
        stack = ExitStack()
        self._running[stack.enter_context(controller(self._kubeconfig, quiet=True))] = stack
        self.started += 1

    def _close(self, ended: Controller) -> None:
        self._running.pop(ended).close()
        self._paused.discard(ended)
        self._struck.discard(ended)

    def _find_leader(self) -> None:
        leading = [running for running in self._running if running not in self._paused and running.leads]
        leader = leading[-1] if leading else None
        if leader is not self._leader:
            self._leader, self.led_s = leader, time.monotonic() if leader else math.inf


def _last_words(ended: Controller) -> str:
    """Return the last line of its log, without the time."""
    line = (ended.log.read_text().splitlines() or [""])[-1]
    return line.partition(" ganger")[2] or line
