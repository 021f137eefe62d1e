"""`ganger top`: the cluster and its queues as a picture, and usage by job, rank, node or queue."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import DURATION, output_option
from ganger.cli.output.print_output import Column, align_columns, show, show_json, show_table, supports_colour
from ganger.cli.output.queue_tree import indent_name, subtree_names, tree_rows
from ganger.cli.output.sparkline import sparkline
from ganger.cli.output.top_view import Line, picture_lines, plain_text, terminal_width
from ganger.client import Client
from ganger.model.units import format_bytes, format_cpu, parse_duration_ms
from ganger.model.views.overview import ORDERS

Record = dict[str, Any]

SORTS: Final[dict[str, tuple[str, ...]]] = {
    "cluster": ORDERS,
    "jobs": ("job", "ranks", "cpu", "mem", "gpu", "least"),
    "ranks": ("job", "node", "cpu", "mem", "gpu"),
    "nodes": ("node", "gpus", "cpu", "mem", "gpu"),
    "queues": ("queue", "running", "pending", "gpus", "cpu", "mem", "gpu"),
}
"""The sort keys of each view; the first is the order in which the rows come."""
VIEWS: Final = tuple(SORTS)
STYLES: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "bold": {"bold": True},
    "dim": {"dim": True},
    "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
    "red": {"fg": "red"},
}
HISTORY_POINTS: Final = 12
_NONE: Final = "-"
_NOTHING: Final = "nothing runs: ganger ls"


@dataclass(frozen=True, slots=True)
class UsageTable:
    """A table with a line below it; `empty` is shown instead of a table without rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    footer: str
    empty: str


