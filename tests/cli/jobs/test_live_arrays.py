"""Job arrays and dependencies at a real server."""

import pytest

from tests.cli.live import Live, live, place

pytestmark = pytest.mark.long

__all__ = ["live", "place"]

FAILS_AT_TWO = ("sh", "-c", 'echo "index $GANGER_ARRAY_INDEX"; test "$GANGER_ARRAY_INDEX" != 2')


def test_an_array_is_one_job_with_named_elements(live: Live) -> None:
    result = live("run", "--name", "sweep", "--array", "0-3%2", "--retry", "0", "--", *FAILS_AT_TWO)
    assert result.code == 1
    array = live.json("get", "sweep")["row"]["id"]
    assert f"{array} failed" in result.err
    assert "  all elements: queued " in result.err, "times are sums"
    assert f"next: ganger ls {array} --state failed" in result.err
    assert [row["id"] for row in live.json("ls", "sweep", "--state", "F")] == [f"{array}[2]"]
    assert [line.split()[:2] for line in live("ls", array).out.splitlines()[1:]] == [
        [f"{array}[{index}]", "failed" if index == 2 else "succeeded"] for index in range(4)
    ]
    assert live("logs", "sweep[3]").out == "index 3\n"
    assert live("logs", "sweep", "--grep", "[12]").out == "1  index 1\n2  index 2\n"
    assert [(line["job"], line["text"]) for line in live.json("logs", "sweep", "--grep", "3")] == [
        (f"{array}[3]", "index 3")
    ]
    assert "4 elements, 2 at a time" in live("get", array).out
    assert [row["id"] for row in live.json("ls", "--all")] == [array]
    again = live("retry", array)
    assert f"elements: ganger ls {again.out.strip()}\n" in again.err
    assert [row["id"] for row in live.json("ls", again.out.strip())] == [f"{again.out.strip()}[2]"]


def test_commands_that_need_an_element(live: Live) -> None:
    array = live.submit("--array", "5-6", "--", "true")
    live.until(array, "succeeded")
    assert live("logs", "-f", array).err.endswith(f"next: ganger logs '{array}[6]'\n")
    assert "each element has stacks of its own" in live("logs", "--stacks", array).err
    assert f"no element of {array} has had attempt 2" in live("logs", "--attempt", "2", array).err
    assert live("attach", array).err.endswith(f"next: ganger ls {array}   or: ganger wait {array}\n")
    assert f"{array} has no element 7\n  next: ganger ls {array}" in live("get", f"{array}[7]").err
    assert "write 0-99, 1,3,5-9:2, or 0-99%10" in live("submit", "--array", "9-1x", "--", "true").err
    assert "elements of an array only have --state and --all" in live("ls", array, "--user", "me").err
    plain = live.submit("--", "true")
    assert f"{plain} is not an array" in live("ls", plain).err


def test_dependencies(live: Live) -> None:
    first = live.submit("--name", "first", "--", "sleep", "600")
    second = live.submit("--after", "first:failed", "--", "true")
    assert f"comes after {first}, which has not failed yet" in live("explain", second).out
    third = live.submit("--after", first, "--", "true")
    live("stop", first)
    live.until(second, "succeeded")
    live.until(third, "stopped")
    assert f"it was to start after {first} has succeeded" in live("get", third).out
    refused = live("submit", "--after", first, "--", "true")
    assert (refused.code, refused.out) == (2, "")
    assert f"after: {first} was stopped, so it will never have succeeded" in refused.err
    assert "write succeeded, failed or ended" in live("submit", "--after", "second:done", "--", "true").err
