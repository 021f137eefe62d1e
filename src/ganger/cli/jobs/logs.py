"""The command `ganger logs`: output of a job's processes, and with --stacks the stacks of a hang."""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import PATTERN, RANKS, job_argument, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.rank_lines import Writing, collapsed, processes_of
from ganger.cli.output.tables import clock, now_ms, show_json, show_json_array, show_json_line
from ganger.cli.times import span_options
from ganger.client import Client

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


_OPTIONS: Final = (
    click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended, over restarts."),
    click.option(
        "--rank", type=RANKS, help="Only these ranks: 0,3-5,last. Without it: rank 0, and what others wrote to stderr."
    ),
    click.option("--all", "everything", is_flag=True, help="Every rank, as --rank all."),
    click.option("--role", help="Only the ranks of this role."),
    click.option("--node", shell_complete=completions.nodes, help="Only the ranks on this node."),
    click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="An earlier attempt; 1 is the first."),
    click.option("--grep", type=PATTERN, help="Only lines in which this regular expression is found."),
    span_options("lines written"),
    click.option(
        "--stacks", is_flag=True, help="Where every rank was, each stack once, when the job was found standing still."
    ),
    click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines, of those that fit."),
    click.option("--timestamps", is_flag=True, help="Put the time before each line."),
    output_option,
)


_MAIN_THREAD = "MainThread"
_NO_PYTHON = "(no Python to be seen in it)"


def reading_options(command: Decorated) -> Decorated:
    """What says which lines are shown."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def see_ranks(rank: str | None, *, everything: bool) -> None:
    """Problem: `--all` beside some ranks."""
    if everything and rank not in (None, "all"):
        raise Problem(f"--all and --rank {rank} do not go together", next="leave one of them out")


@click.command("logs")
@job_argument
@reading_options
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
    """Show what a job's processes wrote.

    Equal lines that several ranks wrote together are shown once, with their number. With -o json every line is an
    object: an array, or with -f one object a line.
    """
    see_ranks(rank, everything=everything)
    query["rank"] = "all" if everything else rank
    client = connected()
    if stacks:
        given = [name for name, value in query.items() if value is not None and name != "attempt"]
        if given or follow:
            raise Problem("--stacks goes with --attempt alone", next=f"ganger logs {job} --stacks")
        _show_stacks(client.stacks(job, query["attempt"]), output)
        return
    if output == "json":
        lines = client.logs(job, follow=follow, **query)
        if not follow:
            show_json_array(lines)
        else:
            for line in lines:
                show_json_line(line)
    elif follow:
        _follow(client, job, query, timestamps=timestamps)
    else:
        writing = Writing(processes_of(client.job(job)["spec"]), timestamps=timestamps)
        for same in collapsed(client.logs(job, **query)):
            sys.stdout.write(writing.text(same) + "\n")


def _follow(client: Client, job: str, query: dict[str, Any], *, timestamps: bool) -> None:
    from ganger.cli.output.follower import Follower

    after = client.server()["seq"]
    found = client.job(job)
    Follower(client, found, after, Writing(processes_of(found["spec"]), timestamps=timestamps)).follow(**query)


def _show_stacks(stacks: dict[str, Any], output: str) -> None:
    """Print the server's answer; with -o json, unchanged."""
    if output == "json":
        show_json(stacks)
        return
    sys.stdout.write("\n".join(_stacks_lines(stacks)) + "\n")


def _stacks_lines(stacks: dict[str, Any]) -> list[str]:
    when = clock(stacks["at_ms"], now_ms())
    lines = [f"{stacks['job']}, attempt {stacks['attempt']}: where its ranks were at {when}"]
    for group in stacks["groups"]:
        ranks = f"rank{'s' if len(group['ranks']) > 1 else ''} {_spans(group['ranks'])}"
        thread = "" if group["thread"] == _MAIN_THREAD else f", thread {group['thread']}"
        lines += ["", f"{ranks} on {', '.join(group['nodes'])}{thread}: {', '.join(group['states'])}"]
        lines += [f"    {frame}" for frame in group["frames"] or [_NO_PYTHON]]
    return lines


def _spans(ranks: list[int]) -> str:
    """Return rising ranks as text, such as `0-2,5`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)
