"""The controller's listener for agents in this process: the real TLS server, gate and endpoint.

The API server's part in the review of tokens is played: a token is the name of the agent's node.
"""

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ganger import registry
from ganger.check_api.rule_tables import OWN_RULES
from ganger.controller.agents.agent_endpoint import AgentEndpoint, AgentGate
from ganger.controller.agents.cluster_agents import ClusterAgents
from ganger.core.state.state import State
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Condition, Key, Node, NodeStatus, ObjectMeta, Pod
from ganger.model.node_health.fault import Fault
from ganger.server.assembly import _TcpRestServer
from ganger.server.http_connection import StrangerRelease
from ganger.server.job_activity import JobActivity
from ganger.server.machine_health import SampleChecks
from ganger.server.tls_certificate import CertificateFiles, self_signed

HOST = "127.0.0.1"


class PlayedLoop:
    """A loop without jobs that keeps the events that are posted to it."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._state = State(find_score=registry.score)

    @contextmanager
    def view(self) -> Iterator[State]:
        """Hold the state."""
        yield self._state

    def post_all(self, events: Any) -> None:
        """Keep the faults."""
        self.faults += [event.fault for event in events]


class PlayedCluster:
    """Nodes and pods, the agents of the nodes, and the faults that checks find."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = {Key("", name): Node(metadata=ObjectMeta(name=name)) for name in nodes}
        self.pods: dict[Key, Pod] = {}
        self.loop = PlayedLoop()
        self.checks = SampleChecks(self.loop, OWN_RULES, tuple)  # type: ignore[arg-type]
        activity = JobActivity(self.loop, lambda *_: (), lambda _: 0)  # type: ignore[arg-type]
        self.agents = ClusterAgents(self.nodes, self.pods, lambda: time.time_ns() // 1_000_000, self.checks, activity)

    def set_condition(self, node: str, name: str, status: str) -> None:
        """Have a program report a condition of a node."""
        condition = Condition(type=name, status=status, message="as observed")
        self.nodes[Key("", node)] = Node(metadata=ObjectMeta(name=node), status=NodeStatus(conditions=(condition,)))

    def add_pod(self, namespace: str, name: str, devices: str = "") -> None:
        """Add a pod; devices: the slots that the core gave it."""
        annotations = {object_names.DEVICES: devices} if devices else {}
        self.pods[Key(namespace, name)] = Pod(
            metadata=ObjectMeta(name=name, namespace=namespace, annotations=annotations)
        )


class Listening:
    """A listener.

    reviews: tokens that were reviewed, in order.
    clients: addresses of the connections over which requests came.
    """

    def __init__(self, cluster: PlayedCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.reviews: list[str] = []
        self.clients: set[tuple[str, int]] = set()
        self.directory = folder / "controller"
        self.directory.mkdir(exist_ok=True)
        self.token = folder / "token"
        self.port = _free_port()
        self._pem, private = self_signed([HOST])
        (folder / "listener.crt").write_bytes(self._pem)
        (folder / "listener.key").write_bytes(private)

    def publish(self) -> None:
        """Write the address, as the leader does."""
        (self.directory / "ca.crt").write_bytes(self._pem)
        (self.directory / "url").write_text(f"https://{HOST}:{self.port}\n")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve for the duration of the context."""
        is_ready, end = threading.Event(), list[Any]()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(is_ready, end)))
        thread.start()
        try:
            assert is_ready.wait(30)
            yield
        finally:
            loop, is_over = end
            loop.call_soon_threadsafe(is_over.set)
            thread.join(30)

    async def _serve(self, is_ready: threading.Event, end: list[Any]) -> None:
        is_over = asyncio.Event()
        end += [asyncio.get_running_loop(), is_over]
        endpoint = AgentEndpoint(self.cluster.agents, self._node_of)
        gate = AgentGate(endpoint, StrangerRelease(endpoint), other_requests)
        certificate = CertificateFiles(self.folder / "listener.crt", self.folder / "listener.key")
        server: uvicorn.Server = _TcpRestServer(self._counted(gate), is_over, lambda: None, certificate)
        with socket.create_server((HOST, self.port)) as listener:
            listener.setblocking(False)
            serving = asyncio.create_task(server.serve([listener]))
            is_ready.set()
            await serving
        while server.server_state.connections:  # noqa: ASYNC110 - their transports have no event
            await asyncio.sleep(0.01)

    def _counted(self, app: ASGIApp) -> ASGIApp:
        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self.clients.add(tuple(scope["client"]))
            await app(scope, receive, send)

        return counted

    async def _node_of(self, token: str) -> str | None:
        self.reviews.append(token)
        return token if Key("", token) in self.cluster.nodes else None


async def other_requests(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer requests that are not agents'."""
    await PlainTextResponse("another gate")(scope, receive, send)


def _free_port() -> int:
    assert ipaddress.ip_address(HOST).is_loopback
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
