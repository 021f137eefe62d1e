"""Colours, tables and the status line: on a terminal, and only there."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from ganger.cli import call
from ganger.model.queue import Amount, UserLimits
from tests.cli.conftest import PROGRAM, Shell
from tests.cli.world import REASON, T0, WIDE, World, ended, job, line, queue
from tests.in_process import streams_on


def on_terminal(
    *args: str, columns: int = 100, on_output: Callable[[str], None] | None = None, code: int | None = 0
) -> str:
    """Return what a terminal of that width receives; `on_output` gets all output so far whenever more arrives.

    With it the command is a process, which follows what the test does meanwhile; else it runs in that of the tests.

    code: The expected exit code; None: any.
    """
    screen, tty = pty.openpty()
    fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    output = b""

    def receive() -> None:
        nonlocal output
        while True:
            try:
                chunk = os.read(screen, 65536)
            except OSError:  # EIO: the other end is closed
                chunk = b""
            if not chunk:
                return
            output += chunk
            if on_output is not None:
                on_output(output.decode(errors="replace"))

    if on_output is None:
        reader = threading.Thread(target=receive)  # a terminal takes no more than 4 KiB that nobody reads
        reader.start()
        try:
            with streams_on([tty] * 3):
                actual_code = call(args)
        finally:
            os.close(tty)
            reader.join()
    else:
        # With env: readline, if pytest loads it, sets COLUMNS where only a process without env would find it.
        environment = dict(os.environ)
        process = subprocess.Popen([*PROGRAM, *args], stdin=tty, stdout=tty, stderr=tty, env=environment)
        os.close(tty)
        receive()
        actual_code = process.wait(60)
    os.close(screen)
    assert actual_code == code or code is None
    return output.decode()


def test_a_table_has_colours_and_fits_the_width(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.add(job("bert-7f3", spec=WIDE, state="pending", nodes=(), started_ms=None, sentence=REASON.sentence))
    for columns in (100, 60, 30, 12):
        shown = on_terminal("ls", columns=columns)
        assert "\x1b[" in shown
        assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()) <= columns
    assert "\x1b[33mpending" in on_terminal("ls")
    narrow = re.sub(r" *\r", "", on_terminal("ls", columns=80)).splitlines()
    assert [line.rpartition("  ")[2] for line in narrow[1:]] == [f"{REASON.sentence[:21]}…", "on n1"]
    assert REASON.sentence in on_terminal("ls", columns=200)


def test_every_value_of_a_queue_is_shown_in_80_columns(shell: Shell, world: World) -> None:
    none, user = asdict(Amount()), asdict(UserLimits(jobs=4, time_ms=86_400_000))
    world.queues["language"] = queue(
        "language",
        nominal=none | {"gpu_types": {"h100": 24}, "cpu_milli": 400_000, "memory_bytes": 2 << 40},
        borrowing=none | {"gpus": 32},
        lending=none | {"gpus": 16},
        user_limits=user,
    )
    shown = re.sub(r"\x1b\[[0-9;]*m| *\r", "", on_terminal("queue", columns=80))
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    *_, row, note = shown.splitlines()
    assert row.split() == ["language", "1", "3/h100:24", "1.5/400", "0/2Ti", "5", "-", "2", "1"]
    assert note == "  BORROWING LIMIT 32  LENDING LIMIT 16  4 jobs, 1d 00h per job"


def test_an_explanation_is_wrapped_at_words(shell: Shell, world: World) -> None:
    world.add(job("bert-7f3", spec=WIDE, state="pending", nodes=(), started_ms=None, sentence=REASON.sentence))
    narrow, wide = (
        re.sub(r"\x1b\[[0-9;]*m| *\r|\b\d\d:\d\d:\d\d", "", on_terminal("explain", "bert-7f3", columns=columns))
        for columns in (44, 2_000)
    )
    assert max(map(len, narrow.splitlines())) <= 44 < max(map(len, wide.splitlines()))
    assert narrow.split() == wide.split()


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_no_colours_with_no_color_or_a_dumb_terminal(
    shell: Shell, world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "dumb")
    world.add(job("a-1"))
    world.submitted = ended(job())
    world.say("bert-7f3", line("hello"), line("careful", stream="e"))
    for args in (["ls"], ["get", "a-1"], ["explain", "a-1"], ["run", "train.py"], ["doctor"]):
        shown = on_terminal(*args)
        assert "\x1b" not in shown
        assert "\r" not in shown.replace("\r\n", "\n")


def test_json_is_the_same_on_a_terminal(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    for args in (["ls"], ["get", "a-1"], ["node"], ["queue"], ["explain", "a-1"]):
        assert on_terminal(*args, "-o", "json").replace("\r\n", "\n") == shell(*args, "-o", "json").out


def test_the_status_line_follows_the_job_and_is_removed(shell: Shell, world: World) -> None:
    pending_job = job(state="pending", nodes=(), started_ms=None, reason=REASON, generation=0)
    running_job = job(progress={"step": 7, "metrics": {"loss": 2.5, "total_steps": 10}, "t": T0, "phase": None})
    world.submitted = pending_job
    shown_first = f"\x1b[36m{REASON.sentence}"

    def act(shown: str) -> None:
        if shown_first in shown and world.jobs["bert-7f3"] is pending_job:
            world.add(running_job)
            world.happen("started", "bert-7f3", "it runs", generation=1)
        elif "step 7/10  loss 2.5" in shown and world.jobs["bert-7f3"] is running_job:
            world.say("bert-7f3", line("a line of the job"))
            world.add(ended(running_job))

    shown = on_terminal("run", "train.py", on_output=act)
    assert shown_first in shown
    before, after = shown.split("a line of the job")
    assert before.endswith("\r\x1b[K")
    assert re.sub(r"\x1b\[[0-9;]*m", "", after).lstrip("\r\n").startswith(("✓ bert-7f3 succeeded", "step 7/10"))
    assert "✓ bert-7f3 succeeded" in after
    assert "\x1b[2mPlan   bert-7f3" in before


def test_the_status_line_is_cut_to_the_terminal(shell: Shell, world: World) -> None:
    pending_job = job(state="pending", nodes=(), started_ms=None, reason=replace(REASON, sentence="waiting " * 30))
    world.submitted = pending_job

    def act(shown: str) -> None:
        if "…" in shown and world.jobs["bert-7f3"] is pending_job:
            world.add(ended(pending_job))

    shown = on_terminal("run", "train.py", columns=40, on_output=act)
    drawn = re.search(r"\x1b\[36m(.*?)\x1b\[0m", shown)
    assert drawn is not None
    assert len(drawn[1]) == 39


CONTROLS = {
    "title": "\x1b]0;title\x07",
    "clipboard": "\x1b]52;c;YQ==\x1b\\",
    "without an end": "\x1b]0;title",
    "DCS": "\x1bP$q\x1b\\",
    "APC": "\x1b_Ga=T\x1b\\",
    "PM and SOS": "\x1b^x\x1b\\\x1bXx\x1b\\",
    "8-bit": "\x9d0;title\x9c\x9b21t\x90x\x9c",
    "report and reset": "\x1b[21t\x1b[6n\x1bc\x1b(0",
    "nested": "\x1b\x1b]0;title\x07\x1b]0;\x1b]0;title\x07",
    "bell": "\x07\x00\x7f",
}


def test_output_of_a_job_does_not_control_the_terminal(shell: Shell, world: World) -> None:
    texts = [f"\x1b[1;32mgreen\x1b[0m {name}.{control}" for name, control in CONTROLS.items()]
    world.add(ended(job()))
    world.say("bert-7f3", *(line(text, stream=stream) for text in texts for stream in "oe"))
    for args in (["logs", "bert-7f3"], ["attach", "bert-7f3", "--tail", "100"]):
        shown = on_terminal(*args)
        for name in CONTROLS:
            assert len(re.findall(rf"\x1b\[1;32mgreen\x1b\[0m {name}\.(\x1b\[0m)?\r\n", shown)) == 2, (args, name)
    assert all(shell("logs", "bert-7f3").out.count(f"{text}\n") == 2 for text in texts), "a file gets all of it"


def test_tables_and_details_do_not_control_the_terminal(shell: Shell, world: World) -> None:
    title = "\x1b]0;title\x07\x9b21t"
    world.add(job("a-1", spec=WIDE, state="pending", nodes=(), started_ms=None, sentence=f"wait{title}ing"))
    for args in (["ls"], ["get", "a-1"], ["explain", "a-1"], ["ls", "-o", "json"]):
        shown = on_terminal(*args)
        assert "\x1b]" not in shown
        assert "\x9b" not in shown
    assert "waiting" in on_terminal("ls")


def rows_on_terminal(received: str) -> list[str]:
    """Return the rows that a terminal shows in the end, of text, line ends and the sequences that `Screen` writes."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.|\n|\r", received):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif part[-1] == "A" and part[0] == "\x1b":
            row -= int(part[2:-1])
        elif part in ("\x1b[K", "\x1b[J"):
            rows[row:] = [rows[row][:column], *(rows[row + 1 :] if part == "\x1b[K" else [])]
        elif part[0] != "\x1b":
            rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + 1 :]
            column += 1
    return rows


