"""`ganger get JOB --usage`: how busy the devices of each rank are."""

from typing import Any, Final

from ganger.cli.output.print_output import Column, shell_quote, show, show_json, show_table
from ganger.cli.output.sparkline import sparkline
from ganger.client import Client
from ganger.model.units import format_bytes, format_duration

Record = dict[str, Any]
POINTS: Final = 24
UNEVEN_PERMILLE: Final = 100
"""A rank that is further below the mean is named."""
_NONE: Final = "-"
_COLUMNS: Final = (
    *(Column("RANK", right=True), Column("NODE"), Column("DEVICES"), Column("DUTY", right=True)),
    *(Column("GPU MEM", right=True), Column("POWER", right=True), Column("TEMP", right=True), Column("HISTORY")),
)


def show_usage(client: Client, job: str, output: str) -> None:
    """Print the usage of a running job."""
    usage = client.usage(job, points=POINTS)
    if output == "json":
        show_json(usage)
        return
    ranks = usage["ranks"]
    show_table(_COLUMNS, [_cells(rank) for rank in ranks], f"no ranks: ganger get {shell_quote(job)}")
    show()
    if usage["duty_permille"] is None:
        show("no GPU of this job is measured; its CPUs and memory: ganger top ranks")
        return
    span = format_duration(usage["step_ms"] * len(ranks[0]["busy_permille"]))
    show(f"duty cycle {_percent(usage['duty_permille'])} over {span}{_imbalance(usage)}")


def _imbalance(usage: Record) -> str:
    """Return the rank that is furthest below the others, where it is far."""
    imbalance = usage["imbalance_permille"]
    if imbalance is None or imbalance < UNEVEN_PERMILLE:
        return ", all ranks alike"
    least = min(
        (rank for rank in usage["ranks"] if rank["duty_permille"] is not None), key=lambda r: r["duty_permille"]
    )
    return f"; rank {least['rank']} on {least['node']} is {_percent(imbalance)} below the mean"


def _cells(rank: Record) -> tuple[str, ...]:
    memory, power, temperature = rank["memory_used_bytes"], rank["power_mw"], rank["temperature_c"]
    return (
        *(str(rank["rank"]), rank["node"], ",".join(map(str, rank["devices"])) or _NONE),
        _NONE if rank["duty_permille"] is None else _percent(rank["duty_permille"]),
        _NONE if memory is None else format_bytes(memory),
        _NONE if power is None else f"{power // 1000}W",
        _NONE if temperature is None else f"{temperature}C",
        sparkline(rank["busy_permille"]),
    )


def _percent(permille: int) -> str:
    return f"{round(permille / 10)}%"
