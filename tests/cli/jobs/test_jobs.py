"""Listing, showing, stopping and deleting jobs."""

import json
import re
import time
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from ganger.model.job_sections.retry_spec import Limits
from ganger.model.units import HOUR_MS
from ganger.model.views.service_views import AttemptView
from tests.cli.conftest import Shell
from tests.cli.world import REASON, SPEC, T0, WIDE, World, ended, job


def test_nothing_yet(shell: Shell, world: World) -> None:
    assert shell("ls").out == "no jobs yet: ganger run -- python train.py\n"
    assert json.loads(shell("ls", "-o", "json").out) == []


def test_list_is_aligned_text_without_a_terminal(shell: Shell, world: World) -> None:
    world.add(ended(job("a-1")))
    world.add(job("longer-name-2", spec=WIDE, state="pending", nodes=(), started_ms=None, sentence=REASON.sentence))
    result = shell("ls")
    title, first, second = result.out.splitlines()
    assert title.split() == ["JOB", "STATE", "SIZE", "QUEUE", "SUBMITTED", "RAN", "NOTE"]
    assert first.startswith("longer-name-2  pending")
    assert first.endswith(REASON.sentence)
    assert second.split()[:2] == ["a-1", "succeeded"]
    assert f"  {SPEC.shape}  " in second
    assert title.index("STATE") == first.index("pending") == second.index("succeeded")
    assert "\x1b" not in result.out


def test_the_time_of_a_suspended_job_does_not_go_on(shell: Shell, world: World) -> None:
    world.add(job(state="suspended", nodes=(), sentence="on request"))
    assert shell("ls").out.splitlines()[1].split()[-3:] == ["-", "on", "request"]


def test_all_jobs_come_page_by_page_as_one_array(shell: Shell, world: World) -> None:
    for i in range(8):
        world.add(ended(job(f"j-{i}")))
    rows = json.loads(shell("ls", "--all", "-o", "json").out)
    assert [row["id"] for row in rows] == [f"j-{i}" for i in reversed(range(8))]
    assert len([target for _, target, _ in world.requests if target.startswith("/jobs?")]) == 3


def test_list_of_one_state(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.add(ended(job("b-2"), state="failed", exit_code=3))
    assert [row["id"] for row in json.loads(shell("ls", "--state", "failed", "-o", "json").out)] == ["b-2"]
    assert shell("ls", "--state", "pending").out == "no pending jobs\n"
    assert "'failed'" in shell("ls", "--state", "fialed").err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--state R,f --state COMPLETED", {"state": "running,failed,succeeded"}),
        ("--user ada --queue nlp", {"user": "ada", "queue": "nlp"}),
        ("-n bert --user ada", {"name": "bert", "user": "ada"}),
        ("--label team=nlp --label stage!=prod", {"labels": "team=nlp,stage!=prod"}),
        (
            "--since 2026-11-21T12:00:00Z --until 2026-11-21T13:00:00+01:00",
            {"since": "1795262400000", "until": "1795262400000"},
        ),
    ],
)
def test_list_options_become_query_parameters(shell: Shell, world: World, args: str, expected: dict[str, str]) -> None:
    shell("ls", *args.split())
    query = dict(parse_qsl(world.requests[-1][1].partition("?")[2]))
    assert query == expected | {"all": "true", "limit": "1000"}


def test_no_matching_jobs(shell: Shell, world: World) -> None:
    assert shell("ls", "--user", "eve", "--state", "pd,r").out == "no matching jobs\n"
    assert shell("ls", "--state", "pd,r").out == "no pending or running jobs\n"


def test_get_shows_the_job_in_detail(shell: Shell, world: World) -> None:
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
        "0123456789ab with uncommitted changes",
        "step 40",
        "rank 2 on n2 was ended by SIGKILL",
        "next: ganger logs bert-7f3 -f",
    ):
        assert expected in out
    assert json.loads(shell("get", "bert-7f3", "-o", "json").out)["row"]["id"] == "bert-7f3"


def test_get_shows_the_granted_time_limit(shell: Shell, world: World) -> None:
    limits = Limits(time_ms=2 * HOUR_MS, time_min_ms=HOUR_MS)
    first = AttemptView(generation=1, started_ms=T0, ended_ms=T0 + 9000, outcome="failed", nodes=("n1",))
    world.add(job(spec=replace(WIDE, limits=limits), attempts=(first,)))
    assert "  2h 00m, at least 1h 00m\n" in shell("get", "bert").out
    second = replace(first, generation=2, time_ms=HOUR_MS + HOUR_MS // 2)
    world.add(job(spec=replace(WIDE, limits=limits), attempts=(first, second)))
    assert "  2h 00m, at least 1h 00m; attempt 2 got 1h 30m\n" in shell("get", "bert").out


def test_get_shows_the_end_by_the_time_limit(shell: Shell, world: World) -> None:
    world.add(job(spec=replace(WIDE, limits=Limits(time_ms=HOUR_MS)), ends_by_ms=T0 + HOUR_MS))
    (line,) = (line for line in shell("get", "bert").out.splitlines() if line.startswith("  ends "))
    assert "  by " in line
    assert line.endswith(", its time limit")
    assert json.loads(shell("get", "bert", "-o", "json").out)["ends_by_ms"] == T0 + HOUR_MS
    world.add(job(spec=WIDE))
    assert "  ends " not in shell("get", "bert").out


def test_stop_reports_each_job(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.add(job("b-2"))
    result = shell("stop", "a-1", "gone-9", "b-2")
    assert result.out == "stopping a-1\nstopping b-2\n"
    assert "error: there is no job gone-9" in result.err
    assert "next: ganger ls" in result.err
    assert result.code == 3


def test_a_job_that_is_stopping_is_stopped_again_only_now(shell: Shell, world: World) -> None:
    until_ms = int(time.time() * 1000) + HOUR_MS
    world.add(job("a-1", state="stopping", notice_until_ms=until_ms))
    again = shell("stop", "a-1").out
    assert re.fullmatch(
        r"a-1 is stopping already, until [-0-9: ]+ at the latest; to end it at once: ganger stop a-1 --now\n", again
    )
    assert "POST" not in [method for method, _, _ in world.requests]
    assert "notice" in shell("get", "a-1").out
    assert shell("stop", "a-1", "--now").out == "stopping a-1 now\n"
    assert world.requests[-1][:2] == ("POST", "/jobs/a-1/stop?now=true")


def test_delete(shell: Shell, world: World) -> None:
    world.add(ended(job("a-1")))
    assert shell("delete", "a-1").out == "deleted a-1\n"
    assert "a-1" not in world.jobs


def test_a_refusal_keeps_its_message_and_exit_code(shell: Shell, world: World) -> None:
    world.add(job("a-1"))
    world.refusals["DELETE /jobs/a-1"] = (
        409,
        "still_live",
        "a-1 is running\nonly ended jobs can go",
        "ganger stop a-1",
    )
    result = shell("delete", "a-1")
    assert result.err == "error: a-1 is running\n  only ended jobs can go\n  next: ganger stop a-1\n"
    assert result.code == 4
