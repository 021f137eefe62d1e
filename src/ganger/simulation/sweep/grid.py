"""The points of a sweep: each combination of the values that `--grid` lists.

`policy=easy,fifo,nodes=8,16` is two policies on two numbers of nodes: a word with the name of a parameter before `=`
begins the values of that parameter.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

from ganger.model.units import parse_duration_ms
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.policy_arguments import order_and_score
from ganger.simulation.arguments.workload_arguments import load_from

MOST_POINTS: Final = 10_000
_NEXT: Final = "--grid policy=easy,fifo,nodes=8,16"


def _policy(text: str) -> str:
    order_and_score(text)
    return text


def _load(text: str) -> str:
    load_from(text)
    return text


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not text.isascii() or len(text) > 6 or int(text) < least:
            raise ValueError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


PARAMETERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "policy": ("policy", _policy),
    "nodes": ("nodes", _at_least(1)),
    "gpus": ("gpus", _at_least(1)),
    "load": ("load_scale", _load),
    "estimates": ("estimates", str),
    "start": ("start_ms", parse_duration_ms),
    "checkpoint": ("checkpoint_ms", parse_duration_ms),
    "fault-rate": ("fault_rate", str),
    "spares": ("spares", _at_least(0)),
    "seed": ("seed", _at_least(0)),
}
"""Name -> attribute of the arguments, and parser of a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """One combination. `values`: as they were typed; `arguments`: those of the run."""

    values: dict[str, str]
    arguments: argparse.Namespace

    @property
    def name(self) -> str:
        """The values as they are typed: `policy=easy nodes=8`."""
        return " ".join(f"{name}={value}" for name, value in self.values.items())


def grid_points(arguments: argparse.Namespace) -> list[GridPoint]:
    """Return the points in the order of the values, the last parameter changing fastest.

    InvalidArgument: a parameter or a value is unknown, or the number of nodes is not known.
    """
    grid = _parse_grid(",".join(arguments.grid))
    if "nodes" in grid and (arguments.nodes is not None or arguments.cluster is not None):
        raise InvalidArgument("--nodes and --cluster exclude nodes in --grid", "leave one of them out")
    if "nodes" not in grid and arguments.nodes is None and arguments.cluster is None:
        raise InvalidArgument("a trace does not define the nodes", "add nodes=8,16 to --grid, or --nodes 16")
    if (points := prod(map(len, grid.values()))) > MOST_POINTS:
        raise InvalidArgument(f"the grid has {points} points, more than {MOST_POINTS}", "leave out some values")
    parsed = {name: [_parse(name, value) for value in values] for name, values in grid.items()}
    return [
        GridPoint(values=dict(zip(grid, texts, strict=True)), arguments=_with(arguments, grid, values))
        for texts, values in zip(product(*grid.values()), product(*parsed.values()), strict=True)
    ]


def _parse_grid(text: str) -> dict[str, list[str]]:
    grid: dict[str, list[str]] = {}
    for parameter, value in _words(text):
        values = grid.setdefault(parameter, [])
        if not value or value in values:
            problem = "twice" if value else "without a value"
            raise InvalidArgument(f"--grid names {parameter}={value} {problem}", _NEXT)
        values.append(value)
    return grid


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Yield (parameter, value) of each word."""
    parameter = ""
    for word in text.split(","):
        name, separator, value = (part.strip() for part in word.partition("="))
        if separator and name in PARAMETERS:
            parameter = name
            yield parameter, value
        elif parameter:
            yield parameter, word.strip()
        else:
            known = ", ".join(PARAMETERS)
            raise InvalidArgument(f"{name!r} is not a parameter of --grid", f"name some of {known}: {_NEXT}")


def _parse(parameter: str, value: str) -> Any:
    try:
        return PARAMETERS[parameter][1](value)
    except ValueError as error:
        raise InvalidArgument(f"--grid {parameter}={value}: {error}", _NEXT) from None


def _with(arguments: argparse.Namespace, parameters: Iterable[str], values: Iterable[Any]) -> argparse.Namespace:
    attributes = (PARAMETERS[name][0] for name in parameters)
    return argparse.Namespace(**{**vars(arguments), **dict(zip(attributes, values, strict=True))})
