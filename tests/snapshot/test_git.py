"""The git state of real repositories; and that nothing that git does can fail or hold up a submission."""

import os
import subprocess
import time
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
    monkeypatch.setattr(git_info, "TIMEOUT_S", 60.0)  # for the git that answers; the others have half a second
    ask = git_info._git
    monkeypatch.setattr(
        git_info,
        "_git",
        lambda directory, settings, words, size, deadline_s: ask(
            directory, settings, words, size, deadline_s if "rev-parse" in words else time.monotonic() + 0.5
        ),
    )
    state = git_state(repository)
    assert state.commit
    assert (state.dirty, state.diff) == (True, b"")


@pytest.fixture
def hostile(repository: Path, tmp_path: Path) -> Path:
    """Create a repository and a submodule in which every setting that names a program names one that leaves a mark."""
    marks = tmp_path / "marks"
    marks.mkdir()
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\ntouch "{marks}/$1"\n')
    trap.chmod(0o755)
    included = repository / ".git" / "more"
    submodule = repository / "module"
    run(tmp_path, "init", "-q", str(submodule))
    attributes = "*.py filter=one.Two diff=trap merge=trap\n*.txt filter=run\n*.dat filter=included\n"
    for root in (submodule, repository):
        for name in ("a.py", "b.txt", "c.dat"):
            (root / name).write_text("one\n")
        run(root, "add", ".")
        run(root, "commit", "-q", "-m", "second")
        (root / ".gitattributes").write_text(attributes)
        for key in TRAPPED_KEYS:
            run(root, "config", key, f"{trap} {root.name}.{key}")
        run(root, "config", "filter.one.Two.required", "true")
        run(root, "config", "core.hooksPath", str(tmp_path / "hooks"))
        run(root, "config", "log.showSignature", "true")
        for name in ("a.py", "b.txt", "c.dat"):
            (root / name).write_text("two\n")
    for hook in ("post-index-change", "reference-transaction", "pre-auto-gc"):
        (tmp_path / "hooks").mkdir(exist_ok=True)
        (tmp_path / "hooks" / hook).write_text(f"#!/bin/sh\n{trap} {hook}\n")
        (tmp_path / "hooks" / hook).chmod(0o755)
    included.write_text(f'[filter "included"]\n\tclean = {trap} included\n')
    run(repository, "config", "include.path", "more")
    for setting in ("diff.submodule diff", "status.submoduleSummary true", "submodule.recurse true"):
        run(repository, "config", *setting.split())
    return repository


TRAPPED_KEYS = (
    "filter.one.Two.clean", "filter.one.Two.smudge", "filter.run.process", "core.fsmonitor", "core.pager",
    "core.editor", "core.askPass", "core.sshCommand", "core.gitProxy", "core.alternateRefsCommand", "credential.helper",
    "diff.external", "diff.trap.command", "diff.trap.textconv", "merge.trap.driver", "gpg.program", "pager.diff",
    "pager.status", "interactive.diffFilter", "uploadpack.packObjectsHook",
)  # fmt: skip


def test_no_program_of_the_repository_is_run(hostile: Path, tmp_path: Path) -> None:
    state = git_state(hostile)
    assert not sorted(path.name for path in (tmp_path / "marks").iterdir())
    assert state.commit
    assert state.dirty
    assert all(f"+++ b/{name}".encode() in state.diff for name in ("a.py", "b.txt", "c.dat"))


def test_the_programs_of_the_hostile_repository_are_run_by_a_plain_git(hostile: Path, tmp_path: Path) -> None:
    for path in ("a.py", "b.txt", "c.dat", "module"):
        for options in ((), ("--no-ext-diff",)):
            command = ["git", "-C", hostile, "diff", *options, "HEAD", "--", path]
            subprocess.run(command, capture_output=True, check=False)
    run_keys = ("filter.run.process", "core.fsmonitor", "diff.trap.command", "diff.trap.textconv")
    expected = {f"repository.{key}" for key in run_keys} | {"module.filter.run.process", "included"}
    assert expected <= {path.name for path in (tmp_path / "marks").iterdir()}


def test_a_filter_that_cannot_be_disabled_costs_the_diff(repository: Path, tmp_path: Path) -> None:
    """`git -c` cannot name it, so no command is run that would run it."""
    with (repository / ".git" / "config").open("a") as config:
        config.write(f'[filter "a=b"]\n\tclean = touch {tmp_path}/mark\n')
    (repository / ".gitattributes").write_text("*.py filter=a=b\n")
    (repository / "a.py").write_text("two\n")
    state = git_state(repository)
    assert state.commit
    assert (state.dirty, state.diff) == (True, b"")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("transport", ["uploadpack", "ext", "vcs", "ssh"])
def test_no_missing_object_is_fetched(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """A partial clone names its remote, which may be a program, and git fetches an object that it lacks from there."""
    mark = tmp_path / "mark"
    trap = tmp_path / "git-remote-trap"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    trap.chmod(0o755)
    urls = {"uploadpack": f"file://{repository}", "ext": f"ext::{trap}", "vcs": "any", "ssh": "ssh://host/path"}
    settings = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "protocol.allow": "always",
        "core.sshCommand": str(trap),
        "remote.origin.url": urls[transport],
        "remote.origin.promisor": "true",
    } | {"uploadpack": {"remote.origin.uploadpack": str(trap)}, "vcs": {"remote.origin.vcs": "trap"}}.get(transport, {})
    for key, value in settings.items():
        run(repository, "config", key, value)
    blob = run(repository, "rev-parse", "HEAD:a.py").strip()
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    (repository / "a.py").write_text("two\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    state = git_state(repository)
    assert state.commit
    assert state.dirty
    assert not mark.exists()
    subprocess.run(["git", "-C", repository, "diff", "HEAD"], capture_output=True, check=False)
    assert mark.exists(), "the remote would be run by a plain git"
