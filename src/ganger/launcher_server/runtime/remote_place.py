"""Part of a place whose launchers share no disk with the server: they receive their plans, and send their records."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from ganger.launcher_server import message_events
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.remote_records import RemoteRecords
from ganger.launcher_server.runtime.gang_runtime import GangRuntime
from ganger.model.cluster import Node
from ganger.model.decision import Stop
from ganger.model.job import Job
from ganger.ports import LaunchPlan, LaunchPlanner, LiveGeneration

AttemptId = tuple[str, int]
"""A gang's id and the number of its generation."""


class RemotePlace(ABC):
    """Plans and records of launchers, each of which serves one generation: the common part of `Place`.

    Attributes:
        runtime: the runtime; set by `open`.
    """

    keeps_launchers = False
    runtime: GangRuntime

    def __init__(self, compose: LaunchPlanner, loop: asyncio.AbstractEventLoop) -> None:
        self._compose = compose
        self.records = RemoteRecords(self._connection, loop)
        self._addresses: dict[AttemptId, dict[str, str]] = {}
        self._running_nodes: dict[AttemptId, list[str]] = {}
        """Nodes whose launcher has its plan already."""
        self._newest_reports: dict[str, dict[str, Any]] = {}

    def warm_up(self, generation: Generation, stop: Stop) -> list[str]:
        return []  # a launcher serves one generation

    @abstractmethod
    def token(self, gang: str, node: str, generation: int) -> str | None:
        """Return the token of a launcher; for the node "", that of the generation's remote-start agents."""

    @abstractmethod
    def node(self, name: str) -> Node:
        """Return a node of a generation; the address that its launcher reports counts first."""

    def directory(self, job: Job) -> str:
        """Return the directory in which the ranks of a job run."""
        return job.origin.directory

    @abstractmethod
    def complete(self, plan: LaunchPlan, job: Job) -> LaunchPlan:
        """Return a plan with what only this place knows, such as the path of the secrets, or a lighthouse's address."""

    def open(self, runtime: GangRuntime, live: tuple[LiveGeneration, ...]) -> None:
        self.runtime = runtime

    def begin(self, generation: Generation, previous: Generation | None) -> None:
        if previous is not None:
            self.forget_attempt(previous)
        self.prepare(generation)

    def is_placing(self, generation: Generation) -> bool:
        """Return False: a launcher that starts while its generation ends has no plan, and leaves when it connects."""
        return False

    def prepare(self, generation: Generation) -> None:
        """Record the plan of each node, which must be known before a launcher reports an exit."""
        with suppress(Exception):  # the error is reported when the plan is to be run
            for plan in self._plans(generation, {}):
                self.records.plan(plan)

    def progress(self, job: str) -> dict[str, Any] | None:
        """Return the newest report of rank 0."""
        return self._newest_reports.get(job)

    def forget_attempt(self, generation: Generation) -> None:
        """Forget the launchers of a generation that is over."""
        self._addresses.pop((generation.gang, generation.number), None)
        self._running_nodes.pop((generation.gang, generation.number), None)

    # -- Place ---------------------------------------------------------------------------------------------------------

    def address(self, gang: str, node: str) -> str | None:
        generation = self.runtime.generations.get(gang)
        return None if generation is None else self._addresses.get((gang, generation.number), {}).get(node)

    def admits(self, hello: Hello) -> bool:
        return True

    def connected(self, generation: Generation, connection: Connection, hello: Hello) -> None:
        attempt = (hello.gang, hello.generation)
        self._addresses.setdefault(attempt, {})[hello.node] = hello.address or ""
        running_nodes = self._running_nodes.setdefault(attempt, [])
        if hello.generation in hello.generations and hello.node not in running_nodes:
            running_nodes.append(hello.node)
        if not generation.stopping:
            self._send_plans(generation)

    def message_received(self, hello: Hello, message: dict[str, Any], current: Generation | None) -> bool:
        if message["generation"] != hello.generation:
            raise BadMessage(f"{message['type']}: the message is about another attempt than its connection")
        if message["type"] == "progressed" and current is not None and 0 in current.ranks_of[hello.node]:
            self._newest_reports[hello.gang] = message_events.newest_report(message, time.time_ns() // 1_000_000)
        ranks = None if current is None else current.ranks
        return self.records.message_received(hello.gang, hello.node, message, ranks)

    def forget(self, gang: str, generation: Generation | None) -> None:
        if generation is not None:
            self.forget_attempt(generation)
        self.records.forget(gang)
        self._newest_reports.pop(gang, None)

    def _connection(self, gang: str, node: str) -> Connection | None:
        return self.runtime.connection(gang, node)

    def _send_plans(self, generation: Generation) -> None:
        """Send every launcher its plan once all are connected: only then are all addresses known."""
        attempt = (generation.gang, generation.number)
        addresses, running_nodes = self._addresses[attempt], self._running_nodes.get(attempt, [])
        if len(addresses) < len(generation.start.nodes):
            return
        try:
            plans = self._plans(generation, addresses)
        except Exception as error:  # noqa: BLE001 - plug-ins make plans; whatever they raise, the gang must not hang
            self.runtime.fail(generation, generation.start.nodes[0], f"cannot make a launch plan: {error}")
            return
        for plan in plans:
            connection = self.runtime.connection(generation.gang, plan.node)
            if plan.node not in running_nodes and connection is not None:
                token = self.token(plan.gang, "", plan.generation) if plan.agent else None
                full_plan = replace(plan, inherits=True, agent_address=addresses[plan.node] if token else "")
                full_plan = self.complete(replace(full_plan, agent_token=token or ""), generation.job)
                # A place that runs no lighthouse leaves it to the user to give the address of one.
                full_plan = replace(full_plan, lighthouse=())
                connection.send("run", generation=generation.number, plan=asdict(full_plan))

    def _plans(self, generation: Generation, addresses: Mapping[str, str]) -> tuple[LaunchPlan, ...]:
        """Return the plans with the addresses of nodes known so far. Raises whatever plug-ins raise."""
        nodes = {name: self.node(name) for name in generation.start.nodes}
        nodes = {name: replace(node, address=addresses.get(name, node.address)) for name, node in nodes.items()}
        start = replace(generation.start, host=nodes[generation.start.nodes[0]].address)
        plans = self._compose(start, generation.job, nodes, self.directory(generation.job))
        return tuple(replace(plan, pauses=generation.pauses) for plan in plans)
