"""What the ranks of a task returned or raised, as `ganger.train.call` left it for the job. Called by `verbs`.

A file is a line of JSON, {"rank", "returned", "at_ms", "summary", "traceback"}, and the pickle of the value or of the
exception; no pickle when the exception has none.
"""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganger.model.job import array_of
from ganger.model.views.service_views import JobView
from ganger.sdk.sdk_types import JobFailed
from ganger.settings import Home

_RANK_MAIN = "__ganger_main__"
"""What a rank calls this program's `__main__`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one rank ended. The pickle, in the file at `path`, is opened when the value is asked for."""

    rank: int
    returned: bool
    at_ms: int
    summary: str
    traceback: str
    path: Path

    @property
    def value(self) -> Any:
        """What the function returned, or the exception it raised. Whatever unpickling raises, when a class is not here
        that was there."""
        with self.path.open("rb") as file:
            file.readline()
            return _Unpickler(file).load()


class TracebackOfRank(Exception):
    """Where a rank raised an exception: the cause of it when it is raised again here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def read_outcomes(home: Home, job: str, generation: int) -> Sequence[Outcome]:
    """Outcomes of one generation by rank; none for a job that is no task, or of which no rank came to its end."""
    element = array_of(job)
    place = home.jobs / element[0] / "elements" / str(element[1]) if element else home.jobs / job
    directory = place / "results" / str(generation)
    paths = [path for path in directory.glob("rank-*") if path.suffix != ".new"]
    return sorted(map(_read, paths), key=lambda outcome: outcome.rank)


def failure_of(job: JobView, outcomes: Sequence[Outcome]) -> Exception:
    """The exception of the rank that raised first; JobFailed when none did, or it cannot be made here."""
    raised = [outcome for outcome in outcomes if not outcome.returned]
    if not raised:
        return JobFailed(job)
    first = min(raised, key=lambda outcome: outcome.at_ms)
    told = TracebackOfRank(f"rank {first.rank} of {job.row.id}:\n{first.traceback}")
    error = _raised(first)
    if error is None:
        error = JobFailed(job, "task_failed", f"{job.row.id} {job.row.state}: rank {first.rank}: {first.summary}")
    error.__cause__ = told
    return error


def _raised(outcome: Outcome) -> Exception | None:
    """The exception, if it can be made here."""
    try:
        error = outcome.value
    except Exception:  # noqa: BLE001 - its class may be anything, and only be there
        return None
    return error if isinstance(error, Exception) else None


class _Unpickler(pickle.Unpickler):
    """Finds what was defined in `__main__` here, and there under another name."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == _RANK_MAIN else module, name)


def _read(path: Path) -> Outcome:
    with path.open("rb") as file:
        return Outcome(**json.loads(file.readline()), path=path)
