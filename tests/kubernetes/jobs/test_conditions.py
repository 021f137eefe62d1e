"""Conditions of a job in each state."""

import pytest

from ganger.controller.jobs.conditions import conditions, refused
from ganger.errors import RequestError
from ganger.model.job import GangState
from ganger.model.views.service_views import JobRow

WAITS = {"reason": "no_capacity", "message": "waiting for 2 nodes"}


def row(state: GangState, **more: object) -> JobRow:
    known = {"id": "a", "name": "a", "user": "ada", "queue": "default", "priority": 0, "shape": "2x8"}
    return JobRow(state=state, submitted_ms=1_000, **{**known, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "waits", "says"),
    [
        (row(GangState.PENDING), WAITS, {"Placed": ("False", "NoCapacity"), "Finished": ("False", "Pending")}),
        (row(GangState.PENDING), {}, {"Placed": ("False", "Pending"), "Finished": ("False", "Pending")}),
        (
            row(GangState.RUNNING, nodes=("n1",), started_ms=5_000),
            {},
            {"Placed": ("True", "Running"), "Finished": ("False", "Running")},
        ),
        (
            row(GangState.SUCCEEDED, nodes=("n1",), started_ms=5_000, ended_ms=9_000),
            {},
            {"Placed": ("False", "Succeeded"), "Finished": ("True", "Succeeded")},
        ),
    ],
)
def test_each_state(of: JobRow, waits: dict[str, str], says: dict[str, tuple[str, str]]) -> None:
    actual = {item["type"]: item for item in conditions(of, waits, 7_000, 3)}
    assert {name: (item["status"], item["reason"]) for name, item in actual.items()} == {
        "Accepted": ("True", "Accepted"),
        **says,
    }
    assert {item["observedGeneration"] for item in actual.values()} == {3}
    assert actual["Accepted"]["lastTransitionTime"] == "1970-01-01T00:00:01Z"
    since = {"True": "1970-01-01T00:00:05Z", "False": "1970-01-01T00:00:07Z"}
    assert actual["Placed"]["lastTransitionTime"] == since[actual["Placed"]["status"]]


def test_one_that_is_not_taken_says_why_and_what_to_do() -> None:
    (messages,) = refused(RequestError("bad_spec", "it needs 9 nodes", "ask for fewer"), 2_000, 4)
    assert (messages["type"], messages["status"], messages["reason"]) == ("Accepted", "False", "BadSpec")
    assert (messages["message"], messages["observedGeneration"]) == ("it needs 9 nodes; ask for fewer", 4)
