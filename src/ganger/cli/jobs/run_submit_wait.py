"""`ganger run`, `submit` and `wait`: a job from its first word to its exit code."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ganger import settings
from ganger.cli.exit_codes import FAILED, INTERRUPTED, TIMED_OUT
from ganger.cli.jobs.submit_request import build_request, has_several_jobs
from ganger.cli.options import DURATION, exit_code_option, job_argument, output_option, spec_options
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import WAITING, plan_lines, start_of_dry_run, start_of_job, summary
from ganger.cli.output.tables import now_ms, quoted, say, show, show_json
from ganger.client import Client, ClientError
from ganger.model.units import parse_duration_ms

if TYPE_CHECKING:
    from ganger.cli.output.follower import Follower

Record = dict[str, Any]
T = TypeVar("T")


@click.command("run", context_settings={"allow_interspersed_args": False})
@spec_options
@exit_code_option
def run_command(own_exit_code: bool, command: tuple[str, ...], output: str, dry_run: bool, **flags: Any) -> int:
    """Run a job and follow it to its end.

    CMD is the command of every process; a script (train.py) runs with this shell's python, and one quoted word with
    spaces in it is a shell line. Ctrl-C leaves the job running and says how to come back to it.

    \b
      ganger run train.py
      ganger run -j 2x8 --gpu H100:8 --framework torch -- python train.py --lr 3e-4
      ganger run -f job.yaml --dry-run
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    if output == "json" and not dry_run:
        raise Problem("run follows the job's own output: -o json goes with --dry-run", next="ganger submit -o json ...")
    request = build_request(flags, command)
    client = connected()
    if dry_run:
        return show_dry_run(client.dry_run(request), output)
    after = client.server()["seq"]
    ended = follow_job(client, submitted_once(client.submit, request), after)
    return INTERRUPTED if ended is None else exit_code_of(ended["row"], own_exit_code)


@click.command("submit", context_settings={"allow_interspersed_args": False})
@spec_options
def submit_command(command: tuple[str, ...], output: str, dry_run: bool, **flags: Any) -> int:
    """Submit a job and return at once.

    Takes what `ganger run` takes. The id is printed on stdout, alone; the plan on stderr. A file may have several
    jobs, with `---` between them: `after` may name them, and flags go over each.
    """
    request = build_request(flags, command)
    client = connected()
    if dry_run:
        return show_dry_run(client.dry_run(request), output)
    if has_several_jobs(request):
        jobs = submitted_once(client.submit_all, request)
    else:
        jobs = [submitted_once(client.submit, request)]
    if output == "json":
        show_json(jobs if len(jobs) > 1 else jobs[0])
        return 0
    for job in jobs:
        say_plan(job)
        show(job["row"]["id"])
    return 0


@click.command("wait")
@job_argument
@click.option("--timeout", type=DURATION, help="Give up after this time, with exit code 124: 5m.")
@exit_code_option
@output_option
def wait_command(job: str, timeout: str | None, own_exit_code: bool, output: str) -> int:
    """Wait until a job has ended.

    Exits as `ganger run` does: 0 when it succeeded, 1 when not, 124 when the time is over.
    """
    client = connected()
    timeout_s = None if timeout is None else parse_duration_ms(timeout) / 1000
    ended = client.wait(job, timeout_s)
    if ended is None:
        say(f"{job} has not ended within {timeout}, and goes on: ganger get {quoted(job)}")
        return TIMED_OUT
    if output == "json":
        show_json(ended)
    else:
        for line in summary(ended):
            show(line)
    return exit_code_of(ended["row"], own_exit_code)


def connected() -> Client:
    """A client with a server behind it; with --context the controller of that cluster."""
    if named := click.get_current_context().find_root().obj:
        from ganger.client.kubernetes.controller_client import ControllerClient

        return ControllerClient(*named)
    return Client(settings.home(os.environ)).connect()


def program() -> str:
    """What a person types before a command, to ask whom they ask now."""
    named = click.get_current_context().find_root().obj
    return typed(named) if named else "ganger"


