"""A reconnecting follower gets each line once, whatever its query."""

import random
from typing import Any

import pytest

from ganger.client.local.log_position import LogPosition
from tests.cli.world import line


def served(lines: list[dict[str, Any]], query: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines that the server sends for a query, by generation, time and number."""
    first = query.get("first") or max(line["generation"] for line in lines)
    matches = [line for line in lines if line["generation"] >= first and line["t"] >= (query.get("since") or 0)]
    return matches if query.get("tail") is None else matches[-query["tail"] :]


@pytest.mark.parametrize("tail", [None, 1, 7])
@pytest.mark.parametrize("seed", range(20))
def test_reconnecting_loses_and_repeats_no_line(tail: int | None, seed: int) -> None:
    chance = random.Random(seed)
    t, lines = 1000, []
    for number in range(60):
        t += chance.choice([1, 1, 5])
        rank, stream = chance.randrange(3), chance.choice("oe")
        lines += [line(f"{number}.{copy}", rank, stream, t, 1 + number // 30) for copy in range(chance.choice([1, 3]))]
    # A tail that starts among lines of one time may include the rest of that time when it reconnects.
    lines = lines if tail is None else list({record["t"]: record for record in lines}.values())
    split = chance.randrange(1, len(lines) // 2)
    query: dict[str, Any] = {"tail": tail}
    expected = served(lines[:split], query) + lines[split:]
    position, received = LogPosition(), []
    for end in (split, chance.randrange(split, len(lines)), len(lines)):
        received += [record for record in served(lines[:end], query) if position.is_new(record)]
        query = position.resumed(query)
    assert [record["text"] for record in received] == [record["text"] for record in expected]


def test_a_query_of_one_attempt_keeps_it() -> None:
    position = LogPosition()
    assert position.is_new(line("x", generation=2))
    assert position.resumed({"attempt": 2, "rank": "all"}) == {"attempt": 2, "rank": "all", "tail": None}


def test_an_empty_tail_resumes_by_time() -> None:
    again = LogPosition().resumed({"tail": 0})
    assert again["tail"] is None
    assert again["since"]
