"""The git state of real repositories; and that nothing that git does can fail or hold up a submission."""

import os
import subprocess
from pathlib import Path

import pytest

from ganger.engine.submit import git_info
from ganger.engine.submit.git_info import MAX_DIFF_BYTES, GitState, git_state


def run(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "sub").mkdir(parents=True)
    (root / "a.py").write_text("one\n")
    (root / ".gitignore").write_text("ignored\n")
    run(root, "init", "-q")
    run(root, "add", ".")
    run(root, "commit", "-q", "-m", "first")
    return root


@pytest.mark.parametrize("folder", [".", "sub"])
def test_a_clean_repository_has_a_commit_and_no_more(repository: Path, folder: str) -> None:
    (repository / "ignored").write_text("x")
    assert git_state(repository / folder) == GitState(
        run(repository, "rev-parse", "HEAD").strip(), dirty=False, diff=b""
    )


def test_the_diff_restores_the_files(repository: Path, tmp_path: Path) -> None:
    (repository / "a.py").write_text("two\n")
    (repository / "sub" / "b.bin").write_bytes(bytes(range(256)))
    run(repository, "add", "sub/b.bin")
    state = git_state(repository / "sub")
    assert state.dirty
    clone = tmp_path / "again"
    subprocess.run(["git", "clone", "-q", repository, clone], check=True)
    subprocess.run(["git", "-C", clone, "apply", "-"], input=state.diff, check=True)
    assert (clone / "a.py").read_text() == "two\n"
    assert (clone / "sub" / "b.bin").read_bytes() == bytes(range(256))


def test_a_new_file_counts_as_a_change(repository: Path) -> None:
    (repository / "new.py").write_text("x")
    state = git_state(repository)
    assert (state.dirty, state.diff) == (True, b"")


def test_a_long_diff_is_truncated(repository: Path) -> None:
    (repository / "a.py").write_text("x\n" * 2_000_000)
    state = git_state(repository)
    assert (state.dirty, len(state.diff)) == (True, MAX_DIFF_BYTES)


def test_outside_a_repository(tmp_path: Path) -> None:
    assert git_state(tmp_path) == GitState()


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    run(tmp_path, "init", "-q")
    assert git_state(tmp_path) == GitState()


def test_a_missing_directory(tmp_path: Path) -> None:
    assert git_state(tmp_path / "absent") == GitState()


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert git_state(repository) == GitState()


def test_variables_of_a_hook_are_ignored(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert git_state(repository).commit


def test_a_git_that_hangs_is_killed(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected fault: a git that answers once and then hangs. An unknown status is not clean."""
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\ncase "$*" in *rev-parse*) exec {real} "$@";; *) exec tail -f /dev/null;; esac\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_info, "TIMEOUT_S", 0.5)
    state = git_state(repository)
    assert state.commit
    assert (state.dirty, state.diff) == (True, b"")


def test_no_program_of_the_repository_is_run(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py diff=trap\n")
    for key in ("core.fsmonitor", "diff.external", "diff.trap.command", "diff.trap.textconv", "core.pager"):
        run(repository, "config", key, str(trap))
    (repository / "a.py").write_text("two\n")
    assert git_state(repository).diff
    assert not (tmp_path / "sprung").exists()
