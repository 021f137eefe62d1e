"""A command beside a rank: it has the rank's environment, shows no secret, and ends with the generation."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest

from ganger.launcher.remote_exec import exec_command
from tests.launcher.harness import SH, Server, Task, is_alive
from tests.waiting import wait_until

VALUE = "hunter2-swordfish"
REST = ["sh", "-c", "sleep 1000"]


def exec_argv(task: Task, *command: str, rank: int = 0, flags: str = "-") -> list[str]:
    program = [sys.executable, "-I", "-S", str(task.archive), "exec", str(task.path), "1"]
    return [*program, str(rank), flags, *command]


def run_command(task: Task, *command: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    input_bytes = options.pop("input", b"")
    return subprocess.run(
        exec_argv(task, *command, **options), capture_output=True, input=input_bytes, timeout=60, check=False
    )


@pytest.fixture
def running(task: Task, server: Server) -> Task:
    """Start two waiting ranks that have a secret."""
    path = task.path.parent / "secrets.json"
    path.write_text(json.dumps({"TOKEN": VALUE}))
    task.run(REST, ranks=2, secrets=str(path))
    server.wait("started")
    return task


def test_it_has_the_variables_and_the_directory_of_its_rank(running: Task) -> None:
    line = "echo $GANGER_RANK $GANGER_TASK; pwd; echo $GANGER_TASK_DIR; [ $TOKEN = hunter2-swordfish ]"
    done = run_command(running, *SH, line, rank=1)
    assert done.stdout.decode().split("\n") == ["1 bert-7f3.1", str(running.work), str(running.path / "1"), ""]
    assert done.returncode == 0


def test_it_exits_as_the_command_does(running: Task) -> None:
    assert run_command(running, *SH, "exit 7").returncode == 7
    assert run_command(running, *SH, "kill -9 $$").returncode == 137
    missing = run_command(running, "no-such-program")
    assert (missing.returncode, b"there is no program 'no-such-program'" in missing.stderr) == (127, True)


def test_its_streams_are_separate_and_its_input_is_passed_on(running: Task) -> None:
    done = run_command(running, *SH, "echo out; echo err >&2; cat", input=b"in\n", flags="i")
    assert (done.stdout, done.stderr) == (b"out\nin\n", b"err\n")
    assert run_command(running, "cat", input=b"in\n").stdout == b"", "without -i there is no input"


def test_a_secret_is_masked_even_if_printed_in_pieces(running: Task) -> None:
    line = "printf 'a %s b\\n' $TOKEN; printf hunter2; sleep 0.2; printf -- '-swordfish!'; printf hunter >&2"
    done = run_command(running, *SH, line)
    assert (done.stdout, done.stderr) == (b"a *** b\n***!", b"hunter")


def test_bytes_that_are_not_text_are_passed_on(running: Task) -> None:
    assert run_command(running, "printf", r"\377\000\200").stdout == b"\xff\x00\x80"


def test_large_output_is_complete(running: Task) -> None:
    assert len(run_command(running, *SH, "head -c 3000000 /dev/zero").stdout) == 3_000_000


def test_it_ends_with_the_generation(running: Task, server: Server) -> None:
    line = f"setsid sleep 1000 & echo $! > {running.work}/child; exec sleep 1000"
    command = subprocess.Popen(exec_argv(running, *SH, line), stderr=subprocess.PIPE)
    child = running.pid_in("child")
    server.stop(1, kill_after_ms=0)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 137
    assert stderr == b"ganger exec: attempt 1 of bert-7f3 ended, and the command with it\n"
    server.wait("cleared")
    assert not is_alive(child)
    over = run_command(running, "true")
    assert (over.returncode, over.stderr) == (exec_command.CANNOT_RUN, b"ganger exec: attempt 1 is not running here\n")


def test_a_signal_reaches_the_command(running: Task) -> None:
    line = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    command = subprocess.Popen(exec_argv(running, *SH, line), stdout=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stdout.readline() == b"ready\n"
    command.send_signal(signal.SIGTERM)
    rest, _ = command.communicate(timeout=60)
    assert (rest, command.returncode) == (b"got it\n", 5)


def test_the_command_dies_with_its_parent(running: Task) -> None:
    command = subprocess.Popen(exec_argv(running, *SH, f"echo $$ > {running.work}/pid; exec sleep 1000"))
    pid = running.pid_in("pid")
    command.kill()
    command.wait()
    wait_until(lambda: not is_alive(pid), "the command is gone")


def test_it_ends_when_its_reader_leaves(running: Task) -> None:
    command = subprocess.Popen(exec_argv(running, "yes"), stdout=subprocess.PIPE)
    assert command.stdout is not None
    command.stdout.read(10)
    command.stdout.close()
    assert command.wait(60) == exec_command.READER_LEFT


class TerminalUser:
    """A user at a terminal of 30 rows and 90 columns."""

    def __init__(self, argv: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
            os.execv(argv[0], argv)
        self.shown = b""

    def type(self, text: str, until: str) -> None:
        """Type, and wait until something is shown."""
        os.write(self.fd, text.encode())
        self.wait_for(until)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: self._sees(text.encode()), f"{text!r} is shown")

    def _sees(self, text: bytes) -> bool:
        if select.select([self.fd], [], [], 0)[0]:
            self.shown += os.read(self.fd, 65536)
        return text in self.shown

    def wait(self) -> int:
        """Return the exit code of the program."""
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:  # Linux: the other end of the terminal is closed
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_shell_at_a_terminal(running: Task) -> None:
    user = TerminalUser(exec_argv(running, "sh", flags="it"))
    user.type('tty; stty size; echo s""een\n', "seen")
    assert b"/dev/pts/" in user.shown
    assert b"30 90" in user.shown
    user.type("echo x$TOKEN\n", "x***")
    user.type("sh -c \"echo be''gun; exec sleep 1000\"\n", "begun")  # the command has the terminal now, not the shell
    user.type("\x03", "^C")
    os.write(user.fd, b"exit 3\n")
    assert user.wait() == 3
    assert VALUE.encode() not in user.shown


def test_text_pasted_into_a_command_that_does_not_read_blocks_nothing(running: Task) -> None:
    user = TerminalUser(
        exec_argv(running, "sh", "-c", "stty raw -echo; echo ready; sleep 2; echo done; exit 4", flags="it")
    )
    user.type("", "ready")
    for _ in range(16):
        os.write(user.fd, b"x" * 1024)  # more than a terminal buffers for a program that does not read
    user.type("", "done")
    assert user.wait() == 4


def test_input_that_is_not_a_terminal_is_refused(running: Task) -> None:
    done = run_command(running, "true", flags="t")
    assert (done.returncode, done.stderr) == (
        exec_command.CANNOT_RUN,
        b"ganger exec: the input is not a terminal: leave out -t\n",
    )