def typed(named: tuple[str, str | None]) -> str:
    """The same where a context is named."""
    context, namespace = named
    return f"ganger --context {quoted(context)}" + (f" --namespace {quoted(namespace)}" if namespace else "")


def submitted_once(submit: Callable[[Record], T], request: Record) -> T:
    """What `submit` gives; to somebody who interrupts it, where to look."""
    try:
        return submit(request)
    except KeyboardInterrupt:
        say("interrupted while submitting: `ganger ls` shows whether the job was taken")
        raise


def follow_job(client: Client, job: Record, after: int) -> Record | None:
    """Follow a job that was just submitted, from the event `after`, and say how it ended; None when Ctrl-C left it
    running."""
    if job["row"]["elements"]:
        return _await_array(client, job)
    follower = _follower(client, job, after)
    try:
        say_plan(job)
        ended = follower.follow()
    except KeyboardInterrupt:
        say_detached(follower.job, f"ganger logs {quoted(job['row']['id'])} -f")
        return None
    except ClientError as error:
        if error.code == "unreachable":
            say(f"{job['row']['id']} runs on without the server: ganger logs {quoted(job['row']['id'])} -f")
        raise
    for line in summary(ended):
        say(line)
    return ended


def _await_array(client: Client, job: Record) -> Record | None:
    """Wait for the end of an array: what its elements write is in the logs of each."""
    name = quoted(job["row"]["id"])
    say_plan(job)
    try:
        ended = client.wait(job["row"]["id"], None)
    except KeyboardInterrupt:
        say_detached(client.job(job["row"]["id"]), f"ganger wait {name}")
        return None
    for line in summary(ended) if ended else ():
        say(line)
    return ended


def exit_code_of(row: Record, own_exit_code: bool) -> int:
    """The exit code that tells how a job ended."""
    if row["state"] == "succeeded":
        return 0
    own: int | None = row["exit_code"] if own_exit_code else None
    return own or FAILED


def show_dry_run(plan: Record, output: str) -> int:
    """What would happen: the plan, the command and what ganger adds to its environment."""
    if output == "json":
        show_json(plan)
        return 0
    for line in plan_lines(plan["spec"]["name"], plan["spec"], start_of_dry_run(plan, now_ms())):
        show(line)
    if plan["reason"] and plan["reason"]["remedy"]:
        show(f"       {plan['reason']['remedy']}")
    show(f"       runs: {' '.join(quoted(word) for word in plan['argv'])}")
    if plan["environment"]:
        show("       rank 0 gets:")
        for name, value in plan["environment"].items():
            show(f"         {name}={quoted(value)}")
    show("nothing was submitted")
    return 0


def say_plan(job: Record) -> None:
    """What was submitted, where it stands, and what to type next."""
    for line in plan_lines(job["row"]["id"], job["spec"], start_of_job(job)):
        say(line, dim=True)
    say(submitted(job["row"]))


def submitted(row: Record) -> str:
    """That a job was taken, and what to type next."""
    name = quoted(row["id"])
    look = f"elements: ganger ls {name}" if row["elements"] else f"logs: ganger logs {name} -f"
    return f"✓ submitted {name}   stop: ganger stop {name}   {look}"


def _follower(client: Client, job: Record, after: int) -> "Follower":
    from ganger.cli.output.follower import Follower
    from ganger.cli.output.rank_lines import Writing, processes_of

    return Follower(client, job, after, Writing(processes_of(job["spec"])))


def say_detached(job: Record, back: str) -> None:
    """How to come back to a job, as it was when it was last looked at."""
    name, waits = quoted(job["row"]["id"]), job["row"]["state"] in WAITING
    say(f"\ndetached: {job['row']['id']} {'still waits' if waits else 'runs on'}")
    say(f"  come back:      {back}")
    say(f"  stop it:        ganger stop {name}")
    if waits:
        say(f"  why it waits:   ganger explain {name}")
    else:
        say(f"  how far it is:  ganger get {name}")
