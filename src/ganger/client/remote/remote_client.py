"""Client of a server on another machine."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ganger.client.client import GONE_S, SIGN_OF_LIFE_S, Client
from ganger.client.client_errors import ClientError
from ganger.client.local.follow_requests import Record, at_once
from ganger.client.local.http import Request
from ganger.client.remote.logins import Login, login_of
from ganger.client.remote.remote_server import RemoteServer
from ganger.client.remote.run_command import run_command
from ganger.client.remote.send_code import send_code
from ganger.settings import Home, logins_file

POLL_S: Final = 0.5


def client_at(url: str) -> "RemoteClient":
    """Return the client of the server at a URL; raise Refused if the user has not logged in to it."""
    return RemoteClient(login_of(url, logins_file(os.environ)))


class RemoteClient(Client):
    """A client of the server that a login names. It starts none, and needs nothing of that machine's disk."""

    def __init__(self, login: Login) -> None:
        """Create a client without connecting."""
        super().__init__(Home(Path("/")))
        self.socket = self._server = RemoteServer(login)
        self._was_reached = False

    def connect(self, **_: Any) -> "RemoteClient":
        """Check that the server answers and accepts the token; raise ClientError.

        One that answered before may be restarting: it is waited for.
        """
        if not self._was_reached or not self.came_back():
            self._ask_server()
        return self

    @property
    def place(self) -> str:
        return str(self.socket)

    def address(self) -> Record:
        return {"socket": None, "url": str(self.socket)}

    def bring(self, request: Record) -> Record:
        return send_code(self.link, request)

    def run_command(self, id: str, command: Sequence[str], *, rank: int | None, node: str | None, flags: str) -> int:
        """Have the server run the command; it ends with this process, or with the token."""
        return run_command(self._server, id, command, {"rank": rank, "node": node}, flags)

    def came_back(self) -> bool:
        """Wait for a server that restarts, or a network that fails for a while; raise ClientError for another fault."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            try:
                self._ask_server()
            except ClientError as error:
                if error.code not in ("unreachable", "timeout"):
                    raise
                time.sleep(POLL_S)
            else:
                return True
        return False

    def _ask_server(self) -> None:
        at_once(self.link.ask(Request("GET", "/server", timeout_s=SIGN_OF_LIFE_S)))
        self._was_reached = True
