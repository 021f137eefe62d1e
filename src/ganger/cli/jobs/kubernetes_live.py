"""`ganger --context NAME get|wait|suspend|resume|priority`: a GangJob in full, its end, and what may change meanwhile.

Beside `in_context`; the words are those of the commands for a server of ganger's.
"""

from typing import Any, Final

import click

from ganger.cli.bulk import each
from ganger.cli.exit_codes import TIMED_OUT
from ganger.cli.jobs.kubernetes_jobs import UNHEARD, ending, job_argument
from ganger.cli.jobs.run_submit_wait import exit_code_of, typed
from ganger.cli.jobs.state_changes import priority_of, priority_said
from ganger.cli.options import DURATION, exit_code_option, output_option
from ganger.cli.output.job_detail_text import about_lines, spec_fields
from ganger.cli.output.tables import coloured_state, now_ms, quoted, say, show, show_json, when
from ganger.client.kubernetes.gang_jobs import GangJobs
from ganger.model.units import format_duration, parse_duration_ms

Record = dict[str, Any]
Named = tuple[str, str | None]

_NOT_SAID: Final[Record] = {"directory": "", "git_commit": None}
"""Of a job in full, what neither its object nor the controller says."""
_jobs_argument = click.argument("jobs", metavar="JOB...", nargs=-1, required=True)


@click.command("get")
@job_argument
@output_option
@click.pass_obj
def get_command(named: Named, job: str, output: str) -> None:
    """Show a job: what was asked for, and what became of it.

    Its GangJob says most of it; attempts, and where its time went, the controller tells whose job it is.
    """
    found = GangJobs(*named).detail(job)
    if output == "json":
        show_json(found)
        return
    row, now = found["row"], now_ms()
    if "untold" in found:
        _show_object(found, now)
    else:
        for line in about_lines(found | _NOT_SAID, now):
            show(line)
    show(f"  next: {typed(named)} {'explain' if row['state'] in ('pending', 'unread') else 'logs'} {quoted(row['id'])}")


def _show_object(found: Record, now: int) -> None:
    """What the GangJob alone says, and why that is all."""
    row = found["row"]
    show(f"{row['id']}  {coloured_state(row['state'])}" + (f"  {row['sentence']}" if row["sentence"] else ""))
    asked = list(spec_fields(found | _NOT_SAID | {"attempts": []})) if found["spec"] else []
    fields = [pair for pair in (*asked, *_became(row, now), ("GPU time", _gpu_time(found))) if pair[1]]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        show(f"  {name:{width}}  {value}")
    show(f"  attempts are not shown: {found['untold']['detail'].splitlines()[0]}")
    say(f"  to see them: {found['untold']['next']}")


def _gpu_time(found: Record) -> str:
    """Where the time of its GPUs went."""
    parts = found["gpu_seconds"] or {}
    return " · ".join(f"{name} {format_duration(1000 * amount)}" for name, amount in parts.items() if amount)


def _became(row: Record, now: int) -> list[tuple[str, str]]:
    return [
        ("submitted", f"{when(row['submitted_ms'], now)} by {row['user']}"),
        ("started", when(row["started_ms"], now) if row["started_ms"] is not None else ""),
        ("ended", when(row["ended_ms"], now) if row["ended_ms"] is not None else ""),
        ("exit code", str(row["exit_code"]) if row["exit_code"] is not None else ""),
        ("attempt", str(row["generation"] or "")),
        ("nodes", ", ".join(row["nodes"])),
    ]


@click.command("wait")
@job_argument
@click.option("--timeout", type=DURATION, help="Give up after this time, with exit code 124: 5m.")
@exit_code_option
@output_option
@click.pass_obj
def wait_command(named: Named, job: str, timeout: str | None, own_exit_code: bool, output: str) -> int:
    """Wait until a job has ended.

    Exits as `run` does: 0 when it succeeded, 1 when not, 124 when the time is over.
    """
    ended = GangJobs(*named).wait(job, None if timeout is None else parse_duration_ms(timeout) / 1000)
    if ended is None:
        say(f"{job} has not ended within {timeout}, and goes on: {typed(named)} get {quoted(job)}")
        return TIMED_OUT
    if output == "json":
        show_json(ended)
    else:
        show(ending(ended["row"]))
    return exit_code_of(ended["row"], own_exit_code)


@click.command("suspend")
@_jobs_argument
@output_option
@click.pass_obj
def suspend_command(named: Named, jobs: tuple[str, ...], output: str) -> int:
    """Suspend jobs: each may save its work, gives its nodes back, and waits for `resume`."""

    def tell(row: Record) -> None:
        way = "suspended" if row["state"] == "suspended" else "suspending"
        show(f"{way} {quoted(row['id'])}; {typed(named)} resume {quoted(row['id'])} lets it go on")

    return each(jobs, lambda job: _heard(GangJobs(*named).suspend(job)), tell, output)


@click.command("resume")
@_jobs_argument
@output_option
@click.pass_obj
def resume_command(named: Named, jobs: tuple[str, ...], output: str) -> int:
    """Resume suspended jobs: each waits for its turn, and goes on from its newest checkpoint."""

    def tell(row: Record) -> None:
        name = quoted(row["id"])
        why = "" if row["nodes"] else f"; {typed(named)} explain {name}"
        show(f"resumed {name}: it is {row['state']}{why}")

    return each(jobs, lambda job: _heard(GangJobs(*named).resume(job)), tell, output)


@click.command("priority", context_settings={"ignore_unknown_options": True})  # -100 is no option
@click.argument("words", metavar="JOB... VALUE", nargs=-1)
@output_option
@click.pass_context
def priority_command(ctx: click.Context, words: tuple[str, ...], output: str) -> int:
    """Set the priority of jobs: low, normal, high, or an integer from -1000 to 1000. The value comes last."""
    number, before = priority_of(ctx, words), dict[str, int]()

    def change(job: str) -> Record:
        found = _heard(GangJobs(*ctx.obj).priority(job, number))
        before[found["row"]["id"]] = found["before"]
        return found

    def tell(row: Record) -> None:
        was = before[row["id"]]
        had = "" if was == number else f"; it had {priority_said(was)}"
        show(f"{quoted(row['id'])} has priority {priority_said(number)}{had}")

    return each(words[:-1], change, tell, output)


def _heard(found: Record) -> Record:
    """The same; it is said when nobody has heard of it yet."""
    if not found["heard"]:
        say(f"{found['row']['id']}: {UNHEARD}")
    return found
