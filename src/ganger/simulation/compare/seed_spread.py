"""Mean and spread of a policy's runs that differ in what was drawn. Called by `simulation.compare.compare`.

The answer has the shape of a run, so that a table shows it as one: each number is the mean of those of the runs, or
their standard deviation (of a sample). A figure that a run does not have is left out of both.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from ganger.simulation.result import Record

PICTURES: Final = ("series", "bars")


def spread(runs: Sequence[Record]) -> list[Record]:
    """Of each policy with several runs."""
    of: dict[str, list[Record]] = {}
    for run in runs:
        of.setdefault(run["policy"], []).append(run)
    return [
        {
            "policy": policy,
            "runs": len(theirs),
            "mean": _folded(theirs, statistics.fmean),
            "std": _folded(theirs, statistics.stdev),
        }
        for policy, theirs in of.items()
        if len(theirs) > 1
    ]


def _folded(runs: Sequence[Record], how: Callable[[list[float]], float]) -> Record:
    """Of all figures that are numbers in any run; a kind of end that a run does not have it has 0 times."""
    found: Record = {}
    for name in dict.fromkeys(name for run in runs for name in run if name not in PICTURES):
        values = [run.get(name) for run in runs]
        if any(isinstance(value, dict) for value in values):
            parts = [value or {} for value in values]
            if name == "unended":
                kinds = dict.fromkeys(kind for part in parts for kind in part)
                parts = [{kind: part.get(kind, 0) for kind in kinds} for part in parts]
            found[name] = _folded(parts, how)
        else:
            numbers = [float(value) for value in values if isinstance(value, int | float)]
            found[name] = how(numbers) if len(numbers) > 1 else None
    return found
