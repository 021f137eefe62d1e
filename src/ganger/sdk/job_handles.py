"""One job in the hands of a program: Job blocks, AsyncJob is awaited; they have the same methods."""

from collections.abc import Sequence
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
    """What both kinds of job are: an id, and the job as it was last seen by this handle."""

    def __init__(self, verbs: Verbs, row: JobRow) -> None:
        self.verbs = verbs
        self.id = row.id
        self.row = row

    @staticmethod
    def load(path: "str | Path", /, **fields: Unpack[JobFields]) -> JobFile:
        """A job file to submit, with `fields` over it. BadRequest when it cannot be read."""
        return JobFile.load(path, dict(fields))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.row.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and (self.id, self.verbs.home) == (other.id, other.verbs.home)

    def __hash__(self) -> int:
        return hash((self.id, self.verbs.home))


class Job(_Handle[R]):
    """A job. `row` is how it was when this handle was made; the methods ask the server each time.

    R is what `result()` gives: a task's return type; None for a command.
    """

    get = blocking(Verbs.job)
    logs = each_blocking(Verbs.logs)
    wait = blocking(Verbs.wait)
    explain = blocking(Verbs.explain)
    events = each_blocking(Verbs.events)
    metrics = each_blocking(Verbs.metrics)
    stacks = blocking(Verbs.stacks)
    stop = blocking(Verbs.stop)
    suspend = blocking(Verbs.suspend)
    resume = blocking(Verbs.resume)
    priority = blocking(Verbs.priority)
    delete = blocking(Verbs.delete)

    def retry(self) -> Self:
        """Run the job again, once it has ended: the same spec, the same code. The new job."""
        return type(self)(self.verbs, at_once(self.verbs.retry(self.id)).row)

    def clone(self, **fields: Unpack[JobFields]) -> Self:
        """Make a new job from this one: its spec with `fields` over it, the same code."""
        return type(self)(self.verbs, at_once(self.verbs.clone(self.id, **fields)).row)

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the end, and give what rank 0 of a task returned; None for a command; of an array a list of those of
        its elements, by index. What a rank raised is raised here, with its traceback; JobFailed when the job ended
        badly otherwise; TimedOut when it takes too long."""
        value: R = at_once(self.verbs.result(self.id, timeout_s))
        return value

    def results(self, timeout_s: float | None = None) -> Sequence[R]:
        """The same for all ranks, in their order; of an array a list of these."""
        return at_once(self.verbs.results(self.id, timeout_s))

    def _repr_html_(self) -> str:
        """The card that a notebook shows: the job as it is now, or as it was, when the server cannot be asked."""
        try:
            return _notebook_card(at_once(self.verbs.job(self.id)).row)
        except ClientError:
            return _notebook_card(self.row)


class AsyncJob(_Handle[R]):
    """A job, with the methods of Job to be awaited."""

    get = awaited(Verbs.job)
    logs = each_awaited(Verbs.logs)
    wait = awaited(Verbs.wait)
    explain = awaited(Verbs.explain)
    events = each_awaited(Verbs.events)
    metrics = each_awaited(Verbs.metrics)
    stacks = awaited(Verbs.stacks)
    stop = awaited(Verbs.stop)
    suspend = awaited(Verbs.suspend)
    resume = awaited(Verbs.resume)
    priority = awaited(Verbs.priority)
    delete = awaited(Verbs.delete)

    async def retry(self) -> Self:
        """As Job.retry."""
        return type(self)(self.verbs, (await self.verbs.retry(self.id)).row)

    async def clone(self, **fields: Unpack[JobFields]) -> Self:
        """As Job.clone."""
        return type(self)(self.verbs, (await self.verbs.clone(self.id, **fields)).row)

    async def result(self, timeout_s: float | None = None) -> R:
        """As Job.result."""
        value: R = await self.verbs.result(self.id, timeout_s)
        return value

    async def results(self, timeout_s: float | None = None) -> Sequence[R]:
        """As Job.results."""
        return await self.verbs.results(self.id, timeout_s)

    def _repr_html_(self) -> str:
        """The card that a notebook shows: the job as it was last seen."""
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
    cells = "".join(f"<tr><th>{name}</th><td>{said}</td></tr>" for name, said in lines.items() if said)
    return f'<table style="text-align:left">{cells}</table>'
