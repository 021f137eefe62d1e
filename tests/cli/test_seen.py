"""A follower that connects again gives each line once, whatever it had asked for."""

import random
from typing import Any

import pytest

from ganger.client.local.log_position import LogPosition
from tests.cli.world import line


def served(lines: list[dict[str, Any]], query: dict[str, Any]) -> list[dict[str, Any]]:
    """What the server gives for a query: by generation, time and number."""
    first = query.get("first") or max(each["generation"] for each in lines)
    found = [each for each in lines if each["generation"] >= first and each["t"] >= (query.get("since") or 0)]
    return found if query.get("tail") is None else found[-query["tail"] :]


@pytest.mark.parametrize("tail", [None, 1, 7])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_twice_and_nothing_left_out(tail: int | None, seed: int) -> None:
    chance = random.Random(seed)
    t, lines = 1000, []
    for number in range(60):
        t += chance.choice([1, 1, 5])
        rank, stream = chance.randrange(3), chance.choice("oe")
        lines += [line(f"{number}.{copy}", rank, stream, t, 1 + number // 30) for copy in range(chance.choice([1, 3]))]
    # A tail that begins among lines of one moment may take in the rest of that moment when it comes again.
    lines = lines if tail is None else list({each["t"]: each for each in lines}.values())
    begins = chance.randrange(1, len(lines) // 2)
    query: dict[str, Any] = {"tail": tail}
    expected = served(lines[:begins], query) + lines[begins:]
    seen, got = LogPosition(), []
    for end in (begins, chance.randrange(begins, len(lines)), len(lines)):
        got += [each for each in served(lines[:end], query) if seen.is_new(each)]
        query = seen.resumed(query)
    assert [each["text"] for each in got] == [each["text"] for each in expected]


def test_one_attempt_stays_one() -> None:
    seen = LogPosition()
    assert seen.is_new(line("x", generation=2))
    assert seen.resumed({"attempt": 2, "rank": "all"}) == {"attempt": 2, "rank": "all", "tail": None}


def test_a_tail_without_lines_goes_on_from_its_beginning() -> None:
    again = LogPosition().resumed({"tail": 0})
    assert again["tail"] is None
    assert again["since"]
