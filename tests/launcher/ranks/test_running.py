"""Ranks are started as the plan says, and how they end is on disk before it is reported."""

import json
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.harness import GANG, NODE, SH, Server, Task, is_alive
from tests.waiting import wait_until

NO_MANIFEST = "ganger-checkpoint.json cannot be read (No such file or directory)"


def test_ranks_that_exit_with_0_are_finished_and_cleared(task: Task, server: Server) -> None:
    task.run([*SH, "echo rank $GANGER_RANK; echo oops >&2"], ranks=2)
    server.wait("cleared")
    assert server.kinds() == ["started", "finished", "cleared"]
    assert [message["n"] for message in server.messages if "n" in message] == [1, 2, 3]
    assert task.texts("o", "rank-1.log") == ["rank 1"]
    assert task.texts("e", "rank-1.log") == ["oops"]
    assert task.file("cleared").exists()
    assert task.json("rank-0.exit")["exit_code"] == 0


def test_messages_name_gang_node_and_generation(task: Task, server: Server) -> None:
    task.run([*SH, "exit 0"])
    cleared = server.wait("cleared")
    assert (cleared["gang"], cleared["node"], cleared["generation"]) == (GANG, NODE, 1)


def test_started_lists_the_processes(task: Task, server: Server) -> None:
    task.run([*SH, "echo $$; exec sleep 60"], ranks=2)
    started = server.wait("started")
    assert started["pids"] == task.json("started")["pids"]
    pid, ticks = started["pids"]["1"]
    wait_until(lambda: task.texts("o", "rank-1.log") == [str(pid)], "rank 1 prints its pid")
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] == str(ticks)


def test_environment_is_exactly_that_of_the_plan(task: Task, server: Server) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    task.plan(
        [sys.executable, "-S", "-c", code],
        environment={"PATH": "/bin", "A": "1", "B": "all", "LC_ALL": "C.UTF-8"},
        ranks=[{"rank": 0, "environment": {"B": "own"}}],
    )
    task.start(env={"INHERITED": "no", "PATH": os.environ["PATH"]})
    server.wait("cleared")
    assert json.loads(task.texts("o")[0]) == {
        "PATH": "/bin",
        "A": "1",
        "B": "own",
        "LC_ALL": "C.UTF-8",
        "GANGER_TASK": f"{GANG}.1",
        "GANGER_TASK_DIR": str(task.path / "1"),
        "PYTHONPATH": str(task.archive),
    }


def _make_checkpoint(root: Path, step: int, text: str = "abc", size: int | None = 3, **owner: str) -> None:
    """Write a checkpoint whose manifest has that size and the CRC-32 of "abc"; none if the size is None."""
    directory = root / f"step-{step:09}"
    directory.mkdir(parents=True)
    (directory / "model.pt").write_text(text)
    if size is not None:
        manifest = {"step": step, **owner, "files": {"model.pt": {"bytes": size, "crc32": zlib.crc32(b"abc")}}}
        (directory / "ganger-checkpoint.json").write_text(json.dumps(manifest))


def test_the_newest_complete_checkpoint_is_used(task: Task, server: Server) -> None:
    root = task.work / "checkpoints"
    for step, size in ((7, 3), (12, 3), (20, 4), (30, None)):
        _make_checkpoint(root, step, size=size)
    (root / ".step-000000040.draft").mkdir()
    environment = {"PATH": "/bin:/usr/bin", "GANGER_CHECKPOINT_DIR": str(root)}
    environment |= {"GANGER_JOB_ID": GANG, "GANGER_JOB_UID": GANG}
    task.run(["/bin/sh", "-c", 'echo "from $GANGER_RESUME_FROM"'], environment=environment)
    server.wait("cleared")
    assert task.texts("o") == [f"from {root / 'step-000000012'}"]
    flaws = [{"step": 30, "flaw": NO_MANIFEST}, {"step": 20, "flaw": "model.pt has 3 bytes instead of 4"}]
    resumed = server.wait("resumed")
    assert (resumed["step"], resumed["skipped"], resumed["source"]) == (12, flaws, "")
    assert server.kinds().index("resumed") < server.kinds().index("started")


def test_the_fence_is_claimed_before_ranks_start(task: Task, server: Server) -> None:
    root = task.work / "checkpoints"
    environment = {"PATH": "/bin:/usr/bin", "GANGER_CHECKPOINT_DIR": str(root)}
    environment |= {"GANGER_JOB_ID": GANG, "GANGER_JOB_UID": "8f1c"}
    draft = root / ".step-000000007.8f1c.0.0badcafe.1"
    draft.mkdir(parents=True)
    task.run(["/bin/sh", "-c", f"ls -A {root}"], environment=environment)
    server.wait("cleared")
    assert task.texts("o") == [f".attempt~000001~000001~{GANG}~8f1c", f"{draft.name}.superseded"]


