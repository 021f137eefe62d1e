"""The agent of a node: it samples the node at intervals, keeps a history, and hands each sample on.

On one machine it is a thread of the server, on Kubernetes one of a process of each node.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ganger.agent.history.figure_history import STEP_S, FigureHistory, Series
from ganger.agent.history.sample_figures import FigureReader
from ganger.agent.history.sample_ring import SampleRing
from ganger.agent.sampling.kernel_log import KernelPosition
from ganger.agent.sampling.node_sampler import NodeSampler
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.model.node_health.node_figures import Figures, GpuWork
from ganger.model.node_health.node_sample import NodeSample

INTERVAL_S: Final = float(STEP_S)
FIRST_S: Final = 1.0
"""Delay of the first sample: the program that the agent is in has to start first."""
END_S: Final = 1.0
"""Time that a sample under way may take at the end."""

_log = logging.getLogger("ganger")


class NodeAgent:
    """The agent of one node.

    database: file of the history.
    listen: called with each sample, on the agent's thread. If it fails, that is logged once, and sampling goes on.
    """

    def __init__(self, node: str, roots: SamplingRoots, database: Path, listen: Callable[[NodeSample], None]) -> None:
        self._node, self._roots, self._listen = node, roots, listen
        self._history = FigureHistory(database)
        self._ring = SampleRing()
        self._reader = FigureReader()
        self._figures: dict[str, Figures] = {}
        self._is_over = threading.Event()
        self._is_failing = False

    @property
    def ring(self) -> SampleRing:
        """The newest samples."""
        return self._ring

    def figures(self) -> dict[str, Figures]:
        """Return the newest figures of the machine and of each GPU."""
        return self._figures

    def history(self, since_ms: int, until_ms: int, points: int) -> dict[str, Series]:
        """Return the figures of the machine and of each GPU in equal steps of a while."""
        # Up to the end of a second that has begun: a step that begins with it has a sample already.
        return self._history.series(since_ms // 1000, -(-until_ms // 1000), points)

    def gpu_work(self, since_ms: int, until_ms: int) -> GpuWork:
        """Return the recorded work of each GPU in a while."""
        return self._history.gpu_work(since_ms // 1000, -(-until_ms // 1000))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample for the duration of the context."""
        thread = threading.Thread(target=self._run, name="node-agent", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(END_S)

    def _run(self) -> None:
        position = self._history.position()
        sampler = NodeSampler(self._node, self._roots, KernelPosition(*position) if position else None)
        pause_s = FIRST_S
        while not self._is_over.wait(pause_s):
            began_s = time.monotonic()
            try:
                self._sample(sampler)
            except Exception:  # noqa: BLE001 - the thread is the only one that sees this machine
                if not self._is_failing:
                    _log.exception("a sample of this machine failed; the next is taken all the same")
                self._is_failing = True
            else:
                self._is_failing = False
            pause_s = max(0.0, INTERVAL_S - (time.monotonic() - began_s))
        self._history.close()

    def _sample(self, sampler: NodeSampler) -> None:
        sample = sampler.sample()
        self._figures = self._reader.read(sample, time.monotonic())
        self._ring.add(sample)
        self._history.add(sample.at_ms // 1000, self._figures, sampler.position)
        self._listen(sample)
