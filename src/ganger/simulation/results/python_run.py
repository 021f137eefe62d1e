"""A run from Python: `ganger.simulation.run("jobs.csv", nodes=16)`, for notebooks."""

import argparse
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from ganger.errors import RequestError
from ganger.model.units import parse_duration_ms
from ganger.simulation.__main__ import argument_parser, single_run
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.json_output import Record
from ganger.simulation.results.job_columns import arrays, job_columns
from ganger.simulation.traces.trace import UnreadableTrace

_DURATIONS: Final = {
    "since": "since_ms",
    "start": "start_ms",
    "checkpoint": "checkpoint_ms",
    "checkpoint_cost": "write_ms",
    "notice": "notice_ms",
    "save": "save_ms",
    "detect": "detect_ms",
    "repair": "repair_ms",
}
"""Attribute of the arguments, in ms, for each option that is a duration."""
_PATHS: Final = ("from_log", "cluster", "faults", "throughputs", "document")
_LISTS: Final = ("document", "price")
_OF_SWEEPS: Final = ("to", "grid", "measures", "wait_p99_ms", "max_nodes")
_NOT_OF_A_CALL: Final = frozenset(
    {"subcommand", "trace", "policies", "seeds", "report", "log", "jobs_out", *_OF_SWEEPS, *_DURATIONS.values()}
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    jobs: columns of equal length, a row for each job: `pandas.DataFrame(result.jobs)`
    figures: what `ganger sim run -o json` prints
    """

    jobs: Mapping[str, NDArray[Any]]
    figures: Record


def run(trace: str | PathLike[str] | None = None, **options: Any) -> RunResult:
    """Run the jobs of a trace on a simulated cluster, and return its jobs and figures.

    The options are those of `ganger sim run`, with underscores: `nodes=16, policy="easy", start="2m", spares=1`.
    ValueError: something is wrong with the trace or an option, in the words of `ganger sim run`.
    """
    arguments = _arguments(trace, options)
    try:
        figures, outcome, simulated = single_run(arguments)
    except UnreadableTrace as error:
        raise ValueError(str(error)) from None
    except InvalidArgument as error:
        raise ValueError(f"{error.reason}; {error.next}") from None
    except RequestError as error:
        raise ValueError(f"{error.detail}; {error.next}") from None
    return RunResult(arrays(job_columns(outcome, simulated)), figures)


def _arguments(trace: str | PathLike[str] | None, options: Mapping[str, Any]) -> argparse.Namespace:
    arguments = argument_parser().parse_args(["run"])
    known = [name for name in (*vars(arguments), *_DURATIONS) if name not in _NOT_OF_A_CALL]
    for name, value in options.items():
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {similar[0]!r}?" if similar else ""
            raise TypeError(f"run() has no option {name!r}{hint}")
        if value is not None:
            setattr(arguments, _DURATIONS.get(name, name), _value(name, value))
    arguments.trace = None if trace is None else Path(trace)
    if (arguments.trace is None) == (arguments.from_log is None):
        raise ValueError("name a trace, or from_log for the log of a server, not both")
    if arguments.trace is not None and (arguments.nodes is None) == (arguments.cluster is None):
        raise ValueError("a trace does not define the nodes: give nodes=N or cluster=FILE")
    return arguments


def _value(name: str, value: Any) -> Any:
    """Return the value of an option as the simulation takes it: ms, paths, and lists of what may be repeated."""
    if name in _DURATIONS:
        return parse_duration_ms(value)
    if name in _LISTS:
        values = value if isinstance(value, list | tuple) else [value]
        return [Path(item) if name in _PATHS else str(item) for item in values]
    if name in _PATHS:
        return Path(value)
    return str(value) if name in ("fault_rate", "estimates", "load_scale") else value
