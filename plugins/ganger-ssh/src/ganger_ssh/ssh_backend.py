"""The backend of hosts: nodes from the topology file, and logs from copies of the hosts' files."""

import asyncio
import hashlib
import os
import sys
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.local_backend import FileBackend
from ganger.backends.local.machine import machine
from ganger.backends.local.topology_file import read_topology
from ganger.launcher.build_archive import build
from ganger.model.cluster import Cluster
from ganger.model.units import parse_duration_ms
from ganger.ports import BackendContext
from ganger.settings import Home, SettingsError, make_private, read_key
from ganger_ssh.host import Host
from ganger_ssh.ssh_place import SshPlace

PULL_TIMEOUT_S: Final = 60.0
KEYS: Final = ("addresses", "options", "lost_after")
QUOTING: Final = """
import os, shlex, sys
end = 1 + int(sys.argv[1])
os.execvp("ssh", [*sys.argv[2:end], sys.argv[end] + " " + shlex.join(sys.argv[end + 1 :])])
"""
"""ssh joins words by blanks for a shell: the user's, which follow, are quoted here."""


class SshBackend(FileBackend):
    """Processes on hosts: the implementation of `ports.Backend`, which documents the methods."""

    def __init__(self, context: BackendContext) -> None:
        home = Home(context.home.resolve())
        files = JobFiles(home.path, home.socket("launcher"), build(home.path, packed=True), context.log_bytes)
        cluster, options, lost_after_s = _read(home, context.settings)
        control = Path(f"/tmp/ganger-{os.getuid()}") / hashlib.sha256(os.fsencode(home.path)).hexdigest()[:12]  # noqa: S108
        make_private(control.parent)
        make_private(control)
        (control / "server.sock").unlink(missing_ok=True)
        (control / "server.sock").symlink_to(files.socket)  # ssh would take a path with `:` or `%` apart
        self._hosts = {
            node.name: Host(node, options, control / f"{node.name}.ctl", lost_after_s) for node in cluster.nodes
        }
        self._place = SshPlace(files, cluster, self._hosts, context.compose, read_key(home.path / "ssh.key"))
        super().__init__(files, self._place, asyncio.get_running_loop())

    def delete(self, gang: str) -> None:
        job = str(self._files.job(gang).relative_to(self._files.home))
        for host in self._hosts.values():
            if host.is_up.is_set():
                asyncio.run_coroutine_threadsafe(host.call("remove", job=job), self._loop)
        super().delete(gang)

    def progress(self, job: str) -> dict[str, Any] | None:
        return self._place.progress(job)

    def exec_command(self, gang: str, node: str) -> tuple[str, ...]:
        root, generation = self._hosts[node].root, self._runtime.generations[gang].number
        words = (f"{root}/{self._files.launcher.name}", "exec", f"{root}/{self._place.task(gang, node, generation)}")
        ssh = self._hosts[node].command("python3", "-I", "-S", *words)
        return (sys.executable, "-I", "-S", "-c", QUOTING, str(len(ssh)), *ssh)

    def refresh(self, gang: str) -> None:
        nodes = [task.node for task in self._files.tasks(gang)]
        pulls = [self._pull_from(self._hosts[node], gang) for node in nodes if node in self._hosts]

        async def pull() -> None:
            await asyncio.gather(*pulls, return_exceptions=True)

        with suppress(TimeoutError, RuntimeError):
            asyncio.run_coroutine_threadsafe(pull(), self._loop).result(PULL_TIMEOUT_S)

    async def _pull_from(self, host: Host, gang: str) -> None:
        local, name, has_more = self._files.task(gang, host.node.name), host.node.name, host.is_up.is_set()
        numbers = [int(path.stem.partition("-")[2]) for path in local.path.glob("plan-*.json")]
        folders = {f"{self._place.task(gang, name, number)}/{number}": local.generation(number) for number in numbers}
        while has_more:
            sizes = {
                path: {file.name: file.stat().st_size for file in copy.glob("*")} for path, copy in folders.items()
            }
            answer = await host.call("pull", folders=sizes)
            has_more = answer["has_more"]
            for path, file_name, offset, data in answer["pieces"]:
                folders[path].mkdir(mode=0o700, exist_ok=True)
                with (folders[path] / Path(file_name).name).open("r+b" if offset else "wb") as file:
                    file.seek(offset)
                    file.write(b64decode(data))


def _read(home: Home, settings: Mapping[str, Any]) -> tuple[Cluster, tuple[str, ...], float]:
    """Return the nodes of the topology file with their addresses, options of ssh, and when a host is lost."""
    if unknown := sorted(settings.keys() - KEYS):
        raise SettingsError(f"there is no setting ssh.{unknown[0]}", f"settings: ssh.{', ssh.'.join(KEYS)}")
    if not home.topology.exists():
        raise SettingsError("the backend ssh has no hosts", "ganger server start --topology FILE")
    try:
        lost_after_s = parse_duration_ms(str(settings.get("lost_after", "1m"))) / 1000
    except ValueError as error:
        raise SettingsError(f"ssh.lost_after: {error}", 'write it as in `lost_after = "1m"`') from None
    cluster, addresses = read_topology(home.topology, machine(home.jobs)), settings.get("addresses", {})
    nodes = [
        replace(node, address=str(addresses.get(node.name, node.name)), device_ids=tuple(range(node.gpus)))
        for node in cluster.nodes
    ]
    if wrong := [node for node in nodes if node.address.startswith("-")]:
        raise SettingsError(f"{wrong[0].address} is not the address of {wrong[0].name}", "write a host's name")
    return replace(cluster, nodes=tuple(nodes)), tuple(map(str, settings.get("options", ()))), lost_after_s
