"""Launchers that share no disk with their server, as in pods: real processes, TCP and TLS on loopback."""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import trustme

from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import Dispatcher
from ganger.launcher_server.listener import LauncherListener, server_context
from ganger.launcher_server.remote_records import RemoteRecords
from ganger.ports import LaunchPlan, RankPlan
from tests.launcher.harness import GANG, TOKEN
from tests.waiting import DEADLINE_S

HOST = "127.0.0.1"
Result = TypeVar("Result")


class Authority:
    """A certificate authority; its own certificate is `ca` (PEM)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.ca = directory / "ca.pem"
        self._directory, self._authority = directory, trustme.CA()
        self._authority.cert_pem.write_to_path(self.ca)

    def context(self, host: str = HOST) -> ssl.SSLContext:
        """Return the TLS context of a server reached at `host`."""
        issued = self._authority.issue_cert(host)
        certificate, key = self._directory / f"{host}.pem", self._directory / f"{host}.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return server_context(certificate, key)


class Controller:
    """A launcher listener on an event loop of its own, which sends each launcher its plan and trusts its messages."""

    def __init__(
        self,
        context: ssl.SSLContext | None,
        port: int = 0,
        prepare: Callable[["Controller"], None] = lambda controller: None,
    ) -> None:
        self.plans: dict[str, LaunchPlan] = {}
        self.tokens = dict.fromkeys(("n1", "n2", "n3"), TOKEN)
        self.dispatcher: Dispatcher | None = None
        self.hellos: list[Hello] = []
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[str] = []
        self._changed = threading.Condition()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.listener = LauncherListener(self, lambda gang, node, _: self.tokens.get(node) if gang == GANG else None)
        self.records = RemoteRecords(self.listener.connection, self.loop)
        prepare(self)
        self.port = self.do(self.listener.open(HOST, port, context))

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def send(self, node: str, kind: str, **fields: Any) -> None:
        async def send_message() -> None:
            connection = self.listener.connection(GANG, node)
            assert connection is not None
            connection.send(kind, **fields)

        self.do(send_message())

    def run(self, *plans: LaunchPlan) -> None:
        """Send plans to the launchers that are connected, and later to those that connect."""
        for plan in plans:
            self.plans[plan.node] = plan
            self.records.plan(plan)
            if plan.node in self.do(self._connected_nodes()):
                self.send(plan.node, "run", generation=plan.generation, plan=asdict(plan))

    def stop(self, node: str, generation: int = 1) -> None:
        self.send(node, "stop", generation=generation, cause="user", notice_ms=0, kill_after_ms=5_000)

    def wait(self, kind: str, node: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Return the `count`-th message of that kind with those fields."""

        def matching() -> list[dict[str, Any]]:
            return [
                message
                for sender, message in self.messages
                if (sender, message["type"]) == (node, kind) and fields.items() <= message.items()
            ]

        with self._changed:
            arrived = self._changed.wait_for(lambda: len(matching()) >= count, DEADLINE_S)
            assert arrived, f"no {kind} of {node} {fields}: received {self.kinds()}"
            return matching()[count - 1]

    def wait_for_hello(self, count: int = 1) -> Hello:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.hellos) >= count, DEADLINE_S), "no launcher connected"
            return self.hellos[count - 1]

    def kinds(self, node: str | None = None) -> list[str]:
        """Return the kinds of the numbered messages in the order of arrival."""
        return [message["type"] for sender, message in self.messages if message["n"] and node in (None, sender)]

    def close(self) -> None:
        async def shut() -> None:
            if self.dispatcher is not None:
                self.dispatcher.close()
            self.listener.close()
            await asyncio.sleep(0)

        self.do(shut())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def _connected_nodes(self) -> Iterable[str]:
        return self.listener.connections_of(GANG)

    # -- Listener of every connection ---------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        pass

    def launcher_connected(self, connection: Connection, hello: Hello) -> None:
        connection.send("welcome")
        if plan := self.plans.get(hello.node):
            connection.send("run", generation=plan.generation, plan=asdict(plan))
        with self._changed:
            self.hellos.append(hello)
            self._changed.notify_all()

    def message_received(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        ranks = {rank.rank for plan in self.plans.values() for rank in plan.ranks}
        is_record = self.records.message_received(hello.gang, hello.node, message, ranks)
        with self._changed:
            self.messages.append((hello.node, message))
            self._changed.notify_all()
        if self.dispatcher is not None and not is_record:
            self.dispatcher.message_received(connection, hello, message, self.dispatcher.current(hello, message))
        elif message["n"] is not None:
            connection.acknowledge(message["n"], None, lambda: None)

    def message_refused(self, hello: Hello, reason: str) -> None:
        with self._changed:
            self.refusals.append(reason)
            self._changed.notify_all()

    def launcher_disconnected(self, connection: Connection) -> None:
        pass


class Pod:
    """A pod: a directory of its own, a mounted token and certificate, and the launcher as the main process."""

    def __init__(self, directory: Path, archive: Path, node: str = "n1") -> None:
        self.node = node
        self.directory = directory
        self.task = directory / "task"
        self.task.mkdir(parents=True)
        self.token = directory / "mounted-token"
        self.token.write_text(TOKEN)
        self.ca = directory / "mounted-ca.pem"
        self.stdout = directory / "stdout"
        self.stderr = directory / "stderr"
        self.program: tuple[str, ...] = (str(archive),)
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, server: str, generation: int = 1, before: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ["PATH"],
            "GANGER_GANG": GANG,
            "GANGER_NODE": self.node,
            "GANGER_TOKEN_FILE": str(self.token),
            **({"GANGER_CA_FILE": str(self.ca)} if self.ca.exists() else {}),
            **variables,
        }
        command = [*before, sys.executable, "-I", "-S", *self.program, self.task, server, str(generation)]
        with self.stdout.open("ab") as stdout, self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
            )
        return self.process

    def plan(self, argv: list[str], ranks: Iterable[int] = (0,), generation: int = 1, **fields: Any) -> LaunchPlan:
        work = self.directory / "work"
        work.mkdir(exist_ok=True)
        return LaunchPlan(
            gang=GANG,
            node=self.node,
            generation=generation,
            directory=str(work),
            setup=fields.pop("setup", None),
            argv=tuple(argv),
            environment={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **fields.pop("environment", {})},
            ranks=tuple(RankPlan(rank=rank, environment={"GANGER_RANK": str(rank)}, ends=True) for rank in ranks),
            **fields,
        )

    def ended(self) -> int:
        """Wait for its exit code."""
        assert self.process is not None
        return self.process.wait(DEADLINE_S)

    def own_log(self) -> str:
        log = self.task / "launcher.log"
        return log.read_text() if log.exists() else ""

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


ListenFixture = Callable[..., Controller]
StartFixture = Callable[..., Pod]
