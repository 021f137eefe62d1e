"""Measurement of this node's GPUs by a child process, with a time for each: one that hangs is named and left out."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress

from ganger.train.preflight.device_figures import HOST, MAX_DEVICES, DeviceFigures, NodeFigures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

CHILD = (sys.executable, "-m", "ganger.train.preflight.device_bandwidth")
START_TIMEOUT_S = 120.0
"""For torch to load, and the driver to count its GPUs."""
DEVICE_TIMEOUT_S = 30.0
"""For one GPU, which takes about one."""
MAX_LINE = 10_000


class _SilentError(Exception):
    """The child printed nothing in time."""


class _Measurement:
    """Reports of the children so far.

    Attributes:
        count: Number of GPUs, None as long as none has reported it.
        running: The GPU that is measured, None for none.
    """

    def __init__(self) -> None:
        self.count: int | None = None
        self.reason = ""
        self.running: int | None = None
        self.devices: dict[int, DeviceFigures] = {}

    def take(self, line: Any) -> None:
        """Take in one line of a child. Raise ValueError if it is none of its lines."""
        line = line if isinstance(line, dict) else {}
        if "host" in line:
            self.devices[HOST] = DeviceFigures(HOST, {"host_memory": line["host"]})
        elif "count" in line:
            self.count, self.reason = _number(line["count"], MAX_DEVICES), str(line.get("reason", ""))
        elif "begin" in line:
            self.running = _number(line["begin"], MAX_DEVICES)
        elif "device" in line:
            number, self.running = _number(line["device"], MAX_DEVICES), None
            figures, error = line.get("figures"), str(line.get("error", ""))
            figures = figures if isinstance(figures, dict) else {}
            self.devices[number] = DeviceFigures(number, figures, str(line.get("type", "")), error)
        else:
            raise ValueError

    def fail(self, reason: str) -> int:
        """Blame the GPU that is measured, or all; return the number of the next one."""
        if self.running is None:
            for device in range(max(self.devices, default=HOST) + 1, self.count or 0):
                self.devices[device] = DeviceFigures(device, error=reason)
            return self.count or 0
        self.devices[self.running] = DeviceFigures(self.running, error=reason)
        next_device, self.running = self.running + 1, None
        return next_device

    def figures(self) -> NodeFigures:
        return NodeFigures([self.devices[number] for number in sorted(self.devices)], self.reason)


def measure_devices(
    child: Sequence[str] = CHILD, start_timeout_s: float = START_TIMEOUT_S, device_timeout_s: float = DEVICE_TIMEOUT_S
) -> NodeFigures:
    """Return the figures of all GPUs of this node and of its host. Raises nothing: what fails is an error of a GPU."""
    measurement, first = _Measurement(), 0
    while True:
        problem = _run_child(measurement, [*child, str(first)], start_timeout_s, device_timeout_s)
        if not problem:
            return measurement.figures()
        if measurement.count is None:
            measurement.reason = f"the measurement of GPUs ended before it had counted them: {problem}"
            return measurement.figures()
        first = measurement.fail(problem)
        if first >= measurement.count:
            return measurement.figures()


def _run_child(measurement: _Measurement, argv: Sequence[str], start_timeout_s: float, device_timeout_s: float) -> str:
    """Run one child to its end, and return what was wrong with it, "" for nothing."""
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    except OSError as error:
        return f"{argv[0]} cannot be started: {error.strerror}"

    def limit_s() -> float:
        return start_timeout_s if measurement.count is None else device_timeout_s

    try:
        for line in _lines(process, limit_s):
            measurement.take(line)
    except _SilentError:
        return f"it did not answer within {limit_s():g} s"
    except (ValueError, RecursionError):
        return "its measurement printed a line that is damaged"
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        # One that hangs in the driver cannot be killed: it is left.
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
    if process.returncode != 0 or measurement.running is not None:
        return f"its measurement ended with code {process.returncode}"
    return ""


def _lines(process: subprocess.Popen[bytes], limit_s: Callable[[], float]) -> Iterator[Any]:
    """Yield the lines of a child until it ends.

    Raise _SilentError if none comes in time, ValueError for one that is damaged.
    """
    file, rest = process.stdout.fileno() if process.stdout is not None else -1, b""
    deadline_s = time.monotonic() + limit_s()
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([file], [], [], left_s)[0]:
            raise _SilentError
        piece = os.read(file, 1 << 16)
        if not piece:
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise _SilentError from None
            return
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_LINE:
            raise ValueError
        for line in lines:
            yield json.loads(line)
            deadline_s = time.monotonic() + limit_s()


def _number(value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError
    return value
