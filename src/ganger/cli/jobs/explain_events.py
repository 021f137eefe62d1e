"""`ganger explain` and `ganger events`: why it waits, and what happened."""

from collections.abc import Iterator
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.list_get_stop import every_job
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import job_argument, output_option
from ganger.cli.output.tables import (
    Column,
    clock,
    coloured_state,
    now_ms,
    show,
    show_json,
    show_json_array,
    show_json_line,
    show_prose,
    show_table,
    when,
)
from ganger.client import Client
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
    first, *others = explanation_lines(explanation, now_ms())
    show(first)
    for line in others:
        show_prose(line)


@click.command("events")
@click.argument("job", metavar="[JOB]", required=False, shell_complete=completions.jobs)
@click.option("-f", "--follow", "--watch", "follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--queue", shell_complete=completions.queues, help="Only what happened to this queue, or to jobs in it.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only what came after this one.")
@output_option
def events_command(job: str | None, follow: bool, queue: str | None, after: int, output: str) -> None:
    """Show what happened, to one job or to all, oldest first.

    With -o json every event is an object: an array, or with -f one object a line. Whoever watches sees each event
    once, over a restart of the server too; `--after SEQ` goes on where an earlier look ended.
    """
    client = connected()
    gang = client.job(job)["row"]["id"] if job else None
    of_queue = _OfQueue(client, queue) if queue is not None else None
    events = client.stream(after, gang=gang) if follow else _events(client, gang, after)
    wanted = (event for event in events if of_queue is None or of_queue.has(event))
    if follow:
        _follow(wanted, output)
        return
    _list(wanted, output)


def _list(events: Iterator[Record], output: str) -> None:
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
    yield from _factor_lines(explanation)
    if explanation["quota"]:
        yield f"  {explanation['quota']}"
    if (expected := _expected(explanation, now)) is not None:
        yield f"  {expected}"
    yield from (f"  {line}" for line in explanation["predicted"])
    for change in explanation["changes"]:
        yield f"  try: {change['flags']}   {change['say']}"
    remedy = explanation["reason"]["remedy"] if explanation["reason"] else ""
    if remedy and f"ganger explain {explanation['job']}" not in remedy:  # that one leads here
        yield f"  next: {remedy}"
    if explanation["proof"]:
        yield f"  {explanation['proof']}"


def _expected(explanation: Record, now: int) -> str | None:
    """When it starts, as far as that is known: a range where it is promised."""
    room_ms, promised_ms = explanation["earliest_ms"], explanation["promised_ms"]
    by_limits = "by the limits of what runs"
    if promised_ms is not None:
        if room_ms is None or room_ms >= promised_ms:
            return f"starts at the latest {when(promised_ms, now)}: that is promised"
        return f"starts between {when(room_ms, now)}, {by_limits}, and {when(promised_ms, now)}, which is promised"
    if room_ms is not None:
        first = (explanation["position"] or 1) - 1
        others = f", if none of the {first} before it {'takes' if first == 1 else 'take'} it" if first else ""
        return f"there is room for it at the latest {when(room_ms, now)}, {by_limits}{others}"
    if explanation["reason"] and explanation["reason"]["holders"]:
        return "no time can be promised: something that runs has no time limit"
    return None


def _factor_lines(explanation: Record) -> Iterator[str]:
    """What decides its place, as Slurm's sprio tells it: what each factor is worth, and why."""
    factors = explanation["factors"]
    if not factors:
        return
    if all(factor["points"] is None for factor in factors):
        yield f"  order {explanation['policy']}, one after the other:"
    else:
        total = sum(factor["points"] for factor in factors)
        yield f"  order {explanation['policy']}: {total:,} points"
    for factor in factors:
        points = "" if factor["points"] is None else f"{factor['points']:+,}"
        yield f"    {factor['name']:<12} {points:>7}  {factor['sentence']}"


def _events(client: Client, gang: str | None, after: int) -> Iterator[Record]:
    """Every event after `after`, a page at a time."""
    next_after: int | None = after
    while next_after is not None:
        page = client.events(after=next_after, gang=gang)
        yield from page["items"]
        next_after = page["next"]


def _follow(events: Iterator[Record], output: str) -> None:
    """What happened, then what comes, in one numbering."""
    for event in events:
        if output == "json":
            show_json_line(event)
        else:
            show("  ".join((f"{event['seq']:>6}", clock(event["at_ms"], now_ms()), event["sentence"])))


class _OfQueue:
    """Tells which events are about one queue, or a job in it. A policy document is about every queue."""

    def __init__(self, client: Client, name: str) -> None:
        """Client.queue raises for a queue that is not there."""
        self._name: str = client.queue(name)["name"]
        self._jobs = {row["id"] for row in every_job(client, {"queue": self._name})}

    def has(self, event: Record) -> bool:
        """Whether it is about the queue. One about several jobs is, if it is about one of the queue's."""
        data = event["data"]
        if event["kind"] == "submitted" and data["job"]["spec"]["queue"] == self._name:
            self._jobs.add(event["job"])
        if event["kind"] == "policy_set":
            return True
        if event["kind"] in ("queue_set", "queue_deleted"):
            about = data["queue"]
            return bool((about if isinstance(about, str) else about["name"]) == self._name)
        decisions = data["plan"]["decisions"] if event["kind"] == "decided" else ()
        gangs = {event["job"], *(decision.get("gang") for decision in decisions)} - {None}
        if any(_queue_of(decision) == self._name for decision in decisions):
            return True
        return any(gang.partition("[")[0] in self._jobs for gang in gangs)  # an element of an array is ID[7]


def _queue_of(decision: Record) -> str | None:
    """The queue of the jobs that are told to wait; None for another decision."""
    queue: str | None = decision["gang_class"].partition("/")[0] if "gang_class" in decision else None
    return queue


def _cells(event: Record, now: int) -> tuple[str, ...]:
    return str(event["seq"]), clock(event["at_ms"], now), event["job"] or "-", event["sentence"]
