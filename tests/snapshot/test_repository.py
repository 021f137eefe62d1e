"""Code from a repository: the commit of a ref, the stored files, and the errors for a missing one."""

import os
import subprocess
from pathlib import Path

import pytest

from ganger.engine.submit.git_repository import fetch
from ganger.errors import RequestError
from ganger.model.job import GitCode


class Repository:
    """A repository on disk, with one tag and two commits on main."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path, self.url = path, f"file://{path}"
        self.git("init", "-q", "-b", "main")
        (path / "sub").mkdir()
        (path / "sub" / "run.sh").write_text("#!/bin/sh\n")
        (path / "sub" / "run.sh").chmod(0o755)
        (path / ".gitignore").write_text("*.txt\n")
        (path / "kept.txt").write_text("tracked, though ignored")
        self.first = self.commit("1")
        self.git("tag", "-a", "v1", "-m", "v1")
        self.second = self.commit("2")

    def git(self, *arguments: str) -> str:
        settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
        command = ["git", *settings, *arguments]
        return subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> str:
        (self.path / "train.py").write_text(text)
        self.git("add", "-f", ".")
        self.git("commit", "-qm", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "origin")


def fetched(repository: Repository, tmp_path: Path, ref: str) -> tuple[str, Path]:
    commit, digest = fetch(GitCode(git=repository.url, ref=ref), tmp_path / "git", tmp_path / "code")
    return commit, tmp_path / "code" / digest


@pytest.mark.parametrize(
    ("ref", "number"), [("HEAD", 2), ("main", 2), ("v1", 1), ("main~1", 1), ("SECOND", 2), ("FIRST", 1)]
)
def test_a_ref_resolves_as_in_git(repository: Repository, tmp_path: Path, ref: str, number: int) -> None:
    commits = {1: repository.first, 2: repository.second}
    text = {"SECOND": repository.second, "FIRST": repository.first[:10]}.get(ref, ref)
    commit, code = fetched(repository, tmp_path, text)
    assert commit == commits[number]
    assert (code / "train.py").read_text() == str(number)


def test_tracked_files_are_stored_and_no_others(repository: Repository, tmp_path: Path) -> None:
    _, code = fetched(repository, tmp_path, "main")
    names = sorted(str(path.relative_to(code)) for path in code.rglob("*") if path.is_file())
    assert names == [".gitignore", "kept.txt", "sub/run.sh", "train.py"]
    assert (code / "sub" / "run.sh").stat().st_mode & 0o111
    assert (tmp_path / "git").stat().st_mode & 0o077 == 0


def test_new_commits_are_fetched_and_a_branch_may_move(repository: Repository, tmp_path: Path) -> None:
    assert fetched(repository, tmp_path, "main")[0] == repository.second
    repository.git("reset", "-q", "--hard", "v1")
    third = repository.commit("3")
    assert fetched(repository, tmp_path, "main")[0] == third
    assert len([entry for entry in (tmp_path / "git").iterdir() if entry.is_dir()]) == 1


def test_a_cached_commit_needs_no_fetch(repository: Repository, tmp_path: Path) -> None:
    fetched(repository, tmp_path, "main")
    repository.path.rename(tmp_path / "gone")
    assert fetched(repository, tmp_path, repository.first)[0] == repository.first


@pytest.mark.parametrize("ref", ["nothing", "v2", "0" * 40, "main~9"])
def test_an_unknown_ref_is_named(repository: Repository, tmp_path: Path, ref: str) -> None:
    with pytest.raises(RequestError) as refused:
        fetched(repository, tmp_path, ref)
    assert refused.value.code == "no_such_ref"
    assert f"has no branch, tag or commit {ref}" in refused.value.detail
    assert repository.url in refused.value.next


@pytest.mark.parametrize("url", ["file:///nonexistent/repository", "https://127.0.0.1:9/x.git", "git://127.0.0.1:9/x"])
def test_an_unreachable_repository_is_refused_with_gits_message(tmp_path: Path, url: str) -> None:
    with pytest.raises(RequestError) as refused:
        fetch(GitCode(git=url), tmp_path / "git", tmp_path / "code")
    assert refused.value.code == "git_failed"
    assert refused.value.detail.startswith(f"{url} cannot be fetched: ")
    assert not (tmp_path / "code").exists()


def test_a_password_that_git_quotes_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the user may put one into the URL."""
    settings = tmp_path / ".gitconfig"
    settings.write_text('[url "https://me:S3CRET@127.0.0.1:9/"]\n\tinsteadOf = https://127.0.0.1:9/\n')
    git = tmp_path / "bin" / "git"  # git itself hides it in most messages, not in all
    git.parent.mkdir()
    git.write_text("#!/bin/sh\necho \"fatal: cannot read 'https://me:S3CRET@127.0.0.1:9/x'\" >&2; exit 128\n")
    git.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("", f"{git.parent}:"):
        monkeypatch.setenv("PATH", path + os.environ["PATH"])
        with pytest.raises(RequestError, match=r"https://127\.0\.0\.1:9/x cannot be fetched: ") as refused:
            fetch(GitCode(git="https://127.0.0.1:9/x"), tmp_path / "git", tmp_path / "code")
        assert "S3C" not in f"{refused.value.detail} {refused.value.next}"


def test_no_program_of_a_url_or_a_repository_is_run(repository: Repository, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    hook = repository.path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)
    fetched(repository, tmp_path, "main")
    for url in (f"ext::sh -c 'touch {proof}'", f"--upload-pack=touch {proof}"):
        with pytest.raises(RequestError) as refused:
            fetch(GitCode(git=url), tmp_path / "git", tmp_path / "code")
        assert refused.value.code == "git_failed"
    assert not proof.exists()


def test_a_link_out_of_the_repository_is_refused(repository: Repository, tmp_path: Path) -> None:
    (repository.path / "out").symlink_to("/etc/passwd")
    repository.commit("3")
    with pytest.raises(RequestError) as refused:
        fetched(repository, tmp_path, "main")
    assert refused.value.code == "git_failed"
