"""A copy of a checkpoint that comes from another node: whole, of this attempt and inside its place, or none."""

import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ganger.launcher.remote_exec import peer_copy
from ganger.launcher.remote_exec.agent import hold_argv
from ganger.train import complete_checkpoints
from ganger.train.tiers import local_tier

CONTENT = b"weights" * 1000


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GANGER_CHECKPOINT_LOCAL", str(tmp_path / "n2"))
    monkeypatch.setenv("GANGER_JOB_UID", "bert-7f3")
    monkeypatch.setenv("GANGER_ATTEMPT", "2")
    monkeypatch.setattr(os, "nice", lambda _: None)
    return tmp_path / "n2"


def header(step: int = 5, file: str = "model.pt", **fields: Any) -> dict[str, Any]:
    files = {file: {"bytes": len(CONTENT), "crc32": zlib.crc32(CONTENT)}}
    manifest = {"step": step, "uid": "bert-7f3", "attempt": 2, "files": files} | fields
    return {"name": f"step-{step:09d}", "manifest": manifest}


def take(monkeypatch: pytest.MonkeyPatch, sent: dict[str, Any], content: bytes = CONTENT) -> tuple[int, bytes]:
    answer = io.BytesIO()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(sent).encode() + b"\n" + content)))
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=answer))
    return peer_copy.hold(["n1"]), answer.getvalue()


def test_the_copies_of_the_newest_two_steps_stay(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (3, 4, 5):
        assert take(monkeypatch, header(step)) == (0, peer_copy.SEND)
    assert take(monkeypatch, header(5), b"") == (0, peer_copy.HAVE)
    assert sorted(path.name for path in (local / "held" / "n1").iterdir()) == ["step-000000004", "step-000000005"]
    assert [step for step, path in local_tier.list_held(str(local)) if not complete_checkpoints.examine(path, step)[1]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sent: sent, "the sender ended"),
        (lambda sent: sent | {"name": "../step-000000005"}, "not of this attempt"),
        (lambda sent: sent | {"name": "step-000000006"}, "not of this attempt"),
        (lambda _: header(attempt=1), "not of this attempt"),
        (lambda _: header(uid="other"), "not of this attempt"),
        (lambda _: header(file="../../escaped"), "not a name of a file in it"),
        (lambda _: header(file="/escaped"), "not a name of a file in it"),
        (lambda _: header(file="a/../../b"), "not a name of a file in it"),
        (lambda _: header(file=complete_checkpoints.MANIFEST), "not a name of a file in it"),
        (lambda _: header(files={"a": {"bytes": -1, "crc32": 0}}), "not a number"),
        (lambda _: header(files={"a": {"bytes": 1 << 60, "crc32": 0}}), "it has no room"),
        (lambda _: header(files=[]), "not a checkpoint"),
        (lambda _: header(files={"a": {"bytes": 9, "crc32": 0}}), "other contents than when it was saved"),
    ],
)
def test_what_is_cut_or_forged_leaves_nothing(
    local: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    reason: str,
) -> None:
    code, _ = take(monkeypatch, change(header()), CONTENT[:-1])
    assert (code, reason in capsys.readouterr().err) == (peer_copy.BROKEN, True)
    assert local_tier.list_held(str(local)) == []
    assert [path for path in local.parent.rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize("command", ["ganger:hold ../n1", "ganger:hold ..", "ganger:hold ", "ganger:hold a/b", "ls"])
def test_no_other_command_takes_a_copy(command: str) -> None:
    assert hold_argv(command) is None
