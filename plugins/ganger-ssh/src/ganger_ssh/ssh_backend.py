"""The backend of hosts: nodes from the topology file, launchers started by ssh, logs from copies of the hosts' files.

A launcher outlives the connection, and the server. When nothing of a host was heard for long its node is lost.
"""

import asyncio
import hashlib
import hmac
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.local_backend import FileBackend
from ganger.backends.local.machine import machine
from ganger.backends.local.topology_file import read_topology
from ganger.launcher.build_archive import build
from ganger.launcher_server.connection import Hello
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.runtime.gang_runtime import GangRuntime, NodeEnd
from ganger.launcher_server.runtime.remote_place import RemotePlace
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.event import NodeLost, NodeReturned, NodesListed
from ganger.model.job import Job
from ganger.model.units import parse_duration_ms
from ganger.ports import BackendContext, LaunchPlan, LiveGeneration
from ganger.settings import Home, SettingsError, make_private, read_key
from ganger_ssh.host import PAUSE_S, Host, output

QUOTING: Final = (
    "import os, shlex, sys; n = int(sys.argv[1]); os.execvp('ssh', [*sys.argv[2:n], shlex.join(sys.argv[n:])])"
)
"""ssh joins words by blanks for a shell: here they are quoted, with those that the user adds."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table [ssh] of the settings file, as in README.md."""

    addresses: dict[str, Annotated[str, msgspec.Meta(pattern="^[^-]")]] = {}
    options: list[str] = []
    lost_after: str = "1m"


class SshPlace(RemotePlace):
    """The launchers on hosts, by node: `launcher_server.runtime.gang_runtime.Place`. Raises SettingsError."""

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context.compose, asyncio.get_running_loop())
        home = Home(context.home.resolve())
        try:
            settings = msgspec.convert(context.settings, Settings)
            lost_after_s = parse_duration_ms(settings.lost_after) / 1000
        except (msgspec.ValidationError, ValueError) as error:
            remedy = 'its keys are addresses, options and lost_after, as in `lost_after = "1m"`'
            raise SettingsError(f"the table ssh: {error}", remedy) from None
        if not home.topology.exists():
            raise SettingsError("the backend ssh has no hosts", "ganger server start --topology FILE")
        control = Path(f"/tmp/ganger-{os.getuid()}") / hashlib.sha256(os.fsencode(home.path)).hexdigest()[:12]  # noqa: S108
        make_private(control.parent)
        make_private(control)
        self.files = JobFiles(home.path, home.socket("launcher"), build(home.path, packed=True), context.log_bytes)
        (control / "server.sock").unlink(missing_ok=True)
        (control / "server.sock").symlink_to(self.files.socket)  # ssh would take a path with `:` or `%` apart
        self._key, self._cluster = read_key(home.path / "ssh.key"), read_topology(home.topology, machine(home.jobs))
        self.hosts, self._lost = dict[str, Host](), set[str]()
        for node in self._cluster.nodes:
            address, devices = settings.addresses.get(node.name, node.name), tuple(range(node.gpus))
            host = replace(node, address=address, device_ids=devices)
            self.hosts[node.name] = Host(host, settings.options, control, lost_after_s, self.files)

    def task(self, gang: str, node: str, generation: int | str) -> str:
        """Return the path of a launcher's directory, relative to the root of its host."""
        return f"{self.files.task(gang, node).path.relative_to(self.files.home)}/attempts/{generation}"

    def open(self, runtime: GangRuntime, live: tuple[LiveGeneration, ...]) -> None:
        super().open(runtime, live)
        for generation in runtime.generations.values():
            self.begin(generation, None)
        for host in self.hosts.values():
            runtime.run(host.run(lambda changed: runtime.run(self._host_changed(changed))))

    def begin(self, generation: Generation, previous: Generation | None) -> None:
        super().begin(generation, previous)
        for node in list(generation.remaining):
            self.runtime.run(self._serve(generation, node))

    async def _serve(self, generation: Generation, node: str) -> None:
        """Start the launcher unless it was started before, and watch it until it is connected, or has ended."""
        if node not in self.hosts:
            detail = f"{node} is not in the topology file any more"
            return self.runtime.fail(generation, node, detail, Cause.NODE_LOST)
        host, task = self.hosts[node], self.task(generation.gang, node, generation.number)
        try:
            while True:
                state = await host.call("state", task=task)
                if node not in generation.remaining or self.runtime.connection(generation.gang, node) is not None:
                    return None
                if state["started"] and not state["runs"]:
                    end = NodeEnd(Cause.LAUNCHER_LOST, f"the launcher of {node} ended: {state['last_line']}")
                    return self.runtime.conclude(generation, node, end)
                if not state["started"]:
                    if generation.stopping or generation.failed:
                        return None
                    await self._start(generation, host, task)
                await asyncio.sleep(PAUSE_S)
        except OSError as error:
            detail = f"no launcher can be started on {node} in {generation.job.origin.directory}: {error}"
            return self.runtime.fail(generation, node, detail)

    async def _start(self, generation: Generation, host: Host, task: str) -> None:
        job, root, name = generation.job, host.root, host.node.name
        files = {"token": self.token(generation.gang, name, generation.number)}
        if job.spec.secrets:
            files["secrets.json"] = self.files.secrets(job.id).read_text()
        if job.spec.code:
            await host.copy(f"{self.files.code(job.id)}/", f"{host.at}{task}/work/")
        zipapp, number = f"{root}/{self.files.launcher.name}", str(generation.number)
        launcher = {
            "args": ["python3", "-I", "-S", zipapp, f"{root}/{task}", f"unix:{root}/server.sock", number],
            "cwd": f"{task}/work" if job.spec.code else job.origin.directory,
            "env": {"GANGER_GANG": generation.gang, "GANGER_NODE": name, "GANGER_POD_IP": host.node.address},
        }
        await host.call("start", task=task, files=files, launcher=launcher)

    def token(self, gang: str, node: str, generation: int) -> str:
        return hmac.digest(self._key, f"{gang}\0{node}\0{generation}".encode(), "sha256").hex()

    def node(self, name: str) -> Node:
        return self.hosts[name].node

    def complete(self, plan: LaunchPlan, job: Job) -> LaunchPlan:
        local = self.files.task(plan.gang, plan.node)
        local.make()
        local.write_plan(plan)  # for readers of logs
        path = f"{self.hosts[plan.node].root}/{self.task(plan.gang, plan.node, plan.generation)}"
        directory, secrets = f"{path}/work" if job.spec.code else plan.directory, f"{path}/secrets.json"
        plan = replace(plan, inherits=False, directory=directory, log_bytes=self.files.log_bytes)
        return replace(plan, secrets=secrets if job.spec.secrets else None)

    def disconnected(self, hello: Hello) -> None:
        generation = self.runtime.generations.get(hello.gang)
        if generation is not None and generation.number == hello.generation:
            self.runtime.run(self._serve(generation, hello.node))

    def end(self, generation: Generation, nodes: list[str]) -> None:
        for node in nodes:
            self.runtime.conclude(generation, node, NodeEnd(Cause.LAUNCHER_LOST, f"the launcher of {node} was ended"))

    kill = end

    async def sweep(self, generation: Generation, node: str) -> None:
        if node in self.hosts:
            await self.hosts[node].call("end", tasks=self.task(generation.gang, node, generation.number))

    async def _host_changed(self, host: Host) -> None:
        """Report the hosts; one was connected, disconnected or lost."""
        name = host.node.name
        if host.is_late and name not in self._lost:
            self._lost.add(name)
            self.runtime.report(NodeLost(node=name, detail=f"it {host.node.unready}"))
            self.runtime.lose(name)
        elif name in self._lost and host.is_up.is_set():  # it is back once nothing of what ran there runs any more
            await host.call("end", tasks="jobs/**/attempts/*")
            self._lost.discard(name)
            self.runtime.report(NodeReturned(node=name))
        nodes, lost = tuple(host.node for host in self.hosts.values()), tuple(sorted(self._lost))
        self.runtime.report(NodesListed(nodes=nodes, levels=self._cluster.levels, lost=lost))


