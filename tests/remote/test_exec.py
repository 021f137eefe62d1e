"""`ganger exec` from another machine: over TLS, with a token, beside ranks of a real job."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest

from tests.remote.other_machine import GANGER, OtherMachine, RemoteHome
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def owner(server: RemoteHome, tmp_path_factory: pytest.TempPathFactory) -> OtherMachine:
    machine = OtherMachine(tmp_path_factory.mktemp("owner"), server)
    machine.log_in("owner")
    return machine


@pytest.fixture(scope="module")
def job(server: RemoteHome, owner: OtherMachine) -> Iterator[str]:
    owner.environment["KEY"] = "s3cret-value"
    made = owner("submit", "-j", "1x2", "--env", "COLOUR=red", "--secret", "KEY", "--", "sleep", "600")
    assert made.returncode == 0, made.stderr
    name = made.stdout.strip()
    server.until(name, "running")
    yield name
    server.client.stop(name)


def test_output_and_exit_code_come_back(owner: OtherMachine, job: str) -> None:
    line = "echo $GANGER_RANK $COLOUR; echo $KEY >&2; exit 7"
    ran = owner("exec", job, "--rank", "1", "--", "sh", "-c", line)
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "1 red\n", "***\n")
    assert owner("exec", job, "--", "cat", text="not passed on").stdout == ""
    large = "x" * 300_000 + "\n"
    assert owner("exec", "-i", job, "--", "cat", text=large).stdout == large
    assert owner("exec", job, "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = owner("exec", job, "--", "no-such-program")
    assert (missing.returncode, "no-such-program" in missing.stderr) == (127, True), missing


def test_a_command_that_reads_nothing_gets_its_input_later(owner: OtherMachine, job: str) -> None:
    text = "y" * 200_000
    ran = owner("exec", "-i", job, "--", "sh", "-c", "sleep 6; wc -c", text=text)
    assert (ran.returncode, ran.stdout.strip()) == (0, str(len(text))), ran.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("--rank", "7"), 3, "has no rank 7"),
        (("--node", "nowhere"), 3, "nowhere"),
        (("-t",), 2, "-t needs a terminal"),
    ],
)
def test_what_cannot_be_is_refused(
    owner: OtherMachine, job: str, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    refused = owner("exec", *arguments, job, "--", "true")
    assert (refused.returncode, reason in refused.stderr) == (code, True), refused


@pytest.mark.parametrize(
    ("scope", "code", "reason"),
    [
        ("read", 4, "has the scope read, and this request needs submit"),
        ("submit", 4, "belongs to owner@token, and a command beside a rank has the secrets of its job"),
        ("admin", 0, ""),
    ],
)
def test_the_token_decides(user: OtherMachine, job: str, scope: str, code: int, reason: str) -> None:
    user.log_in(f"other-{scope}", scope)
    ran = user("exec", job, "--", "true")
    assert (ran.returncode, reason in ran.stderr) == (code, True), ran


def runs(mark: str) -> bool:
    """Return whether there is a process with that argument."""
    return subprocess.run(["pgrep", "--full", f"^sleep {mark}$"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("end", ["token", "caller"])
def test_it_ends_with_its_token_and_with_its_caller(server: RemoteHome, user: OtherMachine, job: str, end: str) -> None:
    user.log_in(f"leaves-{end}", "admin")
    mark = f"12345.{os.getpid()}{end == 'token':d}"
    process = user.start("exec", job, "--", "sh", "-c", f"trap '' HUP TERM; echo begun; sleep {mark}")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    wait_until(lambda: runs(mark), "the command to run")
    if end == "token":
        server.client.revoke_token(f"leaves-{end}")
        _, error = process.communicate(timeout=DEADLINE_S)
        assert process.returncode in (4, 5), error
    else:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not runs(mark), "the command to end")


def test_a_terminal_has_the_size_and_the_keys_of_the_callers(owner: OtherMachine, job: str) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    process = subprocess.Popen(
        [GANGER, "exec", "-it", job, "--", "sh", "-c", "stty size; read word; echo got $word; stty size; sleep 600"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=owner.environment | {"TERM": "vt100"},
        cwd=owner.work,
        start_new_session=True,
    )
    os.close(slave)
    shown = read_until(master, b"33 77")
    os.write(master, b"hello\r")
    shown += read_until(master, b"got hello", shown)
    os.write(master, b"\x03")
    assert process.wait(DEADLINE_S) == 130, shown
    os.close(master)


def read_until(number: int, text: bytes, shown: bytes = b"") -> bytes:
    deadline = time.monotonic() + DEADLINE_S
    while text not in shown:
        assert select.select([number], [], [], max(0.0, deadline - time.monotonic()))[0], shown
        shown += os.read(number, 4096)
    return shown


def test_commands_at_one_time_leave_nothing(server: RemoteHome, owner: OtherMachine, job: str) -> None:
    processes = [owner.start("exec", job, "--", "echo", str(number)) for number in range(6)]
    assert [process.communicate(timeout=DEADLINE_S)[0] for process in processes] == [f"{n}\n" for n in range(6)]
    assert "Traceback" not in server.home.server_log.read_text()
    assert json.loads(owner("get", job, "-o", "json").stdout)["row"]["state"] == "running"
