"""Colours, tables and the moving line: on a terminal, and nowhere else."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from ganger.model.queue import Amount, UserLimits
from tests.cli.conftest import PROGRAM, Shell
from tests.cli.world import REASON, T0, WIDE, World, ended, job, line, queue


def on_terminal(*words: str, columns: int = 100, until: Callable[[str], None] = lambda shown: None) -> str:
    """What a terminal of that width is sent. `until` sees all that came so far, each time something comes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    # With env: readline, where pytest loads it, puts COLUMNS where only a process without env would find it.
    environment = dict(os.environ)
    process = subprocess.Popen([*PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            part = b""
        if not part:
            break
        shown += part
        until(shown.decode(errors="replace"))
    os.close(ours)
    assert process.wait(60) == 0
    return shown.decode()


def test_a_table_has_colours_and_keeps_to_the_width(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.add(job("bert-7f3", spec=WIDE, state="pending", nodes=(), started_ms=None, sentence=REASON.sentence))
    for columns in (100, 60, 30, 12):
        shown = on_terminal("ls", columns=columns)
        assert "\x1b[" in shown
        assert max(len(each) for each in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()) <= columns
    assert "\x1b[33mpending" in on_terminal("ls")
    assert f"\n  {REASON.sentence}" in re.sub(r" *\r", "", on_terminal("ls", columns=80))


def test_no_figure_of_a_queue_is_lost_in_80_columns(shell: Shell, world: World) -> None:
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
    *_, row, below = shown.splitlines()
    assert row.split() == ["language", "1", "3/h100:24", "1.5/400", "5", "-", "2", "1"]
    assert below == "  MEMORY 0/2Ti  BORROWS 32  LENDS 16  4 jobs, 1d 00h a job"


def test_an_explanation_breaks_no_word(shell: Shell, world: World) -> None:
    world.add(job("bert-7f3", spec=WIDE, state="pending", nodes=(), started_ms=None, sentence=REASON.sentence))
    narrow, wide = (
        re.sub(r"\x1b\[[0-9;]*m| *\r", "", on_terminal("explain", "bert-7f3", columns=columns))
        for columns in (44, 2_000)
    )
    assert max(map(len, narrow.splitlines())) <= 44 < max(map(len, wide.splitlines()))
    assert narrow.split() == wide.split()


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_no_colours_where_they_are_not_wanted(
    shell: Shell, world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "dumb")
    world.add(job("a-1"))
    world.submitted = ended(job())
    world.say("bert-7f3", line("hello"), line("careful", stream="e"))
    for words in (["ls"], ["get", "a-1"], ["explain", "a-1"], ["run", "train.py"], ["doctor"]):
        shown = on_terminal(*words)
        assert "\x1b" not in shown
        assert "\r" not in shown.replace("\r\n", "\n")


def test_json_is_the_same_on_a_terminal(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    for words in (["ls"], ["get", "a-1"], ["node"], ["queue"], ["explain", "a-1"]):
        assert on_terminal(*words, "-o", "json").replace("\r\n", "\n") == shell(*words, "-o", "json").out


def test_the_line_at_the_bottom_follows_the_job_and_leaves_no_trace(shell: Shell, world: World) -> None:
    waits = job(state="pending", nodes=(), started_ms=None, reason=REASON, generation=0)
    runs = job(progress={"step": 7, "metrics": {"loss": 2.5, "total_steps": 10}, "t": T0, "phase": None})
    world.submitted = waits
    shown_first = f"\x1b[36m{REASON.sentence}"

    def act(shown: str) -> None:
        if shown_first in shown and world.jobs["bert-7f3"] is waits:
            world.add(runs)
            world.happen("started", "bert-7f3", "it runs", generation=1)
        elif "step 7/10  loss 2.5" in shown and world.jobs["bert-7f3"] is runs:
            world.say("bert-7f3", line("a line of the job"))
            world.add(ended(runs))

    shown = on_terminal("run", "train.py", until=act)
    assert shown_first in shown
    before, after = shown.split("a line of the job")
    assert before.endswith("\r\x1b[K")
    assert re.sub(r"\x1b\[[0-9;]*m", "", after).lstrip("\r\n").startswith(("✓ bert-7f3 succeeded", "step 7/10"))
    assert "✓ bert-7f3 succeeded" in after
    assert "\x1b[2mPlan   bert-7f3" in before


def test_the_line_is_cut_to_the_terminal(shell: Shell, world: World) -> None:
    waits = job(state="pending", nodes=(), started_ms=None, reason=replace(REASON, sentence="waiting " * 30))
    world.submitted = waits

    def act(shown: str) -> None:
        if "…" in shown and world.jobs["bert-7f3"] is waits:
            world.add(ended(waits))

    shown = on_terminal("run", "train.py", columns=40, until=act)
    drawn = re.search(r"\x1b\[36m(.*?)\x1b\[0m", shown)
    assert drawn is not None
    assert len(drawn[1]) == 39
