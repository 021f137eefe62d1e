"""`ganger diagnose` of a folder, which needs no server: text, JSON, exit codes."""

import json
from pathlib import Path

from ganger.cli.exit_codes import NOT_FOUND, OK, USAGE
from tests.cli.conftest import Shell

CAUSE = "Traceback (most recent call last):\n  File \"/w/train.py\", line 31, in <module>\nKeyError: 'lr'\n"


def write_logs(folder: Path) -> None:
    folder.mkdir()
    (folder / "rank-0.log").write_text("RuntimeError: Connection closed by peer [10.0.0.1]:4\n")
    (folder / "rank-1.log").write_text("step 1\n" + CAUSE)
    (folder / "model.pt").write_bytes(b"\x00")


def test_a_folder(shell: Shell) -> None:
    write_logs(Path("logs"))
    result = shell("diagnose", "logs")
    assert result.code == OK
    assert result.out.splitlines() == [
        "error of the program at /w/train.py:31 on rank 1",
        "  class: python_error_user, origin user, confidence high",
        "  failed first: rank 1",
        "  rank-1.log:4: KeyError: 'lr'",
        "  explained by it: peer_connection_lost (1)",
        "  retry: no: it would end the same way",
        "  next: correct the line that raised the exception",
        "  read: 2 files, 153 bytes",
        "  not read: model.pt: no log by its ending .pt",
    ]


def test_json(shell: Shell) -> None:
    write_logs(Path("logs"))
    answer = json.loads(shell("diagnose", "logs", "-o", "json").out)
    assert (answer["class"], answer["origin"], answer["retry"]) == ("python_error_user", "user", "no_retry")
    assert (answer["suspects_node"], answer["rank"]) == (False, 1)


def test_one_file(shell: Shell) -> None:
    write_logs(Path("logs"))
    assert "peer_connection_lost" in shell("diagnose", "logs/rank-0.log").out


def test_text_of_a_log_is_shown_without_control_characters(shell: Shell) -> None:
    Path("log").write_text("RuntimeError: \x1b]0;title\x07 CUDA out of memory\x1b[31m\n")
    assert not any(code in shell("diagnose", "log").out for code in ("\x1b", "\x07"))


def test_a_folder_that_is_not_there(shell: Shell) -> None:
    result = shell("diagnose", "./logs")
    assert (result.code, result.out) == (NOT_FOUND, "")
    assert "there is no folder or file ./logs" in result.err


def test_an_attempt_is_of_a_job(shell: Shell) -> None:
    write_logs(Path("logs"))
    result = shell("diagnose", "logs", "--attempt", "2")
    assert result.code == USAGE
    assert "--attempt is of a job" in result.err
