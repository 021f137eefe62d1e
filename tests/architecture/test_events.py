"""Every event class is in the union `Event`, and every event that a user asks for is in the union `Request`."""

from dataclasses import fields, is_dataclass
from typing import Any, get_args

from ganger.model import event as events

FACTS_WITH_A_USER = {
    "NodePreempted": "a user may report it, but the provider takes the node anyway: it cannot be refused",
}
"""Classes with a field `by` that are no requests, each with the reason."""


def event_classes() -> dict[str, Any]:
    """Return the dataclasses of `model.event` that have a field `kind`, by name."""
    return {
        name: value
        for name, value in vars(events).items()
        if isinstance(value, type)
        and is_dataclass(value)
        and value.__module__ == events.__name__
        and any(part.name == "kind" for part in fields(value))
    }


def test_every_event_class_is_in_the_union_of_events() -> None:
    assert {item.__name__ for item in get_args(events.Event)} == set(event_classes())


def test_every_event_with_a_user_is_a_request() -> None:
    requests = {item.__name__ for item in get_args(events.Request)}
    with_user = {name for name, value in event_classes().items() if any(part.name == "by" for part in fields(value))}
    assert requests & FACTS_WITH_A_USER.keys() == set()
    assert with_user - requests == FACTS_WITH_A_USER.keys(), "add it to Request, or name the reason why it is a fact"


def test_the_kinds_of_requests_are_those_of_the_union() -> None:
    requests = {item.__name__ for item in get_args(events.Request)}
    kinds = {name: value.__dataclass_fields__["kind"].default for name, value in event_classes().items()}
    assert {kinds[name] for name in requests} == events.REQUESTS
