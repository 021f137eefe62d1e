"""The launcher as the main process of a container: its exit code, its output, its signals and its variables."""

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
from tests.launcher.afar import DEADLINE_S, HOST, Listens, Pod, Starts, eventually
from tests.launcher.harness import is_alive

SH = ["/bin/sh", "-c"]
UNTIL_GO = "while [ ! -e go ]; do sleep 0.01; done"


@pytest.mark.parametrize(("line", "code"), [("exit 0", 0), ("[ $GANGER_RANK = 0 ] || exit 7", 7), ("kill -9 $$", 137)])
def test_exit_code_is_that_of_the_first_rank_that_failed(
    listens: Listens, starts: Starts, line: str, code: int
) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, line], (0, 1)))
    controller.wait("cleared" if code == 0 else "exited", "n1")
    controller.stop("n1")
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    assert pod.ended() == code


def test_exit_code_of_a_set_up_line(listens: Listens, starts: Starts) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan(["true"], setup="exit 9"))
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    assert pod.ended() == 9


def test_task_that_the_server_ends_has_not_failed(listens: Listens, starts: Starts) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, "sleep 600"]))
    controller.wait("started", "n1")
    controller.stop("n1")
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    assert pod.ended() == 0


IMPATIENT = """
import sys
import tarfile
sys.path.insert(0, sys.argv.pop(1))
from ganger.launcher import main, runtime
from ganger.launcher.protocol import link
{changed} = 0.2
sys.exit(main.main(sys.argv))
"""


def test_task_that_never_had_a_server_gives_up(listens: Listens, tmp_path: Path, archive: Path) -> None:
    absent = listens()
    absent.close()
    pod = Pod(tmp_path / "pod", archive)
    pod.program = ("-c", IMPATIENT.format(changed="runtime.REMOTE_ALONE_S"), str(archive))
    pod.start(f"tcp:{HOST}:{absent.port}")
    assert pod.ended() == 69


def test_server_that_does_not_answer_is_tried_again(tmp_path: Path, archive: Path) -> None:
    pod = Pod(tmp_path / "pod", archive)
    pod.program = ("-c", IMPATIENT.format(changed="link.WELCOME_WITHIN_S"), str(archive))
    with socket.create_server((HOST, 0)) as deaf:
        deaf.settimeout(DEADLINE_S)
        pod.start(f"tcp:{HOST}:{deaf.getsockname()[1]}")
        first, _ = deaf.accept()
        second, _ = deaf.accept()
        pod.end()
        first.close()
        second.close()


@pytest.mark.parametrize(("trap", "code"), [("trap 'echo saved; exit 0' TERM;", 0), ("", 128 + signal.SIGTERM)])
def test_sigterm_goes_to_the_ranks(listens: Listens, starts: Starts, trap: str, code: int) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, f"{trap} touch runs; while :; do sleep 0.05; done"]))
    eventually((pod.directory / "work" / "runs").exists, "the rank runs")
    assert pod.process is not None
    pod.process.send_signal(signal.SIGTERM)
    assert pod.ended() == code
    assert controller.kinds("n1") == ["started", "cleared"]
    assert ("saved" in (pod.task / "1" / "rank-0.log").read_text()) is bool(trap)


def test_sigterm_before_there_is_a_plan(listens: Listens, starts: Starts) -> None:
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


