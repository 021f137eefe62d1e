"""Commands of a user on another machine: over TLS, with a token, and with nothing of the server's disk."""

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import time

import pytest

from tests.remote.other_machine import GANGER, OtherMachine, RemoteHome
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.long

SCRIPT = "import os\nprint(os.environ['PATH'], open('note.txt').read(), os.environ.get('KEY'), flush=True)\n"


def test_code_goes_along_and_nothing_else_of_the_machine(server: RemoteHome, user: OtherMachine) -> None:
    user.log_in("laptop")
    user.environment["KEY"] = "s3cret-value"
    app = user.work / "app"
    app.mkdir()
    (app / "t.py").write_text(SCRIPT)
    (app / "note.txt").write_text("brought along")
    (app / "run.sh").symlink_to("t.py")
    made = user("submit", "--code", "app", "--secret", "KEY", "--name", "brought", "--", "python3", "t.py")
    assert made.returncode == 0, made.stderr
    shutil.rmtree(app)  # from here on it exists at the server only
    assert user("wait", "brought").returncode == 0
    retried = user("retry", "brought")
    assert retried.returncode == 0, retried.stderr
    assert user("wait", "brought").returncode == 0
    logs = user("logs", "brought").stdout
    assert "brought along" in logs
    assert "s3cret-value" not in logs
    assert str(user.work.parent) not in logs, "the job has the server's PATH"
    job = json.loads(user("get", "brought", "-o", "json").stdout)
    assert job["row"]["user"] == "laptop@token"
    assert str(user.work.parent) not in json.dumps(job)
    listed = user("ls")
    assert (listed.returncode, listed.stdout.count("brought-")) == (0, 2)


def test_a_job_without_code_has_an_empty_directory_of_its_own(server: RemoteHome, user: OtherMachine) -> None:
    user.log_in("bare")
    made = user("run", "--name", "bare", "--", "sh", "-c", "pwd; ls -A | wc -l")
    assert made.returncode == 0, made.stderr
    directory, count = made.stdout.splitlines()
    assert directory.startswith(str(server.home.jobs))
    assert count.strip() == "0"
    refused = user("run", "--", "python3", "t.py")
    assert refused.returncode == 2
    assert "runs in an empty directory" in refused.stderr
    assert "next: send the directory with the job: --code ." in refused.stderr


def test_documents_of_a_file_bring_their_own_code(user: OtherMachine) -> None:
    user.log_in("batch")
    for name in ("a", "b"):
        (user.work / name).mkdir()
        (user.work / name / "which").write_text(f"code of {name}")
    text = "---\n".join(f"name: doc-{name}\nrun: cat which\ncode: ./{name}\n" for name in ("a", "b"))
    (user.work / "jobs.yaml").write_text(text)
    assert user("submit", "-f", "jobs.yaml").returncode == 0
    for name in ("a", "b"):
        assert user("wait", f"doc-{name}").returncode == 0
        assert f"code of {name}" in user("logs", f"doc-{name}").stdout
    plan = user("run", "-f", "jobs.yaml", "--code", "a", "--dry-run")
    assert plan.returncode != 0  # several documents
    assert user("run", "--code", "a", "--dry-run", "--", "cat", "which").returncode == 0
    missing = user("run", "--code", "nowhere", "--", "true")
    assert (missing.returncode, "nowhere is not a directory" in missing.stderr) == (2, True)


def test_whoami_offers_no_queue_to_a_token_that_only_reads(user: OtherMachine) -> None:
    user.log_in("visitor", "read")
    shown_text = user("whoami").stdout
    assert "Queues, which this token may only read:" in shown_text
    assert "You may submit" not in shown_text


def test_whoami_tells_what_a_token_is(user: OtherMachine) -> None:
    user.log_in("who")
    shown_text = user("whoami").stdout
    assert "who@token" in shown_text
    assert "scope submit" in shown_text
    assert "as good as a login of the server's user" in shown_text
    mode = stat.S_IMODE(user.logins.stat().st_mode)
    assert mode == 0o600
    assert json.loads(user.logins.read_text()).keys() == {user.environment["GANGER_SERVER"]}
    user.logins.chmod(0o644)
    refused = user("ls")
    assert (refused.returncode, "is open to other users" in refused.stderr) == (4, True)
    user.logins.chmod(0o600)
    assert user("logout").returncode == 0
    refused = user("ls")
    assert (refused.returncode, "next: ganger login https://" in refused.stderr) == (4, True)