def test_small_checkpoint_is_read_before_it_is_used(task: Task, server: Server) -> None:
    root = task.work / "checkpoints"
    for step, text in ((7, "abc"), (12, "xyz")):
        _make_checkpoint(root, step, text)
    environment = {"PATH": "/bin:/usr/bin", "GANGER_CHECKPOINT_DIR": str(root)}
    task.run(["/bin/sh", "-c", 'echo "from $GANGER_RESUME_FROM"'], environment=environment)
    server.wait("cleared")
    assert task.texts("o") == [f"from {root / 'step-000000007'}"]


def test_checkpoint_that_an_attempt_failed_on_is_used_as_a_last_resort(task: Task, server: Server) -> None:
    root = task.work / "checkpoints"
    for step, text in ((7, "xyz"), (12, "abc")):
        _make_checkpoint(root, step, text)
    environment = {"PATH": "/bin:/usr/bin", "GANGER_CHECKPOINT_DIR": str(root), "GANGER_RESUME_SKIP": "12"}
    task.run(["/bin/sh", "-c", 'echo "from $GANGER_RESUME_FROM"'], environment=environment)
    server.wait("cleared")
    assert task.texts("o") == [f"from {root / 'step-000000012'}"]
    resumed = server.wait("resumed")
    assert (resumed["step"], [flaw["step"] for flaw in resumed["skipped"]]) == (12, [7])


def test_number_of_reported_skipped_checkpoints_is_limited(task: Task, server: Server) -> None:
    root = task.work / "checkpoints"
    for step in range(1_001):
        (root / f"step-{step:09}").mkdir(parents=True)
    task.run(["/bin/true"], environment={"PATH": "/bin:/usr/bin", "GANGER_CHECKPOINT_DIR": str(root)})
    server.wait("cleared")
    resumed = server.wait("resumed")
    assert [flaw["step"] for flaw in resumed["skipped"]] == list(range(1_000, 500, -1))


def test_only_the_launcher_of_rank_0_reports_checkpoints(task: Task, server: Server) -> None:
    (task.work / "checkpoints" / "step-000000007").mkdir(parents=True)
    environment = {"PATH": "/bin:/usr/bin", "GANGER_CHECKPOINT_DIR": str(task.work / "checkpoints")}
    task.run(["/bin/true"], environment=environment, ranks=[{"rank": 1, "environment": {}}])
    server.wait("cleared")
    assert "resumed" not in server.kinds()


def test_zipapp_comes_after_the_users_own_python_path(task: Task, server: Server) -> None:
    task.run([*SH, "echo $PYTHONPATH"], environment={"PATH": os.environ["PATH"], "PYTHONPATH": "/mine"})
    server.wait("cleared")
    assert task.texts("o") == [f"/mine:{task.archive}"]


def test_an_import_of_the_launcher_leaves_the_umask() -> None:
    code = "import os; os.umask(0o027); import ganger.launcher.main; print(oct(os.umask(0)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0o27\n"


def test_rank_leads_a_session_reads_nothing_and_keeps_the_users_umask(task: Task, server: Server) -> None:
    code = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()), oct(os.umask(0)), os.getcwd())"
    task.plan([sys.executable, "-c", code])
    task.start(umask=0o027)
    server.wait("cleared")
    assert task.texts("o") == [f"True '' 0o27 {task.work}"]


def test_rank_inherits_no_ignored_signal_and_no_open_file(task: Task, server: Server) -> None:
    code = (
        "import os, signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_DFL, len(os.listdir('/proc/self/fd')))"
    )
    task.run([sys.executable, "-c", code])
    server.wait("cleared")
    assert task.texts("o") == ["True 4"]  # stdin, stdout, stderr, and the listing itself


def test_resource_limits_are_unchanged(task: Task, server: Server) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    task.run([*SH, "ulimit -n"])
    server.wait("cleared")
    assert task.texts("o") == [str(soft)]


def test_launcher_writes_its_identity_before_a_rank_runs(task: Task, server: Server) -> None:
    launcher = task.run([*SH, "cat $GANGER_TASK_DIR/../launcher.json"])
    server.wait("cleared")
    identity = json.loads(task.texts("o")[0])
    assert identity["pid"] == launcher.pid
    assert Path(f"/proc/{launcher.pid}/stat").read_text().rpartition(")")[2].split()[19] == str(identity["start_ticks"])


