"""Shared parts of the commands of `ganger sim`: the options of cluster and costs, the process, rows with a flaw.

Called by `cli.sim.sim_commands` and by the file of each further command.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from ganger.cli.exit_codes import UNREACHABLE
from ganger.cli.options import DURATION, CheckedText, Decorated
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import count
from ganger.cli.output.print_output import show
from ganger.model.units import parse_duration_ms

Record = dict[str, Any]


def _rate(text: str) -> None:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise ValueError(f"{text!r} is not how many times as often: write 0.5, 2 or 10")


trace_argument = click.argument("trace", metavar="TRACE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
format_option = click.option("--format", metavar="NAME", help="Of the trace; unset: its first line tells.")
_SHARED: Final = (
    click.option("--nodes", type=click.IntRange(1, 100_000), help="How many nodes there are."),
    click.option("--gpus", type=click.IntRange(1, 100_000), help="GPUs of each node; unset: 8."),
    click.option("--gpu-type", metavar="NAME", help="Their type, for traces whose jobs ask for one."),
    click.option("--start", type=DURATION, help="What each start of a job costs: 30s; unset: nothing."),
    click.option(
        "--checkpoint", type=DURATION, help="Work between checkpoints: 30m; unset: a stopped job keeps all of it."
    ),
    click.option(
        "--checkpoint-cost", type=DURATION, help="How long each checkpoint stops the work; unset: not at all."
    ),
    click.option(
        "--faults",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Nodes fail as in this record.",
    ),
    click.option("--fault-rate", type=CheckedText("number", _rate), help="Times as often as there: 0.5, 4; unset: 1."),
    click.option(
        "--fault-nodes", type=click.IntRange(1), metavar="N", help="Of how many nodes that is; unset: those it names."
    ),
    click.option("--fault-seed", type=click.IntRange(0), metavar="N", help="Draws which nodes fail when; unset: 0."),
    click.option("--detect", type=DURATION, help="How long nobody knows that a node is lost; unset: known at once."),
    click.option("--repair", type=DURATION, help="How long each is gone; unset: as recorded."),
    click.option(
        "--spares", type=click.IntRange(0), metavar="N", help="Nodes held back, to take the place of lost ones."
    ),
    click.option(
        "--price", multiple=True, metavar="[TYPE=]N", help="What an hour of a node costs: 12.50, or by GPUs: h100=98.3."
    ),
)
_DURATIONS: Final = {"since", "start", "checkpoint", "checkpoint_cost", "detect", "repair"}
"""Options that the errand has in ms, under their name and `-ms`."""


def simulated_options(command: Decorated) -> Decorated:
    """The cluster and what running costs, for every command that simulates."""
    for option in reversed(_SHARED):
        command = option(command)
    return format_option(command)


def words_of(said: Record) -> list[str]:
    """Options as the errand takes them: those that were said."""
    found: list[str] = []
    for name, value in said.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if name in _DURATIONS:
            found += [f"{flag}-ms", str(parse_duration_ms(value))]
        else:
            found += [word for each in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(each))]
    return found


def errand_command(*words: str) -> list[str]:
    """The command line of a process that may load all of ganger."""
    return [sys.executable, "-P", "-m", "ganger.simulation", *words]


@contextmanager
def started(*words: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Start such a process, and end it, with all of its own, when the caller leaves early.

    Ctrl-C reaches every process of a terminal, and is for this one alone: the new process inherits a mask that blocks
    it. Here it is noted meanwhile, by a handler: an ignored one would be lost when another thread receives it.
    """
    interrupts: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        with subprocess.Popen(errand_command(*words), stdout=subprocess.PIPE) as run:
            try:
                signal.signal(signal.SIGINT, handler)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                if interrupts:
                    raise KeyboardInterrupt
                yield run
            except BaseException:
                run.terminate()
                raise
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def errand(*words: str) -> Record:
    """The answer of such a process. Problem: what it says is wrong."""
    with started(*words) as run:
        return answer_of(run.communicate()[0])


def answer_of(text: bytes) -> Record:
    """Return the answer that the process printed. Problem: its error, or that it broke off."""
    try:
        told: Record = json.loads(text)
    except ValueError:
        raise Problem("the simulation itself broke down: its words are above", "", UNREACHABLE) from None
    if "error" in told:
        raise Problem(told["error"], told["next"])
    return told


def show_findings(told: Record) -> None:
    """Rows with a flaw, the first of them by line."""
    place = "event" if told["format"] == "ganger_log" else "line"
    for found in told["findings"]:
        what = "kept" if found["kept"] else "left out"
        show(f"  {count(found['count'], 'row')} {what}, {found['flaw']}: {found['meaning']}")
        for first in found["first"]:
            show(f"    {place} {first['line']}: {first['what']}")