class SshBackend(FileBackend):
    """Processes on hosts: the implementation of `ports.Backend`, which documents the methods."""

    def __init__(self, context: BackendContext) -> None:
        self._place = SshPlace(context)
        super().__init__(self._place.files, self._place, asyncio.get_running_loop())

    def delete(self, gang: str) -> None:
        path = self._files.job(gang).relative_to(self._files.home)
        for host in self._place.hosts.values():
            if host.is_up.is_set():
                command = host.command("rm", "-rf", "--", f"{host.root}/{path}")
                asyncio.run_coroutine_threadsafe(output(command), self._loop)
        super().delete(gang)

    def progress(self, job: str) -> dict[str, Any] | None:
        return self._place.progress(job)

    def exec_command(self, gang: str, node: str) -> tuple[str, ...]:
        host, task = self._place.hosts[node], self._place.task(gang, node, self._runtime.generations[gang].number)
        zipapp = f"{host.root}/{self._files.launcher.name}"
        words = (*host.ssh, "python3", "-I", "-S", zipapp, "exec", f"{host.root}/{task}")
        return (sys.executable, "-I", "-S", "-c", QUOTING, str(2 + len(host.ssh)), *words)

    def refresh(self, gang: str) -> None:
        async def copy() -> None:
            copies = [
                host.copy(f"{host.at}{self._place.task(gang, task.node, '*')}/[0-9]*", f"{task.path}/")
                for task in self._files.tasks(gang)
                if (host := self._place.hosts.get(task.node)) is not None and host.is_up.is_set()
            ]
            await asyncio.gather(*copies, return_exceptions=True)

        with suppress(TimeoutError, RuntimeError):
            asyncio.run_coroutine_threadsafe(copy(), self._loop).result(60.0)
