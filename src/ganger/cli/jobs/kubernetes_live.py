"""`ganger --context NAME get|wait|suspend|resume|priority`: details of a GangJob, its end, and its changes."""

from typing import Final

import click

from ganger.cli.bulk import for_each
from ganger.cli.exit_codes import TIMED_OUT
from ganger.cli.jobs.kubernetes_jobs import NOT_PROCESSED, Record, Target, ending_line, job_argument
from ganger.cli.jobs.run_submit_wait import job_exit_code
from ganger.cli.jobs.state_changes import parse_priority_arguments, priority_change, report_resumed, report_suspended
from ganger.cli.options import DURATION, command_prefix, exit_code_option, output_option
from ganger.cli.output.job_detail_text import detail_lines, spec_fields
from ganger.cli.output.print_output import colour_state, current_time_ms, format_time, say, shell_quote, show, show_json
from ganger.client.kubernetes.gang_jobs import GangJobs
from ganger.model.units import format_duration, parse_duration_ms

_UNKNOWN: Final[Record] = {"directory": "", "git_commit": None}
"""Fields of a job in full that neither its object nor the controller has."""
_jobs_argument = click.argument("jobs", metavar="JOB...", nargs=-1, required=True)


@click.command("get")
@job_argument
@output_option
@click.pass_obj
def get_command(target: Target, job: str, output: str) -> None:
    """Show a job in detail.

    Most of it comes from the GangJob; the controller adds attempts and times for the owner of the job.
    """
    detail = GangJobs(*target).detail(job)
    if output == "json":
        show_json(detail)
        return
    row, now_ms = detail["row"], current_time_ms()
    if "unavailable" in detail:
        _show_object(detail, now_ms)
    else:
        for line in detail_lines(detail | _UNKNOWN, now_ms):
            show(line)
    command = "explain" if row["state"] in ("pending", "unread") else "logs"
    show(f"  next: {command_prefix(target)} {command} {shell_quote(row['id'])}")


def _show_object(detail: Record, now_ms: int) -> None:
    """Print what the GangJob alone contains, and why the controller added nothing."""
    row = detail["row"]
    show(f"{row['id']}  {colour_state(row['state'])}" + (f"  {row['sentence']}" if row["sentence"] else ""))
    requested = list(spec_fields(detail | _UNKNOWN | {"attempts": []})) if detail["spec"] else []
    fields = [pair for pair in (*requested, *_outcome(row, now_ms), ("GPU time", _gpu_time(detail))) if pair[1]]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        show(f"  {name:{width}}  {value}")
    show(f"  attempts are not available: {detail['unavailable']['detail'].splitlines()[0]}")
    say(f"  to see them: {detail['unavailable']['next']}")


def _gpu_time(detail: Record) -> str:
    """Return how the time of the job's GPUs was spent."""
    parts = detail["gpu_seconds"] or {}
    return " · ".join(f"{name} {format_duration(1000 * amount)}" for name, amount in parts.items() if amount)


def _outcome(row: Record, now_ms: int) -> list[tuple[str, str]]:
    return [
        ("submitted", f"{format_time(row['submitted_ms'], now_ms)} by {row['user']}"),
        ("started", format_time(row["started_ms"], now_ms) if row["started_ms"] is not None else ""),
        ("ended", format_time(row["ended_ms"], now_ms) if row["ended_ms"] is not None else ""),
        ("exit code", str(row["exit_code"]) if row["exit_code"] is not None else ""),
        ("attempt", str(row["generation"] or "")),
        ("nodes", ", ".join(row["nodes"])),
    ]


@click.command("wait")
@job_argument
@click.option("--timeout", type=DURATION, help="Stop waiting after this time, such as 5m, with exit code 124.")
@exit_code_option
@output_option
@click.pass_obj
def wait_command(target: Target, job: str, timeout: str | None, own_exit_code: bool, output: str) -> int:
    """Wait until a job has ended.

    Exits with 0 if it succeeded, 1 if it did not, and 124 on timeout.
    """
    ended = GangJobs(*target).wait(job, None if timeout is None else parse_duration_ms(timeout) / 1000)
    if ended is None:
        say(f"{job} has not ended within {timeout}: {command_prefix(target)} get {shell_quote(job)}")
        return TIMED_OUT
    if output == "json":
        show_json(ended)
    else:
        show(ending_line(ended["row"]))
    return job_exit_code(ended["row"], own_exit_code)


@click.command("suspend")
@_jobs_argument
@output_option
@click.pass_obj
def suspend_command(target: Target, jobs: tuple[str, ...], output: str) -> int:
    """Suspend jobs: each may save a checkpoint, releases its nodes and waits for `resume`."""
    return for_each(jobs, lambda job: _checked(GangJobs(*target).suspend(job)), report_suspended, output)


@click.command("resume")
@_jobs_argument
@output_option
@click.pass_obj
def resume_command(target: Target, jobs: tuple[str, ...], output: str) -> int:
    """Resume suspended jobs: each becomes pending and restarts from its newest checkpoint."""
    return for_each(jobs, lambda job: _checked(GangJobs(*target).resume(job)), report_resumed, output)


@click.command("priority", context_settings={"ignore_unknown_options": True})  # so that -100 is a value
@click.argument("arguments", metavar="JOB... VALUE", nargs=-1)
@output_option
@click.pass_context
def priority_command(ctx: click.Context, arguments: tuple[str, ...], output: str) -> int:
    """Set the priority of jobs: low, normal, high, or an integer from -1000 to 1000. The value comes last."""
    number, before = parse_priority_arguments(ctx, arguments), dict[str, int]()

    def change(job: str) -> Record:
        answer = _checked(GangJobs(*ctx.obj).priority(job, number))
        before[answer["row"]["id"]] = answer["before"]
        return answer

    def report(row: Record) -> None:
        show(priority_change(row["id"], before[row["id"]], number))

    return for_each(arguments[:-1], change, report, output)


def _checked(answer: Record) -> Record:
    """Return the answer; warn if no controller has processed the change yet."""
    if not answer["handled"]:
        say(f"{answer['row']['id']}: {NOT_PROCESSED}")
    return answer
