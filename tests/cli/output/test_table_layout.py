"""Tables in the width of a terminal: nothing is wider, no head and no name is cut."""

import re
from collections import Counter
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.cli.output.print_output import Column, display_width, table_lines
from tests.cli.conftest import Shell
from tests.cli.live import Live, live, place
from tests.cli.output.test_terminal import on_terminal
from tests.rest.serving import ServerHome

__all__ = ["live", "place"]

WIDTH = 80
QUEUE = "a-queue-of-a-group-with-a-long-name"
JOB = "a-job-with-a-name-of-40-characters-in"
WORDS = st.lists(st.text("abcdefgh-…", min_size=1, max_size=14), max_size=9).map(" ".join)
COLUMNS = st.builds(
    Column,
    st.lists(st.text("ABC", min_size=1, max_size=8), min_size=1, max_size=3).map(" ".join),
    *(st.booleans() for _ in range(5)),
)


@given(data=st.data(), width=st.integers(40, 160))
def test_no_line_is_wider_and_nothing_is_lost(data: st.DataObject, width: int) -> None:
    columns = data.draw(st.lists(COLUMNS, min_size=1, max_size=9))
    rows = data.draw(st.lists(st.tuples(*(WORDS for _ in columns)), min_size=1, max_size=4))
    lines = [click.unstyle(line) for line in table_lines(columns, rows, width)]
    assert max(map(len, lines)) <= width
    heads = {word for column in columns for word in column.title.split()}
    assert set(re.findall(r"[ABC]+", " ".join(lines))) <= heads
    whole = [cell for row in rows for column, cell in zip(columns, row, strict=True) if not column.cut]
    assert Counter(re.findall("[a-h]", "".join(lines))) >= Counter(re.findall("[a-h]", "".join(whole)))


def test_heads_wrap_before_columns_move() -> None:
    columns = [Column("QUEUE"), Column("QUOTA LEFT", right=True), Column("STARTS IN 1H", right=True)]
    assert [click.unstyle(line) for line in table_lines(columns, [("default", "12", "3")], 22)] == [
        "         QUOTA  STARTS",
        "QUEUE     LEFT   IN 1H",
        "default     12       3",
    ]


def test_commands_to_copy_have_a_line_each(long_names: str, live: Live) -> None:
    for words in (["get", JOB], ["retry", JOB], ["submit", "-j", "9x9", "--", "true"]):
        shown = click.unstyle(on_terminal(*words, columns=WIDTH, code=None)).replace("\r", "").splitlines()
        commands = [line for line in shown if "ganger " in line]
        assert commands
        assert not [line for line in commands if len(line) > WIDTH]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        *(("abc", 3), ("日本", 4), ("e\u0301", 1), ("█", 1), ("a\u200bb", 2)),
        *(("\U0001f468\u200d\U0001f469\u200d\U0001f467", 2), ("\U0001f44d\U0001f3fd", 2)),
    ],
)
def test_display_width(text: str, columns: int) -> None:
    assert display_width(text) == columns


@pytest.fixture(scope="module")
def long_names(place: ServerHome) -> str:
    """Fill a server with long names, and return the id of a job that has failed."""
    client = place.client
    client.set_queue(QUEUE, {"weight": 1, "nominal": {"gpus": 8}})
    client.create_token("the-token-of-the-continuous-integration-of-the-group", None)
    client.set_secret("A_SECRET_WITH_A_NAME_OF_MORE_THAN_FORTY_CHARACTERS", "value")
    big = {"resources": {"gpu": {"count": 4}}, "nodes": 2}
    first = place.submit("sleep 600", name=JOB, queue=QUEUE, **big)
    place.submit("sleep 600", name=f"{JOB}-2", queue=QUEUE, **big)
    place.until(first, "running")
    failed = place.submit(["python", "-c", "raise ValueError('a message of many words ' * 9)"], name="failing")
    place.until(failed, "failed")
    return failed


COMMANDS = [
    *("ls", "ls --all", "get {job}", "events", "events {job}", "explain {name}-2", "node", "queue"),
    *(
        "top --once",
        "top jobs --once",
        "top ranks --once",
        "top nodes --once",
        "top queues --once",
        "report",
        "policy",
        "policy history",
        "token",
    ),
    *("secret", "fit", "whoami", "diff {job} {name}", "explain-spec", "server status", "doctor"),
    *("node maintenance", "prune --dry-run --older-than 0s", "--help", "run --help"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_listing_fits_in_80_columns(live: Live, long_names: str, command: str) -> None:
    words = command.format(job=long_names, name=JOB, queue=QUEUE).split()
    shown = click.unstyle(on_terminal(*words, columns=WIDTH)).replace("\r", "").splitlines()
    assert shown
    too_wide = [line for line in shown if len(line) > WIDTH and not _is_one_word(line)]
    assert too_wide == []
    heads = [line for line in shown if re.fullmatch(r"[A-Z][A-Z /()…]+", line)]
    assert not [head for head in heads if "…" in head]


def _is_one_word(line: str) -> bool:
    """Return whether a line cannot be wrapped: a name, a path or a command to copy."""
    return len(max(line.split(), key=len)) > WIDTH // 2


@pytest.mark.parametrize(
    "command",
    [
        "run TRACE --nodes 1",
        "compare TRACE --nodes 1",
        "sweep TRACE --grid nodes=1,2,policy=easy,dynamic --to swept",
        "size TRACE --wait-p99 1h",
    ],
)
def test_tables_of_simulations_fit_in_80_columns(shell: Shell, command: str) -> None:
    trace = Path("the-trace-of-the-research-group-of-last-week-with-every-job-of-every-user.csv")
    trace.write_text("name,submitted_ms,duration_ms,gpus,user\na,0,60000,8,ann\nb,1000,60000,4,a-long-name-of-a-user\n")
    words = command.replace("TRACE", str(trace)).split()
    shown = click.unstyle(on_terminal("sim", *words, columns=WIDTH)).replace("\r", "\n").splitlines()
    table = [line for line in shown if re.search(r"\S {2,}\S", line)]
    assert table
    assert [line for line in table if len(line) > WIDTH] == []
