"""A proxy between a server and its launchers, which cuts or holds the connection of one of them; not a bench."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Key = tuple[str, str]
"""Gang and node."""


class Proxy:
    """Takes the place of the server's socket: launchers connect to its path, and find this."""

    def __init__(self, path: Path) -> None:
        self._behind = path.with_name("behind.sock")
        path.rename(self._behind)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._cut: set[Key] = set()
        self._held: set[Key] = set()
        self._open: dict[Key, list[socket.socket]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def part(self, gang: str, node: str, *, is_cut: bool) -> Callable[[], object]:
        """Cut the connection and refuse others, or keep it silent; return what ends that."""
        key = gang, node
        if not is_cut:
            self._held.add(key)
            return lambda: self._held.discard(key)
        self._cut.add(key)
        for connection in self._open.pop(key, []):
            _hang_up(connection)
        return lambda: self._cut.discard(key)

    def close(self) -> None:
        _hang_up(self._listener)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, launcher: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            while b"\n" not in data:
                piece = launcher.recv(65536)
                if not piece:
                    break
                data += piece
        with suppress(ValueError, KeyError, OSError):
            hello = json.loads(data.partition(b"\n")[0])
            key = hello["gang"], hello["node"]
            if key not in self._cut:
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._behind))
                self._open.setdefault(key, []).extend((launcher, server))
                server.sendall(data)
                for pair in ((launcher, server), (server, launcher)):
                    threading.Thread(target=self._pump, args=[key, *pair], daemon=True).start()
                return
        _hang_up(launcher)

    def _pump(self, key: Key, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                while key in self._held:
                    time.sleep(0.01)
                target.sendall(data)
        _hang_up(source)
        _hang_up(target)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
