"""Copies of code: what is copied, what is ignored, what is refused, and that a copy is complete or absent."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.code import code_snapshot as module
from ganger.code.code_snapshot import CodeSize, checkout, measure, snapshot
from ganger.errors import RequestError

UNPRIVILEGED_UID = 65534


def make_files(root: Path, files: dict[str, str]) -> Path:
    """Create files; a name that ends in / is a folder, a text that begins with -> a link."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif text.startswith("->"):
            path.symlink_to(text.removeprefix("->"))
        else:
            path.write_text(text)
    return root


def copied_names(tmp_path: Path, files: dict[str, str], code: str = ".") -> list[str]:
    """Return the names in a copy of the files, folders with a / at the end."""
    root = make_files(tmp_path / "code", files) / code
    target = tmp_path / "target"
    checkout(tmp_path / "store", snapshot(root, tmp_path / "store"), target)
    return sorted(
        f"{path.relative_to(target)}{'/' * (path.is_dir() and not path.is_symlink())}" for path in target.rglob("*")
    )


IGNORES = {
    "everything": ({"a.py": "", "b/c.py": "", "empty/": ""}, "a.py b/ b/c.py empty/"),
    "always skipped": ({".git/x": "", "b/__pycache__/x": "", ".venv/x": "", "a": ""}, "a b/"),
    "a worktree's .git file": ({".git": "gitdir: x", "a": ""}, "a"),
    "a pattern": ({".gitignore": "*.pt\n", "a.py": "", "x.pt": "", "b/y.pt": ""}, ".gitignore a.py b/"),
    "only at the top": ({".gitignore": "/x\n", "x": "", "b/x": ""}, ".gitignore b/ b/x"),
    "a folder": ({".gitignore": "out/\n", "out/x": "", "b/out/y": "", "c/out": ""}, ".gitignore b/ c/ c/out"),
    "taken back": ({".gitignore": "*.pt\n!keep.pt\n", "x.pt": "", "keep.pt": ""}, ".gitignore keep.pt"),
    "deeper decides": ({".gitignore": "x\n", "b/.gitignore": "!x\n", "b/x": ""}, ".gitignore b/ b/.gitignore b/x"),
    "in an ignored folder nothing comes back": ({".gitignore": "b/\n", "b/.gitignore": "!*", "b/x": ""}, ".gitignore"),
    "gangerignore": ({".gangerignore": "data\n", "data/x": "", "a": ""}, ".gangerignore a"),
    "gangerignore is right": ({".gitignore": "x\n", ".gangerignore": "!x\n", "x": ""}, ".gangerignore .gitignore x"),
    "a comment and a blank line": ({".gitignore": "# a\n\n", "a": ""}, ".gitignore a"),
    "a name that is no text": ({"a\udcff": ""}, "a\udcff"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), IGNORES.values(), ids=IGNORES)
