"""Functions as jobs: `@task` attaches the fields of a job to a function, and a call of it becomes a job."""

from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from ganger.sdk.job_fields import JobFields

if TYPE_CHECKING:
    from ganger.sdk.job_handles import Job

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function that can run as a job. A call runs it in this process; `remote` submits it."""

    def __init__(self, function: Callable[P, R], fields: JobFields) -> None:
        self.__ganger_task__ = function
        self.fields = fields
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this process and return its result."""
        return self.__ganger_task__(*args, **kwargs)

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> "Job[R]":
        """Submit a call of the function, with these arguments for every rank.

        `result()` of the job is what rank 0 returned. With asyncio: `await client.call(function, ...)`.
        """
        # Every rank of a task imports this module, and submits nothing: the client takes longer to load than all else.
        from ganger.sdk.clients import here

        return here().call(self, *args, **kwargs)

    def options(self, **fields: Unpack[JobFields]) -> "Task[P, R]":
        """Return the same function with `fields` over its own."""
        return Task(self.__ganger_task__, {**self.fields, **fields})


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**fields: Unpack[JobFields]) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, **fields: Unpack[JobFields]) -> Any:
    """Make a function a job, with the keys of a job as fields: `@task(nodes=2, gpu=1)`, or without arguments."""
    if function is not None:
        return Task(function, fields)
    return lambda function: Task(function, fields)
