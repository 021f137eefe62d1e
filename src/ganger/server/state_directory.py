"""A server's place in its state directory: the directory itself, the lock, the sockets, and what tells clients.

Called by `serve`. One state directory has one server: the lock decides, and the kernel frees it when a server dies.
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

from ganger import __version__
from ganger.settings import Home, HomeError, make_private, network_filesystem

LOCK_WITHIN_S: Final = 2.0
"""How long a server that ends may keep the lock before the next one calls itself a second."""
BACKLOG: Final = 256
MAX_PORT: Final = 65_535


class ServerStartError(Exception):
    """The server cannot start. `detail` says what and why, `next` what to type."""

    def __init__(self, detail: str, next: str = "ganger doctor") -> None:
        super().__init__(detail)
        self.detail = detail
        self.next = next


def check_home(home: Home) -> None:
    """Make the state directory. CannotServe when it is not this user's alone, or on a network file system."""
    try:
        make_private(home.path)
    except HomeError as error:
        raise ServerStartError(str(error), error.next) from None
    if kind := network_filesystem(home.path):
        detail = f"{home.path} is on a network file system ({kind}), where an event log could be corrupted"
        raise ServerStartError(detail, "set GANGER_HOME to a directory on a disk of this machine")


@contextmanager
def locked(home: Home, lock_fd: int | None) -> Iterator[int]:
    """The lock as a file descriptor; `lock_fd` is one that this process kept over a restart. It stays locked when the
    process runs itself anew, and the next server finds who holds it in the file."""
    lock = lock_fd if lock_fd is not None else _open_private(home.server_lock)
    os.set_inheritable(lock, False)
    deadline = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _second(home, lock) from None
            time.sleep(0.02)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    yield lock


def holds(home: Home, lock: int) -> bool:
    """Whether the lock of the state directory is still the one that this server has."""
    try:
        return os.path.samestat(home.server_lock.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False
    except OSError:  # it cannot be looked at now: that is no reason to give it up
        return True


def lost_files(home: Home) -> Path | None:
    """A file of the server that somebody has deleted, if there is one."""
    for path in (home.socket("server"), home.socket("launcher"), home.database):
        try:
            path.lstat()
        except FileNotFoundError:
            return path
        except OSError:
            continue
    return None


def clear_way(path: Path) -> Path:
    """See that a socket can be made at `path`: one that a dead server left is taken away, anything else is not."""
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
            pass  # somebody listens, with more callers than it takes
        except OSError as error:
            raise ServerStartError(f"something uses the socket {path}: {error.strerror or error}", _who(path)) from None
    raise ServerStartError(f"the socket {path} is in use by another program", _who(path))


def make_database(home: Home) -> None:
    """An empty file for the event log, for this user alone; SQLite gives its other files the same mode."""
    os.close(_open_private(home.database))


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket at `path` for this user alone; it is gone afterwards."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def listening_at(address: str, *, has_token: bool) -> Iterator[socket.socket]:
    """A TCP socket at `HOST:PORT`. CannotServe when it cannot be, or would be open to other machines and there is no
    token that anybody could show."""
    host, _, port = address.rpartition(":")
    try:
        number = range(MAX_PORT + 1)[int(port) if port.isdecimal() else MAX_PORT + 1]
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
        is_loopback = ipaddress.ip_address(where[0]).is_loopback
    except (OSError, ValueError, IndexError):
        remedy = "ganger server start --listen 127.0.0.1:7878"
        raise ServerStartError(f"{address} is no address to listen at: write HOST:PORT", remedy) from None
    if not is_loopback and not has_token:
        why = f"{address} is open to other machines, and there is no token by which to tell who comes"
        raise ServerStartError(why, "ganger token create NAME, then ganger server stop, and start it again")
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where)
        except OSError as error:
            raise ServerStartError(f"cannot listen at {address}: {error.strerror}", "choose another port") from None
        listener.listen(BACKLOG)
        yield listener


@contextmanager
def announced(home: Home, path: Path, url: str | None) -> Iterator[None]:
    """server.json, for clients; gone afterwards. `url`: where it listens beside the socket, if it does."""
    record = {
        "pid": os.getpid(),
        "start_ticks": _start_ticks(),
        "socket": str(path),
        "launcher_socket": str(home.socket("launcher")),
        "version": __version__,
        "url": url,
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


def _second(home: Home, lock: int) -> ServerStartError:
    """Somebody else holds the lock."""
    with suppress(OSError):
        pid = os.pread(lock, 32, 0).decode(errors="replace").strip()
        if pid.isdecimal():
            return ServerStartError(f"another server runs for {home.path}: pid {pid}", "ganger server status")
    return ServerStartError(f"another server runs for {home.path}", "ganger server status")


def _who(path: Path) -> str:
    return f"see who: ss -xlp | grep {path}"


def _start_ticks() -> int:
    """Field 22 of /proc/self/stat (proc_pid_stat(5)): tells this process from a later one with its pid."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