def test_copied_files(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    assert copied_names(tmp_path, files) == expected.split()


ABOVE = {
    "the repository's rules hold below": ({".git/": "", ".gitignore": "*.pt\n", "sub/x.pt": "", "sub/a": ""}, "a"),
    "anchored ones too": ({".git/": "", ".gitignore": "/sub/x\n", "sub/x": "", "sub/a": ""}, "a"),
    "an ignored directory that was named was meant": ({".git/": "", ".gitignore": "sub/\n", "sub/a": ""}, "a"),
    "above the repository nobody is asked": ({".gitignore": "a\n", "sub/.git/": "", "sub/a": ""}, "a"),
    "without a repository neither": ({".gitignore": "a\n", "sub/a": ""}, "a"),
}


@pytest.mark.parametrize(("files", "expected"), ABOVE.values(), ids=ABOVE)
def test_rules_of_the_repository_above(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    assert copied_names(tmp_path, files, "sub") == expected.split()


def test_the_same_files_are_ignored_as_by_git(tmp_path: Path) -> None:
    """The listing of git is the oracle."""
    patterns = ["*.o", "!b.o", "/top", "dir/", "a/**/z", "**/q", "x/*", "!x/keep", "sp ace", "[ab].txt", "\\#h", "w?"]
    names = [
        "a.o",
        "b.o",
        "top",
        "s/top",
        "dir/f",
        "s/dir/f",
        "s/u/dir",
        "a/z",
        "a/b/z",
        "a/b/c/z",
        "q",
        "m/q/f",
        "x/1",
    ]
    names += ["x/keep", "s/x/1", "sp ace", "a.txt", "c.txt", "#h", "w1", "w12", "s/b.o", "plain"]
    root = make_files(tmp_path / "code", dict.fromkeys(names, "text") | {".gitignore": "\n".join(patterns)})
    subprocess.run(["git", "init", "-q", root], check=True)
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    target = tmp_path / "target"
    checkout(tmp_path / "store", snapshot(root, tmp_path / "store"), target)
    copied = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert copied == set(listed.stdout.split("\0")) - {""}


def test_content_and_modes_are_preserved(tmp_path: Path) -> None:
    root = make_files(tmp_path / "code", {"run.sh": "#!/bin/sh\n", "big": "x" * 3_000_000, "b/c": "text"})
    (root / "run.sh").chmod(0o755)
    (root / "b/c").chmod(0o640)
    checkout(tmp_path / "store", snapshot(root, tmp_path / "store"), tmp_path / "jobs" / "target")
    target = tmp_path / "jobs" / "target"
    assert (target / "big").read_text() == "x" * 3_000_000
    assert [stat.S_IMODE((target / name).stat().st_mode) for name in ("run.sh", "b/c")] == [0o755, 0o640]


def test_the_same_content_has_one_copy(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = snapshot(make_files(tmp_path / "one", {"a": "x", "b/c": "y"}), store)
    assert snapshot(make_files(tmp_path / "two", {"b/c": "y", "a": "x"}), store) == first
    assert [path.name for path in store.glob("[!.]*")] == [first]


@pytest.mark.parametrize("change", ["content", "name", "mode", "link", "folder"])
def test_any_change_gives_another_name(tmp_path: Path, change: str) -> None:
    root = make_files(tmp_path / "code", {"a": "x", "l": "->a"})
    before = snapshot(root, tmp_path / "store")
    match change:
        case "content":
            (root / "a").write_text("y")
        case "name":
            (root / "a").rename(root / "b")
        case "mode":
            (root / "a").chmod(0o755)
        case "link":
            (root / "l").unlink()
            (root / "l").symlink_to("b")
        case _:
            (root / "empty").mkdir()
    assert snapshot(root, tmp_path / "store") != before


def test_a_job_cannot_change_the_copy_of_another(tmp_path: Path) -> None:
    store = tmp_path / "store"
    name = snapshot(make_files(tmp_path / "code", {"a": "x"}), store)
    checkout(store, name, tmp_path / "one")
    (tmp_path / "one" / "a").write_text("changed")
    checkout(store, name, tmp_path / "two")
    assert (tmp_path / "two" / "a").read_text() == "x"


def test_an_existing_copy_is_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "store"
    name = snapshot(make_files(tmp_path / "code", {"a": "x"}), store)
    checkout(store, name, tmp_path / "one")
    (tmp_path / "one" / "checkpoint").write_text("kept")
    checkout(store, name, tmp_path / "one")
    assert (tmp_path / "one" / "checkpoint").read_text() == "kept"


def test_sockets_and_pipes_are_left_out(tmp_path: Path) -> None:
    root = make_files(tmp_path / "code", {"a": "x"})
    os.mkfifo(root / "pipe")
    checkout(tmp_path / "store", snapshot(root, tmp_path / "store"), tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["a"]


LINKS = {
    "to a file beside it": ("->a", "a"),
    "to a folder": ("->b", "b"),
    "to nothing yet": ("->later", "later"),
    "absolute, but inside": ("->{root}/a", "a"),
    "out and in again": ("->../code/a", "a"),
}


@pytest.mark.parametrize(("text", "expected"), LINKS.values(), ids=LINKS)
def test_a_link_that_stays_inside_leads_to_the_copy(tmp_path: Path, text: str, expected: str) -> None:
    root = tmp_path / "code"
    make_files(root, {"a": "x", "b/c": "y", "link": text.format(root=root)})
    checkout(tmp_path / "store", snapshot(root, tmp_path / "store"), tmp_path / "target")
    assert str((tmp_path / "target" / "link").readlink()) == expected


@pytest.mark.parametrize("text", ["->/etc/passwd", "->../other", "->b/../../other"])
def test_a_link_that_points_outside_is_refused_by_name(tmp_path: Path, text: str) -> None:
    root = make_files(tmp_path / "code", {"a": "x", "b/c": "", "my link": text})
    with pytest.raises(RequestError) as refused:
        snapshot(root, tmp_path / "store")
    assert (refused.value.code, "my link" in refused.value.detail) == ("code_link_outside", True)
    assert not list((tmp_path).glob("store/*"))


def test_a_store_may_be_a_link(tmp_path: Path) -> None:
    root = make_files(tmp_path, {"code/a": "x", "code/link": "->a", "real/": "", "store": "->real"}) / "code"
    checkout(tmp_path / "store", snapshot(root, tmp_path / "store"), tmp_path / "target")
    assert (tmp_path / "target" / "link").read_text() == "x"


def test_the_suggested_command_for_a_link_works(tmp_path: Path) -> None:
    root = make_files(tmp_path / "code", {"a": "x", "it's a link": "->/etc/passwd"})
    with pytest.raises(RequestError) as refused:
        snapshot(root, tmp_path / "store")
    typed = refused.value.next.partition("type: ")[2].rpartition(", and use")[0]
    subprocess.run(["/bin/sh", "-c", typed], check=True)
    assert snapshot(root, tmp_path / "store")


def sparse(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)


def test_too_much_data_is_refused_before_copying(tmp_path: Path) -> None:
    root = make_files(tmp_path / "code", {"train.py": "x"})
    sparse(root / "data" / "train" / "part-0", 900 << 20)
    sparse(root / "data" / "train" / "part-1", 800 << 20)
    sparse(root / "model.pt", 200 << 20)
    with pytest.raises(RequestError) as refused:
        snapshot(root, tmp_path / "store")
    assert refused.value.code == "code_too_large"
    assert "1.9Gi" in refused.value.detail
    assert "data/train (1.7Gi), model.pt (200Mi)" in refused.value.detail
    assert not (tmp_path / "store").exists()
    typed = refused.value.next.partition("type: ")[2]
    subprocess.run(["/bin/sh", "-c", typed], check=True)
    assert snapshot(root, tmp_path / "store")


def test_ignored_files_do_not_count(tmp_path: Path) -> None:
    root = make_files(tmp_path / "code", {".gangerignore": "data/\n"})
    sparse(root / "data" / "x", 2 << 30)
    assert snapshot(root, tmp_path / "store")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 20)
    root = make_files(tmp_path / "code", {f"cache/{n}": "" for n in range(30)} | {"a": ""})
    with pytest.raises(RequestError, match=r"more than 20 files.*most are in cache") as refused:
        snapshot(root, tmp_path / "store")
    assert refused.value.code == "code_too_large"


def test_a_directory_with_the_state_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        snapshot(tmp_path, tmp_path / "state" / "code")
    assert refused.value.code == "code_holds_state"


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    """Yield a folder of the user that the test runs as, which is never root, whom no mode stops."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() == 0:
            os.chown(name, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
            os.seteuid(UNPRIVILEGED_UID)
            try:
                yield Path(name)
            finally:
                os.seteuid(0)
        else:
            yield Path(name)


@pytest.mark.parametrize("name", ["secret", "folder/", ".gitignore"])
def test_an_unreadable_file_is_named(unprivileged_folder: Path, name: str) -> None:
    root = make_files(unprivileged_folder / "code", {"a": "x", name: "x"})
    (root / name).chmod(0)
    try:
        with pytest.raises(RequestError, match=r"cannot read .*: Permission denied") as refused:
            snapshot(root, unprivileged_folder / "store")
    finally:
        (root / name).chmod(0o700)
    assert refused.value.code == "code_unreadable"
    assert not list(unprivileged_folder.glob("store/*"))


def test_an_unwritable_store_is_named(unprivileged_folder: Path) -> None:
    root = make_files(unprivileged_folder / "code", {"a": "x"})
    (unprivileged_folder / "store").mkdir(mode=0o500)
    with pytest.raises(RequestError, match="Permission denied") as refused:
        snapshot(root, unprivileged_folder / "store")
    assert refused.value.code == "store_failed"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """The file size limit of a process stands in for a full disk: the kernel refuses the write."""
    root = make_files(tmp_path / "code", {"a": "x", "big": "x" * 3_000_000})
    code = f"""
import resource, signal, errno
from pathlib import Path
from ganger.code import code_snapshot as m
from ganger.errors import RequestError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
m._NO_ROOM = (*m._NO_ROOM, errno.EFBIG)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, 1000000))
try: m.snapshot(Path({str(root)!r}), Path({str(tmp_path / "store")!r}))
except RequestError as refused: print(refused.code, refused.status, refused.detail)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("disk_full 507 cannot write the copy")
    assert list((tmp_path / "store").iterdir()) == []


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read .*absent: No such file"):
        snapshot(tmp_path / "absent", tmp_path / "store")


@pytest.mark.parametrize("name", ["0" * 64, "../code", "", "."])
def test_a_missing_copy_is_refused(tmp_path: Path, name: str) -> None:
    make_files(tmp_path / "code", {"a": "x"})
    (tmp_path / "store").mkdir()
    with pytest.raises(RequestError, match="there is no copy"):
        checkout(tmp_path / "store", name, tmp_path / "target")


def test_a_damaged_copy_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    name = snapshot(make_files(tmp_path / "code", {"a": "x"}), store)
    (store / name / "a").write_text("y")
    with pytest.raises(RequestError, match="damaged") as refused:
        checkout(store, name, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    subprocess.run(["/bin/sh", "-c", refused.value.next.removeprefix("type: ").partition(",")[0]], check=True)
    assert snapshot(tmp_path / "code", store) == name
    checkout(store, name, tmp_path / "target")


def test_the_store_is_private(tmp_path: Path) -> None:
    name = snapshot(make_files(tmp_path / "code", {"a": "x"}), tmp_path / "store")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store", tmp_path / "store" / name)] == [
        0o700
    ] * 2


def test_a_bad_pattern_is_named(tmp_path: Path) -> None:
    root = make_files(tmp_path / "code", {".gangerignore": "ok\n!\n"})
    with pytest.raises(RequestError, match="bad pattern") as refused:
        snapshot(root, tmp_path / "store")
    assert refused.value.code == "bad_ignore_file"


def test_two_copies_of_the_same_code_at_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one ends after the first one was found not to exist."""
    (source := tmp_path / "source").mkdir()
    (source / "a.py").write_text("1")
    store = tmp_path / "store"
    digest = snapshot(source, store)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path != store / digest and exists(path))
    assert snapshot(source, store) == digest
    assert [path.name for path in store.glob("[!.]*")] == [digest]


def test_unchanged_files_of_the_next_copy_are_hard_links_of_the_last(tmp_path: Path) -> None:
    store, code = tmp_path / "store", make_files(tmp_path / "code", {"a.py": "1", "b/data": "x" * 10_000, "c": "old"})
    first = snapshot(code, store)
    (code / "a.py").write_text("2")
    (code / "c").chmod(0o700)
    second = snapshot(code, store)
    assert (store / second / "b/data").samefile(store / first / "b/data")
    assert [(store / first / name).stat().st_nlink for name in ("a.py", "c")] == [1, 1]
    assert ((store / first / "a.py").read_text(), (store / second / "a.py").read_text()) == ("1", "2")


def test_a_job_cannot_change_a_file_that_copies_share(tmp_path: Path) -> None:
    store, code = tmp_path / "store", make_files(tmp_path / "code", {"a.py": "1", "data": "right"})
    snapshot(code, store)
    (code / "a.py").write_text("2")
    digest = snapshot(code, store)
    checkout(store, digest, tmp_path / "one")
    (tmp_path / "one/data").write_text("wrong")
    checkout(store, digest, tmp_path / "two")
    assert (tmp_path / "two/data").read_text() == "right"


def test_a_file_of_the_same_size_with_other_content_is_copied(tmp_path: Path) -> None:
    store, code = tmp_path / "store", make_files(tmp_path / "code", {"a.py": "1"})
    first = snapshot(code, store)
    status = (code / "a.py").stat()
    (code / "a.py").write_text("2")
    os.utime(code / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (store / snapshot(code, store) / "a.py").read_text() == "2"
    assert (store / first / "a.py").read_text() == "1"


def test_a_link_that_became_an_equal_file_is_copied_as_a_file(tmp_path: Path) -> None:
    store, code = tmp_path / "store", make_files(tmp_path / "code", {"b": "same", "a": "->b"})
    snapshot(code, store)
    (code / "a").unlink()
    (code / "a").write_text("same")
    digest = snapshot(code, store)
    checkout(store, digest, tmp_path / "job")
    assert not (tmp_path / "job/a").is_symlink()


def test_a_copy_links_files_of_one_copy_though_the_last_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, code = tmp_path / "store", make_files(tmp_path / "code", {"a.py": "old"})
    snapshot(code, store)
    (other := tmp_path / "other").mkdir()
    (other / "a.py").write_text("new")
    stale, link = snapshot(other, store), os.link
    (last,) = (path for path in store.glob(".last-*") if path.readlink() != Path(stale))

    def link_later(source: Path, target: Path) -> None:
        last.unlink()
        last.symlink_to(stale)  # another submission of the directory is done
        link(source, target)

    monkeypatch.setattr(os, "link", link_later)
    assert (store / snapshot(code, store) / "a.py").read_text() == "old"


@pytest.mark.parametrize("turn", [os.mkfifo, os.mkdir])
def test_what_is_no_file_any_more_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: Callable[[Path], None]
) -> None:
    code, listed = make_files(tmp_path / "code", {"a.py": "1"}), module._list_entries

    def list_entries(*arguments: Any) -> list[module.CodeEntry]:
        entries = listed(*arguments)
        (code / "a.py").unlink()
        turn(code / "a.py")
        return entries

    monkeypatch.setattr(module, "_list_entries", list_entries)
    with pytest.raises(RequestError, match=r"cannot read .*/a\.py: it is no file any more"):
        snapshot(code, tmp_path / "store")


def test_a_copy_without_its_last_one_is_whole(tmp_path: Path) -> None:
    store, code = tmp_path / "store", make_files(tmp_path / "code", {"a.py": "1"})
    first = snapshot(code, store)
    shutil.rmtree(store / first)
    assert snapshot(code, store) == first
    assert (store / first / "a.py").read_text() == "1"


def test_the_size_of_a_copy_names_what_is_most_of_it(tmp_path: Path) -> None:
    code = make_files(tmp_path / "code", {"a.py": "1", "data/big": "x" * 9_000, ".gitignore": "*.pt", "w.pt": "x" * 99})
    assert measure(code) == CodeSize(3, 9_005, (("data/big", 9_000),))
    assert measure(make_files(tmp_path / "empty", {"a/": ""})) == CodeSize(0, 0, ())
    flat = make_files(tmp_path / "flat", {f"{number:03}": "x" for number in range(150)})
    assert measure(flat).heaviest == (("000", 1),), "though it is less than a hundredth"
