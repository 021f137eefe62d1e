"""The unions and tables that list events have all of them.

What matches on an event is checked by mypy: a match without `case _` that does not handle every case is an error.
"""

import ast
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from ganger.core.fold import fold_cluster
from ganger.engine.loop import FREEING
from ganger.model import event as events
from ganger.model.idle import idle_event
from ganger.model.node_health import health_event
from ganger.model.watch import watch_event

LAWS = Path(__file__).parents[1] / "laws" / "world.py"
NOT_IN_THE_LAWS = {
    "CodeEdited": "it changes nothing",
    "CopyDropped": "it changes nothing",
    "DefragRequested": "tests/laws/preemption/test_consolidation.py: it needs running gangs that have room elsewhere",
    "Deleted": "the state has no ended jobs",
    "Described": "the scheduler ignores labels and notes",
    "Idle": "tests/core/test_idle_ends.py",
    "MetricsKept": "the scheduler ignores metrics",
    "Quiet": "it changes nothing",
    "Resumed": "tests/core/failure/test_fallback.py",
    "Slow": "it changes nothing",
    **dict.fromkeys(("Anomaly", "RollbackRequested"), "tests/laws/lifecycle/test_rollbacks.py"),
    **dict.fromkeys(
        (
            "NodeFaulty",
            "NodesMeasured",
            "RepairEnded",
            "RepairRequested",
            "NodeReturnRequested",
            "NodeRetired",
            "BreakerReset",
        ),
        "tests/laws/lifecycle/health_world.py",
    ),
    "Unreadable": "it stands for a damaged row, and changes nothing",
}
"""Events that the worlds of tests/laws never have, each with the reason, or the tests that have it."""

FACTS_WITH_A_USER = {
    "NodePreempted": "a user may report it, but the provider takes the node anyway: it cannot be refused",
}
"""Classes with a field `by` that are no requests, each with the reason."""


def event_classes() -> dict[str, Any]:
    """Return the dataclasses of `model.event` and of the parts that it imports that have a field `kind`, by name."""
    return {
        name: value
        for module in (events, health_event, watch_event, idle_event)
        for name, value in vars(module).items()
        if isinstance(value, type)
        and is_dataclass(value)
        and value.__module__ == module.__name__
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


def test_what_frees_something_is_a_request() -> None:
    assert set(FREEING) <= events.REQUESTS


def test_every_event_of_a_node_is_a_step_of_the_node() -> None:
    kinds = {item.__dataclass_fields__["kind"].default for item in get_args(fold_cluster.NodeEvent)}
    assert set(fold_cluster._NODE_STEPS) == kinds


def test_the_worlds_of_the_laws_have_every_event() -> None:
    tree = ast.parse(LAWS.read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "e"}
    assert used & NOT_IN_THE_LAWS.keys() == set()
    missing = set(event_classes()) - used - NOT_IN_THE_LAWS.keys()
    assert missing == set(), f"have {LAWS.name} draw it, or name the reason why not"
