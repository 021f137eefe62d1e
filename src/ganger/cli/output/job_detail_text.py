"""A job in full, as lines of text. Called by `ganger get`. Pure: what the server sent in, text out."""

from collections.abc import Iterator
from typing import Any, Final

from ganger.cli.output.messages import SUSPENDED, Progress, cost_lines, count, ledger_line, size
from ganger.cli.output.rank_lines import processes_of
from ganger.cli.output.tables import Column, aligned, coloured_state, quoted, when
from ganger.model.job import ENDED
from ganger.model.units import format_duration

Record = dict[str, Any]

_ATTEMPTS: Final = (
    Column("ATTEMPT", right=True),
    Column("OUTCOME"),
    Column("RAN", right=True),
    Column("FROM STEP", right=True),
    Column("NODES"),
    Column("HOW IT ENDED"),
)


def job_lines(job: Record, now: int) -> Iterator[str]:
    """Every line of `ganger get`."""
    yield from about_lines(job, now)
    yield f"  next: {_next(job['row'])}"


def about_lines(job: Record, now: int) -> Iterator[str]:
    """All but what to type next."""
    row = job["row"]
    yield f"{row['id']}  {coloured_state(row['state'])}" + (f"  {row['sentence']}" if row["sentence"] else "")
    fields = [pair for pair in (*spec_fields(job), *_state_fields(job, now)) if pair[1]]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        yield f"  {name:{width}}  {value}"
    if job["attempts"]:
        yield ""
        for line in aligned(_ATTEMPTS, [_attempt_cells(attempt, now) for attempt in job["attempts"]]):
            yield f"  {line}"
        for attempt in job["attempts"]:
            yield from (f"  attempt {attempt['generation']}: {each}" for each in attempt["passed"])
    yield ""
    of = " of all elements" if row["elements"] else ""
    yield f"  time{of}: {ledger_line(job['ledger'])}; {format_duration(job['ledger']['total_ms'])} in all"
    for line in cost_lines(job["ledger"]):
        yield f"    {line}"


def spec_fields(job: Record) -> Iterator[tuple[str, str]]:
    """What was asked for."""
    spec = job["spec"]
    run = spec["run"]
    yield "command", run if isinstance(run, str) else " ".join(quoted(word) for word in run)
    yield "size", f"{size(spec)}; {count(processes_of(spec), 'process')}, framework {spec['framework']}"
    yield "queue", f"{spec['queue']}, priority {spec['priority']}"
    yield "directory", job["directory"]
    if job["git_commit"]:
        yield "git", job["git_commit"][:12] + (" with changes (git.diff is kept)" if job["git_dirty"] else "")
    code = spec["code"]
    yield "code", f"{code['git']} at {code['ref']}" if isinstance(code, dict) else code or ""
    yield "setup", spec["setup"] or ""
    yield "env", " ".join(f"{name}={quoted(value)}" for name, value in spec["env"].items())
    if checkpoint := spec["checkpoint"]:
        every = f", every {format_duration(checkpoint['every_ms'])}" if checkpoint["every_ms"] else ""
        grace = format_duration(checkpoint["grace_ms"])
        signal = f", {checkpoint['signal']} with a notice" if checkpoint["signal"] else ""
        saving = f"{checkpoint['dir']}{every}, {grace} to save{signal}"
        yield "checkpoints", f"{saving}, resume {checkpoint['resume']}{_kept(checkpoint)}"
    if spec["retry"]["max"] is not None:
        yield "retry", f"{spec['retry']['max']} attempts without progress are forgiven"
    yield "after", ", ".join(f"{after['job']} has {after['when']}" for after in spec["after"])
    if array := spec["array"]:
        limit = f", {array['limit']} at a time" if array["limit"] else ""
        yield "array", count(len(array["indices"]), "element") + limit
    limits = spec["limits"]
    if limits["time_ms"] is not None:
        yield "time limit", format_duration(limits["time_ms"]) + _shortened(limits, job["attempts"])
    if limits["queue_time_ms"] is not None:
        yield "queue limit", format_duration(limits["queue_time_ms"])


def _shortened(limits: Record, attempts: list[Record]) -> str:
    """Of a job that may start with less time: how much will do, and what its newest attempt was granted."""
    least = f", at least {format_duration(limits['time_min_ms'])}" if limits["time_min_ms"] is not None else ""
    newest = attempts[-1] if attempts else {"time_ms": None}
    if newest["time_ms"] is None:
        return least
    return f"{least}; attempt {newest['generation']} was granted {format_duration(newest['time_ms'])}"


def _kept(checkpoint: Record) -> str:
    if checkpoint["keep"] is None:
        return ""
    every = f" and those of steps that {checkpoint['keep_every']} divides" if checkpoint["keep_every"] else ""
    return f", the last {checkpoint['keep']}{every} kept"


def _state_fields(job: Record, now: int) -> Iterator[tuple[str, str]]:
    """What became of it."""
    row = job["row"]
    yield "submitted", f"{when(row['submitted_ms'], now)} by {row['user']}"
    yield "started", when(row["started_ms"], now) if row["started_ms"] is not None else ""
    if job["ends_by_ms"] is not None:
        yield "ends", f"at the latest {when(job['ends_by_ms'], now)}, by its time limit"
    yield "ended", when(row["ended_ms"], now) if row["ended_ms"] is not None else ""
    yield "exit code", str(row["exit_code"]) if row["exit_code"] is not None else ""
    yield "nodes", ", ".join(row["nodes"])
    if job["progress"]:
        yield "progress", Progress().text(job)
    yield "checkpoint", f"step {job['checkpoint_step']}" if job["checkpoint_step"] is not None else ""
    if job["reason"]:
        yield "what helps", job["reason"]["remedy"]


def _attempt_cells(attempt: Record, now: int) -> tuple[str, ...]:
    started_ms = attempt["started_ms"]
    ran = format_duration((attempt["ended_ms"] or now) - started_ms) if started_ms is not None else "-"
    step = attempt["resumed_step"]
    return (
        str(attempt["generation"]),
        attempt["outcome"],
        ran,
        "-" if step is None else str(step),
        ", ".join(attempt["nodes"]),
        attempt["sentence"],
    )


def _next(row: Record) -> str:
    name = quoted(row["id"])
    if row["elements"]:
        return f"ganger ls {name}   or: ganger {'retry' if row['state'] in ENDED else 'stop'} {name}"
    if row["state"] == "pending":
        return f"ganger explain {name}"
    if row["state"] in SUSPENDED:
        return f"ganger resume {name}   or: ganger stop {name}"
    if row["state"] in ENDED:
        return f"ganger logs {name}   or: ganger retry {name}"
    return f"ganger logs {name} -f   or: ganger stop {name}"