def test_first_process_of_a_pid_namespace(listens: Listens, starts: Starts) -> None:
    tried = subprocess.run([*FIRST, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no PID namespace can be made here: {tried.stderr.decode().strip()}")
    controller = listens()
    pod = starts(controller, before=FIRST)
    controller.run(pod.plan([sys.executable, "-c", ORPHANS]))
    assert controller.wait_for_hello().process.pid == 1
    eventually((pod.directory / "work" / "orphan").exists, "the rank leaves an orphan")
    controller.wait("started", "n1")
    assert pod.process is not None
    unshare = pod.process.pid
    first = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
    eventually(lambda: _zombies_of(first) == [], "what lost its parent is collected")
    Path(f"/proc/{first}/stat").read_text()
    subprocess.run(["kill", "-TERM", str(first)], check=True)
    assert pod.ended() == 128 + signal.SIGTERM
    assert not is_alive(first)
    controller.wait("cleared", "n1")


def test_lines_of_ranks_are_on_the_launchers_own_output(listens: Listens, starts: Starts) -> None:
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


def test_output_that_nobody_reads_holds_no_rank_up(listens: Listens, starts: Starts) -> None:
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
    eventually((pod.directory / "work" / "prints").exists, "all is printed though nobody reads")
    printed = _all_of(reader)
    (pod.directory / "work" / "go").touch()
    controller.wait("finished", "n1")
    printed += _all_of(reader)
    os.close(reader)
    log = (pod.task / "1" / "rank-0.log").read_text()
    assert log.count("ganger") == 4_000_000 // len("ganger\n")
    lines = printed.decode().splitlines()
    whole = sum(record.split(" ", 2)[1] == "o" for record in log.splitlines())  # the last one came in pieces
    assert lines[0] == "[0] ganger"
    left_out = [int(line.split()[1]) for line in lines if line.startswith("[launcher]")]
    assert len(lines) - len(left_out) + sum(left_out) == whole
    assert sum(left_out) > 0


def test_rank_has_the_containers_variables_and_none_of_the_launchers(listens: Listens, starts: Starts) -> None:
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


def test_secrets_come_from_a_mounted_directory(listens: Listens, starts: Starts) -> None:
    controller = listens()
    pod = starts(controller)
    mounted = pod.directory / "secrets"
    (mounted / "..data").mkdir(parents=True)
    (mounted / "API_KEY").write_text("tell-nobody")
    controller.run(pod.plan([*SH, "echo key $API_KEY ${#API_KEY}"], secrets=str(mounted)))
    controller.wait("finished", "n1")
    assert "key *** 11" in (pod.task / "1" / "rank-0.log").read_text()


def _all_of(reader: int) -> bytes:
    """What is in a pipe, and what comes while it is read."""
    found = b""
    while select.select([reader], [], [], 1.0)[0]:
        found += os.read(reader, 1 << 20)
    return found


def _zombies_of(parent: int) -> list[int]:
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [pid for pid in children if not is_alive(pid)]


def _archive(of: Path, text: str) -> str:
    """An archive with train.sh in it; its SHA-256."""
    script = of.with_name("train.sh")
    script.write_text(text)
    with tarfile.open(of, "w:gz") as archive:
        archive.add(script, "train.sh")
    return hashlib.sha256(of.read_bytes()).hexdigest()


def test_code_that_was_submitted_is_unpacked(listens: Listens, starts: Starts, tmp_path: Path) -> None:
    work = tmp_path / "unpacked"
    work.mkdir()
    code = tmp_path / "code.tar.gz"
    said = {"GANGER_CODE_FILE": str(code), "GANGER_CODE_SHA256": _archive(code, "exit 7")}
    controller = listens()
    pod = starts(controller, before=("/usr/bin/env", "--chdir", str(work)), **said)
    controller.run(pod.plan([*SH, f"sh {work}/train.sh"]))
    controller.wait("exited", "n1")
    controller.stop("n1")
    controller.wait("cleared", "n1")
    controller.send("n1", "leave")
    assert pod.ended() == 7


def test_code_in_another_ones_place_is_not_run(listens: Listens, starts: Starts, tmp_path: Path) -> None:
    work = tmp_path / "unpacked"
    work.mkdir()
    code = tmp_path / "code.tar.gz"
    submitted = _archive(code, "exit 7")
    _archive(code, "exit 0")
    said = {"GANGER_CODE_FILE": str(code), "GANGER_CODE_SHA256": submitted, "GANGER_LOG_TO_STDOUT": "1"}
    pod = starts(listens(), before=("/usr/bin/env", "--chdir", str(work)), **said)
    assert pod.ended() == BAD_CODE
    assert not list(work.iterdir())
    assert f"is not what it was submitted with (its SHA-256 is not {submitted})" in pod.stderr.read_text()
