"""`ganger top`: the cluster and its queue as a picture; who uses what at the moment, by job, by node or by queue."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import DURATION, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.queue_tree import in_tree, indented, with_all_below
from ganger.cli.output.tables import Column, aligned, fancy, show, show_json, show_table
from ganger.cli.output.top_view import Line, drawn, spoken, width_of
from ganger.client import Client
from ganger.client.kubernetes.controller_client import ControllerClient
from ganger.model.units import format_bytes, format_cpu, parse_duration_ms
from ganger.model.views.overview import ORDERS

Record = dict[str, Any]

SORTS: Final[dict[str, tuple[str, ...]]] = {
    "cluster": ORDERS,
    "jobs": ("job", "node", "cpu", "mem", "gpu"),
    "nodes": ("node", "gpus", "cpu", "mem", "gpu"),
    "queues": ("queue", "running", "pending", "gpus", "cpu", "mem", "gpu"),
}
"""What each of them may be sorted by: as it comes, or the most first."""
VIEWS: Final = tuple(SORTS)
STYLES: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "bold": {"bold": True},
    "dim": {"dim": True},
    "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
    "red": {"fg": "red"},
}
IN_CLUSTER: Final = {
    "jobs": "kubectl top pod -l ganger.dev/job",
    "nodes": "ganger --context NAME node",
    "queues": "ganger --context NAME queue",
}
"""With --context: what shows the most of each of these."""
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class TopView:
    """A table with a line below it; `empty` is said instead of a table without rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    below: str
    empty: str


