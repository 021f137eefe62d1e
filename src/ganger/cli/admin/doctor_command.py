"""`ganger doctor` and `ganger replay`: errands that need the whole of ganger, each run in a process of its own."""

import json
import os
import subprocess
import sys
from typing import Any, Final

import click

from ganger import settings
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import show, show_json

CANNOT: Final = 5
_SEEDS: Final = ("1", "2")
"""Any two do: what matters is that replay looks with another one than whoever decided first may have had."""


@click.command("doctor")
@click.option(
    "--restore-to",
    "seq",
    type=click.IntRange(min=1),
    metavar="SEQ",
    help="First take the event log back to this event; a copy of the log is kept beside it. No server may run.",
)
@output_option
def doctor_command(seq: int | None, output: str) -> int:
    """Check this machine and the server; each fault comes with its repair.

    Looks and changes nothing without --restore-to, and needs no network. Exits with 1 when something is wrong.
    """
    back = [] if seq is None else ["--restore-to", str(seq)]
    run = subprocess.run([*_errand("doctor"), *back], stdout=subprocess.PIPE, check=False)
    if run.returncode == CANNOT and not run.stdout:
        return CANNOT  # its words are above
    try:
        checks: list[dict[str, Any]] = json.loads(run.stdout)
    except ValueError:
        raise Problem("the check itself broke down: its words are above", "ganger server logs", CANNOT) from None
    if output == "json":
        show_json(checks)
    else:
        for check in checks:
            _show(check)
    return run.returncode


@click.command("replay")
@click.option("--from", "first", type=click.IntRange(min=1), metavar="SEQ", help="First event; without: the first.")
@click.option("--to", "last", type=click.IntRange(min=1), metavar="SEQ", help="Last event; without: the newest.")
@output_option
def replay_command(first: int | None, last: int | None, output: str) -> int:
    """Decide a stretch of the log again, and compare.

    Runs in a fresh process under another hash seed and prints the first round that comes out otherwise; exits with 1
    then. Nothing is changed, and no server is needed.
    """
    stretch = ["--from", str(first)] if first is not None else []
    stretch += ["--to", str(last)] if last is not None else []
    stretch += ["--json"] if output == "json" else []
    seed = next(seed for seed in _SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    environment = os.environ | {"PYTHONHASHSEED": seed}
    return subprocess.run([*_errand("replay"), *stretch], env=environment, check=False).returncode


def _errand(name: str) -> list[str]:
    """The command. -P: it imports nothing from where it happens to start."""
    home = settings.home(os.environ)
    return [sys.executable, "-P", "-m", "ganger.server", name, "--home", str(home.path)]


def _show(check: dict[str, Any]) -> None:
    mark = click.style("ok   ", fg="green") if check["ok"] else click.style("FAULT", fg="red", bold=True)
    what, *more = check["detail"].splitlines() or [""]
    show(f"{mark}  {check['name']:8}  {what}")
    for line in more:
        show(f"{'':17}{line}")
    if check["next"]:
        show(f"{'':17}next: {check['next']}")
