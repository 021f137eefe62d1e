"""Where the state directory is, who may see it, and what travels with a job."""

import os
from pathlib import Path

import pytest

from ganger.settings import (
    SOCKET_PATH_BYTES,
    Home,
    HomeError,
    filesystem,
    for_server,
    home,
    make_private,
    network_filesystem,
    travelling,
    wants_colour,
)

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw,addr=1.2.3.4 0 0
/dev/sdb1 /home/local xfs rw 0 0
ada@host: /mnt/with\\040blank fuse.sshfs rw 0 0
/dev/sdc1 /mnt/hidden nfs rw 0 0
/dev/sdc1 /mnt/hidden ext4 rw 0 0
"""


def test_homes_are_found_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert home({"GANGER_HOME": str(tmp_path), "XDG_STATE_HOME": "/x"}) == Home(tmp_path)
    assert home({"XDG_STATE_HOME": "/x"}).path == Path("/x/ganger")
    assert home({"XDG_STATE_HOME": "relative"}).path == Path("/home/ada/.local/state/ganger")
    assert home({}).path == Path("/home/ada/.local/state/ganger")


def test_only_what_a_job_needs_travels() -> None:
    given = {"PATH": "/bin", "CONDA_PREFIX": "/c", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "s", "LANGUAGE": "en"}
    assert travelling(given) == {"PATH": "/bin", "CONDA_PREFIX": "/c", "LC_ALL": "C"}


def test_nothing_of_a_job_goes_on_with_what_it_starts() -> None:
    """A job submits another, or starts the server: neither gets its marks, or the zipapp it imports from."""
    archive = "/home/ada/.local/state/ganger/launcher-0123456789abcdef.pyz"
    given = {"GANGER_HOME": "/h", "GANGER_TASK_DIR": "/t", "PYTHONPATH": f":/mine:{archive}", "TERM": "dumb"}
    assert for_server(given) == {"GANGER_HOME": "/h", "PYTHONPATH": ":/mine", "TERM": "dumb"}
    assert travelling(given) == {"PYTHONPATH": ":/mine"}
    assert travelling({"PYTHONPATH": archive}) == {}


def test_colour_is_unwelcome_when_the_variable_has_a_value() -> None:
    assert [wants_colour(given) for given in ({}, {"NO_COLOR": ""}, {"NO_COLOR": "1"})] == [True, True, False]


def test_a_file_system_is_known_by_its_mounts() -> None:
    for path, kind in (
        ("/var/lib", "ext4"),
        ("/tmp/x", "tmpfs"),
        ("/home/ada/.local", "nfs4"),
        ("/homes/ada", "ext4"),
        ("/home/local/ada", "xfs"),
        ("/mnt/with blank/x", "fuse.sshfs"),
        ("/mnt/hidden", "ext4"),
    ):
        assert filesystem(Path(path), MOUNTS) == kind, path


def test_this_machine_keeps_temporary_files_on_a_disk_of_its_own(tmp_path: Path) -> None:
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


def test_a_socket_has_a_path_that_a_socket_can_have(tmp_path: Path) -> None:
    assert Home(tmp_path).socket("server") == tmp_path / "server.sock"
    one, other = (Home(tmp_path / (letter * 120)).socket("server") for letter in "ab")
    assert one != other
    assert all(len(os.fsencode(path)) <= SOCKET_PATH_BYTES for path in (one, other))
