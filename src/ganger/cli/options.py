"""Options that several commands share, and checks of flags before a request is sent.

Flags are checked here only so that the error names the flag; the server checks the resulting spec.
"""

import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import click

from ganger.cli import completions
from ganger.cli.output.error_output import Problem
from ganger.model.job import MAX_PRIORITY, PRIORITIES
from ganger.model.units import parse_bytes, parse_cpu_milli, parse_duration_ms

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


MAX_BYTES: Final = 1 << 20


class CheckedText(click.ParamType[str]):
    """Text that `parse` accepts, passed on as the user typed it."""

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
        swapped = re.fullmatch(r"(\d+) ?[x*:] ?([A-Za-z][\w.-]*)", text)
        meant = f"{swapped[2]}:{swapped[1]}" if swapped else "8, or H100:8 to name the type"
        raise ValueError(f"{text!r} is not a GPU count: write {meant}")


def _one_file(_ctx: click.Context, _param: click.Parameter, paths: tuple[str, ...]) -> str | None:
    """Return the file. Raise Problem for several files: click would silently ignore all but the last."""
    if len(paths) > 1:
        commands = "; ".join(f"ganger submit -f {shlex.quote(path)}" for path in paths)
        raise Problem(
            f"-f was given {len(paths)} times, but takes one file; put several jobs into it, separated by ---",
            next=commands,
        )
    return paths[0] if paths else None


def parse_priority(text: str) -> int:
    """Parse a name or a number of a priority."""
    number = PRIORITIES.get(text, int(text) if re.fullmatch(r"-?\d{1,4}", text) else MAX_PRIORITY + 1)
    if abs(number) > MAX_PRIORITY:
        raise ValueError(f"{text!r} is not a priority: write low, normal, high, or an integer from -1000 to 1000")
    return number


def _ranks(text: str) -> None:
    part = r" *(?:\d+(?:-\d+)?|last) *"
    if text != "all" and not re.fullmatch(rf"{part}(?:,{part})*", text):
        raise ValueError(f"{text!r} is not a list of ranks: write 0, 0,3-5, last or all")


def _pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None