def test_progress_bars_of_ranks_have_one_row_each(shell: Shell, world: World) -> None:
    bars = [line(f"{rank * 10}%|" + "█" * 90, rank=rank) | {"unfinished": True} for rank in range(4)]
    view = world.submitted = job(spec=WIDE)
    seen: list[list[str]] = []

    def act(shown: str) -> None:
        rows = rows_on_terminal(shown)
        if "submitted" in shown and not seen:
            world.say("bert-7f3", *bars, line("a line of rank 1", rank=1), bars[1] | {"t": T0 + 1000})
            seen.append(rows)
        elif len(seen) == 1 and all(any(part in row for row in rows) for part in ("a line", "0%", "10%", "20%", "30%")):
            seen.append(rows)
            newer = [bar | {"text": f"{50 + bar['rank']}%"} for bar in bars]
            world.say("bert-7f3", *newer, *(line("100%", rank=rank) for rank in range(4)))
            world.add(ended(view))

    final = rows_on_terminal(on_terminal("run", "train.py", columns=80, on_output=act))
    middle = [row for row in seen[1] if row.startswith("r")]
    assert [row[:9].rstrip() for row in middle] == ["r1 | a li", "r0 | 0%|█", "r1 | 10%|", "r2 | 20%|", "r3 | 30%|"]
    assert all(len(row) == 79 and row.endswith("…") for row in middle[1:])
    assert [row for row in final if row.startswith("r")] == ["r1 | a line of rank 1", "r0 | 100%  (x4)"]


def test_more_bars_than_rows_are_counted(shell: Shell, world: World) -> None:
    view = world.submitted = job()

    def act(shown: str) -> None:
        if "submitted" in shown and not world.lines:
            world.say("bert-7f3", *(line(f"bar {rank}", rank=rank) | {"unfinished": True} for rank in range(64)))
        elif "... 43 more" in shown and world.jobs["bert-7f3"] is view:
            world.add(ended(view))

    assert "bar" not in rows_on_terminal(on_terminal("run", "train.py", columns=80, on_output=act))[-2]


def test_a_pipe_gets_finished_lines_only(shell: Shell, world: World) -> None:
    world.submitted = ended(job())
    world.say("bert-7f3", line("done"))
    assert shell("run", "train.py").out == "done\n"
    assert not [target for _, target, _ in world.requests if "live" in target]