def _sorts(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    return [each for each in SORTS.get(ctx.params.get("what") or "cluster", ()) if each.startswith(begun)]


def _sort_of(what: str, sort: str | None) -> str:
    """What it is sorted by. UsageError names the keys there are."""
    if sort is None:
        return SORTS[what][0]
    if sort not in SORTS[what]:
        raise click.UsageError(f"`ganger top {what}` is not sorted by {sort!r}: {', '.join(SORTS[what])}")
    return sort


@click.command("top")
@click.argument("what", type=click.Choice(VIEWS), default="cluster")
@click.option(
    "--sort", metavar="KEY", shell_complete=_sorts, help="Who comes first: turn, wait, gpus, priority, user, queue."
)
@click.option("-r", "--refresh", type=DURATION, default="2s", help="How often to look again: 5s; without it: 2s.")
@click.option("--once", is_flag=True, help="Look once.")
@output_option
def top_command(what: str, sort: str | None, refresh: str, once: bool, output: str) -> None:
    """Show the cluster and its queue as a picture; or what each rank, each node or each queue uses.

    Renewed until q: left and right go to another of these, up and down through one that is longer than the screen, s
    to another order. Looks once with --once, with -o json, and where the output is no terminal. CPU is in processors,
    MEM is resident memory, GPU how busy the devices of a rank are, on average. What is used is not measured while
    nobody looks.

    The picture is sorted by whose turn is next; jobs also by job, node, cpu, mem, gpu; nodes by node, gpus, cpu, mem,
    gpu; queues by queue, running, pending, gpus, cpu, mem, gpu.
    """
    by = _sort_of(what, sort)
    client = connected()
    views = {"cluster": ORDERS} if isinstance(client, ControllerClient) else SORTS
    if what not in views:
        raise Problem(f"nobody measures for `top {what}` what ranks use in a cluster", IN_CLUSTER[what])
    if output == "json":
        show_json(_seen(client, what, by))
    elif once or not fancy(sys.stdout):
        _look(client, what, by)
    else:
        from ganger.cli.output.live_screen import watch

        pause_s = max(0.5, parse_duration_ms(refresh) / 1000)
        watch(views, (what, by), pause_s, lambda view, by, width: _lines(client, (view, by), width))


def _look(client: Client, what: str, by: str) -> None:
    """Once, on stdout."""
    if what == "cluster":
        for line in drawn(_seen(client, what, by), width_of(sys.stdout)):
            if fancy(sys.stdout):
                show("".join(click.style(text, **STYLES[style]) for text, style in line))
            else:
                show(spoken(line))
        return
    picture = _drawn(_seen(client, what, by), what, by)
    show_table(picture.columns, picture.rows, picture.empty)
    if picture.below:
        show(f"\n{picture.below}")


def _lines(client: Client, view: tuple[str, str], width: int) -> list[Line]:
    """The same, for a screen."""
    what, by = view
    seen = _seen(client, what, by)
    if what == "cluster":
        return list(drawn(seen, width))
    picture = _drawn(seen, what, by)
    if not picture.rows:
        return [[(picture.empty, "")]]
    title, *rows = aligned(picture.columns, picture.rows)
    return [[(title, "bold")], *([(row, "")] for row in rows), [], [(picture.below, "")]]


def _seen(client: Client, what: str, by: str) -> Record:
    """The picture; or the samples, and beside them the nodes or the queues."""
    if what == "cluster":
        return client.overview(by)
    samples = client.samples()
    if what == "jobs":
        return samples
    return samples | ({"nodes": client.nodes()} if what == "nodes" else {"queues": client.queues()})


Rows = list[tuple[Record, tuple[str, ...]]]
"""What each row may be sorted by, and its cells."""


def _drawn(seen: Record, what: str, by: str) -> TopView:
    return {"jobs": _jobs, "nodes": _nodes, "queues": _queues}[what](seen, by)


def _sorted(rows: Rows, what: str, by: str) -> list[tuple[str, ...]]:
    """Names in their order, amounts from the most; as they came by what a view is sorted by anyway."""
    if by != SORTS[what][0]:
        rows = sorted(rows, key=lambda row: row[0][by] if isinstance(row[0][by], str) else -row[0][by])
    return [cells for _, cells in rows]


def _jobs(seen: Record, by: str) -> TopView:
    columns = (
        *(Column("JOB"), Column("RANK", right=True), Column("NODE"), Column("DEVICES"), Column("CPU", right=True)),
        *(Column("MEM", right=True), Column("GPU", right=True), Column("GPU MEM")),
    )
    gpus = {(gpu["node"], gpu["device"]): gpu for gpu in seen["gpus"]}
    rows: Rows = []
    for each in seen["ranks"]:
        held = [gpu for device in each["devices"] if (gpu := gpus.get((each["node"], device)))]
        rank = _NONE if each["rank"] is None else str(each["rank"])
        cells = each["job"], rank, each["node"], _numbers(each["devices"]), *_used([each]), *_busy(held)
        rows.append(({"node": each["node"]} | _amounts([each], held), cells))
    jobs = len({each["job"] for each in seen["ranks"]})
    cpu, memory = _used(seen["ranks"])
    below = f"{jobs} job{'' if jobs == 1 else 's'} use{'s' * (jobs == 1)} {cpu} CPUs and {memory}" if rows else ""
    return TopView(columns, _sorted(rows, "jobs", by), below, "nothing runs: ganger ls")


def _nodes(seen: Record, by: str) -> TopView:
    columns = (
        *(Column("NAME"), Column("STATUS", state=True), Column("GPU(Total)", right=True)),
        *(Column("GPU(Allocated)", right=True), Column("CPU", right=True), Column("MEM", right=True)),
        *(Column("GPU", right=True), Column("GPU MEM")),
    )
    ranks_of, gpus_of = _by_node(seen["ranks"]), _by_node(seen["gpus"])
    rows: Rows = []
    for node in seen["nodes"]:
        ranks, held = ranks_of.get(node["name"], []), node["gpus"] - node["gpus_free"]
        gpus = gpus_of.get(node["name"], [])
        cpu, memory = _used(ranks)
        cells = (
            *(node["name"], node["state"], str(node["gpus"]), str(held), f"{cpu}/{format_cpu(node['cpu_milli'])}"),
            *(f"{memory}/{format_bytes(node['memory_bytes'])}", *_busy(gpus)),
        )
        rows.append(({"gpus": held} | _amounts(ranks, gpus), cells))
    total = sum(node["gpus"] for node in seen["nodes"])
    used = total - sum(node["gpus_free"] for node in seen["nodes"])
    below = f"Allocated/Total GPUs of nodes: {used}/{total} ({100 * used // total}%)" if total else "no GPUs"
    return TopView(columns, _sorted(rows, "nodes", by), below, "no nodes: ganger doctor")


def _queues(seen: Record, by: str) -> TopView:
    columns = (
        *(Column("QUEUE"), Column("RUNNING", right=True), Column("PENDING", right=True), Column("GPUS", right=True)),
        *(Column("CPU", right=True), Column("MEM", right=True), Column("GPU", right=True), Column("GPU MEM")),
    )
    gpus = {(gpu["node"], gpu["device"]): gpu for gpu in seen["gpus"]}
    rows: Rows = []
    for depth, queue in in_tree(seen["queues"]):
        names = with_all_below(seen["queues"], queue["name"])
        ranks = [each for each in seen["ranks"] if each["queue"] in names]
        devices = {(each["node"], device): None for each in ranks for device in each["devices"]}
        busy = [gpus[device] for device in devices if device in gpus]
        nominal, held = queue["nominal"]["gpus"], queue["used"]["gpus"]
        used = str(held) + ("" if nominal is None else f"/{nominal}")
        name = indented(depth, queue["name"]) if by == SORTS["queues"][0] else queue["name"]
        cells = name, str(queue["running"]), str(queue["pending"]), used, *_used(ranks), *_busy(busy)
        amounts = {"running": queue["running"], "pending": queue["pending"], "gpus": held} | _amounts(ranks, busy)
        rows.append((amounts, cells))
    return TopView(columns, _sorted(rows, "queues", by), "", "no queues")


def _by_node(every: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for each in every:
        found.setdefault(each["node"], []).append(each)
    return found


def _amounts(ranks: Iterable[Record], gpus: Sequence[Record]) -> Record:
    """Processors and memory of all these together, and how busy these GPUs are: below nothing where there are none."""
    each = list(ranks)
    busy = sum(gpu["busy_percent"] for gpu in gpus) / len(gpus) if gpus else -1
    cpu_milli, memory_bytes = (sum(one[name] for one in each) for name in ("cpu_milli", "memory_bytes"))
    return {"cpu": cpu_milli, "mem": memory_bytes, "gpu": busy}


def _used(ranks: Iterable[Record]) -> tuple[str, str]:
    """Processors and memory of all these together."""
    used = _amounts(ranks, ())
    return f"{used['cpu'] / 1000:.1f}", format_bytes(used["mem"])


def _busy(gpus: Sequence[Record]) -> tuple[str, str]:
    """How busy these GPUs are on average, and what is used of their memory together."""
    if not gpus:
        return _NONE, _NONE
    used, total = (format_bytes(sum(gpu[name] for gpu in gpus)) for name in ("memory_used_bytes", "memory_bytes"))
    return f"{sum(gpu['busy_percent'] for gpu in gpus) // len(gpus)}%", f"{used}/{total}"


def _numbers(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices)) or _NONE
