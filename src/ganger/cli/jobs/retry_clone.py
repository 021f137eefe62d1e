"""`ganger retry` and `clone`: new jobs from existing ones."""

import os
from pathlib import Path
from typing import Any

import click

from ganger.cli.bulk import for_each
from ganger.cli.exit_codes import INTERRUPTED
from ganger.cli.jobs.run_submit_wait import connect, follow_new_job, job_exit_code, print_plan, submitted_message
from ganger.cli.jobs.submit_request import command_of_arguments, pairs, spec_of_flags
from ganger.cli.options import ended_jobs_argument, job_argument, output_option, override_options, param_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import say, shell_quote, show, show_json
from ganger.client.secret_values import secret_values

Record = dict[str, Any]


@click.command("retry")
@ended_jobs_argument
@param_option
@output_option
def retry_command(jobs: tuple[str, ...], param: tuple[str, ...], output: str) -> int:
    """Run ended jobs again, with the same spec and the same copy of the code, from their newest checkpoint.

    Each is a new job, which resumes from the ended one (`checkpoint.resume_from`); only its id is printed on stdout. A
    job without `code:` runs in its directory as it is now. To begin from the beginning, clone it. --param replaces the
    value of a parameter of its job file. Of an array in which some elements have succeeded, the new one has the others.
    """
    params = dict(pairs("--param", param))
    client = connect()

    def report(row: Record) -> None:
        say(submitted_message(row))
        show(row["id"])

    return for_each(jobs, lambda job: client.retry(job, params), report, output)


@click.command("clone")
@job_argument
@override_options
@click.option("--follow", is_flag=True, help="Follow the new job until it ends, as `ganger run` does.")
@output_option
def clone_command(job: str, command: tuple[str, ...], follow: bool, output: str, **flags: Any) -> int:
    """Create a new job from an existing one, as it is or with changes.

    The new job has the same spec, copy of the code, environment and secrets, and begins from the beginning unless
    --resume-from says from which checkpoint. Options override its spec as they override a job file, --param replaces
    the value of a parameter wherever the file has it, and CMD replaces the command; a parameter that only the old
    command used is dropped. Only the new id is printed on stdout.

    \b
      ganger clone bert
      ganger clone bert --nodes 4 --env LR=1e-4
      ganger clone bert --param lr=0.03
      ganger clone bert --follow -- python train.py --lr 1e-4
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    if follow and output == "json":
        raise Problem(
            "--follow prints the job's own output and excludes -o json", f"ganger clone {shell_quote(job)} -o json"
        )
    overrides = _overrides(flags, command)
    client = connect()
    after = client.server()["seq"]
    new_job = client.clone(job, overrides, secret_values(overrides, os.environ))
    if output == "json":
        show_json(new_job)
        return 0
    if not follow:
        print_plan(new_job)
        show(new_job["row"]["id"])
        return 0
    ended = follow_new_job(client, new_job, after)
    return INTERRUPTED if ended is None else job_exit_code(ended["row"], own_exit_code=False)


def _overrides(flags: dict[str, Any], command: tuple[str, ...]) -> Record:
    """Return the changes. A relative `code` is the user's directory, since `.` in the job's spec means its own copy."""
    overrides = spec_of_flags(flags)
    if "code" in overrides:
        overrides["code"] = str(Path(overrides["code"]).expanduser().absolute())
    return overrides | ({"run": command_of_arguments(command)} if command else {})
