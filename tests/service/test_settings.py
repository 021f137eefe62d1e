"""The state directory: its place and permissions; and the environment that goes with a job."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ganger.server.state_directory import network_filesystem
from ganger.settings import (
    SOCKET_PATH_BYTES,
    Home,
    HomeError,
    SettingsError,
    home,
    job_environment,
    log_level,
    make_private,
    server_environment,
    wants_colour,
)

MOUNTS = {
    "/": "ext4",
    "/tmp": "tmpfs",
    "/home": "nfs4",
    "/home/local": "xfs",
    "/mnt/with blank": "fuse.sshfs",
    "/mnt/données": "nfs",
}


def test_home_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert home({"GANGER_HOME": str(tmp_path), "XDG_STATE_HOME": "/x"}) == Home(tmp_path)
    assert home({"XDG_STATE_HOME": "/x"}).path == Path("/x/ganger")
    assert home({"XDG_STATE_HOME": "relative"}).path == Path("/home/ada/.local/state/ganger")
    assert home({}).path == Path("/home/ada/.local/state/ganger")


def test_the_environment_that_goes_with_a_job() -> None:
    environ = {"PATH": "/bin", "CONDA_PREFIX": "/c", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "s", "LANGUAGE": "en"}
    assert job_environment(environ) == {"PATH": "/bin", "CONDA_PREFIX": "/c", "LC_ALL": "C"}


def test_a_jobs_own_variables_are_not_passed_on() -> None:
    """A job submits another, or starts the server: neither gets its variables, or the zipapp it imports from."""
    archive = "/home/ada/.local/state/ganger/launcher-0123456789abcdef.pyz"
    environ = {"GANGER_HOME": "/h", "GANGER_TASK_DIR": "/t", "PYTHONPATH": f":/mine:{archive}", "TERM": "dumb"}
    assert server_environment(environ) == {"GANGER_HOME": "/h", "PYTHONPATH": ":/mine", "TERM": "dumb"}
    assert job_environment(environ) == {"PYTHONPATH": ":/mine"}
    assert job_environment({"PYTHONPATH": archive}) == {}


def test_the_level_of_a_log() -> None:
    assert [log_level(environ) for environ in ({}, {"GANGER_LOG": ""}, {"GANGER_LOG": "debug"})] == [
        *("INFO", "INFO", "DEBUG")
    ]
    with pytest.raises(SettingsError, match="GANGER_LOG=loud is not a level of a log"):
        log_level({"GANGER_LOG": "loud"})
    assert server_environment({"GANGER_LOG": "debug"}) == {"GANGER_LOG": "debug"}


def test_no_colour_when_the_variable_has_a_value() -> None:
    assert [wants_colour(environ) for environ in ({}, {"NO_COLOR": ""}, {"NO_COLOR": "1"})] == [True, True, False]


def test_network_file_systems_are_found_by_the_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(mountpoint=path, fstype=kind) for path, kind in MOUNTS.items()]
    mounts += [SimpleNamespace(mountpoint="/mnt/hidden", fstype=kind) for kind in ("nfs", "ext4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    for path, kind in (
        ("/var/lib", None),
        ("/tmp/x", None),
        ("/home/ada/.local", "nfs4"),
        ("/homes/ada", None),
        ("/home/local/ada", None),
        ("/mnt/with blank/x", "fuse.sshfs"),
        ("/mnt/hidden", None),
        ("/mnt/données/x", "nfs"),
    ):
        assert network_filesystem(Path(path)) == kind, path


def test_temporary_files_are_on_a_local_disk(tmp_path: Path) -> None:
    assert network_filesystem(tmp_path) is None


def test_a_directory_is_made_private_or_refused(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    make_private(made)
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o755)
    make_private(made)
    assert made.stat().st_mode & 0o777 == 0o700
    (made / "file").write_text("")
    made.chmod(0o750)
    with pytest.raises(HomeError, match="is open to other users") as refused:
        make_private(made)
    assert refused.value.next == f"chmod 700 {made}"
    for path in (made / "file", made / "file" / "below"):
        with pytest.raises(HomeError, match="a file is in the way") as refused:
            make_private(path)
        assert "GANGER_HOME" in refused.value.next


def test_a_directory_of_another_user_is_refused_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /tmp/ganger-UID that another user made first, empty and open."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o755)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(HomeError, match="belongs to another user"):
        make_private(theirs)
    assert theirs.stat().st_mode & 0o777 == 0o755


def test_a_link_is_refused_where_other_users_may_write(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "shared" / "link"
    for directory in (target, link.parent):
        directory.mkdir()
        directory.chmod(0o755)
    link.symlink_to(target)
    link.parent.chmod(0o1777)
    with pytest.raises(HomeError, match="is a link") as refused:
        make_private(link)
    assert refused.value.next == f"ls -l {link}"
    assert target.stat().st_mode & 0o777 == 0o755
    link.parent.chmod(0o700)
    make_private(link)
    assert target.stat().st_mode & 0o777 == 0o700


def test_socket_paths_are_short_enough(tmp_path: Path) -> None:
    assert Home(tmp_path).socket("server") == tmp_path / "server.sock"
    first, second = (Home(tmp_path / (letter * 120)).socket("server") for letter in "ab")
    assert first != second
    assert all(len(os.fsencode(path)) <= SOCKET_PATH_BYTES for path in (first, second))
