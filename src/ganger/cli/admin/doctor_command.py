"""`ganger doctor` and `ganger replay`: subcommands of `ganger.server`, each run in a process of its own."""

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ganger import settings
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import show_json, show_prose

if TYPE_CHECKING:
    from ganger.cli.admin.cluster_doctor import ClusterReader

CANNOT: Final = 5
_SEEDS: Final = ("1", "2")
"""Any two will do: replay must run with another seed than the one that the original decision may have had."""


@click.command("doctor")
@click.option(
    "--restore-to",
    "seq",
    type=click.IntRange(min=1),
    metavar="SEQ",
    help="First restore the event log to this event; a copy is kept next to it. The server must be stopped.",
)
@output_option
def doctor_command(seq: int | None, output: str) -> int:
    """Check this machine and the server, or with --context a cluster, with a repair for each fault.

    Of a cluster it reads what your permissions allow: what ganger installs there, the controller, the nodes' GPUs,
    images that cannot be pulled, and the clock. It changes nothing without --restore-to. Exit code 1 means that it
    found a fault.
    """
    target = click.get_current_context().find_root().obj or {}
    if target.get("context") is not None:
        return _examine_cluster(target, seq, output)
    options = [] if seq is None else ["--restore-to", str(seq)]
    run = subprocess.run([*_server_program("doctor"), *options], stdout=subprocess.PIPE, check=False)
    if run.returncode == CANNOT and not run.stdout:
        return CANNOT  # it has printed its error
    try:
        checks: list[dict[str, Any]] = json.loads(run.stdout)
    except ValueError:
        raise Problem("the check failed itself; its error is above", "ganger server logs", CANNOT) from None
    _report(checks, output)
    return run.returncode


def _examine_cluster(target: dict[str, Any], seq: int | None, output: str) -> int:
    """Check the cluster of a context, and return the exit code."""
    from ganger.cli.admin.cluster_doctor import examine
    from ganger.cli.jobs.run_submit_wait import connect

    if seq is not None:
        raise Problem(
            "--restore-to is about the event log of this machine's server: a cluster has none", "ganger doctor"
        )
    checks = list(examine(cast("ClusterReader", connect().link), str(target["context"])))
    _report(checks, output)
    return 0 if all(check["ok"] for check in checks) else 1


def _report(checks: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        show_json(checks)
        return
    for check in checks:
        _show(check)


@click.command("replay")
@click.option("--from", "first", type=click.IntRange(min=1), metavar="SEQ", help="First event (default: the oldest).")
@click.option("--to", "last", type=click.IntRange(min=1), metavar="SEQ", help="Last event (default: the newest).")
@output_option
def replay_command(first: int | None, last: int | None, output: str) -> int:
    """Replay a range of the event log and compare the decisions.

    Runs in a new process with another hash seed. Prints the first scheduling cycle whose decisions differ, and exits
    with 1 then. Changes nothing and needs no server.
    """
    options = ["--from", str(first)] if first is not None else []
    options += ["--to", str(last)] if last is not None else []
    options += ["--json"] if output == "json" else []
    seed = next(seed for seed in _SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    environment = os.environ | {"PYTHONHASHSEED": seed}
    return subprocess.run([*_server_program("replay"), *options], env=environment, check=False).returncode


def _server_program(name: str) -> list[str]:
    """Return the command line of a subcommand; -P keeps the working directory off the import path."""
    home = settings.home(os.environ)
    return [sys.executable, "-P", "-m", "ganger.server", name, "--home", str(home.path)]


def _show(check: dict[str, Any]) -> None:
    mark = click.style("ok   ", fg="green") if check["ok"] else click.style("FAULT", fg="red", bold=True)
    summary, *details = check["detail"].splitlines() or [""]
    show_prose(f"{mark}  {check['name']:8}  {summary}")
    for line in details:
        show_prose(f"{'':17}{line}")
    if check["next"]:
        show_prose(f"{'':17}next: {check['next']}")
