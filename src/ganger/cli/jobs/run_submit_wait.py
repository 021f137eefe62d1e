"""`ganger run`, `submit`, `attach` and `wait`."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ganger import settings
from ganger.cli.exit_codes import FAILED, INTERRUPTED, TIMED_OUT
from ganger.cli.jobs.submit_request import build_request, has_several_jobs
from ganger.cli.options import (
    DURATION,
    RANKS,
    exit_code_option,
    job_argument,
    live_jobs_argument,
    output_option,
    spec_options,
)
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import (
    WAITING,
    counted_processes,
    dry_run_start_text,
    plan_lines,
    start_text,
    summary_lines,
)
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import current_time_ms, say, shell_quote, show, show_json
from ganger.cli.output.rank_lines import process_count
from ganger.client import Client, open_client
from ganger.client.code_directories import code_directories
from ganger.model.job import ENDED
from ganger.model.units import MIB_BYTES, format_bytes, parse_duration_ms

if TYPE_CHECKING:
    from ganger.cli.output.follower import Follower

LARGE_CODE_BYTES: Final = 100 * MIB_BYTES
"""From this size on the plan says what is most of a copy of code: sources alone are rarely 10 MiB."""

MAX_SCRIPT_BYTES: Final = 64 << 10
_SCRIPT: Final = re.compile(r"(?:(?:\S*/)?(?:ba|da|z)?sh +(?:-[a-z]+ +)*)?(\S+\.(?:sh|bash))(?: |$)")
"""A command that runs a script of the shell: `bash -e train.sh`, `./train.sh 3`."""
_LAUNCHER: Final = re.compile(
    r"^[^#\n]*?(?:^|[;&|(]|\s)(?:\S*/)?(torchrun|mpirun|mpiexec|horovodrun|deepspeed|srun|accelerate launch|"
    r"python3? -m torch\.distributed\.(?:run|launch))\b",
    re.MULTILINE,
)

Record = dict[str, Any]
T = TypeVar("T")


@click.command("run", context_settings={"allow_interspersed_args": False})
@spec_options
@exit_code_option
def run_command(own_exit_code: bool, command: tuple[str, ...], output: str, dry_run: bool, **flags: Any) -> int:
    """Run a job and follow it until it ends.

    CMD is the command of every process; a script (train.py) runs with this shell's python, and a single quoted argument
    with spaces is a shell command line. Ctrl-C detaches and leaves the job running.

    \b
      ganger run train.py
      ganger run -j 2x8 --gpu H100:8 -- torchrun train.py --lr 3e-4
      ganger run -f job.yaml --dry-run
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    if output == "json" and not dry_run:
        raise Problem("run prints the job's own output: -o json requires --dry-run", next="ganger submit -o json ...")
    request = build_request(flags, command)
    client = connect()
    print_code_sizes(request)
    if dry_run:
        return show_dry_run(client.dry_run(request), output)
    if has_several_jobs(request):
        raise Problem("run follows one job, but the file has several", next=f"ganger submit -f {flags['path']}")
    after = client.server()["seq"]
    ended = follow_new_job(client, submit_interruptibly(client, client.submit, request), after)
    return INTERRUPTED if ended is None else job_exit_code(ended["row"], own_exit_code)


@click.command("submit", context_settings={"allow_interspersed_args": False})
@spec_options
def submit_command(command: tuple[str, ...], output: str, dry_run: bool, **flags: Any) -> int:
    """Submit a job and return immediately.

    Has the options of `ganger run`. Only the id is printed on stdout; the plan goes to stderr. A file may contain
    several jobs, separated by `---`: `after` may name them, and flags override each.
    """
    request = build_request(flags, command)
    client = connect()
    print_code_sizes(request)
    if dry_run:
        return show_dry_run(client.dry_run(request), output)
    if has_several_jobs(request):
        jobs = submit_interruptibly(client, client.submit_all, request)
    else:
        jobs = [submit_interruptibly(client, client.submit, request)]
    if output == "json":
        show_json(jobs if len(jobs) > 1 else jobs[0])
        return 0
    for job in jobs:
        print_plan(job)
        show(job["row"]["id"])
    return 0


