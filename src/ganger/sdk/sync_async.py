"""Methods of Job and AsyncJob derived from the verbs, so that each is written once.

`blocking` runs a verb to its end, `awaited` returns its coroutine; `each_...` do the same for verbs that yield several
values. The job passes its id to the verb; the other parameters and the docstring are the verb's.
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
    """The attributes of a job handle that a verb needs."""

    id: str
    verbs: Verbs


def blocking(verb: Verb[P, R]) -> Callable[Concatenate[Handle, P], R]:
    """Return a method that returns the result of the verb."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return at_once(verb(self.verbs, self.id, *args, **kwargs))

    return method


def each_blocking(verb: EachVerb[P, R]) -> Callable[Concatenate[Handle, P], Iterator[R]]:
    """Return a method that returns an iterator."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return each_at_once(verb(self.verbs, self.id, *args, **kwargs))

    return method


def awaited(verb: Verb[P, R]) -> Callable[Concatenate[Handle, P], Coroutine[Any, Any, R]]:
    """Return a method to be awaited."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return verb(self.verbs, self.id, *args, **kwargs)

    return method


def each_awaited(verb: EachVerb[P, R]) -> Callable[Concatenate[Handle, P], AsyncGenerator[R, None]]:
    """Return a method for `async for`."""

    @_like(verb)
    def method(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        return verb(self.verbs, self.id, *args, **kwargs)

    return method


def _like(verb: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that copies name, docstring and signature of a verb, without the id."""

    def named(method: F) -> F:
        verb_signature = signature(verb)
        parameters = [parameter for name, parameter in verb_signature.parameters.items() if name != "id"]
        wraps(verb)(method)
        vars(method)["__signature__"] = verb_signature.replace(parameters=parameters, return_annotation=Signature.empty)
        return method

    return named
