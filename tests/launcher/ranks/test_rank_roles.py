"""Ranks with commands of their own, ranks whose end is the job's, ranks that may fail, and their files."""

from pathlib import Path

import pytest

from ganger.registry import frameworks
from tests.frameworks.scenes import FOUR
from tests.launcher.harness import SH, UNTIL_GO, Server, Task, is_alive
from tests.waiting import wait_until

HOLD = [*SH, "exec sleep 60"]


def rank(number: int, line: str, **fields: object) -> dict[str, object]:
    return {"rank": number, "environment": {}, "argv": [*SH, line], **fields}


def test_each_rank_runs_its_own_command(task: Task, server: Server) -> None:
    common = {"rank": 2, "environment": {"GANGER_RANK": "2"}, "argv": None}
    task.run([*SH, "echo worker $GANGER_RANK"], ranks=[rank(0, "echo chief"), rank(1, "echo server"), common])
    server.wait("finished")
    assert [task.texts("o", f"rank-{number}.log") for number in range(3)] == [["chief"], ["server"], ["worker 2"]]


def test_job_is_done_when_all_counting_ranks_ended_well(task: Task, server: Server) -> None:
    chiefs = [rank(0, "exit 0", ends=True), rank(1, UNTIL_GO, ends=True)]
    task.run(HOLD, ranks=[*chiefs, rank(2, "exec sleep 60")])
    task.wait_for("rank-0.exit")
    server.wait("started")  # it may arrive after the first rank has ended
    assert server.kinds() == ["started"]
    (task.work / "go").touch()
    server.wait("done")
    server.stop(1, kill_after_ms=0)
    server.wait("cleared")
    assert server.kinds() == ["started", "done", "cleared"]  # the kill of rank 2 is no failure
    assert task.json("rank-2.exit")["signal"] in (9, 15)


def test_job_is_not_done_when_a_counting_rank_failed(task: Task, server: Server) -> None:
    task.run(HOLD, ranks=[rank(0, "exit 0", ends=True), rank(1, "exit 3", ends=True)])
    server.wait("cleared")
    assert server.kinds() == ["started", "rank_failed", "cleared"]


def test_done_comes_before_what_fails_after_it(task: Task, server: Server) -> None:
    task.run(HOLD, ranks=[rank(0, "exit 0", ends=True), rank(1, f"{UNTIL_GO}; exit 1")])
    server.wait("done")
    (task.work / "go").touch()
    server.wait("cleared")
    assert server.kinds() == ["started", "done", "rank_failed", "cleared"]


def test_rank_whose_failure_is_ignored_does_no_harm(task: Task, server: Server) -> None:
    task.run(HOLD, ranks=[rank(0, UNTIL_GO), rank(1, "echo gave up >&2; exit 3", on_failure="ignore")])
    record = task.wait_for("rank-1.exit")
    (task.work / "go").touch()
    server.wait("cleared")
    assert server.kinds() == ["started", "finished", "cleared"]
    assert record.exists()
    assert (task.json("rank-1.exit")["exit_code"], task.json("rank-1.exit")["tail"]) == (3, ["gave up"])


def test_files_exist_before_setup_and_are_private(task: Task, server: Server) -> None:
    files = {"hosts": "a slots=2\nb slots=2\n", "where": "in @GANGER_TASK_DIR@/hosts\n"}
    task.run(
        [*SH, "cat $HOSTS; cat @GANGER_TASK_DIR@/where; echo $OWN"],
        ranks=[{"rank": 0, "environment": {"OWN": "@GANGER_TASK_DIR@"}}],
        files=files,
        setup="cat $HOSTS",
        environment={"PATH": "/bin", "HOSTS": "@GANGER_TASK_DIR@/hosts"},
    )
    server.wait("finished")
    directory = task.path / "1"
    assert task.texts("o", "setup.log") == ["a slots=2", "b slots=2"]
    assert task.texts("o") == ["a slots=2", "b slots=2", f"in {directory}/hosts", str(directory)]
    assert [(directory / name).stat().st_mode & 0o777 for name in files] == [0o600, 0o600]


def test_a_file_that_is_a_program_can_be_run(task: Task, server: Server) -> None:
    hosts = {"hostfile": "n1 slots=2\nn2 slots=1\n"} | frameworks()["horovod"].files(FOUR)
    task.run([*SH, 'exec "$GANGER_TASK_DIR/discover_hosts"'], files=hosts)
    server.wait("cleared")
    assert task.texts("o") == ["n1:2", "n2:1"]
    assert [(task.path / "1" / name).stat().st_mode & 0o777 for name in hosts] == [0o600, 0o600, 0o700]


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "", ".", ".."])
def test_file_outside_of_the_directory_is_refused(name: str, task: Task, server: Server, tmp_path: Path) -> None:
    task.run([*SH, "exit 0"])
    server.wait("cleared")
    task.plan([*SH, "exit 0"], generation=2, files={name: "text"})
    server.send("run", generation=2)
    failed = server.wait("start_failed", generation=2)
    assert failed["detail"].endswith(f"is invalid: {name!r} is not a file name")
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    ("fields", "flaw"),
    [
        ({"ranks": [rank(0, "true", stage=1)]}, "the stage of a rank is not one of the 1 stages"),
        ({"ranks": []}, "the plan has no ranks"),
        ({"argv": []}, "rank 0 has no command"),
        ({"agent": True}, "the agent has no address or no token"),
    ],
)
def test_plan_that_contradicts_itself_is_invalid(fields: dict, flaw: str, task: Task, server: Server) -> None:
    task.run([*SH, "exit 0"])
    server.wait("cleared")
    task.plan(**{"argv": [*SH, "exit 0"], "generation": 2, **fields})
    server.send("run", generation=2)
    assert server.wait("start_failed", generation=2)["detail"].endswith(f"is invalid: {flaw}")


def test_reports_of_processes_that_a_rank_started_count(task: Task, server: Server) -> None:
    line = 'for r in 0 1 2; do echo "{\\"step\\": $((5 + r))}" > $GANGER_TASK_DIR/rank-$r.report; done; '
    task.run([*SH, line + UNTIL_GO])
    assert server.wait("progressed")["step"] == 5
    (task.work / "go").touch()
    server.wait("finished")


def test_notice_reaches_processes_in_other_sessions(task: Task, server: Server) -> None:
    worker = "trap 'echo saved > saved; exit 0' USR1; echo $$ > pid; while :; do sleep 0.01; done"
    task.run([*SH, f"setsid sh -c '{worker.replace(chr(39), chr(34))}' & wait"], signal="SIGUSR1")
    pid = task.pid_in("pid")
    server.stop(1, notice_ms=10_000)
    wait_until((task.work / "saved").exists, "the worker saves its work")
    wait_until(lambda: not is_alive(pid), "the worker ends")
    server.wait("cleared")
