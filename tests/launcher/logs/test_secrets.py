"""Values of secrets reach the ranks, but nothing that the launcher writes or sends."""

import json
import os
import stat
from typing import Any

import pytest

from ganger.launcher.logs.redaction import Redaction
from tests.launcher.harness import SH, Server, Task
from tests.waiting import wait_until

VALUE = "hunter2-swordfish"
TOKEN = "tok-0123456789"


def run(task: Task, line: str, secrets: dict[str, Any] | str, **fields: Any) -> None:
    path = task.path.parent / "secrets.json"
    path.write_text(secrets if isinstance(secrets, str) else json.dumps(secrets))
    task.run([*SH, line], secrets=str(path), **fields)


def written(task: Task) -> str:
    """Return the content of all files in the task directory."""
    files = [path for path in task.path.rglob("*") if stat.S_ISREG(path.stat().st_mode)]
    return "".join(path.read_text(errors="replace") for path in files)


def test_ranks_and_setup_have_the_values(task: Task, server: Server) -> None:
    run(task, "[ $TOKEN = tok-0123456789 ]", {"TOKEN": TOKEN}, setup="[ $TOKEN = tok-0123456789 ]")
    server.wait("finished")


def test_values_are_in_no_log_and_no_message(task: Task, server: Server) -> None:
    line = "echo with $PASS and $TOKEN; echo $TOKEN$TOKEN; echo failed: $PASS >&2; exit 1"
    run(task, line, {"PASS": VALUE, "TOKEN": TOKEN}, setup="echo $PASS")
    exited = server.wait("rank_failed")
    server.wait("cleared")
    assert task.texts("o") == ["with *** and ***", "******"]
    assert task.texts("o", "setup.log") == ["***"]
    assert exited["tail"] == task.json("rank-0.exit")["tail"] == ["failed: ***"]
    everything = written(task) + json.dumps(server.messages)
    assert [value for value in (VALUE, TOKEN) if value in everything] == []


def test_start_failure_contains_no_value(task: Task, server: Server) -> None:
    run(task, "", {"PASS": "no-such-program"}, environment={"PATH": "/bin"})
    server.wait("cleared")
    task.plan(["no-such-program"], generation=2, secrets=str(task.path.parent / "secrets.json"))
    server.send("run", generation=2)
    failed = server.wait("start_failed", generation=2)
    assert failed["detail"].startswith("there is no program '***' in PATH")
    assert task.json("rank-0.exit", 2)["tail"][0].startswith("there is no program '***'")


def test_failed_setup_shows_no_value(task: Task, server: Server) -> None:
    run(task, "", {"PASS": VALUE}, setup="echo bad $PASS >&2; exit 4")
    assert server.wait("start_failed")["tail"] == ["bad ***"]


def test_value_in_two_halves(task: Task, server: Server) -> None:
    line = "printf 'x hunter2-'; while [ ! -e go ]; do sleep 0.01; done; echo 'swordfish y'"
    run(task, line, {"PASS": VALUE})
    server.wait("started")
    wait_until(lambda: task.texts("u") == ["x "], "the start of the line is written up to what may be a secret")
    (task.work / "go").touch()
    server.wait("finished")
    assert [text for _, _, text in task.records()] == ["x ", "x *** y"]


def test_incomplete_value_is_written_in_the_end(task: Task, server: Server) -> None:
    run(task, "printf 'hunter'", {"PASS": VALUE})
    server.wait("finished")
    assert [text for _, _, text in task.records()] == ["hunter"]


@pytest.mark.parametrize("before", range(16 * 1024 - len(VALUE) - 2, 16 * 1024 + 3))
def test_value_at_the_end_of_a_piece(before: int) -> None:
    """A value at every position around the length at which a line is cut."""
    import selectors
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from ganger.launcher.logs.log_file import LogFile
    from ganger.launcher.logs.log_records import Stream

    read, write = os.pipe()
    with TemporaryDirectory() as folder, selectors.DefaultSelector() as selector:
        stream = Stream(read, "o", LogFile(f"{folder}/log"), selector, Redaction([VALUE]))
        for part in ("x" * before + VALUE[:7], VALUE[7:] + "y" * 20_000, "\n"):
            os.write(write, part.encode())
            while stream.read():
                pass
        os.close(write)
        stream.close()
        lines = Path(folder, "log").read_text().splitlines()
    assert "".join(line.split(" ", 2)[2] for line in lines) == "x" * before + "***" + "y" * 20_000


def test_each_line_of_a_value_is_a_secret() -> None:
    key = Redaction(["-----BEGIN KEY-----\nMIIEowIBAAK\nabc\n-----END KEY-----\n"])
    assert key.mask("key=MIIEowIBAAK, abc, -----END KEY-----") == "key=***, abc, ***"


def test_longer_value_is_masked_before_its_part() -> None:
    assert Redaction(["abcd", "abcdefgh"]).mask("abcdefgh abcd") == "*** ***"


@pytest.mark.parametrize("short", ["", "a", "abc"])
def test_short_value_is_not_masked(short: str) -> None:
    assert Redaction([short]).mask("a cab abc") == "a cab abc"
    assert Redaction([short]).withheld("a cab abc") == 0


@pytest.mark.parametrize(("text", "withheld"), [("", 0), ("x", 0), ("a", 1), ("xaba", 3), ("abac", 0), ("xab", 2)])
def test_possible_beginning_of_a_value_is_withheld(text: str, withheld: int) -> None:
    assert Redaction(["abad1", "zzzz"]).withheld(text) == withheld


@pytest.mark.parametrize("text", ["", "{", "[]", '{"A": 7}', '{"A": null}'])
def test_invalid_secrets_file_fails_the_start(text: str, task: Task, server: Server) -> None:
    run(task, "touch started", text)
    failed = server.wait("start_failed")
    assert failed["detail"].startswith(f"the secrets {task.path.parent}/secrets.json cannot be read: ")
    assert not (task.work / "started").exists()


def test_missing_secrets_file_fails_the_start(task: Task, server: Server) -> None:
    task.run([*SH, "exit 0"], secrets="/no/such/file")
    assert "No such file" in server.wait("start_failed")["detail"]
