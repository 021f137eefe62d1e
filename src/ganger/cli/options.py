"""Options that several commands share, and the checks a flag gets before anything is sent.

A flag is checked here only so that the error names the flag; the server checks the spec that comes of it.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import click

from ganger.cli import completions
from ganger.cli.output.error_output import Problem
from ganger.model.job import PRIORITIES
from ganger.model.units import parse_bytes, parse_cpu_milli, parse_duration_ms

LARGEST_PRIORITY: Final = 1000
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


MAX_BYTES: Final = 1 << 20


class Checked(click.ParamType[str]):
    """Text that `parse` accepts, passed on as the user wrote it."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


def _gpu(text: str) -> None:
    if not re.fullmatch(r"([A-Za-z][\w.-]*(,[A-Za-z][\w.-]*)*:)?\d+", text):
        raise ValueError(f"{text!r} is not a number of GPUs: write 8, or H100:8 to name the type")


def _one_file(_ctx: click.Context, _param: click.Parameter, paths: tuple[str, ...]) -> str | None:
    """The file. Problem for several: all but the last would be passed over without a word."""
    if len(paths) > 1:
        each = "; ".join(f"ganger submit -f {shlex.quote(path)}" for path in paths)
        raise Problem(
            f"-f is given {len(paths)} times, for one file; several jobs go into one, a --- between", next=each
        )
    return paths[0] if paths else None


def _priority(text: str) -> None:
    is_number = re.fullmatch(r"-?\d{1,4}", text) and abs(int(text)) <= LARGEST_PRIORITY
    if text not in PRIORITIES and not is_number:
        raise ValueError(f"{text!r} is not a priority: write low, normal, high, or an integer from -1000 to 1000")


def _ranks(text: str) -> None:
    parse_ranks(text)


def parse_ranks(text: str) -> tuple[int, ...] | None:
    """Ranks from `0,3-5,last`, -1 for the last; None for `all`. ValueError says what is legal."""
    if text == "all":
        return None
    ranks: list[int] = []
    for part in text.split(","):
        if part.strip() == "last":
            ranks.append(-1)
            continue
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise ValueError(f"{text!r} are not ranks: write 0, 0,3-5, last or all")
        first, last = int(match[1]), int(match[2] or match[1])
        ranks += range(first, last + 1)
    return tuple(dict.fromkeys(ranks))


def _pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None


def lasting_ms(text: str) -> int:
    """Milliseconds of a time that something lasts. ValueError says what is legal: none at all is not."""
    duration_ms = parse_duration_ms(text)
    if not duration_ms:
        raise ValueError(f"{text!r} is no time at all: write more than 0, as 90s, 30m, 1h30m or 2d")
    return duration_ms


DURATION: Final = Checked("duration", parse_duration_ms)
LASTING: Final = Checked("duration", lasting_ms)
SIZE: Final = Checked("size", parse_bytes)
CPUS: Final = Checked("cpus", parse_cpu_milli)
GPUS: Final = Checked("[type:]n", _gpu)
PRIORITY: Final = Checked("priority", _priority)
RANKS: Final = Checked("ranks", _ranks)
PATTERN: Final = Checked("regex", _pattern)


class Grid(click.ParamType[tuple[int, int]]):
    """`NxM` as (N, M): nodes, and processes on each."""

    name = "NxM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(value))
        if not match:
            self.fail(f"{value!r} is not NxM: write 2x8 for 2 nodes with 8 processes each", param, ctx)
        return int(match[1]), int(match[2])


def _jobs_argument(complete: completions.Completer) -> Callable[[Decorated], Decorated]:
    return click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete)


job_argument = click.argument("job", metavar="JOB", shell_complete=completions.jobs)
live_jobs_argument = _jobs_argument(completions.live_jobs)
ended_jobs_argument = _jobs_argument(completions.ended_jobs)

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="How to print: a table, or JSON and nothing else.",
)

exit_code_option = click.option(
    "--exit-code", "own_exit_code", is_flag=True, help="Exit with the job's own exit code instead of 1."
)

