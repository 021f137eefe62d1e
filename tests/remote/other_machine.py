"""A server that other machines reach over TLS, and a user with a home of their own who reaches it only so."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.in_process import ganger_in_process
from tests.rest.serving import ServerHome
from tests.waiting import DEADLINE_S

GANGER = str(Path(sys.executable).parent / "ganger")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RemoteHome(ServerHome):
    """A state directory whose server listens beyond loopback."""

    def __init__(self, path: Path, *arguments: str) -> None:
        super().__init__(path)
        self.port = free_port()
        self.arguments = ["--listen", f"0.0.0.0:{self.port}", *arguments]
        self.client.connect().create_token("first", None)  # without one the server would not listen there
        self.client.shutdown()
        self.client.connect(arguments=self.arguments)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def fingerprint(self) -> str:
        fingerprint: str = json.loads(self.home.server_file.read_text())["fingerprint"]
        return fingerprint


class OtherMachine:
    """A user of another machine: what they type, with nothing of the server's files in their environment."""

    def __init__(self, folder: Path, server: RemoteHome) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self._server = server
        self.environment = {
            "HOME": str(folder),
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "GANGER_SERVER": server.url,
            "VIRTUAL_ENV": f"{folder}/venv",
        }

    @property
    def logins(self) -> Path:
        return Path(self.environment["HOME"]) / ".config" / "ganger" / "logins.json"

    def log_in(self, name: str, scope: str = "submit") -> None:
        token = self._server.client.create_token(name, None, scope)
        made = self("login", self._server.url, "--fingerprint", self._server.fingerprint, text=f"{token}\n")
        assert made.returncode == 0, made.stderr

    def __call__(self, *words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a command in the process of the tests, but `exec`, whose tests are about streams and signals."""
        if words[0] != "exec":
            return ganger_in_process(words, self.environment, self.work, text)
        return subprocess.run(
            [GANGER, *words],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            input=text,
            env=self.environment,
            cwd=self.work,
        )

    def start(self, *words: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [GANGER, *words], stdout=pipe, stderr=pipe, text=True, env=self.environment, cwd=self.work
        )
