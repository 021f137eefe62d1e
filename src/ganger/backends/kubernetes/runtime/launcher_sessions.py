"""Sessions of launchers: what is sent to connected launchers, and what their messages lead to."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.nodes.node_patience import LauncherContact, LauncherEvidence
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_template import SECRETS, WORK
from ganger.backends.kubernetes.runtime.runtime_state import AttemptId, RuntimeState
from ganger.launcher_server import message_events
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import LauncherWorld, send_stop
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.listener import LauncherListener
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.remote_records import RemoteRecords
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Stop
from ganger.ports import LaunchPlan, LaunchPlanner

GenerationCallback = Callable[[Generation, str], None]
"""Called with a generation and a node of it."""


class LauncherSessions:
    """Launchers of all generations, as the handler of the launcher listener.

    Args:
        state: the shared state.
        bootstrap: tokens of launchers.
        compose: makes launch plans.
        disconnected: called when a node of a generation has no connection any more.
        rejected: called when a launcher's messages were refused too often, so that its pod has to be deleted.
    """

    def __init__(
        self,
        state: RuntimeState,
        bootstrap: PodBootstrap,
        compose: LaunchPlanner,
        disconnected: GenerationCallback,
        rejected: GenerationCallback,
    ) -> None:
        self._state, self._bootstrap, self._compose = state, bootstrap, compose
        self._disconnected, self._rejected = disconnected, rejected
        self.listener = LauncherListener(self, self._token)
        self.records = RemoteRecords(self.listener.connection, state.loop)
        self._contact = LauncherContact()
        self._addresses: dict[AttemptId, dict[str, str]] = {}
        self._running_nodes: dict[AttemptId, list[str]] = {}
        """Nodes whose launcher has its plan already."""
        self._newest_reports: dict[str, dict[str, Any]] = {}

    @property
    def world(self) -> LauncherWorld:
        """View of the sessions for the dispatcher."""
        return LauncherWorld(self._state.generations.get, self.connection, self._address, self.records)

    def connection(self, gang: str, node: str) -> Connection | None:
        """Return the connection of a gang's launcher on a node; None without one."""
        return self.listener.connection(gang, node)

    def by_node(self) -> dict[str, LauncherEvidence]:
        """Return what the launchers of each node show about it by being connected or not."""
        return self._contact.by_node(self._state.generations.values(), self.connection)

    def progress(self, job: str) -> dict[str, Any] | None:
        """Return the newest report of rank 0."""
        return self._newest_reports.get(job)

    def prepare(self, generation: Generation) -> None:
        """Record the plan of each node, which must be known before a launcher reports an exit."""
        with suppress(Exception):  # the error is reported when the plan is to be run
            for plan in self._plans(generation, {}):
                self.records.plan(plan)

    def forget(self, gang: str) -> None:
        """Dismiss the launchers of a gang that has ended."""
        for connection in self.listener.connections_of(gang).values():
            connection.send("leave")
        self.records.forget(gang)
        self._newest_reports.pop(gang, None)

    def forget_attempt(self, generation: Generation) -> None:
        """Forget the sessions of a generation that is over."""
        self._contact.forget(generation)
        self._addresses.pop((generation.gang, generation.number), None)
        self._running_nodes.pop((generation.gang, generation.number), None)

    # -- launcher listener ---------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Do nothing before the launcher has identified itself."""

    def launcher_connected(self, connection: Connection, hello: Hello) -> None:
        """Handle a launcher that connected, for the first time or again: send it what applies now."""
        if not self._state.is_open or self._state.cache.is_ignored(hello.gang):
            connection.close()
            return
        connection.send("welcome")
        generation = self._state.generations.get(hello.gang)
        is_current = (
            generation is not None and generation.number == hello.generation and hello.node in generation.remaining
        )
        if generation is None or not is_current:
            for number in hello.generations:
                send_stop(connection, Stop(gang=hello.gang, generation=number, cause=Cause.USER))
            connection.send("leave")
            return
        attempt = (hello.gang, hello.generation)
        self._contact.connected(hello.gang, hello.node)
        self._addresses.setdefault(attempt, {})[hello.node] = hello.address or ""
        running_nodes = self._running_nodes.setdefault(attempt, [])
        if hello.generation in hello.generations and hello.node not in running_nodes:
            running_nodes.append(hello.node)
        if generation.stopping:
            send_stop(connection, generation.stopping)
        else:
            self._send_plans(generation)

    def message_received(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        """Handle a message about a generation, current or not: the core tells them apart."""
        if not self._state.is_open:
            return
        if message["generation"] != hello.generation:
            raise BadMessage(f"{message['type']}: the message is about another attempt than its connection")
        current = self._state.dispatcher.current(hello, message)
        if self.records.message_received(hello.gang, hello.node, message, None if current is None else current.ranks):
            return
        self._state.dispatcher.message_received(connection, hello, message, current)
        match message["type"]:
            case "cleared":
                connection.send("leave")  # its pod is of this generation alone
            case "progressed" if current is not None and 0 in current.ranks_of[hello.node]:
                report = message_events.newest_report(message, time.time_ns() // 1_000_000)
                self._newest_reports[hello.gang] = report

    def message_refused(self, hello: Hello, why: str) -> None:
        """Handle a refused message: after several in a row the launcher's pod is deleted."""
        if self._state.is_open and self._state.dispatcher.message_refused(hello, why):
            self._rejected(self._state.generations[hello.gang], hello.node)

    def launcher_disconnected(self, connection: Connection) -> None:
        """Handle a lost connection; the launcher may connect again."""
        hello = connection.hello
        generation = self._state.generations.get(hello.gang) if hello and self._state.is_open else None
        if hello is None or generation is None or generation.number != hello.generation:
            return
        if hello.node in generation.remaining and self.connection(hello.gang, hello.node) is None:
            self._contact.disconnected(hello.gang, hello.node, self._state.loop.time())
            self._disconnected(generation, hello.node)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _send_plans(self, generation: Generation) -> None:
        """Send every launcher its plan once all are connected: only then are all addresses known."""
        attempt = (generation.gang, generation.number)
        addresses, running_nodes = self._addresses[attempt], self._running_nodes.get(attempt, [])
        if len(addresses) < len(generation.start.nodes):
            return
        try:
            plans = self._plans(generation, addresses)
        except Exception as error:  # noqa: BLE001 - plug-ins make plans; whatever they raise, the gang must not hang
            self._state.report_failure(generation, generation.start.nodes[0], f"cannot make a launch plan: {error}")
            return
        secrets = SECRETS if generation.job.spec.secrets else None
        for plan in plans:
            connection = self.connection(generation.gang, plan.node)
            if plan.node in running_nodes or connection is None:
                continue
            complete_plan = replace(plan, inherits=True, secrets=secrets)
            if plan.agent:
                token = self._bootstrap.agent_token(generation.gang, self._uid(generation.gang), generation.number)
                complete_plan = replace(complete_plan, agent_address=addresses[plan.node], agent_token=token)
            connection.send("run", generation=generation.number, plan=asdict(complete_plan))

    def _token(self, gang: str, node: str, generation: int) -> str | None:
        """Return the token of one launcher; None if its GangJob was deleted. Raises ValueError for other ids."""
        uid = self._uid(gang)
        return self._bootstrap.token(gang, uid, generation, node) if uid else None

    def _uid(self, gang: str) -> str:
        """Return the UID of a gang's GangJob; empty if it was deleted."""
        job = self._state.cache.jobs.get(object_names.key_of(gang))
        return "" if job is None else job.metadata.uid

    def _plans(self, generation: Generation, addresses: Mapping[str, str]) -> tuple[LaunchPlan, ...]:
        """Return the plans with the addresses known so far. Raises whatever plug-ins raise."""
        names = generation.start.nodes
        nodes = {name: self._state.cache.nodes.get(name) or Node(name=name) for name in names}
        nodes = {name: replace(node, address=addresses.get(name, node.address)) for name, node in nodes.items()}
        start = replace(generation.start, host=nodes[names[0]].address)
        return self._compose(start, generation.job, nodes, WORK)

    def _address(self, gang: str, node: str) -> str | None:
        generation = self._state.generations.get(gang)
        return None if generation is None else self._addresses.get((gang, generation.number), {}).get(node)
