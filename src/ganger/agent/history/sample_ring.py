"""The newest samples of a node, in memory."""

import threading
import time
from collections import deque
from dataclasses import replace
from typing import Final

from ganger.model.node_health.node_sample import KernelLine, NodeSample

MAX_SAMPLES: Final = 60
MAX_LINES: Final = 1_000


class SampleRing:
    """The newest samples, and beside them the newest lines of the kernel's log, which are many at times.

    Safe from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[NodeSample] = deque(maxlen=MAX_SAMPLES)
        self._lines: deque[KernelLine] = deque(maxlen=MAX_LINES)
        self._added_s = time.monotonic()

    def add(self, sample: NodeSample) -> None:
        """Add the newest sample."""
        with self._lock:
            self._lines.extend(sample.lines)
            self._samples.append(replace(sample, lines=()))
            self._added_s = time.monotonic()

    def age_ms(self) -> int:
        """Return how long ago the newest sample came, or the agent began; the clock of samples may jump."""
        return round(1000 * (time.monotonic() - self._added_s))

    def newest(self) -> NodeSample | None:
        """Return the newest sample, without its lines."""
        with self._lock:
            return self._samples[-1] if self._samples else None

    def samples(self) -> tuple[NodeSample, ...]:
        """Return all samples without their lines, oldest first."""
        with self._lock:
            return tuple(self._samples)

    def lines(self) -> tuple[KernelLine, ...]:
        """Return the newest lines, oldest first."""
        with self._lock:
            return tuple(self._lines)
