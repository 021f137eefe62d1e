"""`ganger attach`: follow a job that was submitted before."""

import click

from ganger.cli.exit_codes import INTERRUPTED
from ganger.cli.jobs.run_submit_wait import connect, job_exit_code, print_detached
from ganger.cli.options import RANKS, exit_code_option, job_argument
from ganger.cli.output.error_output import Problem
from ganger.cli.output.follower import Follower
from ganger.cli.output.messages import summary_lines
from ganger.cli.output.print_output import say, shell_quote
from ganger.cli.output.rank_lines import LineFormat, process_count
from ganger.model.job import ENDED


@click.command("attach")
@job_argument
@click.option(
    "--rank", type=RANKS, help="Only these ranks, such as 0,3-5,last or all (default: rank 0, and stderr of all ranks)."
)
@click.option(
    "--tail", type=click.IntRange(min=0), default=10, metavar="N", help="Start with the last N lines (default: 10)."
)
@exit_code_option
def attach_command(job: str, rank: str | None, tail: int, own_exit_code: bool) -> int:
    """Attach to a job and follow it until it ends.

    Shows the last lines of its output, then new lines as they are written. Ctrl-C detaches and leaves the job running.
    The exit code is that of `ganger run`.
    """
    client = connect()
    after = client.server()["seq"]
    detail = client.job(job)
    row, name = detail["row"], detail["row"]["id"]
    if row["elements"]:
        message = f"{name} is a job array: attach to one of its elements, or wait for all of them"
        raise Problem(message, f"ganger ls {shell_quote(name)}   or: ganger wait {shell_quote(name)}")
    if row["state"] not in ENDED:
        nodes = f" on {', '.join(row['nodes'])}" if row["nodes"] else ""
        say(f"{name} is {row['state']}{nodes}; Ctrl-C detaches", dim=True)
    follower = Follower(client, detail, after, LineFormat(process_count(detail["spec"])))
    try:
        ended = follower.follow(rank=rank, tail=tail)
    except KeyboardInterrupt:
        print_detached(follower.job, f"ganger attach {shell_quote(name)}")
        return INTERRUPTED
    for line in summary_lines(ended):
        say(line)
    return job_exit_code(ended["row"], own_exit_code)
