"""`ganger explain` and `ganger events`: why it waits, and what happened."""

from collections.abc import Iterator
from typing import Any, Final

import click

from ganger.faces.cli.options import job_argument, output_option
from ganger.faces.cli.render import (
    Column,
    clock,
    coloured_state,
    now_ms,
    show,
    show_json,
    show_json_array,
    show_json_line,
    show_table,
    when,
)
from ganger.faces.cli.run import connected
from ganger.faces.client import Client
from ganger.model.units import format_duration

Record = dict[str, Any]

_COLUMNS: Final = (Column("SEQ", right=True), Column("TIME"), Column("JOB"), Column("WHAT HAPPENED"))


@click.command("explain")
@job_argument
@output_option
def explain_command(job: str, output: str) -> None:
    """Say why a job waits, for whom, until when, and what would start it now.

    Every change it names was tried by the scheduler itself.
    """
    explanation = connected().explain(job)
    if output == "json":
        show_json(explanation)
        return
    for line in explanation_lines(explanation, now_ms()):
        show(line)


@click.command("events")
@click.argument("job", metavar="[JOB]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only what came after this one.")
@output_option
def events_command(job: str | None, follow: bool, after: int, output: str) -> None:
    """Show what happened, to one job or to all, oldest first.

    With -o json every event is an object: an array, or with -f one object a line.
    """
    client = connected()
    gang = client.job(job)["row"]["id"] if job else None
    if follow:
        _follow(client, gang, after, output)
        return
    events = _events(client, gang, after)
    if output == "json":
        show_json_array(events)
        return
    now = now_ms()
    show_table(_COLUMNS, [_cells(event, now) for event in events], "no events")


def explanation_lines(explanation: Record, now: int) -> Iterator[str]:
    """The whole answer: the reason first, what would help last."""
    waited = f" for {format_duration(explanation['waited_ms'])}" if explanation["waited_ms"] is not None else ""
    yield f"{explanation['job']}  {coloured_state(explanation['state'])}{waited}"
    yield f"  {explanation['sentence']}"
    for line in explanation["where"]:
        yield f"    {line}"
    if explanation["position"] is not None:
        yield f"  position {explanation['position']} of {explanation['waiting']} in its queue"
    if explanation["quota"]:
        yield f"  {explanation['quota']}"
    if explanation["earliest_ms"] is not None:
        yield f"  starts at the latest {when(explanation['earliest_ms'], now)}, by the limits of what runs"
    elif explanation["reason"] and explanation["reason"]["holders"]:
        yield "  no time can be promised: something that runs has no time limit"
    for change in explanation["changes"]:
        yield f"  try: {change['flags']}   {change['say']}"
    remedy = explanation["reason"]["remedy"] if explanation["reason"] else ""
    if remedy and f"ganger explain {explanation['job']}" not in remedy:  # that one leads here
        yield f"  next: {remedy}"
    elif remedy and not explanation["changes"]:
        yield "  no smaller form of it would start now: wait, or stop what holds the nodes"


def _events(client: Client, gang: str | None, after: int) -> Iterator[Record]:
    """Every event after `after`, a page at a time."""
    next_after: int | None = after
    while next_after is not None:
        page = client.events(after=next_after, gang=gang)
        yield from page["items"]
        next_after = page["next"]


def _follow(client: Client, gang: str | None, after: int, output: str) -> None:
    """What happened, then what comes, in one numbering."""
    for event in client.stream(after):
        if gang in (None, event["job"]):
            if output == "json":
                show_json_line(event)
            else:
                show("  ".join((f"{event['seq']:>6}", clock(event["at_ms"], now_ms()), event["sentence"])))


def _cells(event: Record, now: int) -> tuple[str, ...]:
    return str(event["seq"]), clock(event["at_ms"], now), event["job"] or "-", event["sentence"]
