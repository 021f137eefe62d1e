"""The last hour of a node's figures, in memory.

The long history is on the node, where its agent keeps it. The hour is what `ganger top` and `ganger get --usage` show,
and a controller that starts begins a new one: 52 KB for a node with 8 GPUs.
"""

from array import array
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.engine.query.node_telemetry import DEFAULT_SPAN_MS, MACHINE, STEP_MS, Series
from ganger.model.node_health.node_figures import NOT_MEASURED, Figures, GpuSamples, GpuWork

STEPS: Final = DEFAULT_SPAN_MS // STEP_MS
MAX_DEVICES: Final = 33
"""The node and 32 GPUs; of more, the first are kept."""
_OF_NODE: Final = ("busy_permille", "memory_bytes", "received_bytes_s", "sent_bytes_s")
_OF_GPU: Final = ("busy_permille", "memory_bytes", "power_mw", "temperature_c")
_MOST_PERMILLE: Final = 1_000
_NONE: Final = -1
_GREATEST: Final = 1 << 62


class RecentHistory:
    """The history of one node, by the controller's clock. Not safe from several threads."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._values: NDArray[np.float32] = np.empty((0, len(_OF_NODE), STEPS), np.float32)
        self._steps: NDArray[np.int64] = np.full(STEPS, _NONE, np.int64)
        """Number of the step, since the epoch, of each column of the values."""

    def add(self, at_ms: int, figures: Mapping[str, Figures]) -> None:
        """Add the figures of a moment, in Unix ms, in place of those of an hour ago."""
        step = at_ms // STEP_MS
        column = step % STEPS
        self._steps[column] = step
        self._values[:, :, column] = np.nan
        for device, item in figures.items():
            if (row := self._row(device)) is None:
                continue
            for index, name in enumerate(_names(device)):
                if (value := getattr(item, name)) is not None:
                    self._values[row, index, column] = min(max(value, -_GREATEST), _GREATEST)

    def series(self, since_ms: int, until_ms: int, points: int) -> dict[str, Series]:
        """Return the means of the node and of each GPU in equal steps of a while."""
        length_ms = max(1, (until_ms - since_ms) // points)
        at_ms = self._steps * STEP_MS
        is_within = (self._steps != _NONE) & (at_ms >= since_ms - since_ms % STEP_MS) & (at_ms < until_ms)
        point = np.clip((at_ms - since_ms) // length_ms, 0, points - 1)
        membership = (point[:, None] == np.arange(points)) & is_within[:, None]
        is_measured = ~np.isnan(self._values)
        sums = np.where(is_measured, self._values, 0).astype(np.float64) @ membership
        counts = is_measured.astype(np.float64) @ membership
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / counts
        return {device: _figures(device, means[row]) for device, row in self._rows.items()}

    def gpu_work(self, since_ms: int, until_ms: int) -> GpuWork:
        """Return the work of each GPU in a while, as far as it is in the hour."""
        order = np.argsort(self._steps)
        order = order[(self._steps[order] * STEP_MS >= since_ms) & (self._steps[order] * STEP_MS < until_ms)]
        times_ms = array("q", (self._steps[order] * STEP_MS).astype(np.int64).tobytes())
        samples = {}
        for device, row in self._rows.items():
            if device != MACHINE:
                values = self._values[row, _OF_GPU.index("busy_permille"), order]
                work = np.where(np.isnan(values), NOT_MEASURED, np.clip(np.round(values), 0, _MOST_PERMILLE))
                busy_permille = array("h", work.astype(np.int16).tobytes())
                samples[device] = GpuSamples(times_ms=times_ms, busy_permille=busy_permille)
        return GpuWork(samples=samples)

    def _row(self, device: str) -> int | None:
        """Return the row of a device; None for one beyond the limit."""
        if device not in self._rows and len(self._rows) < MAX_DEVICES:
            self._rows[device] = len(self._rows)
            row = np.full((1, len(_OF_NODE), STEPS), np.nan, np.float32)
            self._values = np.concatenate([self._values, row])
        return self._rows.get(device)


def _names(device: str) -> Sequence[str]:
    return _OF_NODE if device == MACHINE else _OF_GPU


def _figures(device: str, means: NDArray[np.float64]) -> Series:
    """Return the figures of each step; None where nothing was measured."""
    steps: list[Figures | None] = []
    for step in means.T:
        means_of_step = zip(_names(device), step.tolist(), strict=True)
        values = {name: round(mean) for name, mean in means_of_step if not isnan(mean)}
        steps.append(Figures(**values) if values else None)
    return tuple(steps)
