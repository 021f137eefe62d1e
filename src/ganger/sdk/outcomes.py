"""Outcomes of a task: what its ranks returned or raised, as stored by `ganger.train.call`.

A file is a line of JSON, {"rank", "returned", "at_ms", "summary", "traceback"}, and the pickle of the value or of the
exception; without a pickle if the exception has none.
"""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganger.model.job import split_element_id
from ganger.model.views.service_views import JobView
from ganger.sdk.sdk_types import JobFailed
from ganger.settings import Home

_RANK_MAIN = "__ganger_main__"
"""The name under which a rank imports this program's `__main__`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one rank. The pickle, in the file at `path`, is loaded when the value is accessed."""

    rank: int
    returned: bool
    at_ms: int
    summary: str
    traceback: str
    path: Path

    @property
    def value(self) -> Any:
        """The result of the function, or the exception that it raised.

        Access raises what unpickling raises if a class is missing here.
        """
        with self.path.open("rb") as file:
            file.readline()
            return _Unpickler(file).load()


class TracebackOfRank(Exception):
    """The traceback of a rank: the cause of its exception when it is raised again here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def read_outcomes(home: Home, job: str, generation: int) -> Sequence[Outcome]:
    """Return the outcomes of one generation by rank; empty for a job that is no task, or of which no rank finished."""
    element = split_element_id(job)
    job_directory = home.jobs / element[0] / "elements" / str(element[1]) if element else home.jobs / job
    directory = job_directory / "results" / str(generation)
    paths = [path for path in directory.glob("rank-*") if path.suffix != ".new"]
    return sorted(map(_read, paths), key=lambda outcome: outcome.rank)


def failure_of(job: JobView, outcomes: Sequence[Outcome]) -> Exception:
    """Return the exception of the first rank that raised; JobFailed if none did, or if it cannot be unpickled here."""
    raised = [outcome for outcome in outcomes if not outcome.returned]
    if not raised:
        return JobFailed(job)
    first = min(raised, key=lambda outcome: outcome.at_ms)
    cause = TracebackOfRank(f"rank {first.rank} of {job.row.id}:\n{first.traceback}")
    error = _raised(first)
    if error is None:
        error = JobFailed(job, "task_failed", f"{job.row.id} {job.row.state}: rank {first.rank}: {first.summary}")
    error.__cause__ = cause
    return error


def _raised(outcome: Outcome) -> Exception | None:
    """Return the exception, None if it cannot be unpickled here."""
    try:
        error = outcome.value
    except Exception:  # noqa: BLE001 - its class may be anything, and only be there
        return None
    return error if isinstance(error, Exception) else None


class _Unpickler(pickle.Unpickler):
    """An unpickler that finds in `__main__` what ranks import under another name."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == _RANK_MAIN else module, name)


def _read(path: Path) -> Outcome:
    with path.open("rb") as file:
        return Outcome(**json.loads(file.readline()), path=path)
