"""`ganger top`: the cluster and its queue as a picture; who uses what at the moment, by job, by node or by queue."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from ganger.faces.cli.glance import Line, drawn, spoken, width_of
from ganger.faces.cli.options import DURATION, output_option
from ganger.faces.cli.render import Column, aligned, fancy, show, show_json, show_table
from ganger.faces.cli.run import connected
from ganger.faces.client import Client
from ganger.model.units import format_bytes, format_cpu, parse_duration_ms

Record = dict[str, Any]

VIEWS: Final = ("cluster", "jobs", "nodes", "queues")
STYLES: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "bold": {"bold": True},
    "dim": {"dim": True},
    "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
    "red": {"fg": "red"},
}
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class Picture:
    """A table with a line below it; `empty` is said instead of a table without rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    below: str
    empty: str


@click.command("top")
@click.argument("what", type=click.Choice(VIEWS), default="cluster")
@click.option("-r", "--refresh", type=DURATION, default="2s", help="How often to look again: 5s; without it: 2s.")
@click.option("--once", is_flag=True, help="Look once.")
@output_option
def top_command(what: str, refresh: str, once: bool, output: str) -> None:
    """Show the cluster and its queue as a picture; or what each rank, each node or each queue uses.

    Renewed until q: left and right go to another of these, up and down through one that is longer than the screen.
    Looks once with --once, with -o json, and where the output is no terminal. CPU is in processors, MEM is resident
    memory, GPU how busy the devices of a rank are, on average. What is used is not measured while nobody looks.
    """
    client = connected()
    if output == "json":
        show_json(_seen(client, what))
    elif once or not fancy(sys.stdout):
        _look(client, what)
    else:
        from ganger.faces.cli.watch import watch

        watch(VIEWS, what, max(0.5, parse_duration_ms(refresh) / 1000), lambda view, width: _lines(client, view, width))


def _look(client: Client, what: str) -> None:
    """Once, on stdout."""
    if what == "cluster":
        for line in drawn(_seen(client, what), width_of(sys.stdout)):
            if fancy(sys.stdout):
                show("".join(click.style(text, **STYLES[style]) for text, style in line))
            else:
                show(spoken(line))
        return
    picture = _drawn(_seen(client, what), what)
    show_table(picture.columns, picture.rows, picture.empty)
    if picture.below:
        show(f"\n{picture.below}")


def _lines(client: Client, what: str, width: int) -> list[Line]:
    """The same, for a screen."""
    seen = _seen(client, what)
    if what == "cluster":
        return list(drawn(seen, width))
    picture = _drawn(seen, what)
    if not picture.rows:
        return [[(picture.empty, "")]]
    title, *rows = aligned(picture.columns, picture.rows)
    return [[(title, "bold")], *([(row, "")] for row in rows), [], [(picture.below, "")]]


def _seen(client: Client, what: str) -> Record:
    """The picture; or the samples, and beside them the nodes or the queues."""
    if what == "cluster":
        return client.overview()
    samples = client.samples()
    if what == "jobs":
        return samples
    return samples | ({"nodes": client.nodes()} if what == "nodes" else {"queues": client.queues()})


def _drawn(seen: Record, what: str) -> Picture:
    return {"jobs": _jobs, "nodes": _nodes, "queues": _queues}[what](seen)


def _jobs(seen: Record) -> Picture:
    columns = (
        *(Column("JOB"), Column("RANK", right=True), Column("NODE"), Column("DEVICES"), Column("CPU", right=True)),
        *(Column("MEM", right=True), Column("GPU", right=True), Column("GPU MEM")),
    )
    gpus = {(gpu["node"], gpu["device"]): gpu for gpu in seen["gpus"]}
    rows = []
    for each in seen["ranks"]:
        held = [gpu for device in each["devices"] if (gpu := gpus.get((each["node"], device)))]
        rows.append(
            (
                each["job"],
                _NONE if each["rank"] is None else str(each["rank"]),
                each["node"],
                _numbers(each["devices"]),
                *_used([each]),
                *_busy(held),
            )
        )
    jobs = len({each["job"] for each in seen["ranks"]})
    cpu, memory = _used(seen["ranks"])
    below = f"{jobs} job{'' if jobs == 1 else 's'} use{'s' * (jobs == 1)} {cpu} CPUs and {memory}" if rows else ""
    return Picture(columns, rows, below, "nothing runs: ganger ls")


def _nodes(seen: Record) -> Picture:
    columns = (
        *(Column("NAME"), Column("STATUS", state=True), Column("GPU(Total)", right=True)),
        *(Column("GPU(Allocated)", right=True), Column("CPU", right=True), Column("MEM", right=True)),
        *(Column("GPU", right=True), Column("GPU MEM")),
    )
    rows = []
    for node in seen["nodes"]:
        ranks = [each for each in seen["ranks"] if each["node"] == node["name"]]
        cpu, memory = _used(ranks)
        rows.append(
            (
                node["name"],
                node["state"],
                str(node["gpus"]),
                str(node["gpus"] - node["gpus_free"]),
                f"{cpu}/{format_cpu(node['cpu_milli'])}",
                f"{memory}/{format_bytes(node['memory_bytes'])}",
                *_busy([gpu for gpu in seen["gpus"] if gpu["node"] == node["name"]]),
            )
        )
    total = sum(node["gpus"] for node in seen["nodes"])
    used = total - sum(node["gpus_free"] for node in seen["nodes"])
    below = f"Allocated/Total GPUs of nodes: {used}/{total} ({100 * used // total}%)" if total else "no GPUs"
    return Picture(columns, rows, below, "no nodes: ganger doctor")


def _queues(seen: Record) -> Picture:
    columns = (
        *(Column("QUEUE"), Column("RUNNING", right=True), Column("PENDING", right=True), Column("GPUS", right=True)),
        *(Column("CPU", right=True), Column("MEM", right=True), Column("GPU", right=True), Column("GPU MEM")),
    )
    gpus = {(gpu["node"], gpu["device"]): gpu for gpu in seen["gpus"]}
    rows = []
    for queue in seen["queues"]:
        ranks = [each for each in seen["ranks"] if each["queue"] == queue["name"]]
        devices = {(each["node"], device): None for each in ranks for device in each["devices"]}
        nominal = queue["nominal"]["gpus"]
        used = str(queue["used"]["gpus"]) + ("" if nominal is None else f"/{nominal}")
        busy = _busy([gpus[device] for device in devices if device in gpus])
        rows.append((queue["name"], str(queue["running"]), str(queue["pending"]), used, *_used(ranks), *busy))
    return Picture(columns, rows, "", "no queues")


def _used(ranks: Iterable[Record]) -> tuple[str, str]:
    """Processors and memory of all these together."""
    each = list(ranks)
    return f"{sum(one['cpu_milli'] for one in each) / 1000:.1f}", format_bytes(sum(one["memory_bytes"] for one in each))


def _busy(gpus: Sequence[Record]) -> tuple[str, str]:
    """How busy these GPUs are on average, and what is used of their memory together."""
    if not gpus:
        return _NONE, _NONE
    used, total = (format_bytes(sum(gpu[name] for gpu in gpus)) for name in ("memory_used_bytes", "memory_bytes"))
    return f"{sum(gpu['busy_percent'] for gpu in gpus) // len(gpus)}%", f"{used}/{total}"


def _numbers(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices)) or _NONE
