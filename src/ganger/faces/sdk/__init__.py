"""The SDK: jobs from Python. `ganger` has these names, which come from here when they are used. docs/sdk.md."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from ganger.faces.client.errors import BadRequest, ClientError, NotFound, Refused, TimedOut, Unreachable
from ganger.faces.sdk.client import AsyncClient, Client, here
from ganger.faces.sdk.fields import Command, JobFields
from ganger.faces.sdk.job import AsyncJob, Job
from ganger.faces.sdk.tasks import Task, task
from ganger.faces.sdk.values import JobFailed, JobFile, LogLine, Report
from ganger.faces.sdk.verbs import Submittable

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "BadRequest",
    "Client",
    "ClientError",
    "Job",
    "JobFailed",
    "JobFields",
    "JobFile",
    "LogLine",
    "NotFound",
    "Refused",
    "Report",
    "Task",
    "TimedOut",
    "Unreachable",
    "events",
    "explain",
    "logs",
    "run",
    "stop",
    "submit",
    "task",
    "wait",
]

P = ParamSpec("P")
T = TypeVar("T")


def run(command: Command, /, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit a command as a job, with the client of this environment: see Client.run."""
    return here().run(command, **fields)


def submit(job: Submittable, /, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit a job file or a mapping, with the client of this environment: see Client.submit."""
    return here().submit(job, **fields)


def _of(method: Callable[Concatenate[Job[Any], P], T]) -> Callable[Concatenate[str, P], T]:
    """A method of Job as a function of its id, or name."""

    def function(id: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(here().job(id), *args, **kwargs)

    function.__name__, function.__doc__ = method.__name__, method.__doc__
    return function


logs = _of(Job.logs)
wait = _of(Job.wait)
explain = _of(Job.explain)
events = _of(Job.events)
stop = _of(Job.stop)
