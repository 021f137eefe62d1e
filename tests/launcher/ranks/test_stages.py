"""Ranks that are started in stages, each once every node is ready with the previous one."""

from typing import Any

from tests.launcher.harness import SH, Server, Task
from tests.waiting import wait_until


def staged(task: Task, **fields: Any) -> None:
    hold = [*SH, "echo $$ > pid-$GANGER_RANK; exec sleep 60"]
    ranks = [{"rank": r, "environment": {"GANGER_RANK": str(r)}, "stage": r} for r in range(3)]
    task.run(hold, ranks=ranks, stages=3, **fields)


def started_ranks(task: Task) -> list[str]:
    return sorted(path.name for path in task.work.glob("pid-*"))


def proceed(server: Server, stage: int, generation: int = 1) -> None:
    server.send("proceed", generation=generation, stage=stage, agents={})


def test_each_stage_waits_for_proceed(task: Task, server: Server) -> None:
    staged(task, setup="touch prepared")
    ready = server.wait("ready", stage=0)
    assert ready["agent_port"] is None
    assert "n" not in ready
    task.pid_in("pid-0")
    assert (task.work / "prepared").exists()
    proceed(server, 0)
    server.wait("ready", stage=1)
    task.pid_in("pid-1")
    assert started_ranks(task) == ["pid-0", "pid-1"]
    assert not task.file("started").exists()
    proceed(server, 1)
    assert sorted(server.wait("started")["pids"]) == ["0", "1", "2"]
    assert server.kinds() == ["started"]


def test_proceed_of_another_stage_is_ignored(task: Task, server: Server) -> None:
    staged(task)
    server.wait("ready", stage=0)
    proceed(server, 1)
    proceed(server, 0, generation=2)
    proceed(server, 0)
    server.wait("ready", stage=1)
    proceed(server, 0)
    server.hang_up()
    server.wait("ready", 2, stage=1)  # after the messages before it were read
    assert started_ranks(task) == ["pid-0", "pid-1"]


def test_ready_is_repeated_after_reconnecting(task: Task, server: Server) -> None:
    server.close()
    staged(task)
    task.pid_in("pid-0")
    server.open()
    server.wait("ready", stage=0)
    server.hang_up()
    server.wait("ready", 2, stage=0)
    proceed(server, 0)
    server.wait("ready", stage=1)
    server.close()
    server.open()
    server.wait("ready", 2, stage=1)
    proceed(server, 1)
    server.wait("started")
    server.hang_up()
    server.wait("ready", 3, stage=1)  # also when this node is past it: others may not be


def test_failure_before_the_last_stage_is_reported(task: Task, server: Server) -> None:
    ranks = [{"rank": 0, "environment": {}, "argv": [*SH, "exit 5"]}, {"rank": 1, "environment": {}, "stage": 1}]
    task.run(["sleep", "60"], ranks=ranks, stages=2)
    assert server.wait("rank_failed")["exit_code"] == 5
    server.stop(1)
    server.wait("cleared")
    assert server.kinds() == ["rank_failed", "cleared"]


def test_rank_that_ends_well_early_does_not_finish_the_node(task: Task, server: Server) -> None:
    ranks = [{"rank": 0, "environment": {}}, {"rank": 1, "environment": {}, "stage": 1}]
    task.run([*SH, "exit 0"], ranks=ranks, stages=2)
    task.wait_for("rank-0.exit")
    server.wait("ready")  # it may arrive after the rank has ended
    server.hang_up()
    server.wait("ready", 2)
    assert server.kinds() == []
    proceed(server, 0)
    server.wait("cleared")
    assert server.kinds() == ["started", "finished", "cleared"]


def test_stop_between_stages_clears(task: Task, server: Server) -> None:
    ranks = [{"rank": 0, "environment": {}, "stage": 1}]
    task.run(["touch", "started"], ranks=ranks, stages=2)
    server.wait("ready")
    server.stop(1, notice_ms=60_000, kill_after_ms=60_000)
    server.wait("cleared")
    proceed(server, 0)
    server.stop(7)
    server.wait("cleared", generation=7)  # after the message before it was read
    assert server.kinds() == ["cleared", "cleared"]
    assert not (task.work / "started").exists()


def test_rank_that_cannot_start_in_a_later_stage_ends_the_others(task: Task, server: Server) -> None:
    ranks = [{"rank": 0, "environment": {}}, {"rank": 1, "environment": {}, "argv": ["trian"], "stage": 1}]
    task.run([*SH, "echo $$ > pid; exec sleep 60"], ranks=ranks, stages=2)
    pid = task.pid_in("pid")
    proceed(server, 0)
    server.wait("cleared")
    assert server.kinds() == ["start_failed", "cleared"]
    wait_until(lambda: task.json("rank-0.exit")["signal"] == 9, f"rank 0 ({pid}) is killed")
