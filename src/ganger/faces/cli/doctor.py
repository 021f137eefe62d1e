"""`ganger doctor`: one screen about this machine and the server; what is wrong comes with its repair."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from ganger import __version__, settings
from ganger.faces.cli.options import output_option
from ganger.faces.cli.render import show, show_json_array
from ganger.faces.client import Client, ClientError
from ganger.model.units import GIB_BYTES, MIB_BYTES, format_bytes
from ganger.settings import BadHome, Home

OK: Final = "ok"
WARNING: Final = "warning"
FAULT: Final = "fault"
_COLOURS: Final = {OK: "green", WARNING: "yellow", FAULT: "red"}

UNREACHABLE: Final = 5
LITTLE_BYTES: Final = GIB_BYTES
"""Less free space than this is worth a word: checkpoints and logs are about to need it."""
TOO_LITTLE_BYTES: Final = 100 * MIB_BYTES
"""With less than this the event log may not be written."""
NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `state` is ok, warning or fault; `next` is what to type."""

    check: str
    state: str
    detail: str
    next: str = ""


@click.command("doctor")
@output_option
def doctor_command(output: str) -> int:
    """Check this machine and the server; each fault comes with its repair.

    Starts the server if none runs. Exits with 5 when there is a fault. Needs no network.
    """
    findings = list(examine(settings.home(os.environ)))
    if output == "json":
        show_json_array(asdict(finding) for finding in findings)
    else:
        for finding in findings:
            mark = click.style(f"{finding.state:7}", fg=_COLOURS[finding.state])
            what, *more = finding.detail.splitlines()
            show(f"{mark}  {finding.check:9}  {what}")
            for line in more:
                show(f"{'':20}{line}")
            if finding.next:
                show(f"{'':20}next: {finding.next}")
    return UNREACHABLE if any(finding.state == FAULT for finding in findings) else 0


def examine(home: Home) -> Iterator[Finding]:
    """Look at everything; what depends on a server only when there is one."""
    yield _python()
    directory = _directory(home)
    yield directory
    if directory.state == FAULT:
        return
    yield _disk(home)
    try:
        client = Client(home).connect()
        server, nodes = client.server(), client.nodes()
    except ClientError as error:
        yield Finding("server", FAULT, error.detail, error.next if error.next != "ganger doctor" else "")
        return
    yield _server(server)
    yield _nodes(nodes)
    yield _gpus(nodes)


def _python() -> Finding:
    found = shutil.which("python") or shutil.which("python3")
    if found is None:
        return Finding("python", WARNING, "no python on PATH: jobs that call it fail", "put one on PATH")
    return Finding("python", OK, f"jobs run {found}; ganger {__version__}")


def _directory(home: Home) -> Finding:
    try:
        settings.make_private(home.path)
    except BadHome as error:
        return Finding("state", FAULT, str(error))
    if not os.access(home.path, os.W_OK | os.X_OK):
        return Finding("state", FAULT, f"{home.path} cannot be written", f"chmod 700 {home.path}")
    return Finding("state", OK, str(home.path))


def _disk(home: Home) -> Finding:
    free_bytes = shutil.disk_usage(home.path).free
    said = f"{format_bytes(free_bytes)} free for {home.path}"
    if free_bytes >= LITTLE_BYTES:
        return Finding("disk", OK, said)
    state = WARNING if free_bytes >= TOO_LITTLE_BYTES else FAULT
    return Finding("disk", state, said, "ganger ls --all, then ganger delete what is not needed any more")


def _server(server: dict[str, Any]) -> Finding:
    said = f"version {server['version']}, pid {server['pid']}, {server['seq']} events"
    if server["health"] != "ok":
        return Finding("server", FAULT, f"{said}\n{server['health']}", "ganger server logs")
    if server["version"] != __version__:
        return Finding("server", WARNING, f"{said}; this program is {__version__}", "ganger server restart")
    return Finding("server", OK, said)


def _nodes(nodes: list[dict[str, Any]]) -> Finding:
    out = [f"{node['name']} is {node['state']}" for node in nodes if node["state"] != "ready"]
    said = f"{len(nodes)} nodes" if len(nodes) != 1 else "1 node"
    if not nodes:
        return Finding("nodes", FAULT, "the server has no node to run anything on", "ganger server logs")
    if out:
        return Finding("nodes", WARNING, f"{said}; {', '.join(out)}", "ganger node uncordon NODE")
    return Finding("nodes", OK, f"{said}, all ready")


def _gpus(nodes: list[dict[str, Any]]) -> Finding:
    count = sum(node["gpus"] for node in nodes)
    if count:
        return Finding("gpus", OK, f"{count} GPUs: {', '.join(sorted({n['gpu_type'] for n in nodes if n['gpus']}))}")
    if NVIDIA_DRIVER.exists():
        return Finding("gpus", WARNING, "there is an NVIDIA driver, but the server lists no GPU", "ganger server logs")
    return Finding("gpus", OK, "none: jobs run on CPUs")
