"""`ganger logs`: output of a job's processes and, with --stacks, the stacks of a hang."""

import sys
from typing import Any

import click

from ganger.cli import completions
from ganger.cli.jobs.list_and_stop import array_elements
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import PATTERN, RANKS, job_argument, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import (
    current_time_ms,
    format_clock,
    printable,
    shell_quote,
    show_json,
    show_json_array,
    show_json_line,
)
from ganger.cli.output.rank_lines import LineFormat, collapse_equal_lines, process_count
from ganger.cli.times import time_range_options
from ganger.client import Client

_MAIN_THREAD = "MainThread"
_NO_PYTHON = "(no Python stack available)"


@click.command("logs")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job has ended, across restarts.")
@click.option(
    "--rank", type=RANKS, help="Only these ranks, such as 0,3-5,last (default: rank 0, and stderr of all ranks)."
)
@click.option("--all", "everything", is_flag=True, help="All ranks, same as --rank all.")
@click.option("--role", help="Only the ranks of this role.")
@click.option("--node", shell_complete=completions.nodes, help="Only the ranks on this node.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Show an earlier attempt; 1 is the first.")
@click.option("--grep", type=PATTERN, help="Only lines that match this regular expression.")
@time_range_options("lines written")
@click.option("--stacks", is_flag=True, help="Show the stacks of all ranks when the job hung, equal stacks once.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N matching lines.")
@click.option("--timestamps", is_flag=True, help="Print the time before each line.")
@output_option
def logs_command(
    *,
    job: str,
    follow: bool,
    everything: bool,
    rank: str | None,
    timestamps: bool,
    stacks: bool,
    output: str,
    **query: Any,
) -> None:
    """Show the output of a job's processes.

    Equal lines that several ranks wrote at the same time are shown once, with their number. On a terminal, control
    sequences other than colours are left out. With -o json every line is an object: in an array, or with -f one object
    per line.

    Of an array, the lines of its elements follow each other by index, each with the index in front, or with the id of
    the element as `job` in JSON; --tail N is N lines of each. To follow, name an element.
    """
    if everything and rank not in (None, "all"):
        raise Problem(f"--all and --rank {rank} are mutually exclusive", next="leave one of them out")
    query["rank"] = "all" if everything else rank
    client = connect()
    if stacks:
        filters = [name for name, value in query.items() if value is not None and name != "attempt"]
        if filters or follow:
            raise Problem("--stacks can only be combined with --attempt", next=f"ganger logs {job} --stacks")
        row = client.job(job)["row"]
        if row["elements"]:
            raise Problem(f"{row['id']} is an array: each element has stacks of its own", f"ganger ls {row['id']}")
        _show_stacks(client.stacks(job, query["attempt"]), output)
        return
    if follow and output == "json":
        for record in client.logs(job, follow=True, **query):
            show_json_line(record)
    elif follow:
        _follow(client, job, query, timestamps=timestamps)
    else:
        _show(client, client.job(job), query, output, timestamps=timestamps)


def _show(client: Client, detail: dict[str, Any], query: dict[str, Any], output: str, *, timestamps: bool) -> None:
    """Print the lines that there are: of a job, or of each element of an array that has had the attempt."""
    jobs: list[tuple[str, str, dict[str, str]]] = [(detail["row"]["id"], "", {})]
    if detail["row"]["elements"]:
        elements = array_elements(client, detail["row"]["id"], {"state": None}, everything=True)
        started = [element for element in elements if element["generation"] >= (query["attempt"] or 1)]
        if query["attempt"] and not started:
            array = shell_quote(detail["row"]["id"])
            raise Problem(f"no element of {array} has had attempt {query['attempt']}", f"ganger ls {array}")
        width = max((len(str(element["index"])) for element in started), default=0)
        jobs = [(element["id"], f"{element['index']:{width}}  ", {"job": element["id"]}) for element in started]
    if output == "json":
        show_json_array(record | of_job for job, _, of_job in jobs for record in client.logs(job, **query))
        return
    writing = LineFormat(process_count(detail["spec"]), timestamps=timestamps)
    for job, index, _ in jobs:
        for line in collapse_equal_lines(client.logs(job, **query)):
            sys.stdout.write(printable(index + writing.text(line), sys.stdout) + "\n")


def _follow(client: Client, job: str, query: dict[str, Any], *, timestamps: bool) -> None:
    from ganger.cli.output.follower import Follower

    after = client.server()["seq"]
    detail = client.job(job)
    Follower(client, detail, after, LineFormat(process_count(detail["spec"]), timestamps=timestamps)).follow(**query)


def _show_stacks(stacks: dict[str, Any], output: str) -> None:
    """Print the server's answer; with -o json, unchanged."""
    if output == "json":
        show_json(stacks)
        return
    sys.stdout.write(printable("\n".join(_stacks_lines(stacks)), sys.stdout) + "\n")


def _stacks_lines(stacks: dict[str, Any]) -> list[str]:
    time_text = format_clock(stacks["at_ms"], current_time_ms())
    lines = [f"{stacks['job']}, attempt {stacks['attempt']}: stacks of its ranks at {time_text}"]
    for group in stacks["groups"]:
        ranks = f"rank{'s' if len(group['ranks']) > 1 else ''} {_spans(group['ranks'])}"
        thread = "" if group["thread"] == _MAIN_THREAD else f", thread {group['thread']}"
        lines += ["", f"{ranks} on {', '.join(group['nodes'])}{thread}: {', '.join(group['states'])}"]
        lines += [f"    {frame}" for frame in group["frames"] or [_NO_PYTHON]]
    return lines


def _spans(ranks: list[int]) -> str:
    """Format ascending ranks as text such as `0-2,5`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)
