"""The launcher as the main process of a container: exit code, output, signals and variables."""

import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ganger.launcher.main import BAD_CODE
from tests.launcher.harness import SH, UNTIL_GO, is_alive
from tests.launcher.remote_launchers import HOST, Controller, ListenFixture, Pod, StartFixture
from tests.waiting import DEADLINE_S, wait_until


def _stop(controller: Controller, pod: Pod) -> int:
    """Stop the task, let its launcher leave, and return the exit code."""
    controller.stop("n1")
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    return pod.ended()


@pytest.mark.parametrize(("line", "code"), [("exit 0", 0), ("[ $GANGER_RANK = 0 ] || exit 7", 7), ("kill -9 $$", 137)])
def test_exit_code_is_that_of_the_first_rank_that_failed(
    listens: ListenFixture, starts: StartFixture, line: str, code: int
) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, line], (0, 1)))
    controller.wait("cleared" if code == 0 else "rank_failed", "n1")
    assert _stop(controller, pod) == code


def test_exit_code_of_a_setup_line(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan(["true"], setup="exit 9"))
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    assert pod.ended() == 9


def test_task_stopped_by_the_server_has_not_failed(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, "sleep 600"]))
    controller.wait("started", "n1")
    assert _stop(controller, pod) == 0


IMPATIENT = """
import sys
import tarfile
sys.path.insert(0, sys.argv.pop(1))
from ganger.launcher import main, runtime
from ganger.launcher.protocol import link
{changed} = 0.2
sys.exit(main.main(sys.argv))
"""


def test_task_that_never_had_a_server_gives_up(listens: ListenFixture, tmp_path: Path, archive: Path) -> None:
    absent = listens()
    absent.close()
    pod = Pod(tmp_path / "pod", archive)
    pod.program = ("-c", IMPATIENT.format(changed="runtime.REMOTE_IDLE_S"), str(archive))
    pod.start(f"tcp:{HOST}:{absent.port}")
    assert pod.ended() == 69


def test_server_that_does_not_answer_is_tried_again(tmp_path: Path, archive: Path) -> None:
    pod = Pod(tmp_path / "pod", archive)
    pod.program = ("-c", IMPATIENT.format(changed="link.WELCOME_TIMEOUT_S"), str(archive))
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(DEADLINE_S)
        pod.start(f"tcp:{HOST}:{listener.getsockname()[1]}")
        first, _ = listener.accept()
        second, _ = listener.accept()
        pod.end()
        first.close()
        second.close()


@pytest.mark.parametrize(("trap", "code"), [("trap 'echo saved; exit 0' TERM;", 0), ("", 128 + signal.SIGTERM)])
def test_sigterm_goes_to_the_ranks(listens: ListenFixture, starts: StartFixture, trap: str, code: int) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, f"{trap} touch runs; while :; do sleep 0.05; done"]))
    wait_until((pod.directory / "work" / "runs").exists, "the rank runs")
    assert pod.process is not None
    pod.process.send_signal(signal.SIGTERM)
    assert pod.ended() == code
    assert controller.kinds("n1") == ["started", "cleared"]
    assert ("saved" in (pod.task / "1" / "rank-0.log").read_text()) is bool(trap)


UNTIL_NOTICE = 'touch runs; while [ ! -e "$GANGER_TASK_DIR/notice" ]; do sleep 0.05; done; echo saved'


@pytest.mark.parametrize("server", ["stops it", "is silent", "is away"])
def test_ranks_of_an_evicted_container_get_the_rest_of_its_grace_period(
    listens: ListenFixture, starts: StartFixture, server: str
) -> None:
    controller = listens()
    pod = starts(controller, GANGER_GRACE_PERIOD_S="307")
    controller.run(pod.plan([*SH, UNTIL_NOTICE]))
    wait_until((pod.directory / "work" / "runs").exists, "the rank runs")
    assert pod.process is not None
    if server == "is away":
        controller.close()
    pod.process.send_signal(signal.SIGTERM)
    wait_until((pod.task / "1" / "evicted").exists, "it is recorded for a server that is away")
    if server != "is away":
        pod.process.send_signal(signal.SIGTERM)  # once more while the server may still reply
        assert controller.wait("evicted", "n1")["notice_ms"] == 300_000
    if server == "stops it":
        controller.send("n1", "stop", generation=1, cause="evicted", notice_ms=300_000, kill_after_ms=5_000)
    assert pod.ended() == 0
    assert "saved" in (pod.task / "1" / "rank-0.log").read_text()