def _complete_sort(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [key for key in SORTS.get(ctx.params.get("view") or "cluster", ()) if key.startswith(incomplete)]


def _sort_of(view: str, sort: str | None) -> str:
    """Return the sort key; UsageError lists the legal ones."""
    if sort is None:
        return SORTS[view][0]
    if sort not in SORTS[view]:
        raise click.UsageError(f"`ganger top {view}` cannot sort by {sort!r}, only by {', '.join(SORTS[view])}")
    return sort


@click.command("top")
@click.argument("view", type=click.Choice(VIEWS), default="cluster")
@click.option(
    "--sort", metavar="KEY", shell_complete=_complete_sort, help="Sort key: policy, wait, gpus, priority, user, queue."
)
@click.option("-r", "--refresh", type=DURATION, default="2s", help="Refresh interval, such as 5s (default: 2s).")
@click.option("--once", is_flag=True, help="Print once and exit.")
@output_option
def top_command(view: str, sort: str | None, refresh: str, once: bool, output: str) -> None:
    """Show a live view of the cluster and its queues, or the usage of jobs, ranks, nodes or queues.

    Refreshes until q is pressed: left and right switch views, up and down scroll, s changes the sort key. Prints once
    with --once, with -o json, and when the output is not a terminal. CPU is in CPUs. MEM is resident memory, of which
    processes on this machine that share some count it once. GPU is the mean utilization of a rank's devices, LEAST that
    of the least busy rank of a job. LAST HOUR is the mean of a node's GPUs, or of its CPUs where it has none, in steps
    of 5 minutes.

    The cluster view sorts pending jobs by the order of the policy; jobs sort by job, ranks, cpu, mem, gpu, least; ranks
    by job, node, cpu, mem, gpu; nodes by node, gpus, cpu, mem, gpu; queues by queue, running, pending, gpus, cpu, mem,
    gpu.
    """
    by = _sort_of(view, sort)
    client = connect()
    if output == "json":
        show_json(_fetch(client, view, by))
    elif once or not supports_colour(sys.stdout):
        _show_once(client, view, by)
    else:
        from ganger.cli.output.live_screen import watch

        pause_s = max(0.5, parse_duration_ms(refresh) / 1000)
        watch(SORTS, (view, by), pause_s, lambda view, by, width: _lines(client, view, by, width))


def _show_once(client: Client, view: str, by: str) -> None:
    """Print a view once."""
    if view == "cluster":
        for line in picture_lines(_fetch(client, view, by), terminal_width(sys.stdout)):
            if supports_colour(sys.stdout):
                show("".join(click.style(text, **STYLES[style]) for text, style in line))
            else:
                show(plain_text(line))
        return
    table = _table(_fetch(client, view, by), view, by)
    show_table(table.columns, table.rows, table.empty)
    if table.footer:
        show(f"\n{table.footer}")


def _lines(client: Client, view: str, by: str, width: int) -> list[Line]:
    """Return a view as lines for the screen."""
    data = _fetch(client, view, by)
    if view == "cluster":
        return list(picture_lines(data, width))
    table = _table(data, view, by)
    if not table.rows:
        return [[(table.empty, "")]]
    title, *rows = align_columns(table.columns, table.rows)
    return [[(title, "bold")], *([(row, "")] for row in rows), [], [(table.footer, "")]]


def _fetch(client: Client, view: str, by: str) -> Record:
    """Return the overview, or the usage samples with the nodes or the queues."""
    if view == "cluster":
        return client.overview(by)
    samples = client.samples()
    if view in ("jobs", "ranks"):
        return samples
    if view == "queues":
        return samples | {"queues": client.queues()}
    return samples | {"nodes": client.nodes(), "telemetry": client.telemetry(points=HISTORY_POINTS)}


Rows = list[tuple[Record, tuple[str, ...]]]
"""The values by which each row may be sorted, and its cells."""


def _table(data: Record, view: str, by: str) -> UsageTable:
    return {"jobs": _jobs, "ranks": _ranks, "nodes": _nodes, "queues": _queues}[view](data, by)


def _sorted(rows: Rows, view: str, by: str) -> list[tuple[str, ...]]:
    """Return the cells sorted by a key: names ascending, amounts descending, the first key as they came."""
    if by != SORTS[view][0]:
        rows = sorted(rows, key=lambda row: row[0][by] if isinstance(row[0][by], str) else -row[0][by])
    return [cells for _, cells in rows]


def _jobs(data: Record, by: str) -> UsageTable:
    columns = (
        *(Column("JOB"), Column("RANKS", right=True), Column("NODES", right=True), Column("CPU", right=True)),
        *(Column("MEM", right=True), Column("GPU", right=True), Column("GPU MEM"), Column("LEAST", right=True)),
    )
    gpus = {(gpu["node"], gpu["device"]): gpu for gpu in data["gpus"]}
    rows: Rows = []
    for job, ranks in _grouped(data["ranks"], "job").items():
        of_ranks = [_gpus_of(rank, gpus) for rank in ranks]
        job_gpus = list({(gpu["node"], gpu["device"]): gpu for of_rank in of_ranks for gpu in of_rank}.values())
        numbered = sum(rank["rank"] is not None for rank in ranks)
        least = min((_amounts((), of_rank)["gpu"] for of_rank in of_ranks if of_rank), default=None)
        cells = (
            *(job, str(numbered), str(len({rank["node"] for rank in ranks})), *_used(ranks), *_busy(job_gpus)),
            _NONE if least is None else f"{int(least)}%",
        )
        amounts = {"ranks": numbered, "least": -1 if least is None else least} | _amounts(ranks, job_gpus)
        rows.append((amounts, cells))
    return UsageTable(columns, _sorted(rows, "jobs", by), _usage_footer(data), _NOTHING)


def _ranks(data: Record, by: str) -> UsageTable:
    columns = (
        *(Column("JOB"), Column("RANK", right=True), Column("NODE"), Column("DEVICES"), Column("CPU", right=True)),
        *(Column("MEM", right=True), Column("GPU", right=True), Column("GPU MEM")),
    )
    gpus = {(gpu["node"], gpu["device"]): gpu for gpu in data["gpus"]}
    rows: Rows = []
    for rank in data["ranks"]:
        rank_gpus = _gpus_of(rank, gpus)
        rank_number = _NONE if rank["rank"] is None else str(rank["rank"])
        cells = (
            rank["job"],
            rank_number,
            rank["node"],
            _device_numbers(rank["devices"]),
            *_used([rank]),
            *_busy(rank_gpus),
        )
        rows.append(({"node": rank["node"]} | _amounts([rank], rank_gpus), cells))
    return UsageTable(columns, _sorted(rows, "ranks", by), _usage_footer(data), _NOTHING)


def _gpus_of(rank: Record, gpus: Mapping[tuple[str, int], Record]) -> list[Record]:
    return [gpu for device in rank["devices"] if (gpu := gpus.get((rank["node"], device)))]


def _usage_footer(data: Record) -> str:
    jobs = len({rank["job"] for rank in data["ranks"]})
    cpu, memory = _used(data["ranks"])
    if not jobs or cpu == _NONE:
        return ""
    return f"{jobs} job{'' if jobs == 1 else 's'} use{'s' * (jobs == 1)} {cpu} CPUs and {memory}"


def _nodes(data: Record, by: str) -> UsageTable:
    columns = (
        *(Column("NAME"), Column("STATUS", state=True), Column("GPU(Total)", right=True)),
        *(Column("GPU(Allocated)", right=True), Column("CPU", right=True), Column("MEM", right=True)),
        *(Column("GPU", right=True), Column("GPU MEM"), Column("TEMP", right=True, spare=True)),
        Column("LAST HOUR", spare=True),
    )
    ranks_of, gpus_of = _grouped(data["ranks"], "node"), _grouped(data["gpus"], "node")
    telemetry = {item["node"]: item for item in data["telemetry"]}
    rows: Rows = []
    for node in data["nodes"]:
        ranks, allocated = ranks_of.get(node["name"], []), node["gpus"] - node["gpus_free"]
        gpus = gpus_of.get(node["name"], [])
        cpu, memory = _used(ranks)
        cells = (
            *(node["name"], node["state"], str(node["gpus"]), str(allocated), f"{cpu}/{format_cpu(node['cpu_milli'])}"),
            *(f"{memory}/{format_bytes(node['memory_bytes'])}", *_busy(gpus), *_measured(telemetry.get(node["name"]))),
        )
        rows.append(({"gpus": allocated} | _amounts(ranks, gpus), cells))
    total = sum(node["gpus"] for node in data["nodes"])
    used = total - sum(node["gpus_free"] for node in data["nodes"])
    footer = f"Allocated/Total GPUs of nodes: {used}/{total} ({100 * used // total}%)" if total else "no GPUs"
    return UsageTable(columns, _sorted(rows, "nodes", by), footer, "no nodes: ganger doctor")


def _queues(data: Record, by: str) -> UsageTable:
    columns = (
        *(Column("QUEUE"), Column("RUNNING", right=True), Column("PENDING", right=True), Column("GPUS", right=True)),
        *(Column("CPU", right=True), Column("MEM", right=True), Column("GPU", right=True), Column("GPU MEM")),
    )
    gpus = {(gpu["node"], gpu["device"]): gpu for gpu in data["gpus"]}
    rows: Rows = []
    for depth, queue in tree_rows(data["queues"]):
        names = subtree_names(data["queues"], queue["name"])
        ranks = [rank for rank in data["ranks"] if rank["queue"] in names]
        devices = {(rank["node"], device): None for rank in ranks for device in rank["devices"]}
        busy = [gpus[device] for device in devices if device in gpus]
        nominal, allocated = queue["nominal"]["gpus"], queue["used"]["gpus"]
        used = str(allocated) + ("" if nominal is None else f"/{nominal}")
        name = indent_name(depth, queue["name"]) if by == SORTS["queues"][0] else queue["name"]
        cells = name, str(queue["running"]), str(queue["pending"]), used, *_used(ranks), *_busy(busy)
        amounts = {"running": queue["running"], "pending": queue["pending"], "gpus": allocated} | _amounts(ranks, busy)
        rows.append((amounts, cells))
    return UsageTable(columns, _sorted(rows, "queues", by), "", "no queues")


def _measured(telemetry: Record | None) -> tuple[str, str]:
    """Return the temperature of the hottest GPU of a node, and its last hour."""
    if telemetry is None:
        return _NONE, _NONE
    temperatures = [gpu["temperature_c"] for gpu in telemetry["gpus"] if gpu["temperature_c"] is not None]
    histories = [gpu["history"]["busy_permille"] for gpu in telemetry["gpus"] if gpu["history"]["busy_permille"]]
    steps = zip(*(histories or [telemetry["history"]["busy_permille"]]), strict=True)
    measured = [[value for value in step if value is not None] for step in steps]
    line = sparkline([sum(step) // len(step) if step else None for step in measured])
    return f"{max(temperatures)}C" if temperatures else _NONE, line if line.strip() else _NONE


def _grouped(samples: Iterable[Record], key: str) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for sample in samples:
        groups.setdefault(sample[key], []).append(sample)
    return groups


def _amounts(ranks: Iterable[Record], gpus: Sequence[Record]) -> Record:
    """Return the total CPUs and memory of ranks, and the mean utilization of GPUs; -1 without any."""
    samples = list(ranks)
    busy = sum(gpu["busy_percent"] for gpu in gpus) / len(gpus) if gpus else -1
    cpu_milli, memory_bytes = (_total([sample[name] for sample in samples]) for name in ("cpu_milli", "memory_bytes"))
    return {"cpu": cpu_milli, "mem": memory_bytes, "gpu": busy}


def _total(values: Sequence[int | None]) -> int:
    """Return the sum of what is measured; -1 if nothing of something is."""
    measured = [value for value in values if value is not None]
    return sum(measured) if measured or not values else -1


def _used(ranks: Iterable[Record]) -> tuple[str, str]:
    """Return the total CPUs and memory of ranks as text."""
    used = _amounts(ranks, ())
    if used["cpu"] < 0:
        return _NONE, _NONE
    return f"{used['cpu'] / 1000:.1f}", format_bytes(used["mem"])


def _busy(gpus: Sequence[Record]) -> tuple[str, str]:
    """Return the mean utilization and the total memory of GPUs as text."""
    if not gpus:
        return _NONE, _NONE
    used, total = (format_bytes(sum(gpu[name] for gpu in gpus)) for name in ("memory_used_bytes", "memory_bytes"))
    return f"{sum(gpu['busy_percent'] for gpu in gpus) // len(gpus)}%", f"{used}/{total}"


def _device_numbers(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices)) or _NONE