@click.command("attach")
@job_argument
@click.option(
    "--rank", type=RANKS, help="Only these ranks, such as 0,3-5,last or all (default: rank 0, and stderr of all ranks)."
)
@click.option(
    "--tail", type=click.IntRange(min=0), default=10, metavar="N", help="Start with the last N lines (default: 10)."
)
@exit_code_option
def attach_command(job: str, rank: str | None, tail: int, own_exit_code: bool) -> int:
    """Attach to a job and follow it until it ends.

    Shows the last lines of its output, then new lines as they are written. Ctrl-C detaches and leaves the job running.
    The exit code is that of `ganger run`.
    """
    client = connect()
    after = client.server()["seq"]
    detail = client.job(job)
    row, name = detail["row"], detail["row"]["id"]
    if row["elements"]:
        message = f"{name} is a job array: attach to one of its elements, or wait for all of them"
        raise Problem(message, f"ganger ls {shell_quote(name)}   or: ganger wait {shell_quote(name)}")
    if row["state"] not in ENDED:
        nodes = f" on {', '.join(row['nodes'])}" if row["nodes"] else ""
        say(f"{name} is {row['state']}{nodes}; Ctrl-C detaches", dim=True)
    follower = _follower(client, detail, after)
    try:
        ended = follower.follow(rank=rank, tail=tail)
    except KeyboardInterrupt:
        print_detached(follower.job, f"ganger attach {shell_quote(name)}")
        return INTERRUPTED
    for line in summary_lines(ended):
        say(line)
    return job_exit_code(ended["row"], own_exit_code)


