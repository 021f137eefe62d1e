"""`ganger explain` and `ganger events`: pending reasons, failures and history of jobs."""

from collections.abc import Iterator
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.list_and_stop import every_job
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import job_argument, output_option
from ganger.cli.output.job_detail_text import startup_text
from ganger.cli.output.messages import period_text, start_range_text
from ganger.cli.output.print_output import (
    Column,
    colour_state,
    current_time_ms,
    format_clock,
    format_relative,
    show,
    show_json,
    show_json_line,
    show_prose,
    show_rows,
)
from ganger.client import Client
from ganger.model.units import format_duration

Record = dict[str, Any]

_COLUMNS: Final = (Column("SEQ", right=True), Column("TIME"), Column("JOB"), Column("EVENT"))


@click.command("explain")
@job_argument
@click.option("--factors", is_flag=True, help="Also the points of each factor of its priority, as sprio of Slurm.")
@output_option
def explain_command(job: str, factors: bool, output: str) -> None:
    """Explain why a job is pending, until when, and what would start it now; or why it failed, and what to do.

    The scheduler itself has tried every suggested change.
    """
    explanation = connect().explain(job)
    if output == "json":
        show_json(explanation)
        return
    show_explanation(explanation, current_time_ms(), factors=factors)


@click.command("events")
@click.argument("job", metavar="[JOB]", required=False, shell_complete=completions.jobs)
@click.option("-f", "--follow", "--watch", "follow", is_flag=True, help="Follow new events until Ctrl-C.")
@click.option("--queue", shell_complete=completions.queues, help="Only events of this queue and of jobs in it.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this sequence number."
)
@output_option
def events_command(job: str | None, follow: bool, queue: str | None, after: int, output: str) -> None:
    """List the events of one job or of all jobs, oldest first.

    With -o json every event is an object: in an array, or with -f one object per line. Following shows each event
    once, also across restarts of the server; `--after SEQ` continues from an earlier point.
    """
    client = connect()
    gang = client.job(job)["row"]["id"] if job else None
    queue_filter = _QueueFilter(client, queue) if queue is not None else None
    events = client.stream(after, gang=gang) if follow else _events(client, gang, after)
    selected = (event for event in events if queue_filter is None or queue_filter.matches(event))
    if follow:
        _follow(selected, output)
    else:
        now_ms = current_time_ms()
        show_rows(_COLUMNS, selected, lambda event: _cells(event, now_ms), "no events", output)


def show_explanation(explanation: Record, now_ms: int, *, factors: bool = False) -> None:
    """Print an explanation, wrapped to the terminal."""
    first, *others = _explanation_lines(explanation, now_ms)
    show(first)
    for line in (*others, *(_factor_lines(explanation) if factors else ())):
        show_prose(line)


def _explanation_lines(explanation: Record, now_ms: int) -> Iterator[str]:
    """Yield the reason, when the job starts and what would start it now; then its position, quota and priority."""
    waited = f" for {format_duration(explanation['waited_ms'])}" if explanation["waited_ms"] is not None else ""
    yield f"{explanation['job']}  {colour_state(explanation['state'])}{waited}"
    yield f"  {explanation['sentence']}"
    for line in explanation["domains"]:
        yield f"    {line}"
    if startup := explanation.get("startup"):
        yield f"  start-up of {startup_text(startup)}"
    yield from (f"  {line}" for line in _expected_lines(explanation, now_ms))
    yield from (f"  {line}" for line in explanation["predicted"])
    for change in explanation["changes"]:
        yield f"  try: {change['flags']}   {change['description']}"
    remedy = explanation["reason"]["remedy"] if explanation["reason"] else ""
    if remedy and f"ganger explain {explanation['job']}" not in remedy:  # not a hint to run this very command
        yield f"  next: {remedy}"
    yield from (f"  next: {advice}" for advice in explanation["advice"])
    if explanation["smallest_tried"]:
        yield f"  {explanation['smallest_tried']}"
    if explanation["position"] is not None:
        yield f"  position {explanation['position']} of {explanation['pending']} in its queue"
    if explanation["quota"]:
        yield f"  {explanation['quota']}"
    yield from _order_lines(explanation)


