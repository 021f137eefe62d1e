"""`ganger node maintain` and `ganger node maintenance`, at a real server."""

import pytest

from ganger.cli.exit_codes import NOT_FOUND, OK, USAGE
from tests.cli.live import Live, live, place

__all__ = ["live", "place"]


def test_set_listed_and_called_off(live: Live) -> None:
    (row,) = live.told("node", "maintain", "n1", "n2", "--from", "2h", "--for", "90m", "--note", "new fans")
    assert (row["nodes"], row["note"], row["until_ms"] - row["from_ms"]) == (["n1", "n2"], "new fans", 5_400_000)
    assert live.told("node", "maintenance") == [row]
    listed = live("node", "maintenance").out
    assert all(word in listed for word in (row["id"], "n1, n2", "new fans"))
    assert f"ready ({row['id']})" in live("node").out
    assert live("node", "maintain", "--clear", row["id"]).out == f"maintenance {row['id']} is over\n"
    assert live.told("node", "maintenance") == []
    assert live("node", "maintenance").out == "no maintenance: ganger node maintain --help\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("n1", USAGE, "say when: --from TIME, and either --for DURATION or --until TIME"),
        ("n1 --from 2h", USAGE, "say when"),
        ("n1 --from 2h --for 1h --until 5h", USAGE, "say when"),
        ("--from 2h --for 1h", USAGE, "name the nodes"),
        ("n1 --clear m1", USAGE, "--clear takes the id of a maintenance, and nothing else"),
        ("n1 --from soon --for 1h", USAGE, "'soon' is no time to come: write now, 2h (from now), 22:00, "),
        ("nn1 --from 2h --for 1h", NOT_FOUND, "there is no node nn1\n  next: did you mean n1?"),
        ("n1 --from 2h --until 1h", USAGE, "it would end before it begins\n  next: say how long it lasts: --for 2h"),
        ("n1 --from 2020-01-01 --for 1h", USAGE, " ago\n  next: begin at once: --from now"),
        ("--clear m1", NOT_FOUND, "there is no maintenance m1"),
    ],
)
def test_what_cannot_be(live: Live, words: str, code: int, says: str) -> None:
    said = live("node", "maintain", *words.split())
    assert (said.code, says in said.err) == (code, True), said.err
    assert live.told("node", "maintenance") == []


def test_no_two_at_a_time(live: Live) -> None:
    assert live("node", "maintain", "n1", "--from", "2h", "--for", "2h").code == OK
    said = live("node", "maintain", "n2", "n1", "--from", "3h", "--for", "2h")
    assert (said.code, "node n1 is in maintenance" in said.err) == (USAGE, True)
    assert len(live.told("node", "maintenance")) == 1