@click.command("wait")
@live_jobs_argument
@click.option("--timeout", type=DURATION, help="Stop waiting after this time, such as 5m, with exit code 124.")
@exit_code_option
@output_option
def wait_command(jobs: tuple[str, ...], timeout: str | None, own_exit_code: bool, output: str) -> int:
    """Wait until jobs have ended.

    Exits with 0 if all succeeded, 1 if one did not, and 124 on timeout. With --exit-code it exits with the exit code of
    the first of them that did not succeed.
    """
    client = connect()
    deadline_s = None if timeout is None else time.monotonic() + parse_duration_ms(timeout) / 1000
    all_ended: list[Record] = []
    for job in jobs:
        ended = client.wait(job, None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        if ended is None:
            say(f"{job} has not ended within {timeout}: ganger get {shell_quote(job)}")
            return TIMED_OUT
        all_ended.append(ended)
        for line in summary_lines(ended) if output != "json" else ():
            show(line)
    if output == "json":
        show_json(all_ended[0] if len(all_ended) == 1 else all_ended)
    codes = (job_exit_code(ended["row"], own_exit_code) for ended in all_ended)
    return next((code for code in codes if code), 0)


def connect() -> Client:
    """Return a client connected to the server: this user's, or GANGER_SERVER, or with --context to that cluster."""
    target = click.get_current_context().find_root().obj or {}
    cluster = {name: target.get(name) for name in ("context", "namespace")}
    return open_client(settings.home(os.environ), settings.server(os.environ), **cluster).connect()


def print_code_sizes(request: Record) -> None:
    """Print how much each directory of `code:` copies, before it is copied. Problem: it may not be copied."""
    for code in sorted(code_directories(request)):
        from ganger.code.code_snapshot import code_directory, ignore_hint, measure
        from ganger.errors import RequestError

        directory = code_directory(request["directory"], code)
        if not directory.is_dir() or not os.access(directory, os.R_OK | os.X_OK):
            continue  # the server names it with its place in the job file
        try:
            size = measure(directory)
        except RequestError as error:
            raise Problem(error.detail, error.next) from None
        say(f"code   copies {count(size.files, 'file')} ({format_bytes(size.size_bytes)}B) of {directory}", dim=True)
        if size.size_bytes >= LARGE_CODE_BYTES:
            heavy = ", ".join(f"{path} ({format_bytes(size_bytes)}B)" for path, size_bytes in size.heaviest)
            say(f"       each job gets a copy of its own; most of it: {heavy}", dim=True)
            say(f"       {ignore_hint(directory, [size.heaviest[0][0]])}", dim=True)


def submit_interruptibly(client: Client, submit: Callable[[Record], T], request: Record) -> T:
    """Call `submit`; if the user interrupts it, print how to find out if the job exists."""
    if client.context is not None and (names := sorted(request["secrets"])):
        say(f"{', '.join(names)}: taken from the Secret ganger-secrets of the namespace, not from this shell")
    try:
        return submit(request)
    except KeyboardInterrupt:
        say("interrupted while submitting: `ganger ls` shows whether the job was submitted")
        raise


def follow_new_job(client: Client, job: Record, after: int) -> Record | None:
    """Follow a new job from the event `after` on and print how it ended; return None if Ctrl-C detached."""
    if job["row"]["elements"]:
        return _await_array(client, job)
    follower = _follower(client, job, after)
    try:
        print_plan(job)
        ended = follower.follow()
    except KeyboardInterrupt:
        print_detached(follower.job, f"ganger logs {shell_quote(job['row']['id'])} -f")
        return None
    for line in summary_lines(ended):
        say(line)
    return ended


def _await_array(client: Client, job: Record) -> Record | None:
    """Wait for the end of an array, without output, since each element has logs of its own."""
    name = shell_quote(job["row"]["id"])
    print_plan(job)
    try:
        ended = client.wait(job["row"]["id"], None)
    except KeyboardInterrupt:
        print_detached(client.job(job["row"]["id"]), f"ganger wait {name}")
        return None
    for line in summary_lines(ended) if ended else ():
        say(line)
    return ended


def job_exit_code(row: Record, own_exit_code: bool) -> int:
    """Return the exit code for the outcome of a job."""
    if row["state"] == "succeeded":
        return 0
    job_exit_code: int | None = row["exit_code"] if own_exit_code else None
    return job_exit_code or FAILED


def show_dry_run(plan: Record, output: str) -> int:
    """Print the plan, the command, and the environment that ganger adds."""
    if output == "json":
        show_json(plan)
        return 0
    start = dry_run_start_text(plan, current_time_ms())
    for line in plan_lines(plan["spec"]["name"], plan["spec"], start, plan["resumes"]):
        show(line)
    for text in unseen_texts(plan["spec"]):
        show(f"       {text}")
    if plan["reason"] and plan["reason"]["remedy"]:
        show(f"       {plan['reason']['remedy']}")
    if plan["saves"] and plan["saves"]["warning"]:
        show(f"       {plan['saves']['warning']}")
    show(f"       runs: {' '.join(shell_quote(argument) for argument in plan['argv'])}")
    if plan["environment"]:
        from ganger.framework_api.rank_environment import TASK_DIRECTORY

        show("       rank 0 gets:")
        for name, value in plan["environment"].items():
            show(f"         {name}={shell_quote(value.replace(TASK_DIRECTORY, '$GANGER_TASK_DIR'))}")
    show("nothing was submitted")
    return 0


def print_plan(job: Record) -> None:
    """Print the plan of a submitted job and what to type next."""
    for line in plan_lines(job["row"]["id"], job["spec"], start_text(job), job["resumes"]):
        say(line, dim=True)
    for text in unseen_texts(job["spec"]):
        say(f"       {text}", dim=True)
    if job["saves"] and job["saves"]["warning"]:
        say(f"       {job['saves']['warning']}")
    say(submitted_message(job["row"]))


def unseen_texts(spec: Record) -> Iterator[str]:
    """Yield what the spec of a job does not show: unenforced memory, a fixed GID, a launcher in a script."""
    target = click.get_current_context().find_root().obj or {}
    if spec["resources"]["memory_bytes"] and target.get("context") is None:
        yield "memory is what the scheduler counts; on machines no process is kept from taking more"
    if spec["placement"]["network"]:
        from ganger.networks.variables import gid_index_warnings

        yield from gid_index_warnings(spec["env"], {name: role["env"] for name, role in spec["roles"].items()})
    run = spec["run"] if isinstance(spec["run"], str) else " ".join(spec["run"] or ())
    script = _SCRIPT.match(run)
    if script is None or spec["framework"] != "plain" or process_count(spec) == 1:
        return
    try:
        with Path(script[1]).open("rb") as file:
            text = file.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError:
        return  # it is not here, or the server says that it cannot be run
    if launcher := _LAUNCHER.search(text):
        line, times = text.count("\n", 0, launcher.start(1)) + 1, counted_processes(spec, "time")
        yield f"{script[1]}:{line}: {launcher[1]} starts ranks itself, and ganger starts the script {times}:"
        yield f"make it the command, ganger run -- {launcher[1]} ..., or start the script once: --nproc-per-node 1"


def submitted_message(row: Record) -> str:
    """Return the message that a job was submitted, with what to type next."""
    name = shell_quote(row["id"])
    progress = f"elements: ganger ls {name}" if row["elements"] else f"logs: ganger logs {name} -f"
    return f"✓ submitted {name}   stop: ganger stop {name}   {progress}"


def _follower(client: Client, job: Record, after: int) -> "Follower":
    from ganger.cli.output.follower import Follower
    from ganger.cli.output.rank_lines import LineFormat, process_count

    return Follower(client, job, after, LineFormat(process_count(job["spec"])))


def print_detached(job: Record, command: str) -> None:
    """Print how to reattach to a job, as it was when last fetched."""
    name, is_pending = shell_quote(job["row"]["id"]), job["row"]["state"] in WAITING
    say(f"\ndetached: {job['row']['id']} {'is still pending' if is_pending else 'keeps running'}")
    say(f"  reattach:       {command}")
    say(f"  stop it:        ganger stop {name}")
    if is_pending:
        say(f"  why pending:    ganger explain {name}")
    else:
        say(f"  progress:       ganger get {name}")
