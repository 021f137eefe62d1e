"""A host that is reached by ssh: one master connection for all commands, and for the link of its launchers.

No port is opened on either side: launchers connect to a unix socket in a private directory, which the connection
forwards to the server's. Requests and files go through stdin, so nothing but the program and a path is in a command.
"""

import asyncio
import base64
import json
import logging
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ganger.backends.local.job_files import JobFiles
from ganger.model.cluster import Node

PROGRAM: Final = (Path(__file__).parent / "remote.py").read_text()
OPTIONS: Final = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ForwardX11=no", "ControlPersist=no"),
    *("ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"),
)
CALL_TIMEOUT_S: Final = 60.0
MAX_PAUSE_S: Final = 5.0
_PIPE: Final = asyncio.subprocess.PIPE

_log = logging.getLogger(__name__)


class HostError(Exception):
    """A host that cannot be reached, or did not do what it was asked; the text is the reason."""


class Host:
    """One host, which ssh calls by the address of its node. control: the socket of the connection.

    Attributes:
        root: the directory on the host, once it was connected.
        is_up: set while it is connected.
        is_lost: it has not been connected for long.
        error: why it is not.
    """

    def __init__(self, node: Node, options: tuple[str, ...], control: Path, lost_after_s: float) -> None:
        self.node, self._control, self._lost_after_s = node, control, lost_after_s
        flags = [word for option in (*OPTIONS, *options) for word in ("-o", option)]
        self._ssh = ["ssh", *flags, "-S", str(control), "-T"]
        self._directory = f"~/.cache/ganger-{control.parent.name}/{node.name}"
        self.root, self.error = "", "not connected yet"
        self.is_up, self.is_lost = asyncio.Event(), False

    def command(self, *words: str) -> list[str]:
        """Return the command that runs another one on the host, each word quoted for the shell there."""
        return [*self._ssh, "--", self.node.address, shlex.join(words)]

    async def call(self, verb: str, **fields: Any) -> Any:
        """Have `remote` do something and return its answer. Raises HostError."""
        command = self.command("python3", "-I", "-S", "-c", PROGRAM, self.root or self._directory)
        return json.loads(await _output(command, json.dumps({"verb": verb, **fields}).encode()))

    async def run(self, files: JobFiles, changed: Callable[["Host"], None]) -> None:
        """Stay connected until cancelled; launchers reach the server's socket. `changed`: `is_up` has changed."""
        loop, pause_s, content = (
            asyncio.get_running_loop(),
            0.5,
            base64.b64encode(await asyncio.to_thread(files.launcher.read_bytes)).decode(),
        )
        up_s = loop.time()
        while True:
            try:
                master = await self._connect()
                try:
                    self.root = await self.call("install", launcher=files.launcher.name, content=content)
                    sockets = f"{self.root}/server.sock:{self._control.with_name('server.sock')}"
                    forward = ("-O", "forward", "-R", sockets, "--", self.node.address)
                    await _output([*self._ssh, *forward], b"")
                    self.is_lost, pause_s = False, 0.5
                    self.is_up.set()
                    changed(self)
                    await master.wait()
                    up_s = loop.time()
                    self.error = "the connection broke"
                finally:
                    with suppress(ProcessLookupError):
                        master.terminate()
            except (HostError, OSError, ValueError) as error:
                self.error = str(error)
            _log.warning("%s is not connected: %s", self.node.name, self.error)
            self.is_up.clear()
            self.is_lost = loop.time() - up_s > self._lost_after_s
            changed(self)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _connect(self) -> asyncio.subprocess.Process:
        """Return the master connection, once it is there. Its command ends with it."""
        self._control.unlink(missing_ok=True)
        command = [self._ssh[0], "-M", *self.command("sh", "-c", "echo; exec cat")[1:]]
        master = await asyncio.create_subprocess_exec(
            *command, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE, start_new_session=True
        )
        assert master.stdout is not None and master.stderr is not None  # noqa: S101, PT018 - pipes
        if not await master.stdout.readline():
            raise HostError((await master.stderr.read()).decode(errors="replace").strip() or "ssh has ended")
        return master


async def _output(command: list[str], data: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(*command, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE)
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            output, errors = await process.communicate(data)
    except TimeoutError:
        raise HostError(f"no answer within {CALL_TIMEOUT_S:.0f} s") from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or [f"ssh exited with {process.returncode}"]
        raise HostError(lines[-1])
    return output
