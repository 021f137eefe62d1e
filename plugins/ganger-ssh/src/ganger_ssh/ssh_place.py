"""Hosts as a place of the gang runtime: one launcher for each node of a generation, started by ssh.

A launcher outlives the connection, and the server. Once nothing of a host was heard for a while its node is lost; what
still runs there is stopped when its launcher connects again.
"""

import asyncio
import hashlib
import hmac
import io
import tarfile
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ganger.backends.local.job_files import JobFiles
from ganger.launcher_server.connection import Hello
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.runtime.gang_runtime import GangRuntime, NodeEnd
from ganger.launcher_server.runtime.remote_place import AttemptId, RemotePlace
from ganger.model.cluster import Cluster
from ganger.model.decision import Cause
from ganger.model.event import NodeLost, NodeReturned, NodesListed
from ganger.ports import LaunchPlan, LaunchPlanner, LiveGeneration
from ganger_ssh.host import Host, HostError

CHECK_S: Final = 1.0
SECRETS: Final = "secrets.json"
CODE: Final = "code.tar"


class SshPlace(RemotePlace):
    """The launchers on hosts: `launcher_server.runtime.gang_runtime.Place`. key: from which tokens are derived."""

    def __init__(
        self, files: JobFiles, cluster: Cluster, hosts: Mapping[str, Host], compose: LaunchPlanner, key: bytes
    ) -> None:
        super().__init__(asyncio.get_running_loop())
        self._files, self._levels, self.hosts, self._compose, self._key = files, cluster.levels, hosts, compose, key
        self._placing: set[AttemptId] = set()
        self._lost: set[str] = set()

    def task(self, gang: str, node: str, generation: int) -> str:
        """Return the path of a launcher's directory, relative to the root of its host."""
        return str(self._files.task(gang, node).path.relative_to(self._files.home) / "attempts" / str(generation))

    # -- place ---------------------------------------------------------------------------------------------------------

    def open(self, runtime: GangRuntime, live: tuple[LiveGeneration, ...]) -> None:
        super().open(runtime, live)
        self._list_nodes()
        for generation in runtime.generations.values():
            self.prepare(generation)
            runtime.run(self._place(generation))
        for host in self.hosts.values():
            runtime.run(host.run(self._files, self._host_changed))

    def begin(self, generation: Generation, previous: Generation | None) -> None:
        if previous is not None:
            self.forget_attempt(previous)
        self.prepare(generation)
        self.runtime.run(self._place(generation))

    def is_placing(self, generation: Generation) -> bool:
        return (generation.gang, generation.number) in self._placing

    async def _place(self, generation: Generation) -> None:
        """Start the launchers that were not started before; watch over those that were."""
        attempt = (generation.gang, generation.number)
        self._placing.add(attempt)
        try:
            await asyncio.gather(*(self._start(generation, node) for node in list(generation.remaining)))
        finally:
            self._placing.discard(attempt)
        if generation.stopping is not None:
            self.runtime.end(generation, generation.stopping)

    async def _start(self, generation: Generation, node: str) -> None:
        """Start a launcher, as long as its generation is wanted; its host need not be reached before."""
        task, host = self.task(generation.gang, node, generation.number), self.hosts.get(node)
        output = str(self._files.output(generation.job.id).relative_to(self._files.home))
        if host is None:
            self.runtime.fail(generation, node, f"{node} is not in the topology file any more", Cause.NODE_LOST)
            return
        while generation.stopping is None and not generation.failed and node in generation.remaining:
            try:
                if host.is_up.is_set():
                    if not (await host.call("state", task=task))["started"]:
                        command = await asyncio.to_thread(self._command, generation, host, task)
                        await host.call("start", task=task, output=output, command=command)
                    self.runtime.run(self._watch(generation, node))
                    return
            except (HostError, OSError) as error:
                if host.is_up.is_set():
                    detail = f"no launcher can be started on {node} in {generation.job.origin.directory}: {error}"
                    self.runtime.fail(generation, node, detail)
                    return
            await asyncio.sleep(CHECK_S)

    def _command(self, generation: Generation, host: Host, task: str) -> dict[str, Any]:
        """Return how a launcher is started: its words, files, variables, and the directory of the ranks."""
        job, number, path = generation.job, str(generation.number), f"{host.root}/{task}"
        files = {"token": self.token(generation.gang, host.node.name, generation.number).encode()}
        environment = {"GANGER_GANG": generation.gang, "GANGER_NODE": host.node.name}
        environment["GANGER_POD_IP"] = host.node.address
        if job.spec.secrets:
            files[SECRETS] = self._files.secrets(job.id).read_bytes()
        if job.spec.code:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive.add(self._files.code(job.id), ".")
            files[CODE] = buffer.getvalue()
            digest = hashlib.sha256(files[CODE]).hexdigest()
            environment |= {"GANGER_CODE_FILE": f"{path}/{CODE}", "GANGER_CODE_SHA256": digest}
        return {
            "argv": [f"{host.root}/{self._files.launcher.name}", path, f"unix:{host.root}/server.sock", number],
            "cwd": "" if job.spec.code else job.origin.directory,
            "files": {name: b64encode(content).decode() for name, content in files.items()},
            "environment": environment,
        }

    # -- reach ---------------------------------------------------------------------------------------------------------

    def token(self, gang: str, node: str, generation: int) -> str:
        return hmac.digest(self._key, f"{gang}\0{node}\0{generation}".encode(), "sha256").hex()

    def disconnected(self, hello: Hello) -> None:
        generation = self.runtime.generations.get(hello.gang)
        if generation is not None and generation.number == hello.generation:
            self.runtime.run(self._watch(generation, hello.node))

    def plans(self, generation: Generation, addresses: Mapping[str, str]) -> tuple[LaunchPlan, ...]:
        nodes = {name: self.hosts[name].node for name in generation.start.nodes}
        start = replace(generation.start, host=nodes[generation.start.nodes[0]].address)
        return self._compose(start, generation.job, nodes, generation.job.origin.directory)

    def complete(self, plan: LaunchPlan, generation: Generation, address: str) -> LaunchPlan:
        spec, root = generation.job.spec, self.hosts[plan.node].root
        path = f"{root}/{self.task(plan.gang, plan.node, plan.generation)}"
        output = self._files.output(generation.job.id).relative_to(self._files.home)
        task = self._files.task(plan.gang, plan.node)
        task.make()
        task.write_plan(plan)  # for readers of logs
        return replace(
            plan,
            inherits=False,
            directory=f"{path}/work" if spec.code else plan.directory,
            environment=plan.environment | {"GANGER_OUTPUT_DIR": f"{root}/{output}"},
            secrets=f"{path}/{SECRETS}" if spec.secrets else None,
            log_bytes=self._files.log_bytes,
            agent_address=address if plan.agent else "",
            agent_token=self.token(plan.gang, "", plan.generation) if plan.agent else "",
        )

    async def _watch(self, generation: Generation, node: str) -> None:
        """Wait until a launcher connects again, and conclude its generation on the node if it has ended."""
        task = self.task(generation.gang, node, generation.number)
        while True:
            await asyncio.sleep(CHECK_S)
            if node not in generation.remaining or self.runtime.connection(generation.gang, node) is not None:
                return
            state = await self._call(self.hosts[node], "state", task=task)
            if not state["runs"] and self.runtime.connection(generation.gang, node) is None:
                detail = f"the launcher of {node} ended: {state['last_line']}".rstrip(": ")
                self.runtime.conclude(generation, node, NodeEnd(Cause.LAUNCHER_LOST, detail))

    async def _call(self, host: Host, verb: str, **fields: Any) -> Any:
        """Have a host do something, once it can be reached. Raises HostError if it cannot do it."""
        while True:
            await host.is_up.wait()
            try:
                return await host.call(verb, **fields)
            except HostError:
                await asyncio.sleep(CHECK_S)  # the connection may have broken
                if host.is_up.is_set():
                    raise

    # -- end -----------------------------------------------------------------------------------------------------------

    def end(self, generation: Generation, nodes: list[str]) -> None:
        for node in nodes:
            self.runtime.run(self._end(generation, node))

    kill = end

    async def _end(self, generation: Generation, node: str) -> None:
        await self.sweep(generation, node)
        if node in generation.remaining:
            self.runtime.cleared(generation, [node])

    async def sweep(self, generation: Generation, node: str) -> None:
        if node in self.hosts:
            task = self.task(generation.gang, node, generation.number)
            await self._call(self.hosts[node], "end", task=task, launcher=self._files.launcher.name)

    def close(self) -> None:
        self._files.socket.unlink(missing_ok=True)

    def _host_changed(self, host: Host) -> None:
        """Report a host that was connected, disconnected or lost."""
        name = host.node.name
        if host.is_lost and name not in self._lost:
            self._lost.add(name)
            self.runtime.report(NodeLost(node=name, detail=f"it cannot be reached: {host.error}"))
            for generation in self.runtime.generations.values():
                if name in generation.remaining:
                    generation.failed.append(name)
                    generation.clear(name)
        elif name in self._lost and not host.is_lost:
            self.runtime.run(self._return(host))
        self._list_nodes()

    async def _return(self, host: Host) -> None:
        """Report that a lost host is back, once nothing of what ran there runs any more."""
        await self._call(host, "end", task="jobs/**/attempts/*", launcher=self._files.launcher.name)
        self._lost.discard(host.node.name)
        self.runtime.report(NodeReturned(node=host.node.name))
        self._list_nodes()

    def _list_nodes(self) -> None:
        nodes = (
            replace(host.node, unready="" if host.is_up.is_set() else f"cannot be reached: {host.error}")
            for host in self.hosts.values()
        )
        self.runtime.report(NodesListed(nodes=tuple(nodes), levels=self._levels, lost=tuple(sorted(self._lost))))
