"""The state directory of a server: the directory itself, the lock, the sockets, and the file for clients.

A state directory has one server: the lock decides, and the kernel frees it when the server dies.
"""

import fcntl
import ipaddress
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from ganger import __version__
from ganger.launcher.health.procfs import start_ticks
from ganger.settings import Home, HomeError, make_private

LOCK_TIMEOUT_S: Final = 2.0
"""Time for which a server that shuts down may keep the lock before the next one reports a second server."""
BACKLOG: Final = 256
MAX_PORT: Final = 65_535
_NETWORK_TYPES: Final = (
    "nfs",
    "cifs",
    "smb",
    "fuse.sshfs",
    "lustre",
    "beegfs",
    "ceph",
    "glusterfs",
    "fuse.glusterfs",
    "gpfs",
    "9p",
)
"""Prefixes of the types of network file systems, as in /proc/self/mounts."""


class ServerStartError(Exception):
    """The server cannot start. `detail` says what happened and why, `next` what to type."""

    def __init__(self, detail: str, next: str = "ganger doctor") -> None:
        super().__init__(detail)
        self.detail = detail
        self.next = next


def prepare_home(home: Home) -> None:
    """Create the state directory. ServerStartError if it is not private or on a network file system."""
    try:
        make_private(home.path)
    except HomeError as error:
        raise ServerStartError(str(error), error.next) from None
    if kind := network_filesystem(home.path):
        detail = f"{home.path} is on a network file system ({kind}), which could corrupt the event log"
        raise ServerStartError(detail, "set GANGER_HOME to a directory on a local disk")


def network_filesystem(path: Path) -> str | None:
    """Return the type of the network file system that `path` is on, or None when it is on a local disk.

    SQLite's log in WAL mode needs memory shared between processes, which no network file system gives
    (sqlite.org/wal.html).
    """
    path, kind, depth = path.resolve(), "", 0
    for mount in psutil.disk_partitions(all=True):
        mount_point = Path(mount.mountpoint)
        # The deepest mount point above the path; of two at the same path the later one hides the other.
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= depth:
            kind, depth = mount.fstype, len(mount_point.parts)
    return kind if kind.startswith(_NETWORK_TYPES) else None


@contextmanager
def lock_state_directory(home: Home, lock_fd: int | None) -> Iterator[int]:
    """Lock the state directory and yield the file descriptor.

    lock_fd: the lock that this process kept across a restart. It stays locked when the process reexecutes itself; the
    file has the pid of the holder.
    """
    lock = lock_fd if lock_fd is not None else _open_private(home.server_lock)
    os.set_inheritable(lock, False)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _already_running(home, lock) from None
            time.sleep(0.02)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    yield lock


