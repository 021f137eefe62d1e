"""Job handles: Job blocks, AsyncJob is awaited; their methods are the same."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack

from ganger.client.client_errors import ClientError
from ganger.client.local.follow_requests import at_once
from ganger.model.views.service_views import JobRow
from ganger.sdk.job_fields import JobFields
from ganger.sdk.sdk_types import JobFile
from ganger.sdk.sync_async import awaited, blocking, each_awaited, each_blocking
from ganger.sdk.verbs import Verbs

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import TypeVar

    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    R = TypeVar("R")


_STATE_COLOURS: Final = {"succeeded": "#2e7d32", "failed": "#c62828", "running": "#1565c0"}
_OTHER_COLOUR: Final = "#616161"


class _Handle(Generic[R]):
    """The common part of both handles: an id, and the job as this handle last saw it."""

    def __init__(self, verbs: Verbs, row: JobRow) -> None:
        self.verbs = verbs
        self.id = row.id
        self.row = row

    @staticmethod
    def load(path: "str | Path", /, **fields: Unpack[JobFields]) -> JobFile:
        """Read a job file for submission, with `fields` over it; raise BadRequest if it cannot be read."""
        return JobFile.load(path, dict(fields))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.row.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and (self.id, self.verbs.place) == (other.id, other.verbs.place)

    def __hash__(self) -> int:
        return hash((self.id, self.verbs.place))


class Job(_Handle[R]):
    """A job. `row` is its state when this handle was created; the methods ask the server each time.

    R is the type of `result()`: a task's return type; None for a command.
    """

    get = blocking(Verbs.job)
    logs = each_blocking(Verbs.logs)
    wait = blocking(Verbs.wait)
    explain = blocking(Verbs.explain)
    events = each_blocking(Verbs.events)
    metrics = blocking(Verbs.metrics)
    reports = each_blocking(Verbs.reports)
    stacks = blocking(Verbs.stacks)
    stop = blocking(Verbs.stop)
    suspend = blocking(Verbs.suspend)
    resume = blocking(Verbs.resume)
    priority = blocking(Verbs.priority)
    scale = blocking(Verbs.scale)
    rollback = blocking(Verbs.rollback)
    delete = blocking(Verbs.delete)

    def retry(self, *, params: Mapping[str, str | int | float | bool] | None = None) -> Self:
        """Run an ended job again, with the same spec and code, and return the new job.

        params: other values of its parameters.
        """
        return type(self)(self.verbs, at_once(self.verbs.retry(self.id, params=params)).row)

    def clone(self, **fields: Unpack[JobFields]) -> Self:
        """Create a new job from this one: its spec with `fields` over it, and the same code."""
        return type(self)(self.verbs, at_once(self.verbs.clone(self.id, **fields)).row)

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the end, and return what rank 0 of a task returned; None for a command.

        For an array, return a list of those of its elements, by index. An exception of a rank is raised here, with its
        traceback; JobFailed if the job failed otherwise; TimedOut if it takes too long.
        """
        value: R = at_once(self.verbs.result(self.id, timeout_s))
        return value

    def results(self, timeout_s: float | None = None) -> Sequence[R]:
        """Wait for the end, and return what every rank returned, in rank order; for an array, a list of these."""
        return at_once(self.verbs.results(self.id, timeout_s))

    def _repr_html_(self) -> str:
        """Return a card for notebooks: the current job, or its last known state if the server cannot be asked."""
        try:
            return _notebook_card(at_once(self.verbs.job(self.id)).row)
        except ClientError:
            return _notebook_card(self.row)


class AsyncJob(_Handle[R]):
    """A job, with the methods of Job as coroutines."""

    get = awaited(Verbs.job)
    logs = each_awaited(Verbs.logs)
    wait = awaited(Verbs.wait)
    explain = awaited(Verbs.explain)
    events = each_awaited(Verbs.events)
    metrics = awaited(Verbs.metrics)
    reports = each_awaited(Verbs.reports)
    stacks = awaited(Verbs.stacks)
    stop = awaited(Verbs.stop)
    suspend = awaited(Verbs.suspend)
    resume = awaited(Verbs.resume)
    priority = awaited(Verbs.priority)
    scale = awaited(Verbs.scale)
    rollback = awaited(Verbs.rollback)
    delete = awaited(Verbs.delete)

    async def retry(self, *, params: Mapping[str, str | int | float | bool] | None = None) -> Self:
        """See Job.retry."""
        return type(self)(self.verbs, (await self.verbs.retry(self.id, params=params)).row)

    async def clone(self, **fields: Unpack[JobFields]) -> Self:
        """See Job.clone."""
        return type(self)(self.verbs, (await self.verbs.clone(self.id, **fields)).row)

    async def result(self, timeout_s: float | None = None) -> R:
        """See Job.result."""
        value: R = await self.verbs.result(self.id, timeout_s)
        return value

    async def results(self, timeout_s: float | None = None) -> Sequence[R]:
        """See Job.results."""
        return await self.verbs.results(self.id, timeout_s)

    def _repr_html_(self) -> str:
        """Return a card for notebooks with the last known state."""
        return _notebook_card(self.row)


def _notebook_card(row: JobRow) -> str:
    """Return the job as a small HTML table for notebooks; rows without a value are left out."""
    colour = _STATE_COLOURS.get(row.state, _OTHER_COLOUR)
    state = f'<span style="color:{colour};font-weight:bold">{escape(row.state)}</span>'
    lines = {
        "job": f"<b>{escape(row.id)}</b>",
        "state": state,
        "size": escape(row.shape),
        "queue": escape(row.queue),
        "nodes": escape(", ".join(row.nodes)),
        "why": escape(row.sentence),
    }
    cells = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in lines.items() if text)
    return f'<table style="text-align:left">{cells}</table>'