def _expected_lines(explanation: Record, now_ms: int) -> Iterator[str]:
    """Yield when the job is expected to start, and what that depends on."""
    forecast, reserved_ms = explanation["forecast"], explanation["reserved_start_ms"]
    if forecast is not None:
        expected = f"expected start: {start_range_text(forecast, now_ms, reserved_ms)}"
        if reserved_ms is not None and forecast["expected_ms"] is not None:
            expected += f"; {format_clock(reserved_ms, now_ms)} at the latest, reserved"
        yield expected
        if forecast["expected_ms"] is not None:
            yield from (f"  {line}" for line in forecast["depends_on"])
    elif reserved_ms is not None:
        clock, relative = format_clock(reserved_ms, now_ms), format_relative(reserved_ms, now_ms)
        yield f"expected start: {clock} or earlier ({relative}, reserved)"
    elif text := period_text(explanation["reason"], now_ms):
        yield text


def _order_lines(explanation: Record) -> Iterator[str]:
    """Yield the order of the queue, with the job's points, if the order counts any."""
    factors, order = explanation["factors"], explanation["policy"]
    more = f"ganger explain {explanation['job']} --factors"
    if any(factor["points"] is not None for factor in factors):
        yield f"  order {order}: {sum(factor['points'] or 0 for factor in factors):,} points   {more}"
    elif factors:
        yield f"  order {order}, by {', '.join(factor['name'] for factor in factors)}   {more}"


def _factor_lines(explanation: Record) -> Iterator[str]:
    """Yield the factors of the job's priority as sprio of Slurm does: points and reason of each."""
    for factor in explanation["factors"]:
        points = "" if factor["points"] is None else f"{factor['points']:+,}"
        yield f"    {factor['name']:<12} {points:>7}  {factor['sentence']}"


def _events(client: Client, gang: str | None, after: int) -> Iterator[Record]:
    """Yield every event after `after`, fetched in pages."""
    cursor: int | None = after
    while cursor is not None:
        page = client.events(after=cursor, gang=gang)
        yield from page["items"]
        cursor = page["next"]


def _follow(events: Iterator[Record], output: str) -> None:
    """Print past and new events as one numbered sequence."""
    for event in events:
        if output == "json":
            show_json_line(event)
        else:
            show("  ".join((f"{event['seq']:>6}", format_clock(event["at_ms"], current_time_ms()), event["sentence"])))


class _QueueFilter:
    """Selects the events of one queue and of the jobs in it. A policy document concerns every queue."""

    def __init__(self, client: Client, name: str) -> None:
        """Raise ClientError if the queue does not exist."""
        self._name: str = client.queue(name)["name"]
        self._jobs = {row["id"] for row in every_job(client, {"queue": self._name})}

    def matches(self, event: Record) -> bool:
        """Tell if an event concerns the queue; one about several jobs does if one of them is in the queue."""
        data = event["data"]
        if event["kind"] == "submitted" and data["job"]["spec"]["queue"] == self._name:
            self._jobs.add(event["job"])
        if event["kind"] == "policy_set":
            return True
        if event["kind"] in ("queue_set", "queue_deleted"):
            changed_queue = data["queue"]
            return bool((changed_queue if isinstance(changed_queue, str) else changed_queue["name"]) == self._name)
        decisions = data["plan"]["decisions"] if event["kind"] == "decided" else ()
        gangs = {event["job"], *(decision.get("gang") for decision in decisions)} - {None}
        if any(_queue_of(decision) == self._name for decision in decisions):
            return True
        return any(gang.partition("[")[0] in self._jobs for gang in gangs)  # an element of an array is ID[7]


def _queue_of(decision: Record) -> str | None:
    """Return the queue of a decision about pending jobs, None for other decisions."""
    queue: str | None = decision["gang_class"].partition("/")[0] if "gang_class" in decision else None
    return queue


def _cells(event: Record, now_ms: int) -> tuple[str, ...]:
    return str(event["seq"]), format_clock(event["at_ms"], now_ms), event["job"] or "-", event["sentence"]