def holds_lock(home: Home, lock: int) -> bool:
    """Tell if the lock file of the state directory is still the one that this server has locked."""
    try:
        return os.path.samestat(home.server_lock.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False
    except OSError:  # unreadable for now: no reason to give up the lock
        return True


def missing_file(home: Home) -> Path | None:
    """Return a file of the server that was deleted, or None."""
    for path in (home.socket("server"), home.socket("launcher"), home.database):
        try:
            path.lstat()
        except FileNotFoundError:
            return path
        except OSError:
            continue
    return None


def remove_stale_socket(path: Path) -> Path:
    """Remove a socket that a dead server left at `path`; anything else raises ServerStartError."""
    try:
        make_private(path.parent)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return path
    except HomeError as error:
        raise ServerStartError(str(error), error.next) from None
    if not stat.S_ISSOCK(mode):
        raise ServerStartError(f"{path} is in the way: it is not a socket", f"move it elsewhere: mv {path} {path}.old")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return path
        except (BlockingIOError, TimeoutError):
            pass  # in use, with a full backlog
        except OSError as error:
            raise ServerStartError(
                f"another process uses the socket {path}: {error.strerror or error}", _show_owner(path)
            ) from None
    raise ServerStartError(f"the socket {path} is in use by another program", _show_owner(path))


def create_database(home: Home) -> None:
    """Create an empty, private file for the event log; SQLite gives its other files the same mode.

    Raise ServerStartError if the log of existing jobs is lost: an empty one would show them as if they had never been.
    """
    if loss := lost_log(home):
        raise ServerStartError(*loss)
    os.close(_open_private(home.database))


def lost_log(home: Home) -> tuple[str, str] | None:
    """Return what happened and what to type if jobs have files, but no event log; None if nothing is missing.

    A log that was moved aside (`event_log.move_aside_command`) is not missing.
    """
    path = home.database
    if path.exists() and path.stat().st_size:
        return None
    jobs = len(list(home.jobs.iterdir())) if home.jobs.is_dir() else 0
    backups = path.parent.glob(f"{path.name}.before-restore-*")
    if not jobs or {*path.parent.glob(f"{path.name}.*")} - {*backups}:
        return None
    happened = "is empty" if path.exists() else "does not exist"
    found = f"{home.jobs} has files of {jobs} job{'s' if jobs > 1 else ''}"
    start_over = f"to start with an empty log and keep these files: mv {home.jobs} {home.jobs}.old"
    return f"{path} {happened}, but {found}: the event log was deleted", f"put a copy of it back; {start_over}"


@contextmanager
def unix_listener(path: Path) -> Iterator[socket.socket]:
    """Listen at a private socket `path`, which is removed afterwards."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def tcp_listener(address: str, *, has_token: bool) -> Iterator[socket.socket]:
    """Listen on TCP at `HOST:PORT`.

    ServerStartError if that fails, or if it would be open to other machines without any token to authenticate them.
    """
    host, _, port = address.rpartition(":")
    try:
        number = range(MAX_PORT + 1)[int(port) if port.isdecimal() else MAX_PORT + 1]
        family, kind, _, _, socket_address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
        is_loopback = ipaddress.ip_address(socket_address[0]).is_loopback
    except (OSError, ValueError, IndexError):
        remedy = "ganger server start --listen 127.0.0.1:7878"
        raise ServerStartError(f"{address} is not a valid address: write HOST:PORT", remedy) from None
    if not is_loopback and not has_token:
        detail = f"{address} is open to other machines, and there is no token to authenticate them"
        raise ServerStartError(detail, "ganger token create NAME, then ganger server stop, and start it again")
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(socket_address)
        except OSError as error:
            raise ServerStartError(f"cannot listen at {address}: {error.strerror}", "choose another port") from None
        listener.listen(BACKLOG)
        yield listener


@contextmanager
def publish_address(home: Home, path: Path, url: str | None, fingerprint: str | None) -> Iterator[None]:
    """Write server.json for clients, and remove it afterwards.

    url: the TCP address, if there is one; fingerprint: that of its certificate, if it has one.
    """
    record = {
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "socket": str(path),
        "launcher_socket": str(home.socket("launcher")),
        "version": __version__,
        "url": url,
        "fingerprint": fingerprint,
    }
    draft = home.server_file.with_name(".server.json.draft")
    with os.fdopen(_open_private(draft), "w") as file:
        file.truncate()
        json.dump(record, file)
    draft.replace(home.server_file)
    try:
        yield
    finally:
        home.server_file.unlink(missing_ok=True)


def _open_private(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerStartError(f"cannot write {path}: {error.strerror}") from None


def _already_running(home: Home, lock: int) -> ServerStartError:
    """Return the error that another server holds the lock."""
    with suppress(OSError):
        pid = os.pread(lock, 32, 0).decode(errors="replace").strip()
        if pid.isdecimal():
            return ServerStartError(f"another server is running for {home.path}: pid {pid}", "ganger server status")
    return ServerStartError(f"another server is running for {home.path}", "ganger server status")


def _show_owner(path: Path) -> str:
    return f"find the program: ss -xlp | grep {path}"
