"""`ganger node maintain` and `ganger node maintenance`, at a real server."""

import pytest

from ganger.cli.exit_codes import NOT_FOUND, OK, USAGE
from tests.cli.live import Live, live, place

__all__ = ["live", "place"]


def test_maintenance_is_set_listed_and_cleared(live: Live) -> None:
    (row,) = live.json("node", "maintain", "n1", "n2", "--from", "2h", "--for", "90m", "--note", "new fans")
    assert (row["nodes"], row["note"], row["until_ms"] - row["from_ms"]) == (["n1", "n2"], "new fans", 5_400_000)
    assert live.json("node", "maintenance") == [row]
    listed = live("node", "maintenance").out
    assert all(text in listed for text in (row["id"], "n1, n2", "new fans"))
    assert f"ready ({row['id']})" in live("node").out
    assert live("node", "maintain", "--clear", row["id"]).out == f"cleared maintenance {row['id']}\n"
    assert live.json("node", "maintenance") == []
    assert live("node", "maintenance").out == "no maintenance: ganger node maintain --help\n"


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        ("n1", USAGE, "give --from TIME, and either --for DURATION or --until TIME"),
        ("n1 --from 2h", USAGE, "give --from TIME"),
        ("n1 --from 2h --for 1h --until 5h", USAGE, "give --from TIME"),
        ("--from 2h --for 1h", USAGE, "name the nodes"),
        ("n1 --clear m1", USAGE, "--clear takes the id of a maintenance window and no other option"),
        ("n1 --from soon --for 1h", USAGE, "'soon' is not a future time: write now, 2h (from now), 22:00, "),
        ("nn1 --from 2h --for 1h", NOT_FOUND, "there is no node nn1\n  next: did you mean n1?"),
        (
            "n1 --from 2h --until 1h",
            USAGE,
            "the maintenance would end before it begins\n  next: say how long it lasts: --for 2h",
        ),
        ("n1 --from 2020-01-01 --for 1h", USAGE, " ago\n  next: begin at once: --from now"),
        ("--clear m1", NOT_FOUND, "there is no maintenance m1"),
    ],
)
def test_invalid_maintenance(live: Live, args: str, code: int, expected: str) -> None:
    result = live("node", "maintain", *args.split())
    assert (result.code, expected in result.err) == (code, True), result.err
    assert live.json("node", "maintenance") == []


def test_maintenance_windows_of_a_node_do_not_overlap(live: Live) -> None:
    assert live("node", "maintain", "n1", "--from", "2h", "--for", "2h").code == OK
    result = live("node", "maintain", "n2", "n1", "--from", "3h", "--for", "2h")
    assert (result.code, "node n1 is in maintenance" in result.err) == (USAGE, True)
    assert len(live.json("node", "maintenance")) == 1
