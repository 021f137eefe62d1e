"""Functions of the package that use the client of this environment: `ganger.run`, `ganger.wait` and others."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from ganger.sdk.clients import here
from ganger.sdk.job_fields import Command, JobFields
from ganger.sdk.job_handles import Job
from ganger.sdk.verbs import Submittable

P = ParamSpec("P")
T = TypeVar("T")


def run(command: Command, /, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit a command as a job, with the client of this environment: see Client.run."""
    return here().run(command, **fields)


def submit(job: Submittable, /, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit a job file or a mapping, with the client of this environment: see Client.submit."""
    return here().submit(job, **fields)


def _of(method: Callable[Concatenate[Job[Any], P], T]) -> Callable[Concatenate[str, P], T]:
    """Return a method of Job as a function of its id, or name."""

    def function(id: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(here().job(id), *args, **kwargs)

    name = Parameter("id", Parameter.POSITIONAL_ONLY)
    method_signature = signature(method)
    function.__name__, function.__doc__ = method.__name__, method.__doc__
    vars(function)["__signature__"] = method_signature.replace(
        parameters=[name, *list(method_signature.parameters.values())[1:]]
    )
    return function


logs = _of(Job.logs)
wait = _of(Job.wait)
explain = _of(Job.explain)
events = _of(Job.events)
stop = _of(Job.stop)
