"""`ganger replay`: decide a stretch of the log again, in another process with another hash seed, and compare."""

import os
import subprocess
import sys

import click

from ganger import settings

_SEEDS = ("1", "2")
"""Any two do: what matters is that the second look differs from the one before in what hashing may change."""


@click.command("replay")
@click.option("--from", "first", type=click.IntRange(min=1), metavar="SEQ", help="First event to look at.")
@click.option("--to", "last", type=click.IntRange(min=1), metavar="SEQ", help="Last one.")
def replay_command(first: int | None, last: int | None) -> int:
    """Decide a stretch of the log again, and compare.

    Runs in a fresh process under another hash seed and prints the first decision that comes out otherwise. Nothing is
    changed, and no server is needed.
    """
    home = settings.home(os.environ)
    command = [sys.executable, "-P", "-m", "ganger.wiring", "replay", "--home", str(home.path)]
    command += ["--from", str(first)] if first is not None else []
    command += ["--to", str(last)] if last is not None else []
    seed = next(seed for seed in _SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    return subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, check=False).returncode