def test_runs_before_there_is_a_server(task: Task) -> None:
    task.run([*SH, "exit 0"])
    task.wait_for("cleared")


def test_first_failure_is_reported_once_with_its_last_lines(task: Task, server: Server) -> None:
    line = "seq 100 >&2; echo stdout; test $GANGER_RANK = 1 && exit 3; while [ ! -e go ]; do sleep 0.01; done; exit 4"
    seen_on_disk: list[Any] = []
    server.on_message = lambda m: seen_on_disk.append(task.json("rank-1.exit")) if m["type"] == "rank_failed" else None
    task.run([*SH, line], ranks=2)
    exited = server.wait("rank_failed")
    (task.work / "go").touch()
    server.wait("cleared")
    assert server.kinds() == ["started", "rank_failed", "cleared"]
    assert (exited["rank"], exited["exit_code"], "signal" in exited) == (1, 3, False)
    assert exited["tail"] == [str(number) for number in range(81, 101)]
    assert seen_on_disk[0]["exit_code"] == 3
    assert seen_on_disk[0]["tail"] == exited["tail"]
    assert task.json("rank-0.exit")["exit_code"] == 4


def test_failure_does_not_affect_other_ranks(task: Task, server: Server) -> None:
    task.run([*SH, "test $GANGER_RANK = 1 && exit 3; while [ ! -e go ]; do sleep 0.01; done; echo on"], ranks=2)
    server.wait("rank_failed")
    assert not task.file("rank-0.exit").exists()
    (task.work / "go").touch()
    server.wait("cleared")
    assert task.texts("o") == ["on"]


def test_death_by_signal_is_reported_as_such(task: Task, server: Server) -> None:
    task.run([*SH, "echo last words; kill -SEGV $$"])
    exited = server.wait("rank_failed")
    assert (exited["signal"], "exit_code" in exited, exited["tail"]) == (11, False, ["last words"])
    assert task.json("rank-0.exit")["signal"] == 11


def test_setup_runs_once_before_the_ranks(task: Task, server: Server) -> None:
    task.run(
        [*SH, "cat made"], ranks=2, setup="echo $A >> made; echo preparing", environment={"A": "ready", "PATH": "/bin"}
    )
    server.wait("cleared")
    assert task.texts("o", "rank-0.log") == task.texts("o", "rank-1.log") == ["ready"]
    assert task.texts("o", "setup.log") == ["preparing"]


def test_setup_that_fails_starts_no_rank(task: Task, server: Server) -> None:
    task.run([*SH, "touch started"], setup="echo no such package >&2; exit 9")
    server.wait("cleared")
    assert server.kinds() == ["start_failed", "cleared"]
    failed = server.wait("start_failed")
    assert failed["detail"] == f"the setup line exited with code 9 after it wrote 'no such package' (on {NODE})"
    assert (failed["exit_code"], failed["tail"]) == (9, ["no such package"])
    assert not (task.work / "started").exists()


def test_background_process_of_setup_lives_as_long_as_the_ranks(task: Task, server: Server) -> None:
    task.run([*SH, "kill -0 $(cat daemon) && echo served"], setup="sleep 60 & echo $! > daemon")
    server.wait("cleared")
    assert task.texts("o") == ["served"]
    assert not is_alive(task.pid_in("daemon"))


def _plain_file(path: Path) -> str:
    path.write_text("just text\n")
    return str(path)


def _script(path: Path, first_line: str, mode: int) -> str:
    path.write_text(f"{first_line}\n")
    path.chmod(mode)
    return str(path)


CANNOT_START = {
    "program not in PATH": (lambda d: {"argv": ["trian"]}, 127, "there is no program 'trian' in PATH ("),
    "program file missing": (lambda d: {"argv": [f"{d}/trian"]}, 127, "there is no program {d}/trian"),
    "no such relative path": (lambda d: {"argv": ["./trian"]}, 127, "there is no program {w}/./trian"),
    "not executable": (lambda d: {"argv": [_plain_file(d / "x")]}, 126, "the program '{d}/x' is not executable"),
    "interpreter missing": (
        lambda d: {"argv": [_script(d / "x", "#!/no/such", 0o755)]},
        127,
        "the interpreter that the first line of {d}/x names does not exist",
    ),
    "no executable": (
        lambda d: {"argv": [_script(d / "x", "\0", 0o755)]},
        126,
        "the program '{d}/x' has no executable format",
    ),
    "a directory": (lambda d: {"argv": [str(d)]}, 126, "the program '{d}' is not executable"),
    "zero byte": (lambda d: {"argv": ["a\0b"]}, 126, "the program 'a\\x00b' cannot be started"),
    "directory missing": (lambda d: {"directory": f"{d}/gone"}, 127, "the directory {d}/gone does not exist"),
    "directory is a file": (
        lambda d: {"directory": _plain_file(d / "x")},
        127,
        "the directory {d}/x is not a directory",
    ),
}


