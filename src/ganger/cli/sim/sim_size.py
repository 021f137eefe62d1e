"""`ganger sim size`: the fewest nodes on which jobs wait no longer than a target."""

from pathlib import Path
from typing import Any

import click

from ganger.cli.exit_codes import FAILED
from ganger.cli.options import DURATION, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import show, show_json
from ganger.cli.sim.progress import run_with_messages
from ganger.cli.sim.sim_options import node_options, process_arguments, show_findings, trace_argument
from ganger.cli.sim.sim_source import check_document, document_option
from ganger.cli.sim.simulation_process import Record
from ganger.model.units import format_duration


@click.command("size")
@trace_argument
@click.option(
    "--wait-p99", type=DURATION, required=True, help="Longest p99 of the time that jobs wait, such as 1h, 30m."
)
@click.option("--max-nodes", type=click.IntRange(1, 100_000), metavar="N", help="Most nodes; unset: no limit.")
@document_option
@click.option(
    "--policy", metavar="NAME", help="Queue order, or order and placement score (easy+fgd); unset: the default."
)
@node_options
@output_option
def size_command(trace: Path, output: str, **options: Any) -> None:
    """Search for the fewest nodes on which jobs of a trace wait no longer than a target.

    The search bisects: it assumes that jobs wait no longer if there are more nodes. Each number of nodes that it tries
    is a run as of `ganger sim run`, and is shown. The number that it finds keeps the target and the next smaller one
    misses it, unless the largest job needs as many; runs that contradict the assumption are reported, for then a
    smaller number may do too. A number on which a job does not end misses the target. Without a number that keeps it,
    the exit code is 1.

    \b
      ganger sim size cluster04.csv.gz --wait-p99 1h
      ganger sim size jobs.csv --wait-p99 30m --policy easy --gpus-per-node 4 --max-nodes 64
    """  # noqa: D301 - click needs the character itself before lines that it must not wrap
    check_document(options)
    is_text = output != "json"
    if is_text:
        show(f"{trace}: p99 wait of at most {options['wait_p99']}")
    result = run_with_messages(
        lambda message: _show_probe(message["probe"]) if is_text else None,
        *("size", str(trace), *process_arguments(options)),
    )
    if is_text:
        _show_size(result)
    else:
        show_json(result)
    if result["nodes"] is None:
        raise Problem(result["reason"], result["next"], FAILED)


def _show_probe(probe: Record) -> None:
    outcome = "keeps it" if probe["keeps_target"] else "misses it"
    show(f"  {count(probe['nodes'], 'node'):>14}  {_wait(probe):>28}  {outcome}")


def _show_size(result: Record) -> None:
    show_findings(result)
    nodes = result["nodes"]
    untried = "; a smaller number that was not tried may keep it too" if nodes and nodes > result["least"] else ""
    for fewer, more in result["contradictions"]:
        show(f"not monotone: jobs wait longer on {more} nodes than on {fewer}{untried}")
    if nodes is None:
        return
    waits = {probe["nodes"]: _wait(probe) for probe in result["probes"]}
    below = f"{nodes - 1} miss it, {waits[nodes - 1]}" if nodes - 1 in waits else "the largest job needs as many"
    show(f"{count(nodes, 'node')} x {count(result['gpus'], 'GPU')}, policy {result['policy']}: {waits[nodes]}; {below}")


def _wait(probe: Record) -> str:
    wait_ms = probe["wait_p99_ms"]
    if wait_ms is None:
        return "not all jobs end"
    return f"p99 wait {format_duration(round(wait_ms / 1000) * 1000)}"
