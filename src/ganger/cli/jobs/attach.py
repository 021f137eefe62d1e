"""`ganger attach`: come to a job that runs, and leave it again."""

import click

from ganger.cli.exit_codes import INTERRUPTED
from ganger.cli.jobs.run_submit_wait import connected, exit_code_of, say_detached
from ganger.cli.options import RANKS, exit_code_option, job_argument
from ganger.cli.output.error_output import Problem
from ganger.cli.output.follower import Follower
from ganger.cli.output.messages import summary
from ganger.cli.output.rank_lines import Writing, processes_of
from ganger.cli.output.tables import quoted, say
from ganger.model.job import ENDED


@click.command("attach")
@job_argument
@click.option("--rank", type=RANKS, help="Only these ranks: 0,3-5,last or all. Without it: rank 0, and all of stderr.")
@click.option("--tail", type=click.IntRange(min=0), default=10, metavar="N", help="Begin with the last N lines: 10.")
@exit_code_option
def attach_command(job: str, rank: str | None, tail: int, own_exit_code: bool) -> int:
    """Follow a job that was started before, to its end.

    Begins with the last lines, then shows what its processes write as they do. Ctrl-C leaves the job running and says
    how to come back. Exits as `ganger run` does.
    """
    client = connected()
    after = client.server()["seq"]
    found = client.job(job)
    row, name = found["row"], found["row"]["id"]
    if row["elements"]:
        what = f"{name} is an array: come to one of its elements, or wait for all of it"
        raise Problem(what, f"ganger ls {quoted(name)}   or: ganger wait {quoted(name)}")
    if row["state"] not in ENDED:
        where = f" on {', '.join(row['nodes'])}" if row["nodes"] else ""
        say(f"{name} is {row['state']}{where}; Ctrl-C leaves it so", dim=True)
    follower = Follower(client, found, after, Writing(processes_of(found["spec"])))
    try:
        ended = follower.follow(rank=rank, tail=tail)
    except KeyboardInterrupt:
        say_detached(follower.job, f"ganger attach {quoted(name)}")
        return INTERRUPTED
    for line in summary(ended):
        say(line)
    return exit_code_of(ended["row"], own_exit_code)