def test_a_reader_may_not_submit(user: OtherMachine) -> None:
    user.log_in("reader", "read")
    assert user("ls").returncode == 0
    refused = user("run", "--", "true")
    assert refused.returncode == 4
    assert "the token reader has the scope read, and this request needs submit" in refused.stderr
    assert "next: ask for another token: ganger token create NAME --scope submit" in refused.stderr


@pytest.mark.parametrize(
    "words",
    [("server", "status"), ("server", "stop"), ("doctor",), ("replay",), ("token",)],
)
def test_commands_of_the_servers_machine_say_so(user: OtherMachine, words: tuple[str, ...]) -> None:
    refused = user(*words)
    assert refused.returncode == 4
    assert f"{words[0]} runs on the server's machine, and GANGER_SERVER names another one" in refused.stderr


def test_a_followed_log_ends_with_its_token(server: RemoteHome, user: OtherMachine) -> None:
    user.log_in("leaver")
    job = user("submit", "--", "sh", "-c", "echo begun; exec sleep 600").stdout.strip()
    server.until(job, "running")
    follower = user.start("logs", "-f", job)
    assert follower.stdout is not None
    assert "begun" in follower.stdout.readline()
    server.client.revoke_token("leaver")
    _, error = follower.communicate(timeout=DEADLINE_S)
    assert follower.returncode == 4
    assert "was revoked or has expired" in error
    server.client.stop(job)


def test_a_followed_log_survives_a_restart(server: RemoteHome, user: OtherMachine) -> None:
    user.log_in("stayer")
    go = server.home.path / "go"
    job = user(
        "submit", "--", "sh", "-c", f"echo one; until test -e {go}; do sleep 0.05; done; echo two"
    ).stdout.strip()
    server.until(job, "running")
    follower = user.start("logs", "-f", job)
    assert follower.stdout is not None
    assert "one" in follower.stdout.readline()
    server.client.restart()
    go.touch()
    out, error = follower.communicate(timeout=DEADLINE_S)
    assert (follower.returncode, out.strip()) == (0, "two"), error


def test_login_asks_for_the_token_and_shows_the_certificate(server: RemoteHome, user: OtherMachine) -> None:
    token = server.client.create_token("typed", None)
    unconfirmed = user("login", server.url, text=f"{token}\n")
    assert unconfirmed.returncode == 2
    assert server.fingerprint in unconfirmed.stderr
    assert not user.logins.exists()
    parent, terminal = pty.openpty()
    command = [GANGER, "login", server.url]
    login = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=user.environment)
    os.close(terminal)
    said = _until(parent, b"shows there?")
    assert server.fingerprint.encode() in said
    os.write(parent, b"y\n")
    _until(parent, b"token:")
    os.write(parent, f"{token}\n".encode())
    said = _until(parent, b"logged in to")
    assert token.encode() not in said
    assert login.wait(DEADLINE_S) == 0
    os.close(parent)
    assert user("ls").returncode == 0
    for words, reason in (
        (("--fingerprint", "AB:CD"), "is not the SHA-256 of a certificate"),
        (("--fingerprint", "0" * 64), "has another certificate than the one that was pinned"),
    ):
        refused = user("login", server.url, *words, text=f"{token}\n")
        assert refused.returncode != 0
        assert reason in refused.stderr
    wrong = user("login", server.url, "--fingerprint", server.fingerprint, text="ganger_wrong\n")
    assert (wrong.returncode, "the token is unknown" in wrong.stderr) == (4, True)


def _until(terminal: int, text: bytes) -> bytes:
    """Return what a terminal shows up to a text."""
    shown_bytes, deadline = b"", time.monotonic() + DEADLINE_S
    while text not in shown_bytes:
        assert time.monotonic() < deadline, shown_bytes
        shown_bytes += os.read(terminal, 4096)
    return shown_bytes


def test_a_server_that_is_stopped_is_named(server: RemoteHome, user: OtherMachine) -> None:
    user.log_in("late")
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: not server.servers(), "the server has ended")
    refused = user("ls")
    assert refused.returncode == 5
    assert f"no server can be reached at {server.url}" in refused.stderr
    server.client.connect(arguments=server.arguments)
    assert user("ls").returncode == 0