def test_sigterm_before_there_is_a_plan(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    controller.wait_for_hello()
    assert pod.process is not None
    pod.process.send_signal(signal.SIGTERM)
    assert pod.ended() == 0


ORPHANS = """\
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        open("orphan", "w").write(str(os.getpid()))
        os._exit(0)
    os._exit(0)
os.wait()
while not os.path.exists("go"):
    time.sleep(0.01)
"""
FIRST = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def test_first_process_of_a_pid_namespace(listens: ListenFixture, starts: StartFixture) -> None:
    tried = subprocess.run([*FIRST, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no PID namespace can be made here: {tried.stderr.decode().strip()}")
    controller = listens()
    pod = starts(controller, before=FIRST)
    controller.run(pod.plan([sys.executable, "-c", ORPHANS]))
    assert controller.wait_for_hello().process.pid == 1
    wait_until((pod.directory / "work" / "orphan").exists, "the rank leaves an orphan")
    controller.wait("started", "n1")
    assert pod.process is not None
    unshare = pod.process.pid
    first = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
    wait_until(lambda: _zombies_of(first) == [], "the orphan is reaped")
    Path(f"/proc/{first}/stat").read_text()
    subprocess.run(["kill", "-TERM", str(first)], check=True)
    assert pod.ended() == 128 + signal.SIGTERM
    assert not is_alive(first)
    controller.wait("cleared", "n1")


def test_rank_output_is_mirrored_to_stdout(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller, GANGER_LOG_TO_STDOUT="1")
    line = "echo out $GANGER_RANK; echo err >&2; printf 'no end'; sleep 0.5; echo ' but this'"
    controller.run(pod.plan([*SH, line], (0, 3), setup="echo sets up"))
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    assert pod.ended() == 0
    assert sorted(pod.stdout.read_text().splitlines()) == [
        "[0 stderr] err",
        "[0] no end but this",
        "[0] out 0",
        "[3 stderr] err",
        "[3] no end but this",
        "[3] out 3",
        "[setup] sets up",
    ]
    assert "out 3" in (pod.task / "1" / "rank-3.log").read_text()


def test_unread_output_blocks_no_rank(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    controller.wait_for_hello()
    pod.end()
    pod.stdout.unlink()
    os.mkfifo(pod.stdout)
    reader = os.open(pod.stdout, os.O_RDONLY | os.O_NONBLOCK)
    pod.start(f"tcp:{HOST}:{controller.port}", GANGER_LOG_TO_STDOUT="1")
    controller.wait_for_hello(2)
    controller.run(pod.plan([*SH, f"yes ganger | head -c 4000000; touch prints; {UNTIL_GO}; echo at last"]))
    wait_until((pod.directory / "work" / "prints").exists, "everything is printed without a reader")
    printed = _read_all(reader)
    (pod.directory / "work" / "go").touch()
    controller.wait("finished", "n1")
    printed += _read_all(reader)
    os.close(reader)
    log = (pod.task / "1" / "rank-0.log").read_text()
    # A line that is not whole for a while, as the last one, is also in the log as an update.
    whole = [record for record in log.splitlines() if record.split(" ", 2)[1] == "o"]
    assert sum(record.endswith(" ganger") for record in whole) == 4_000_000 // len("ganger\n")
    lines = printed.decode().splitlines()
    assert lines[0] == "[0] ganger"
    dropped = [int(line.split()[1]) for line in lines if line.startswith("[launcher]")]
    assert len(lines) - len(dropped) + sum(dropped) == len(whole)
    assert sum(dropped) > 0


def test_rank_inherits_the_containers_variables_but_not_the_launchers(
    listens: ListenFixture, starts: StartFixture
) -> None:
    controller = listens()
    pod = starts(controller, LD_LIBRARY_PATH="/of/the/image", PATH="/usr/bin:/bin", GANGER_POD_IP="10.0.0.1")
    plan = pod.plan([*SH, "env"], environment={"PATH": "/opt/bin:/usr/bin:/bin"}, inherits=True)
    controller.run(plan)
    controller.wait("finished", "n1")
    printed = (pod.task / "1" / "rank-0.log").read_text()
    assert "LD_LIBRARY_PATH=/of/the/image" in printed
    assert "PATH=/opt/bin:/usr/bin:/bin" in printed
    for name in ("TOKEN_FILE", "CA_FILE", "POD_IP", "GANG=", "NODE="):
        assert f"GANGER_{name}" not in printed


def test_secrets_come_from_a_mounted_directory(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    mounted = pod.directory / "secrets"
    (mounted / "..data").mkdir(parents=True)
    (mounted / "API_KEY").write_text("tell-nobody")
    controller.run(pod.plan([*SH, "echo key $API_KEY ${#API_KEY}"], secrets=str(mounted)))
    controller.wait("finished", "n1")
    assert "key *** 11" in (pod.task / "1" / "rank-0.log").read_text()


def _read_all(reader: int) -> bytes:
    """Read a pipe until nothing arrives any more."""
    data = b""
    while select.select([reader], [], [], 1.0)[0]:
        data += os.read(reader, 1 << 20)
    return data


def _zombies_of(parent: int) -> list[int]:
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [pid for pid in children if not is_alive(pid)]


def _archive(path: Path, text: str) -> str:
    """Make an archive with train.sh; return its SHA-256."""
    script = path.with_name("train.sh")
    script.write_text(text)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(script, "train.sh")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_submitted_code_is_unpacked(listens: ListenFixture, starts: StartFixture, tmp_path: Path) -> None:
    work = tmp_path / "unpacked"
    work.mkdir()
    code = tmp_path / "code.tar.gz"
    variables = {"GANGER_CODE_FILE": str(code), "GANGER_CODE_SHA256": _archive(code, "exit 7")}
    controller = listens()
    pod = starts(controller, before=("/usr/bin/env", "--chdir", str(work)), **variables)
    controller.run(pod.plan([*SH, f"sh {work}/train.sh"]))
    controller.wait("rank_failed", "n1")
    assert _stop(controller, pod) == 7


def test_replaced_code_is_not_run(listens: ListenFixture, starts: StartFixture, tmp_path: Path) -> None:
    work = tmp_path / "unpacked"
    work.mkdir()
    code = tmp_path / "code.tar.gz"
    submitted = _archive(code, "exit 7")
    _archive(code, "exit 0")
    variables = {"GANGER_CODE_FILE": str(code), "GANGER_CODE_SHA256": submitted, "GANGER_LOG_TO_STDOUT": "1"}
    pod = starts(listens(), before=("/usr/bin/env", "--chdir", str(work)), **variables)
    assert pod.ended() == BAD_CODE
    assert not list(work.iterdir())
    assert f"is not what was submitted (its SHA-256 is not {submitted})" in pod.stderr.read_text()
