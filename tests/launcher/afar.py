"""Launchers that share no disk with their server, as in pods: real processes, TCP and TLS on loopback."""

import asyncio
import datetime
import ipaddress
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import Dispatcher
from ganger.launcher_server.listener import LauncherListener, server_context
from ganger.launcher_server.remote_records import RemoteRecords
from ganger.ports import LaunchPlan, RankPlan
from tests.launcher.harness import GANG, TOKEN

HOST = "127.0.0.1"
DEADLINE_S = 120.0
"""Of what comes at all: no more than that is said of how soon, on a machine that others use too."""
Result = TypeVar("Result")


def eventually(look: Callable[[], Any], what: str) -> Any:
    """The first true answer of `look`; AssertionError when none comes."""
    give_up_at = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_at:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


class Authority:
    """Signs certificates; its own is `ca` (PEM)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.ca = directory / "ca.pem"
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        own = self._certificate(self._key.public_key(), self._name).add_extension(usage, critical=True)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.ca.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def context(self, host: str = HOST) -> ssl.SSLContext:
        """Of a server that is reached at `host`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        signed = self._certificate(key.public_key(), x509.Name([])).add_extension(names, critical=True)
        signed = signed.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = signed.add_extension(issuer, critical=False)
        certificate, private = self._directory / f"{host}.pem", self._directory / f"{host}.key"
        certificate.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return server_context(certificate, private)

    def _certificate(self, key: ec.EllipticCurvePublicKey, subject: x509.Name) -> x509.CertificateBuilder:
        today = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - datetime.timedelta(days=1))
            .not_valid_after(today + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )


class Controller:
    """A door on an event loop of its own. It tells each launcher that comes the plan that is for it, and believes what
    it hears."""

    def __init__(
        self,
        context: ssl.SSLContext | None,
        port: int = 0,
        prepare: Callable[["Controller"], None] = lambda controller: None,
    ) -> None:
        self.plans: dict[str, LaunchPlan] = {}
        self.tokens = dict.fromkeys(("n1", "n2", "n3"), TOKEN)
        self.hearing: Dispatcher | None = None
        self.hellos: list[Hello] = []
        self.heard_of: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[str] = []
        self._news = threading.Condition()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.door = LauncherListener(self, lambda gang, node: self.tokens.get(node) if gang == GANG else None)
        self.told = RemoteRecords(self.door.connection, self.loop)
        prepare(self)
        self.port = self.do(self.door.open(HOST, port, context))

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def send(self, node: str, kind: str, **fields: Any) -> None:
        async def say() -> None:
            connection = self.door.connection(GANG, node)
            assert connection is not None
            connection.send(kind, **fields)

        self.do(say())

    def run(self, *plans: LaunchPlan) -> None:
        """To the launchers that are there, and to those that will come."""
        for plan in plans:
            self.plans[plan.node] = plan
            self.told.plan(plan)
            if plan.node in self.do(self._there()):
                self.send(plan.node, "run", generation=plan.generation, plan=asdict(plan))

    def stop(self, node: str, generation: int = 1) -> None:
        self.send(node, "stop", generation=generation, cause="user", notice_ms=0, kill_after_ms=5_000)

    def wait(self, kind: str, node: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """The message of that kind with those fields, the `count`-th of them."""

        def matching() -> list[dict[str, Any]]:
            return [
                message
                for whose, message in self.heard_of
                if (whose, message["type"]) == (node, kind) and fields.items() <= message.items()
            ]

        with self._news:
            came = self._news.wait_for(lambda: len(matching()) >= count, DEADLINE_S)
            assert came, f"no {kind} of {node} {fields}: heard {self.kinds()}"
            return matching()[count - 1]

    def wait_for_hello(self, count: int = 1) -> Hello:
        with self._news:
            assert self._news.wait_for(lambda: len(self.hellos) >= count, DEADLINE_S), "nobody came"
            return self.hellos[count - 1]

    def kinds(self, node: str | None = None) -> list[str]:
        """The facts in the order they came."""
        return [message["type"] for whose, message in self.heard_of if message["n"] and node in (None, whose)]

    def close(self) -> None:
        async def shut() -> None:
            if self.hearing is not None:
                self.hearing.close()
            self.door.close()
            await asyncio.sleep(0)

        self.do(shut())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def _there(self) -> Iterable[str]:
        return self.door.of_gang(GANG)

    # -- as the door's listener ---------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        pass

    def greeted(self, connection: Connection, hello: Hello) -> None:
        connection.send("welcome")
        if plan := self.plans.get(hello.node):
            connection.send("run", generation=plan.generation, plan=asdict(plan))
        with self._news:
            self.hellos.append(hello)
            self._news.notify_all()

    def heard(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        ranks = {rank.rank for plan in self.plans.values() for rank in plan.ranks}
        is_for_told = self.told.heard(hello.gang, hello.node, message, ranks)
        with self._news:
            self.heard_of.append((hello.node, message))
            self._news.notify_all()
        if self.hearing is not None and not is_for_told:
            self.hearing.heard(connection, hello, message, self.hearing.current(hello, message))
        elif message["n"] is not None:
            connection.acknowledge(message["n"], None, lambda: None)

    def refused(self, hello: Hello, why: str) -> None:
        with self._news:
            self.refusals.append(why)
            self._news.notify_all()

    def parted(self, connection: Connection) -> None:
        pass


class Pod:
    """A directory of its own, a token and a certificate that are mounted, and the launcher as the main process."""

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
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
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
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(DEADLINE_S)

    def own_log(self) -> str:
        log = self.task / "launcher.log"
        return log.read_text() if log.exists() else ""

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


Listens = Callable[..., Controller]
Starts = Callable[..., Pod]
