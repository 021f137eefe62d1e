"""Figures: the results of benches, each with its samples and its bar."""

import json
import operator
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity: `samples` in `unit`, summarized as `value`, with the bar `value op bar`.

    Without `op` and `bar` it is only printed, as a peer's figure is. `floor` is the best possible value, measured in
    the same run: what is left of the figure when ganger does nothing.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    value: float
    op: str | None = None
    bar: float | None = None
    floor: float | None = None

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"{self.name}: no samples, so there is nothing to report")
        if (self.op is None) != (self.bar is None):
            raise ValueError(f"{self.name}: op and bar go together; got op={self.op!r} and bar={self.bar!r}")
        if self.op is not None and self.op not in _OPERATORS:
            raise ValueError(f"{self.name}: op {self.op!r} is not one of {' '.join(_OPERATORS)}")

    @property
    def holds(self) -> bool | None:
        """True if the value meets the bar; None without a bar."""
        if self.op is None or self.bar is None:
            return None
        return _OPERATORS[self.op](self.value, self.bar)

    def spread(self) -> str:
        """Return the figure for people: its least, median and greatest sample, and how it compares to its bar."""
        low, middle, high = min(self.samples), statistics.median(self.samples), max(self.samples)
        text = (
            f"{self.name}: min {low:.4g}  median {middle:.4g}  max {high:.4g} {self.unit}  ({len(self.samples)} runs)"
        )
        if self.floor is not None:
            text += f"  floor {self.floor:.4g}"
        if self.holds is not None:
            text += f"  {self.value:.4g} {self.op} {self.bar:.4g}: {'holds' if self.holds else 'DOES NOT HOLD'}"
        return text

    def line(self) -> str:
        """Return the figure for programs: one JSON object on one line."""
        fields = ("name", "value", "unit", "samples", "op", "bar", "floor", "holds")
        return json.dumps({field: getattr(self, field) for field in fields})


def median(
    name: str, unit: str, samples: Sequence[float], *, under: float | None = None, floor: float | None = None
) -> Figure:
    """Return a figure whose value is the median of its samples, strictly `under` a bar if there is one."""
    return Figure(
        name=name,
        unit=unit,
        samples=tuple(samples),
        value=statistics.median(samples),
        op=None if under is None else "<",
        bar=under,
        floor=floor,
    )


def wall_s(*commands: Sequence[str | Path], env: Mapping[str, str] | None = None) -> float:
    """Return the seconds that the commands take one after another, from the root of the checkout.

    Raises subprocess.CalledProcessError, with the command's output shown, when one fails: a figure of a failed run
    would be wrong.
    """
    started = time.perf_counter()
    for command in commands:
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            print(run.stdout, run.stderr, sep="\n")
            run.check_returncode()
    return time.perf_counter() - started