def parse_positive_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration; raise ValueError if it is 0 or malformed."""
    duration_ms = parse_duration_ms(text)
    if not duration_ms:
        raise ValueError(f"{text!r} is not a positive duration: write 90s, 30m, 1h30m or 2d")
    return duration_ms


DURATION: Final = CheckedText("duration", parse_duration_ms)
POSITIVE_DURATION: Final = CheckedText("duration", parse_positive_duration_ms)
SIZE: Final = CheckedText("size", parse_bytes)
CPUS: Final = CheckedText("cpus", parse_cpu_milli)
GPUS: Final = CheckedText("[type:]n", _gpu)
PRIORITY: Final = CheckedText("priority", parse_priority)
RANKS: Final = CheckedText("ranks", _ranks)
PATTERN: Final = CheckedText("regex", _pattern)


class Grid(click.ParamType[tuple[int, int]]):
    """`NxM` as (N, M): nodes, and processes per node."""

    name = "NxM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(value))
        if not match:
            self.fail(f"{value!r} is not of the form NxM: write 2x8 for 2 nodes with 8 processes each", param, ctx)
        return int(match[1]), int(match[2])


class SizeRange(click.ParamType[int | str]):
    """A number of nodes or replica groups, or a range as it is written."""

    name = "N"

    def __init__(self, nouns: str) -> None:
        self._nouns = nouns

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"([1-9]\d*)(\.\.[1-9]\d*)?", str(value))
        if not match:
            self.fail(f"{value!r} is not a number of {self._nouns}: write 2, or 2..8 for a range", param, ctx)
        return str(value) if match[2] else int(match[1])


def add_options(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds options and arguments to a command, in this order."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


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
    help="Output format: table, or JSON only.",
)

exit_code_option = click.option(
    "--exit-code", "own_exit_code", is_flag=True, help="Exit with the job's own exit code instead of 1."
)

param_option = click.option(
    "--param", multiple=True, metavar="NAME=VALUE", help="Value of ${{ params.NAME }} in the job file."
)

_COMMAND: Final = click.argument("command", metavar="[--] [CMD]...", nargs=-1, type=click.UNPROCESSED)
_OVERRIDES: Final = (
    click.option("--name", help="Name of the job; its id is the name and a suffix (default: from the command)."),
    click.option("--queue", shell_complete=completions.queues, help="Queue of the job."),
    click.option("--priority", type=PRIORITY, help="Priority: low, normal, high, or an integer from -1000 to 1000."),
    click.option(
        "--framework", help="Framework, which sets the environment variables of processes: plain, torch, mpi, jax ..."
    ),
    click.option("-j", "grid", type=Grid(), metavar="NxM", help="Nodes and processes per node, such as 2x8."),
    click.option(
        "--nodes",
        type=SizeRange("nodes"),
        metavar="N[..MAX]",
        help="Number of nodes; the job starts on all of them or not at all. 2..8: from 2 to 8, as nodes are idle.",
    ),
    click.option("--nproc-per-node", type=click.IntRange(min=1), metavar="N", help="Processes per node."),
    click.option(
        "--replica-groups",
        type=SizeRange("replica groups"),
        metavar="N[..MAX]",
        help="Replica groups of --nodes nodes each, which train on when one is lost (torchft). 2..4: from 2 to 4.",
    ),
    click.option("--gpu", type=GPUS, help="GPUs per node, such as 8 or H100:8."),
    click.option(
        "--gpu-milli", type=click.IntRange(1, 1000), metavar="N", help="Share of one GPU in thousandths, such as 500."
    ),
    click.option("--gpu-memory", type=SIZE, help="Memory share of one GPU, such as 10Gi."),
    click.option("--topology", metavar="LEVEL", help="Topology level within which to place the job, such as rack."),
    click.option(
        "--mode", type=click.Choice(["preferred", "required"]), help="Topology constraint (default: preferred)."
    ),
    click.option("--nodelist", metavar="NODE[,NODE]", help="Nodes on which the job may run (default: any)."),
    click.option("--cpu", type=CPUS, help="CPUs per node, such as 4, 0.5 or 500m."),
    click.option("--memory", type=SIZE, help="Memory per node, such as 64Gi."),
    click.option(
        "--resource",
        "extended",
        multiple=True,
        metavar="NAME=N",
        help="Extended resource per node on Kubernetes, such as rdma/hca=1.",
    ),
    click.option(
        "--network", metavar="NET[,NET]", help="Network that all nodes are on: ib, roce, rdma for either, or tcp."
    ),
    click.option(
        "--node-label", "node_labels", multiple=True, metavar="K=V", help="Label that every node of the job has."
    ),
    click.option(
        "--toleration", "tolerations", multiple=True, metavar="K[=V]", help="Taint of nodes that the job tolerates."
    ),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="NAME:PATH",
        help="Data at PATH; on Kubernetes the PersistentVolumeClaim NAME, mounted there.",
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="K=V",
        help="Environment variable of every process; K alone takes its value from this shell.",
    ),
    click.option(
        "--secret",
        multiple=True,
        metavar="NAME",
        shell_complete=completions.secrets,
        help="Environment variable whose value is never shown; see `ganger secret`.",
    ),
    click.option(
        "--image", metavar="IMAGE", help="Container image on Kubernetes; elsewhere a job uses the programs of the node."
    ),
    click.option("--code", metavar="DIR", help="Run in a copy of this directory (default: run in place)."),
    click.option("--setup", metavar="LINE", help="Shell command to run once per node before the processes."),
    click.option("--checkpoint", metavar="DIR", help="Directory of the checkpoints, in which each job has its own."),
    click.option("--checkpoint-every", type=POSITIVE_DURATION, help="Checkpoint interval, such as 30m."),
    click.option(
        "--checkpoint-keep",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of recent checkpoints to keep, such as 3.",
    ),
    click.option(
        "--checkpoint-grace", type=DURATION, help="Time to save a checkpoint before a stop, such as 2m (default: 30s)."
    ),
    click.option(
        "--resume-from",
        metavar="JOB[:STEP]",
        help="Begin from the newest checkpoint of another job, or from that of a step.",
    ),
    click.option("--retry", type=click.IntRange(min=0), metavar="N", help="Number of retries without progress."),
    click.option("--time", type=POSITIVE_DURATION, help="Time limit of the job, such as 24h."),
    click.option(
        "--time-min", type=POSITIVE_DURATION, help="Minimum time limit, to start earlier by backfill, such as 2h."
    ),
    click.option("--queue-time", type=POSITIVE_DURATION, help="Longest time to stay pending; then the job ends."),
    click.option(
        "--array",
        metavar="LIST",
        help="Job array with these indices, such as 0-99, 1,3,5-9:2; 0-99%10 runs ten at a time.",
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="JOB[:WHEN]",
        shell_complete=completions.jobs,
        help="Start after JOB has succeeded, or JOB:failed, JOB:ended.",
    ),
)
"""Options that override the spec of a file or of an existing job."""
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
        help="Job file; flags override its values.",
    ),
    *_OVERRIDES,
    param_option,
    click.option("--dry-run", is_flag=True, help="Show what would happen without submitting."),
    output_option,
)


spec_options = add_options(*_SPEC_OPTIONS)
"""Add the options that describe a job, for `run` and `submit`."""
override_options = add_options(_COMMAND, *_OVERRIDES, param_option)
"""Add the options that override the spec of an existing job, for `clone`."""


def read_text_file(file: str, kind: str, next: str, stream: BinaryIO | None = None) -> str:
    """Return the text of a file that the user names as a `kind`, or of `stream`, which is called `file`.

    At most MAX_BYTES are read, since a device never ends. Problem: unreadable, too long, or not text.
    """
    try:
        with Path(file).open("rb") if stream is None else nullcontext(stream) as input_file:
            content = input_file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Problem(f"cannot read {file}: {error.strerror}", next) from None
    if len(content) > MAX_BYTES:
        raise Problem(f"{file} is longer than 1 MiB, which is too long for a {kind} file", next)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Problem(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}", "save it as UTF-8") from None
