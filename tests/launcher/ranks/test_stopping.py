"""A stop gives notice, then sends SIGTERM, then SIGKILL; afterwards nothing of the generation is left."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.ranks.stop_signals import StopSignals
from tests.launcher.harness import SH, UNTIL_GO, Server, Task, is_alive
from tests.waiting import wait_until

FOREVER = 3_600_000

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(600)"
SAVES_ON_NOTICE = """
import os, pathlib, time
notice = pathlib.Path(os.environ["GANGER_TASK_DIR"], "notice")
while not notice.exists():
    time.sleep(0.01)
print(notice.read_text())
"""
SAVES_ON_SIGNAL = """
import signal, sys, time
def save(number, frame):
    time.sleep(0.2)
    print("saved on", signal.Signals(number).name)
    sys.exit()
signal.signal(signal.{name}, save)
print("ready")
time.sleep(600)
"""
# Forks twice and leaves the rank's session, group and pipes, as daemons do.
DAEMON = """
import os, pathlib, time
if os.fork():
    os.wait()
    print("left a daemon")
    time.sleep({rank_s})
    raise SystemExit
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 3)
pathlib.Path("daemon").write_text(str(os.getpid()))
time.sleep(600)
"""


def _wait_for_output(task: Task, text: str, stream: str = "o") -> None:
    wait_until(lambda: task.file("rank-0.log").exists() and text in task.texts(stream), f"rank 0 prints {text}")


def test_without_notice_ranks_get_sigterm(task: Task, server: Server) -> None:
    task.run(["sleep", "600"], ranks=2)
    server.wait("started")
    server.stop(1)
    server.wait("cleared")
    assert server.kinds() == ["started", "cleared"]
    assert [task.json(f"rank-{rank}.exit")["signal"] for rank in (0, 1)] == [15, 15]
    assert task.file("cleared").exists()


def test_rank_that_ignores_sigterm_is_killed(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", DEAF])
    _wait_for_output(task, "deaf")
    server.stop(1, kill_after_ms=200)
    server.wait("cleared")
    assert task.json("rank-0.exit")["signal"] == 9


def test_notice_is_a_file_with_cause_and_deadline(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", SAVES_ON_NOTICE])
    task.wait_for("started")
    before_ms = time.time_ns() // 1_000_000
    server.stop(1, notice_ms=FOREVER, cause="preempted")
    server.wait("cleared")
    notice = json.loads(task.texts("o")[0])
    assert notice["cause"] == "preempted"
    assert before_ms <= notice["deadline_ms"] - FOREVER <= time.time_ns() // 1_000_000
    assert not task.file("notice").exists()


IGNORES_NOTICE = f"{UNTIL_GO}; exit 0"
KNOWS_OF_NOTICE = 'while [ ! -e "$GANGER_TASK_DIR/notice" ]; do sleep 0.01; done; > "$GANGER_TASK_DIR/rank-0.noticed"'


@pytest.mark.parametrize(
    ("lines", "has_finished"),
    [((IGNORES_NOTICE,), True), ((f"{UNTIL_GO}; exit 3",), False), ((IGNORES_NOTICE, KNOWS_OF_NOTICE), False)],
    ids=["unaware", "failed", "one_knows"],
)
def test_ranks_that_exit_unaware_of_the_notice_have_finished(
    task: Task, server: Server, lines: tuple[str, ...], has_finished: bool
) -> None:
    task.run([], [{"rank": rank, "environment": {}, "argv": [*SH, line]} for rank, line in enumerate(lines)])
    server.wait("started")
    server.stop(1, notice_ms=FOREVER)
    task.wait_for("notice")
    (task.work / "go").touch()
    server.wait("cleared")
    assert server.kinds() == ["started", *(["finished"] if has_finished else []), "cleared"]


STEPS = """
import pathlib, signal, sys, time
from ganger import train
train.report(step=4)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
pathlib.Path("made").touch()
train.report(step=5)
signal.pause()
"""


def test_ranks_end_once_they_have_made_the_step_that_is_saved(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", STEPS])
    server.wait("progressed", step=4)
    server.stop(1, notice_ms=FOREVER)
    task.wait_for("notice")
    server.stop(1, notice_ms=FOREVER, saved_step=5)
    (task.work / "go").touch()
    server.wait("cleared", killed=[])
    assert task.json("rank-0.exit")["signal"] == 15
    assert (task.work / "made").exists()


def test_ranks_that_report_no_steps_end_once_all_is_saved(task: Task, server: Server) -> None:
    task.run(["sleep", "600"])
    server.wait("started")
    server.stop(1, notice_ms=FOREVER)
    server.stop(1, notice_ms=FOREVER, saved_step="5")  # not a step: it is ignored
    server.stop(1, notice_ms=FOREVER, saved_step=5)
    server.wait("cleared")
    assert task.json("rank-0.exit")["signal"] == 15
    assert "ignored stop: ValueError(\"'5' is not a step\")" in task.own_log()


def test_rank_that_exits_with_0_when_it_is_terminated_has_left(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", SAVES_ON_SIGNAL.format(name="SIGTERM")])
    _wait_for_output(task, "ready")
    server.stop(1, notice_ms=1, kill_after_ms=FOREVER)
    server.wait("cleared")
    assert server.kinds() == ["started", "cleared"]
    assert (task.json("rank-0.exit")["exit_code"], task.json("rank-0.exit")["left"]) == (0, True)


def test_sigterm_follows_the_notice(task: Task, server: Server) -> None:
    task.run(["sleep", "600"])
    server.wait("started")
    server.stop(1, notice_ms=100)
    server.wait("cleared")
    assert task.json("rank-0.exit")["signal"] == 15


def test_signal_of_the_plan_is_sent_with_the_notice(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", SAVES_ON_SIGNAL.format(name="SIGUSR1")], signal="SIGUSR1")
    _wait_for_output(task, "ready")
    server.stop(1, notice_ms=FOREVER)
    server.wait("cleared")
    assert task.texts("o") == ["ready", "saved on SIGUSR1"]
    assert server.kinds() == ["started", "cleared"], "a rank that got the signal knows of the notice"


def test_signal_of_the_plan_reaches_the_program_of_a_shell_line_but_not_the_shell(task: Task, server: Server) -> None:
    (task.work / "train.py").write_text(SAVES_ON_SIGNAL.format(name="SIGUSR1"))
    task.run([*SH, f"{sys.executable} train.py; echo the shell lives"], signal="SIGUSR1")
    _wait_for_output(task, "ready")
    server.stop(1, notice_ms=FOREVER)
    server.wait("cleared")
    assert task.texts("o") == ["ready", "saved on SIGUSR1", "the shell lives"]


def test_program_of_a_shell_line_has_its_grace_period_without_the_shell(task: Task, server: Server) -> None:
    (task.work / "train.py").write_text(SAVES_ON_SIGNAL.format(name="SIGTERM"))
    task.run([*SH, f"{sys.executable} train.py; true"])
    _wait_for_output(task, "ready")
    server.stop(1, kill_after_ms=FOREVER)
    server.wait("cleared")
    assert task.texts("o") == ["ready", "saved on SIGTERM"]


def test_unknown_signal_of_a_plan_is_noted(task: Task, server: Server) -> None:
    task.run(["sleep", "600"], signal="SIGNONSENSE")
    server.wait("started")
    server.stop(1, notice_ms=50)
    server.wait("cleared")
    assert "there is no signal SIGNONSENSE" in task.own_log()


def test_stop_during_setup_starts_no_rank(task: Task, server: Server) -> None:
    task.run([*SH, "echo ran"], setup="echo $$ > setup; exec sleep 600")
    task.pid_in("setup")
    server.stop(1, notice_ms=FOREVER)
    server.wait("cleared")
    assert server.kinds() == ["cleared"]
    assert not task.file("rank-0.log").exists()


@pytest.mark.parametrize("rank_s", [0, 600])
def test_daemon_that_left_its_session_is_killed(rank_s: int, task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", DAEMON.format(rank_s=rank_s)])
    daemon = task.pid_in("daemon")
    if rank_s:
        _wait_for_output(task, "left a daemon")
        server.stop(1)
    server.wait("cleared")
    assert not is_alive(daemon)


def test_child_without_the_mark_is_killed_in_the_ranks_session(task: Task, server: Server) -> None:
    task.run([*SH, "env -i /bin/sleep 600 & echo $! > child"])
    child = task.pid_in("child")
    server.wait("cleared")
    assert server.kinds() == ["started", "finished", "cleared"]
    assert not is_alive(child)


def test_other_nodes_of_the_gang_on_this_machine_are_left_alone(task: Task, server: Server, tmp_path: Path) -> None:
    other = Task(tmp_path / "other", task.archive, tmp_path / "nobody", node="n2")
    try:
        other.run([*SH, "setsid sleep 600 & echo $! > child; exec sleep 600"])
        child, rank = other.pid_in("child"), other.pids()["0"]
        task.run([*SH, "exit 0"])
        server.wait("cleared")
        assert is_alive(child)
        assert is_alive(rank)
    finally:
        other.end()
    assert not is_alive(child)


def test_stop_of_a_cleared_generation_is_answered_again(task: Task, server: Server) -> None:
    task.run([*SH, "exit 0"])
    server.wait("cleared")
    server.stop(1)
    server.wait("cleared", count=2)


def test_generation_stopped_before_its_run_message_never_runs(task: Task, server: Server) -> None:
    task.run(["sleep", "600"])
    task.plan([*SH, "echo ran"], generation=2)
    server.wait("started")
    server.stop(2)
    server.wait("cleared", generation=2)
    assert task.file("cleared", 2).exists()
    server.send("run", generation=2)
    server.wait("cleared", count=2, generation=2)
    assert not task.file("rank-0.log", 2).exists()
    assert not task.file("cleared", 1).exists()


def test_second_stop_shortens_the_notice(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", DEAF])
    _wait_for_output(task, "deaf")
    server.stop(1, notice_ms=FOREVER, kill_after_ms=FOREVER)
    task.wait_for("notice")
    server.stop(1, notice_ms=FOREVER // 2, kill_after_ms=FOREVER, cause="spot_reclaim")
    wait_until(lambda: task.json("notice")["cause"] == "spot_reclaim", "the notice has the earlier deadline")
    server.stop(1, kill_after_ms=0)
    server.wait("cleared")
    assert task.json("rank-0.exit")["signal"] == 9


@pytest.mark.parametrize(
    ("first", "second", "term_at", "kill_at", "earlier"),
    [
        ((10, 5), (10, 5), 10, 15, False),
        ((10, 5), (99, 99), 10, 15, False),
        ((10, 5), (2, 1), 2, 3, True),
        ((10, 5), (2, 99), 2, 15, True),
        ((10, 5), (11, 1), 10, 12, False),
    ],
)
def test_repeated_stop_only_brings_deadlines_forward(
    first: Any, second: Any, term_at: float, kill_at: float, earlier: bool
) -> None:
    stop = StopSignals(0, *first)
    assert stop.hasten(0, *second) == earlier
    assert (stop.term_at, stop.kill_at) == (term_at, kill_at)


@pytest.mark.parametrize("line", [DEAF, f'exec {sys.executable} -c "{DEAF}" & wait'], ids=["rank", "behind a shell"])
@pytest.mark.parametrize(("notice_ms", "kill_after_ms"), [(0, 300), (200, 100)])
def test_killed_ranks_are_reported(task: Task, server: Server, line: str, notice_ms: int, kill_after_ms: int) -> None:
    task.run([sys.executable, "-uc", line] if line == DEAF else [*SH, line])
    server.wait("started")
    _wait_for_output(task, "deaf")
    server.stop(1, notice_ms=notice_ms, kill_after_ms=kill_after_ms)
    cleared = server.wait("cleared")
    assert (cleared["killed"], cleared["grace_ms"]) == ([0], notice_ms)


@pytest.mark.parametrize("kill_after_ms", [60_000, 0])
def test_ranks_that_end_in_time_or_had_none_are_not_overdue(task: Task, server: Server, kill_after_ms: int) -> None:
    task.run(["sleep", "600"])
    server.wait("started")
    server.stop(1, kill_after_ms=kill_after_ms)
    cleared = server.wait("cleared")
    assert (cleared["killed"], cleared["grace_ms"]) == ([], 0)


def test_each_signal_is_sent_once() -> None:
    stop = StopSignals(0, 1, 2)
    steps = [stop.step(now) for now in (0.5, 1, 2, 3, 4)]
    assert steps == [None, signal.SIGTERM, None, signal.SIGKILL, None]


def test_run_of_the_running_generation_changes_nothing(task: Task, server: Server) -> None:
    task.run(["sleep", "600"])
    pid = server.wait("started")["pids"]["0"][0]
    server.send("run", generation=1)
    server.stop(2)
    server.wait("cleared", generation=2)
    assert is_alive(pid)
    assert server.kinds() == ["started", "cleared"]


def test_newer_generation_clears_the_older_one_first(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", DEAF])
    task.plan([*SH, f"test -e {task.path}/1/cleared && echo alone; exec sleep 600"], generation=2)
    _wait_for_output(task, "deaf")
    server.send("run", generation=2)
    server.wait("started", generation=2)
    assert [(m["type"], m["generation"]) for m in server.messages if "n" in m] == [
        ("started", 1),
        ("cleared", 1),
        ("started", 2),
    ]
    wait_until(lambda: task.texts("o", generation=2) == ["alone"], "generation 2 finds generation 1 cleared")


def test_one_launcher_serves_successive_generations(task: Task, server: Server) -> None:
    launcher = task.run([*SH, "exit 0"])
    server.wait("cleared")
    for generation in (2, 3):
        task.plan([*SH, "echo $GANGER_TASK"], generation=generation)
        server.send("run", generation=generation)
        server.wait("cleared", generation=generation)
        assert task.texts("o", generation=generation) == [f"bert-7f3.{generation}"]
    assert launcher.poll() is None


def test_late_run_of_an_older_generation_is_ignored(task: Task, server: Server) -> None:
    task.plan([*SH, "echo ran"], generation=1)
    task.plan(["sleep", "600"], generation=2)
    task.start(generation=2)
    server.wait("started", generation=2)
    server.send("run", generation=1)
    server.wait("cleared", generation=1)
    assert not task.file("rank-0.log", 1).exists()


def test_invalid_later_plan_fails_to_start(task: Task, server: Server) -> None:
    task.run([*SH, "exit 0"])
    server.wait("cleared")
    server.send("run", generation=2)
    failed = server.wait("start_failed", generation=2)
    assert failed["detail"] == f"cannot read the plan {task.path}/plan-2.json: No such file or directory"
    task.plan([*SH, "exit 0"], generation=3, gang="another")
    server.send("run", generation=3)
    assert "the plan is of another on n1" in server.wait("start_failed", generation=3)["detail"]
    server.wait("cleared", generation=3)


def test_sigterm_to_the_launcher_stops_the_ranks(task: Task, server: Server) -> None:
    launcher = task.run([sys.executable, "-c", SAVES_ON_SIGNAL.format(name="SIGTERM")])
    _wait_for_output(task, "ready")
    launcher.terminate()
    assert launcher.wait() == 0
    assert server.kinds() == ["started", "cleared"]
    assert task.texts("o") == ["ready", "saved on SIGTERM"]


def test_sigterm_without_a_server(task: Task) -> None:
    launcher = task.run(["sleep", "600"])
    pid = task.pids()["0"]
    launcher.terminate()
    assert launcher.wait() == 0
    assert not is_alive(pid)
    assert task.file("cleared").exists()


def test_leave_waits_for_running_ranks(task: Task, server: Server) -> None:
    launcher = task.run([*SH, "while [ ! -e go ]; do sleep 0.01; done; echo to the end"])
    server.wait("started")
    server.send("leave")
    server.send("run", generation=2)  # nothing new begins
    server.wait("cleared", generation=2)
    assert launcher.poll() is None
    (task.work / "go").touch()
    assert launcher.wait() == 0
    assert task.texts("o") == ["to the end"]
    assert server.kinds() == ["started", "cleared", "finished", "cleared"]


def test_leave_without_ranks_is_immediate(task: Task, server: Server) -> None:
    launcher = task.run([*SH, "exit 0"])
    server.wait("cleared")
    server.send("leave")
    assert launcher.wait() == 0
