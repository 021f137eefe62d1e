"""`ganger sbatch`: a batch script of Slurm as a job."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ganger.cli.jobs.list_and_stop import PAGE
from ganger.cli.jobs.run_submit_wait import connect, job_exit_code, print_plan, submit_interruptibly
from ganger.cli.jobs.submit_request import print_job_file, request_of_spec
from ganger.cli.options import read_text_file
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import summary_lines
from ganger.cli.output.print_output import say, show
from ganger.client import Client
from ganger.client.job_name import name_of_command
from ganger.framework_api import sbatch
from ganger.model.job import ENDED, GangState

_EXAMPLE = "ganger sbatch job.sh   or: ganger sbatch --wrap 'srun python train.py'"


@click.command("sbatch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("words", metavar="[OPTION]... SCRIPT [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
def sbatch_command(words: tuple[str, ...]) -> int:
    """Submit a batch script of Slurm: its #SBATCH lines are read, and srun in it starts tasks on all nodes.

    The options are those of sbatch; they take precedence over SBATCH_ variables, and these over #SBATCH lines. An
    option that changes nothing here is named, and one that cannot be taken over is an error that names what to write.

    \b
      ganger sbatch -N 2 --gpus-per-node 8 train.sh --lr 3e-4
      ganger sbatch --dry-run train.sh > job.yaml
      ganger sbatch --dependency afterok:$(ganger sbatch --parsable prepare.sh) train.sh
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    try:
        options, rest = sbatch.parse_options(words)
        text, name, arguments = _script(options, rest)
        script = sbatch.read_script(text, words[: len(words) - len(rest)], os.environ)
        job = sbatch.translate(script, os.environ)
        command = sbatch.command_of(text, name, arguments)
    except ValueError as error:
        raise Problem(f"sbatch: {str(error).removeprefix('srun ')}", "ganger sbatch --help") from None
    spec = {"name": name_of_command([name])} | job.spec | {"run": command}
    for note in job.notes:
        say(f"sbatch: {note}", dim=True)
    if script.has("test-only"):
        if job.directory:
            show(f"# submit it in {job.directory}")
        print_job_file(spec)
        return 0
    client = connect()
    if job.singleton:
        spec["after"] = [*spec.get("after", ()), *_jobs_of_that_name(client, spec["name"])]
    created = submit_interruptibly(client, client.submit, _request(spec, job.directory))
    return _report(client, created, script)


def _script(options: dict[str, str], rest: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """Return the text of the script, its name and its arguments. Problem: there is none, or it cannot be read."""
    if "wrap" in options:
        if rest:
            raise Problem(f"sbatch: --wrap and a script, {rest[0]}: give one of them", _EXAMPLE)
        return f"#!/bin/sh\n{options['wrap']}\n", "wrap", ()
    if not rest or rest[0] == "-":
        text = read_text_file("stdin", "batch", _EXAMPLE, sys.stdin.buffer)
        if not text:
            raise Problem("sbatch: there is no script, neither a file nor text on standard input", _EXAMPLE)
        return text, "sbatch", rest[1:]
    return read_text_file(rest[0], "batch", "ls *.sh"), Path(rest[0]).name, rest[1:]


def _request(spec: dict[str, Any], directory: str) -> dict[str, Any]:
    if directory:
        spec = spec | {"env": {**spec.get("env", {}), "SLURM_SUBMIT_DIR": str(Path.cwd())}}
    return request_of_spec(spec, directory)


def _jobs_of_that_name(client: Client, name: str) -> list[dict[str, str]]:
    """Return the dependencies on the user's jobs of a name that have not ended."""
    states = ",".join(state for state in GangState if state not in ENDED)
    page = client.jobs(limit=PAGE, name=name, state=states, user=client.identity()["user"])
    return [{"job": row["id"], "when": "ended"} for row in page["items"] if row["name"] == name]


def _report(client: Client, created: dict[str, Any], script: sbatch.BatchScript) -> int:
    name = created["row"]["id"]
    if not script.has("parsable") and not script.has("quiet"):
        print_plan(created)
    show(name if script.has("parsable") else f"Submitted batch job {name}")
    if not script.has("wait"):
        return 0
    ended = client.wait(name, None) or created
    for line in summary_lines(ended):
        say(line)
    return job_exit_code(ended["row"], own_exit_code=True)
