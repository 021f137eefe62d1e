"""`ganger fit`: how large a job may be to start now, or whether one job would."""

from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connected, program
from ganger.cli.jobs.submit_request import build_request
from ganger.cli.options import CPUS, GPUS, LASTING, SIZE, output_option
from ganger.cli.output.tables import Column, now_ms, quoted, show, show_json, show_table, when
from ganger.model.units import format_cpu, parse_bytes, parse_cpu_milli, parse_duration_ms

Record = dict[str, Any]

_NONE: Final = "-"
_OF_JOB: Final = ("queue", "gpu", "cpu", "memory", "time")


@click.command("fit")
@click.option("-f", "--file", "path", metavar="FILE", help="Would this job start now? Flags override what it says.")
@click.option("--queue", shell_complete=completions.queues, help="The queue to be in.")
@click.option("--gpu", type=GPUS, help="GPUs on each node: 8, or H100:8; without it: every number.")
@click.option("--cpu", type=CPUS, help="CPUs on each node; without it: one for each GPU.")
@click.option("--memory", type=SIZE, help="Memory on each node: 64Gi.")
@click.option("--time", type=LASTING, help="Time the job may hold its nodes: a short one may fit before others.")
@output_option
def fit_command(path: str | None, output: str, **flags: str | None) -> None:
    """Show how large a job may be to start now: for each type of GPU, at each level of the network.

    Every size was tried by the scheduler itself, with your limits and your queue's. With -f: whether that job would
    start now, where, and if not, why and what would.
    """
    if path is not None:
        _one(path, flags, output)
        return
    found = connected().fit(_query(flags))
    if output == "json":
        show_json(found)
        return
    _table(found)


def _query(flags: dict[str, str | None]) -> dict[str, str | int | None]:
    kind, _, many = (flags["gpu"] or "").rpartition(":")
    return {
        "queue": flags["queue"],
        "gpu_type": kind.partition(",")[0] or None,
        "gpus": int(many) if many else None,
        "cpu_milli": parse_cpu_milli(flags["cpu"]) if flags["cpu"] else None,
        "memory_bytes": parse_bytes(flags["memory"]) if flags["memory"] else None,
        "time_ms": parse_duration_ms(flags["time"]) if flags["time"] else None,
    }


def _table(found: Record) -> None:
    """A row for each form, a column for each level: the most nodes there."""
    levels = ["", *found["levels"]]
    forms: dict[tuple[str, int, int], dict[str, Record]] = {}
    for size in found["items"]:
        forms.setdefault((size["gpu_type"], size["gpus"], size["cpu_milli"]), {})[size["level"]] = size
    columns = (
        *(Column("ON EACH NODE"), Column("NODES", right=True), Column("GPUS", right=True)),
        *(Column(f"IN ONE {level.upper()}", right=True) for level in levels[1:]),
        Column("WHERE, OR WHY NOT"),
    )
    rows = []
    for (kind, gpus, cpu_milli), sizes in forms.items():
        most = sizes[""]
        inner = sizes[levels[-1]]
        each = f"{gpus} {kind or 'gpu'}" if gpus else f"{format_cpu(cpu_milli)} cpu"
        total = str(most["nodes"] * gpus) if gpus else _NONE
        inside = [str(sizes[level]["nodes"]) for level in levels[1:]]
        why = most["reason"]["sentence"] if most["reason"] else _NONE
        rows.append((each, str(most["nodes"]), total, *inside, inner["domain"] or why))
    show_table(columns, rows, "no nodes: ganger doctor")
    left = found["available_gpus"]
    quota = "has no limit of GPUs" if left is None else f"may use {left} GPU{'' if left == 1 else 's'} more"
    show(f"\nqueue {found['queue']} {quota}; as {found['user']}, now")
    best = max(found["items"], key=lambda size: (size["nodes"] > 0, size["nodes"] * size["gpus"]), default=None)
    if best is not None and best["nodes"]:
        show(f"largest: {program()} run {best['flags']} -- ...")
    elif best is not None and best["reason"]:
        show(f"nothing starts now: {best['reason']['sentence']}")


def _one(path: str, flags: dict[str, str | None], output: str) -> None:
    told = connected().dry_run(build_request(_all(path, flags), ()))
    if output == "json":
        show_json(told)
        return
    name, now = told["spec"]["name"], now_ms()
    if told["starts_now"]:
        show(f"{name} fits: {told['shape']} would start now on {', '.join(told['nodes'])}")
        return
    why = told["reason"]["sentence"] if told["reason"] else "it would wait"
    show(f"{name} does not fit now: {why}")
    if told["earliest_ms"] is not None:
        show(f"  there is room for it at the latest {when(told['earliest_ms'], now)}, by the limits of what runs")
    for change in told["changes"]:
        show(f"  try: {change['flags']}   {change['say']}")
    if told["proof"]:
        show(f"  {told['proof']}")
    show(f"  submit it, to wait for its turn: {program()} submit -f {quoted(path)}")


def _all(path: str, flags: dict[str, str | None]) -> dict[str, Any]:
    """Everything that `ganger submit` may be given, of which this is."""
    from ganger.cli.jobs.run_submit_wait import submit_command

    every = {each.name: () if each.multiple else None for each in submit_command.params if hasattr(each, "multiple")}
    return every | {"path": path} | {name: flags[name] for name in _OF_JOB}