@pytest.mark.parametrize(("fields", "exit_code", "detail"), CANNOT_START.values(), ids=CANNOT_START)
def test_start_failure_has_a_reason(fields: Any, exit_code: int, detail: str, task: Task, server: Server) -> None:
    task.run(**{"argv": [*SH, "exit 0"], "ranks": 2, **fields(task.path.parent)})
    server.wait("cleared")
    assert server.kinds() == ["start_failed", "cleared"]
    failed = server.wait("start_failed")
    assert failed["detail"].startswith(detail.format(d=task.path.parent, w=task.work))
    assert failed["exit_code"] == task.json("rank-0.exit")["exit_code"] == exit_code
    assert failed["detail"].startswith(task.json("rank-0.exit")["tail"][0])


def _without_override() -> None:
    """Enforce file modes on root too, from here on."""
    import ctypes

    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o600])
def test_unreadable_directory_is_reported(mode: int, task: Task, server: Server) -> None:
    forbidden = task.work / "forbidden"
    forbidden.mkdir()
    task.plan([*SH, "exit 0"], directory=str(forbidden))
    forbidden.chmod(mode)
    task.start(preexec_fn=_without_override)
    failed = server.wait("start_failed")
    forbidden.chmod(0o700)
    assert failed["detail"].startswith(f"the directory {forbidden} is not readable by user {os.geteuid()}")
    assert failed["exit_code"] == 126


def test_more_ranks_than_the_launcher_can_open_pipes_for(task: Task, server: Server) -> None:
    task.plan(["sleep", "600"], ranks=8)
    task.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)))
    server.wait("cleared")
    assert server.kinds() == ["start_failed", "cleared"]
    failed = server.wait("start_failed")
    assert failed["detail"].endswith(f"Too many open files (on {NODE})")
    assert failed["exit_code"] == 126


def test_rank_that_cannot_start_ends_the_started_ones(task: Task, server: Server) -> None:
    tried = [{"rank": 0, "environment": {"PATH": "/bin"}}, {"rank": 1, "environment": {"PATH": "/no"}}]
    task.run(["sleep", "60"], ranks=tried)
    server.wait("cleared")
    assert server.kinds() == ["start_failed", "cleared"]
    assert task.json("rank-0.exit")["signal"] == 9
    assert task.json("rank-1.exit")["exit_code"] == 127


def _exit_of(task: Task, *arguments: object) -> int:
    command = [sys.executable, "-I", "-S", *map(str, (task.archive, *arguments))]
    return subprocess.run(command, check=False, capture_output=True).returncode


def test_second_launcher_of_a_directory_exits(task: Task, server: Server) -> None:
    task.run([*SH, "sleep 60"])
    server.wait("started")
    assert _exit_of(task, task.path, task.socket_path, 1) == 75
    assert server.kinds() == ["started"]


def test_usage_errors(task: Task, tmp_path: Path) -> None:
    assert _exit_of(task, task.path) == 64
    assert _exit_of(task, task.path, task.socket_path, "first") == 64
    assert _exit_of(task, task.path, task.socket_path, 7) == 66
    assert "plan-7.json: No such file or directory" in task.own_log()
    assert _exit_of(task, tmp_path / "nowhere", task.socket_path, 1) == 73


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gang": "g"}', '{"gang": 7}'])
def test_invalid_first_plan_ends_the_launcher(text: str, task: Task) -> None:
    (task.path / "plan-1.json").write_text(text)
    assert _exit_of(task, task.path, task.socket_path, 1) == 66
    assert "plan-1.json is invalid" in task.own_log()


def test_files_are_private(task: Task, server: Server) -> None:
    task.run([*SH, "exit 1"], setup="true")
    server.wait("cleared")
    written = [
        path
        for path in [*task.path.iterdir(), *(task.path / "1").iterdir()]
        if path.name not in {"token", "plan-1.json"}
    ]
    assert {path.name for path in written} >= {
        "1",
        "launcher.json",
        "rank-0.log",
        "rank-0.exit",
        "setup.log",
        "cleared",
    }
    assert [path for path in written if path.stat().st_mode & 0o077] == []
