"""Makes the methods of Job and AsyncJob out of the verbs, so that each is written once. Called by `job`.

`blocking` runs a verb to its end, `awaited` hands its coroutine on; `each_...` do the same with verbs that give one
thing after the other. A job gives the verb its id; what else the method takes, and its docstring, are the verb's.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from inspect import Signature, signature
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ganger.client.local.follow_requests import at_once, each_at_once
from ganger.sdk.verbs import Verbs

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Verb = Callable[Concatenate[Verbs, str, P], Coroutine[Any, Any, R]]
EachVerb = Callable[Concatenate[Verbs, str, P], AsyncGenerator[R, None]]


class Handle(Protocol):
    """What a job is known by."""

    id: str
    verbs: Verbs


def blocking(verb: Verb[P, R]) -> Callable[Concatenate[Handle, P], R]:
    """A method that gives what the verb gives."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return at_once(verb(self.verbs, self.id, *args, **kwargs))

    return method


def each_blocking(verb: EachVerb[P, R]) -> Callable[Concatenate[Handle, P], Iterator[R]]:
    """A method that gives an iterator."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return each_at_once(verb(self.verbs, self.id, *args, **kwargs))

    return method


def awaited(verb: Verb[P, R]) -> Callable[Concatenate[Handle, P], Coroutine[Any, Any, R]]:
    """A method to await."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return verb(self.verbs, self.id, *args, **kwargs)

    return method


def each_awaited(verb: EachVerb[P, R]) -> Callable[Concatenate[Handle, P], AsyncGenerator[R, None]]:
    """A method for `async for`."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        return verb(self.verbs, self.id, *args, **kwargs)

    return method


def _like(verb: Callable[..., Any]) -> Callable[[F], F]:
    """Gives a method the name and the docstring of a verb, and its signature but for the id."""

    def named(method: F) -> F:
        told = signature(verb)
        parameters = [each for name, each in told.parameters.items() if name != "id"]
        wraps(verb)(method)
        vars(method)["__signature__"] = told.replace(parameters=parameters, return_annotation=Signature.empty)
        return method

    return named
