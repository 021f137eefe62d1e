"""Jobs in a list, one in full, their stop and their deletion."""

import json
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from ganger.model.job import Limits
from ganger.model.units import HOUR_MS
from ganger.model.views.service_views import AttemptView
from tests.cli.conftest import Shell
from tests.cli.world import REASON, SPEC, T0, WIDE, World, ended, job


def test_nothing_yet(shell: Shell, world: World) -> None:
    assert shell("ls").out == "no jobs yet: ganger run -- python train.py\n"
    assert json.loads(shell("ls", "-o", "json").out) == []


def test_list_is_aligned_text_where_no_terminal_is(shell: Shell, world: World) -> None:
    world.add(ended(job("a-1")))
    world.add(job("longer-name-2", spec=WIDE, state="pending", nodes=(), started_ms=None, sentence=REASON.sentence))
    said = shell("ls")
    title, first, second = said.out.splitlines()
    assert title.split() == ["JOB", "STATE", "SIZE", "QUEUE", "SUBMITTED", "RAN", "NOTE"]
    assert first.startswith("longer-name-2  pending")
    assert first.endswith(REASON.sentence)
    assert second.split()[:2] == ["a-1", "succeeded"]
    assert f"  {SPEC.shape}  " in second
    assert title.index("STATE") == first.index("pending") == second.index("succeeded")
    assert "\x1b" not in said.out


def test_all_jobs_come_page_by_page_as_one_array(shell: Shell, world: World) -> None:
    for i in range(8):
        world.add(ended(job(f"j-{i}")))
    rows = json.loads(shell("ls", "--all", "-o", "json").out)
    assert [row["id"] for row in rows] == [f"j-{i}" for i in reversed(range(8))]
    assert len([target for _, target, _ in world.asked if target.startswith("/jobs?")]) == 3


def test_list_of_one_state(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.add(ended(job("b-2"), state="failed", exit_code=3))
    assert [row["id"] for row in json.loads(shell("ls", "--state", "failed", "-o", "json").out)] == ["b-2"]
    assert shell("ls", "--state", "pending").out == "no job is pending\n"
    assert "'failed'" in shell("ls", "--state", "fialed").err


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("--state R,f --state COMPLETED", {"state": "running,failed,succeeded"}),
        ("--user ada --queue nlp", {"user": "ada", "queue": "nlp"}),
        ("--label team=nlp --label stage!=prod", {"labels": "team=nlp,stage!=prod"}),
        (
            "--since 2026-11-21T12:00:00Z --until 2026-11-21T13:00:00+01:00",
            {"since": "1795262400000", "until": "1795262400000"},
        ),
    ],
)
def test_what_jobs_are_asked_for(shell: Shell, world: World, words: str, asked: dict[str, str]) -> None:
    shell("ls", *words.split())
    query = dict(parse_qsl(world.asked[-1][1].partition("?")[2]))
    assert query == asked | {"all": "true", "limit": "1000"}


def test_nothing_fits(shell: Shell, world: World) -> None:
    assert shell("ls", "--user", "eve", "--state", "pd,r").out == "no job fits\n"
    assert shell("ls", "--state", "pd,r").out == "no job is pending or running\n"


def test_get_shows_all_there_is(shell: Shell, world: World) -> None:
    attempts = (
        AttemptView(generation=1, started_ms=T0, ended_ms=T0 + 9000, outcome="failed", nodes=("n1", "n2"),
                    sentence="rank 2 on n2 was ended by SIGKILL"),
        AttemptView(generation=2, started_ms=T0 + 9500, ended_ms=None, outcome="running", nodes=("n1", "n2"),
                    resumed_step=40),
    )  # fmt: skip
    view = job(spec=replace(WIDE, env={"NOTE": "two words"}), attempts=attempts, checkpoint_step=40)
    world.add(view)
    out = shell("get", "bert").out
    for expected in (
        "bert-7f3  running",
        "2 nodes x 2 H100; 4 processes, framework torch",
        "NOTE='two words'",
        "0123456789ab with changes",
        "step 40",
        "rank 2 on n2 was ended by SIGKILL",
        "next: ganger logs bert-7f3 -f",
    ):
        assert expected in out
    assert json.loads(shell("get", "bert-7f3", "-o", "json").out)["row"]["id"] == "bert-7f3"


def test_get_shows_what_time_was_granted(shell: Shell, world: World) -> None:
    limits = Limits(time_ms=2 * HOUR_MS, time_min_ms=HOUR_MS)
    first = AttemptView(generation=1, started_ms=T0, ended_ms=T0 + 9000, outcome="failed", nodes=("n1",))
    world.add(job(spec=replace(WIDE, limits=limits), attempts=(first,)))
    assert "  2h 00m, at least 1h 00m\n" in shell("get", "bert").out
    second = replace(first, generation=2, time_ms=HOUR_MS + HOUR_MS // 2)
    world.add(job(spec=replace(WIDE, limits=limits), attempts=(first, second)))
    assert "  2h 00m, at least 1h 00m; attempt 2 was granted 1h 30m\n" in shell("get", "bert").out


def test_get_shows_when_the_time_limit_ends_it(shell: Shell, world: World) -> None:
    world.add(job(spec=replace(WIDE, limits=Limits(time_ms=HOUR_MS)), ends_by_ms=T0 + HOUR_MS))
    (line,) = (line for line in shell("get", "bert").out.splitlines() if line.startswith("  ends "))
    assert "at the latest " in line
    assert line.endswith(", by its time limit")
    assert json.loads(shell("get", "bert", "-o", "json").out)["ends_by_ms"] == T0 + HOUR_MS
    world.add(job(spec=WIDE))
    assert "  ends " not in shell("get", "bert").out


def test_stop_many_says_of_each_what_became_of_it(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.add(job("b-2"))
    said = shell("stop", "a-1", "gone-9", "b-2")
    assert said.out == "stopping a-1\nstopping b-2\n"
    assert "error: there is no job gone-9" in said.err
    assert "next: ganger ls" in said.err
    assert said.code == 3


def test_delete(shell: Shell, world: World) -> None:
    world.add(ended(job("a-1")))
    assert shell("delete", "a-1").out == "deleted a-1\n"
    assert "a-1" not in world.jobs


def test_a_refusal_keeps_its_words_and_its_code(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.refusals["DELETE /jobs/a-1"] = (
        409,
        "still_live",
        "a-1 is running\nonly ended jobs can go",
        "ganger stop a-1",
    )
    said = shell("delete", "a-1")
    assert said.err == "error: a-1 is running\n  only ended jobs can go\n  next: ganger stop a-1\n"
    assert said.code == 4
