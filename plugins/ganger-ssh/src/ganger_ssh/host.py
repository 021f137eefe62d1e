"""A host that is reached by ssh: one master connection for commands, copies, and the link of its launchers.

No port is opened: launchers connect to a unix socket in a private directory, which the connection forwards to the
server's. Requests go through stdin: nothing but the program and a path is in a command.
"""

import asyncio
import json
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ganger.backends.local.job_files import JobFiles
from ganger.model.cluster import Node

PROGRAM: Final = (Path(__file__).parent / "remote.py").read_text()
OPTIONS: Final = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ForwardX11=no", "ControlPersist=no"),
    *("ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ExitOnForwardFailure=yes"),
)
PAUSE_S: Final = 1.0
_PIPE: Final = asyncio.subprocess.PIPE


class Host:
    """One host, which ssh calls by the address of its node. control: the directory of the connection's socket.

    root, at: the directory on the host, and what `copy` calls it, once it was connected. is_late: it was not for long.
    """

    def __init__(self, node: Node, options: list[str], control: Path, lost_after_s: float, files: JobFiles) -> None:
        self.node, self.root, self.at = replace(node, unready="not connected yet"), "", ""
        self._control, self._lost_after_s, self._files = control / f"{node.name}.ctl", lost_after_s, files
        flags = [word for option in (*OPTIONS, *options) for word in ("-o", option)]
        self._flags = ["ssh", *flags, "-S", str(self._control), "-T"]
        self.ssh = [*self._flags, "--", node.address]
        self.is_up, self.is_late = asyncio.Event(), False

    def command(self, *words: str) -> list[str]:
        """Return the command that runs another one on the host, each word quoted for the shell there."""
        return [*self.ssh, shlex.join(words)]

    async def call(self, verb: str, **fields: Any) -> Any:
        """Have `remote` do something and return its answer, once the host is connected. Raises OSError."""
        while True:
            await self.is_up.wait()
            command = self.command("python3", "-I", "-S", "-c", PROGRAM, self.root, self._files.launcher.name)
            try:
                return json.loads(await output(command, json.dumps({"verb": verb, **fields}).encode()))
            except (ConnectionError, TimeoutError):
                await asyncio.sleep(PAUSE_S)

    async def copy(self, source: str, target: str) -> None:
        """Copy what is new of a file, or of a directory, to the host or from it. Raises OSError."""
        command = ["rsync", "-rlpt", "--safe-links", "--inplace", "-e", shlex.join(self._flags), source, target]
        await output(command, timeout_s=None)

    async def run(self, changed: Callable[["Host"], None]) -> None:
        """Stay connected until cancelled; launchers reach the server's socket. Call `changed` when `is_up` changes."""
        up_s, reason = (loop := asyncio.get_running_loop()).time(), ""
        while True:
            changed(self)
            try:
                master = await self._connect()
                self.node, self.is_late = replace(self.node, unready=""), False
                self.is_up.set()
                changed(self)
                try:
                    await master.wait()
                    up_s, reason = loop.time(), "the connection broke"
                finally:
                    with suppress(ProcessLookupError):
                        master.terminate()
            except OSError as error:
                reason = str(error) or "no answer"
            self.is_up.clear()
            self.node = replace(self.node, unready=f"cannot be reached: {reason}")
            self.is_late = loop.time() - up_s > self._lost_after_s
            await asyncio.sleep(PAUSE_S)

    async def _connect(self) -> asyncio.subprocess.Process:
        """Return the master connection, once it is there, with the directory and the launcher. Raises OSError."""
        with suppress(OSError):
            await output([*self._flags, "-O", "exit", "--", self.node.address])  # of a server that was killed
        self._control.unlink(missing_ok=True)
        directory = shlex.quote(f".cache/ganger-{self._control.parent.name}/{self.node.name}")
        script = f"umask 077; mkdir -p {directory} && cd {directory} && rm -f server.sock && pwd -P"
        self.root = (await output(self.command("sh", "-c", script))).decode().strip()
        self.at = f"{self.node.address}:{self.root}/"
        await self.copy(str(self._files.launcher), self.at)
        socket = self._control.with_name("server.sock")
        forward = ("-M", "-N", "-n", "-R", f"{self.root}/server.sock:{socket}", "--", self.node.address)
        master = await asyncio.create_subprocess_exec(*self._flags, *forward, start_new_session=True)
        while master.returncode is None:
            await asyncio.sleep(PAUSE_S / 10)
            with suppress(OSError):
                await output([*self._flags, "-O", "check", "--", self.node.address])
                return master
        raise ConnectionError(f"ssh exited with {master.returncode}")


async def output(command: list[str], data: bytes = b"", timeout_s: float | None = 60.0) -> bytes:
    """Return the output of a command. Raises OSError, ConnectionError if the host cannot be reached."""
    process = await asyncio.create_subprocess_exec(*command, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE)
    try:
        async with asyncio.timeout(timeout_s):
            out, errors = await process.communicate(data)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise (ConnectionError if process.returncode in (255, 12) else OSError)(reason)  # codes of ssh and rsync
    return out