_COMMAND: Final = click.argument("command", metavar="[--] [CMD]...", nargs=-1, type=click.UNPROCESSED)
_OVERRIDES: Final = (
    click.option("--name", help="A label; the id is the name and a suffix. Without it: from the command."),
    click.option("--queue", shell_complete=completions.queues, help="The queue to wait in."),
    click.option("--priority", type=PRIORITY, help="low, normal, high, or an integer from -1000 to 1000."),
    click.option("--framework", help="Which variables each process gets: plain, torch, mpi, jax ..."),
    click.option("-j", "grid", type=Grid(), metavar="NxM", help="Nodes and processes on each: 2x8."),
    click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes: all or none."),
    click.option("--nproc-per-node", type=click.IntRange(min=1), metavar="N", help="Processes on each node."),
    click.option("--gpu", type=GPUS, help="GPUs on each node: 8, or H100:8."),
    click.option("--gpu-milli", type=click.IntRange(1, 1000), metavar="N", help="Thousandths of one GPU instead: 500."),
    click.option("--gpu-memory", type=SIZE, help="Memory that it has of one GPU: 10Gi."),
    click.option("--topology", metavar="LEVEL", help="The level of the network that the job stays in: rack."),
    click.option(
        "--mode", type=click.Choice(["preferred", "required"]), help="Whether it may go beyond that level; it may."
    ),
    click.option("--nodelist", metavar="NODE[,NODE]", help="The nodes that it may have, by name; any without."),
    click.option("--cpu", type=CPUS, help="CPUs on each node: 4, 0.5 or 500m."),
    click.option("--memory", type=SIZE, help="Memory on each node: 64Gi."),
    click.option("--env", multiple=True, metavar="K=V", help="A variable of every process; K alone: from this shell."),
    click.option(
        "--secret",
        multiple=True,
        metavar="NAME",
        shell_complete=completions.secrets,
        help="A variable that is never shown: `ganger secret`.",
    ),
    click.option("--code", metavar="DIR", help="Copy this directory and run there; without it: run in place."),
    click.option("--setup", metavar="LINE", help="Shell line run once on each node before the processes."),
    click.option("--checkpoint", metavar="DIR", help="Where checkpoints are kept."),
    click.option("--checkpoint-every", type=LASTING, help="How often to save: 30m."),
    click.option(
        "--checkpoint-keep", type=click.IntRange(min=1), metavar="N", help="How many of the last checkpoints stay: 3."
    ),
    click.option("--retry", type=click.IntRange(min=0), metavar="N", help="Attempts without progress to forgive."),
    click.option("--time", type=LASTING, help="Time the job may hold its nodes: 24h."),
    click.option("--time-min", type=LASTING, help="Start with less time, at least this, where that fits a hole: 2h."),
    click.option("--queue-time", type=LASTING, help="Time it may wait; then it ends."),
    click.option("--array", metavar="LIST", help="One job for each index: 0-99, 1,3,5-9:2; 0-99%10: ten at a time."),
    click.option(
        "--after",
        multiple=True,
        metavar="JOB[:WHEN]",
        shell_complete=completions.jobs,
        help="Start when JOB has succeeded; or failed, or ended: JOB:ended.",
    ),
)
"""What goes over the spec of a file, or of a job that is there."""
_SPEC_OPTIONS: Final = (
    _COMMAND,
    click.option(
        "-f",
        "--file",
        "path",
        type=click.Path(readable=False),
        multiple=True,
        callback=_one_file,
        metavar="FILE",
        help="A job file; flags override what it says.",
    ),
    *_OVERRIDES,
    click.option("--param", multiple=True, metavar="NAME=VALUE", help="A value for ${{ params.NAME }} in the file."),
    click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing."),
    output_option,
)


def spec_options(command: Decorated) -> Decorated:
    """Everything that describes a job, for `run` and `submit`."""
    return _with(_SPEC_OPTIONS, command)


def override_options(command: Decorated) -> Decorated:
    """What may be otherwise in a job that is made from another, for `clone`."""
    return _with((_COMMAND, *_OVERRIDES), command)


def _with(options: Sequence[Callable[[Decorated], Decorated]], command: Decorated) -> Decorated:
    for option in reversed(options):
        command = option(command)
    return command


def read_given(file: str, what: str, next: str, stream: BinaryIO | None = None) -> str:
    """Return the text of a file that the user names as a `what`, or of `stream`, which is called `file`. Read no
    further than such a file can be long, since a device never ends. Problem: unreadable, too long, or not text."""
    try:
        with Path(file).open("rb") if stream is None else nullcontext(stream) as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise Problem(f"cannot read {file}: {error.strerror}", next) from None
    if len(content) > MAX_BYTES:
        raise Problem(f"{file} is longer than 1 MiB: is it a {what} at all?", next)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Problem(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}", "save it as UTF-8") from None
