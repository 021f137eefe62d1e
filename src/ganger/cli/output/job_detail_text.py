"""The text of `ganger get`: a job in full. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from ganger.cli.output.messages import (
    SUSPENDED,
    Progress,
    cost_lines,
    counted_processes,
    element_noun,
    idle_text,
    ledger_line,
    size,
)
from ganger.cli.output.metric_text import metric_lines
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import Column, colour_state, fitted_lines, format_time, shell_quote
from ganger.model.job import ENDED
from ganger.model.units import format_duration, format_failure_rate

Record = dict[str, Any]

_ATTEMPTS: Final = (
    Column("ATTEMPT", right=True),
    Column("OUTCOME"),
    Column("RAN", right=True),
    Column("FROM STEP", right=True),
    Column("NODES"),
    Column("REASON"),
)


def job_lines(job: Record, now_ms: int) -> Iterator[str]:
    """Yield every line of `ganger get`."""
    row = job["row"]
    yield f"{row['id']}  {colour_state(row['state'])}" + (f"  {row['sentence']}" if row["sentence"] else "")
    fields = [pair for pair in (*_spec_fields(job), *_state_fields(job, now_ms)) if pair[1]]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        yield f"  {name:{width}}  {value}"
    if job["attempts"]:
        yield ""
        for line in fitted_lines(_ATTEMPTS, [_attempt_cells(attempt, now_ms) for attempt in job["attempts"]], indent=2):
            yield f"  {line}"
        for attempt in job["attempts"]:
            notes = [*attempt["skipped"], *([attempt["dropped_copy"]] if attempt["dropped_copy"] else [])]
            yield from (f"  attempt {attempt['generation']}: {note}" for note in notes)
    yield from _times(job)
    yield f"  next: {_next_command(row)}"


def _times(job: Record) -> Iterator[str]:
    """Yield the time breakdown, or why it is not available."""
    if missing := job.get("unavailable"):
        yield f"  attempts are not available: {missing['detail'].splitlines()[0]}: {missing['next']}"
        return
    yield ""
    scope = f" of all {element_noun(job['spec'])}s" if job["row"]["elements"] else ""
    yield f"  time{scope}: {ledger_line(job['ledger'])}; {format_duration(job['ledger']['total_ms'])} in total"
    for line in cost_lines(job["ledger"]):
        yield f"    {line}"


def _spec_fields(job: Record) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of what was requested."""
    spec = job["spec"]
    run = spec["run"]
    yield "command", run if isinstance(run, str) else " ".join(shell_quote(argument) for argument in run)
    yield "size", f"{size(spec)}; {counted_processes(spec)}, framework {spec['framework']}"
    yield "queue", f"{spec['queue']}, priority {spec['priority']}"
    yield "directory", job["directory"]
    if job["git_commit"]:
        yield (
            "git",
            job["git_commit"][:12] + (" with uncommitted changes (saved as git.diff)" if job["git_dirty"] else ""),
        )
    code = spec["code"]
    yield "code", f"{code['git']} at {code['ref']}" if isinstance(code, dict) else code or ""
    yield "params", " ".join(f"{name}={shell_quote(value)}" for name, value in spec["params"].items())
    yield "setup", spec["setup"] or ""
    yield "env", " ".join(f"{name}={shell_quote(value)}" for name, value in spec["env"].items())
    if checkpoint := spec["checkpoint"]:
        every_ms = checkpoint["every_ms"]
        interval = "" if every_ms is None else f", every {format_duration(every_ms) if every_ms else 'auto'}"
        grace = format_duration(checkpoint["grace_ms"])
        signal = f", notice by {checkpoint['signal']}" if checkpoint["signal"] else ""
        peer = "another node and to " if checkpoint["peer"] else ""
        local = f"{checkpoint['local']} on the node, copied to {peer}" if checkpoint["local"] else ""
        saving = f"{local}{job['checkpoint_directory'] or checkpoint['dir']}{interval}, {grace} grace period{signal}"
        yield "checkpoints", f"{saving}{_retention(checkpoint)}"
    yield "begins from", job["resumes"]
    if spec["retry"]["max"] is not None:
        yield "retry", f"at most {count(spec['retry']['max'], 'retry')} without progress"
    yield "after", ", ".join(f"{after['job']} has {after['when']}" for after in spec["after"])
    array = spec["array"]
    if array and spec["replica_groups"]:
        least = f", at least {spec['replica_groups']} at first" if spec["max_replica_groups"] else ""
        yield "groups", count(len(array["indices"]), "replica group") + least
    elif array:
        limit = f", {array['limit']} at a time" if array["limit"] else ""
        yield "array", count(len(array["indices"]), "element") + limit
    limits = spec["limits"]
    if limits["time_ms"] is not None:
        yield "time limit", format_duration(limits["time_ms"]) + _shortened(limits, job["attempts"])
    if limits["queue_time_ms"] is not None:
        yield "queue limit", format_duration(limits["queue_time_ms"])
    if limits["hang_time_ms"] is not None:
        yield "hang time", format_duration(limits["hang_time_ms"]) if limits["hang_time_ms"] else "never"


def _shortened(limits: Record, attempts: list[Record]) -> str:
    """Return the minimum time limit, and the limit granted to the newest attempt."""
    minimum = f", at least {format_duration(limits['time_min_ms'])}" if limits["time_min_ms"] is not None else ""
    newest = attempts[-1] if attempts else {"time_ms": None}
    if newest["time_ms"] is None:
        return minimum
    return f"{minimum}; attempt {newest['generation']} got {format_duration(newest['time_ms'])}"


def _retention(checkpoint: Record) -> str:
    if checkpoint["keep"] is None:
        return ""
    also_kept = f" and every step divisible by {checkpoint['keep_every']}" if checkpoint["keep_every"] else ""
    return f", the last {checkpoint['keep']}{also_kept} kept"


def _state_fields(job: Record, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of what happened to the job."""
    row = job["row"]
    yield "submitted", f"{format_time(row['submitted_ms'], now_ms)} by {row['user']}"
    yield "started", format_time(row["started_ms"], now_ms) if row["started_ms"] is not None else ""
    if job["ends_by_ms"] is not None:
        yield "ends", f"by {format_time(job['ends_by_ms'], now_ms)}, its time limit"
    if job["notice_until_ms"] is not None:
        yield "notice", f"until {format_time(job['notice_until_ms'], now_ms)}: it may save its work"
    yield "ended", format_time(row["ended_ms"], now_ms) if row["ended_ms"] is not None else ""
    yield "exit code", str(row["exit_code"]) if row["exit_code"] is not None else ""
    yield "nodes", ", ".join(row["nodes"])
    yield "idle", idle_text(job["idle"], now_ms) if job.get("idle") else ""
    yield "start-up", startup_text(job["startup"]) if job.get("startup") else ""
    if job["progress"]:
        yield "progress", Progress().text(job)
    for index, line in enumerate(metric_lines(row["id"], row["metrics"])):
        yield "" if index else "metrics", line
    yield "checkpoint", f"step {job['checkpoint_step']}" if job["checkpoint_step"] is not None else ""
    if job["saves"]:
        yield "saves", _saves_text(job["saves"])
        yield "warning", job["saves"]["warning"]
    if job["reason"]:
        yield "remedy", job["reason"]["remedy"]


def startup_text(startup: Record) -> str:
    """Return how long the pod of an attempt that started last took, and for what."""
    parts = {"volumes and network": "preparation", "init containers": "init", "image": "image"}
    seconds = {text: startup.get(f"{key}Seconds") for text, key in parts.items()}
    times = ", ".join(f"{text} {part_s}s" for text, part_s in seconds.items() if part_s)
    whole = f"attempt {startup['attempt']}: {startup['seconds']}s on {startup['node']}"
    return f"{whole} ({times})" if times else whole


def _saves_text(saves: Record) -> str:
    """Return what saves cost, with the interval in use and with the best one."""
    estimate = saves["estimate"]
    took = f"{format_duration(estimate['save_ms'])} each, " if estimate["save_ms"] is not None else ""
    best_ms = saves["best_every_ms"]
    best = f"every {format_duration(best_ms)} costs least: {saves['best_cost']:.1%} of the time"
    in_use = f", {saves['cost']:.1%} every {format_duration(saves['every_ms'])} as now" if saves["cost"] else ""
    in_use = "" if saves["every_ms"] == best_ms else in_use
    expected = f"a failure in {format_duration(estimate['failure_ms'])} expected"
    return f"{took}{expected} ({format_failure_rate(estimate['node_failure_ms'])} in this cluster); {best}{in_use}"


def _attempt_cells(attempt: Record, now_ms: int) -> tuple[str, ...]:
    started_ms = attempt["started_ms"]
    ran = format_duration((attempt["ended_ms"] or now_ms) - started_ms) if started_ms is not None else "-"
    step = attempt["resumed_step"]
    return (
        str(attempt["generation"]),
        attempt["outcome"],
        ran,
        ("-" if step is None else str(step)) + (f" of {attempt['resumed_job']}" if attempt["resumed_job"] else ""),
        ", ".join(attempt["nodes"]),
        attempt["sentence"],
    )


def _next_command(row: Record) -> str:
    name = shell_quote(row["id"])
    if row["elements"]:
        return f"ganger ls {name}   or: ganger {'retry' if row['state'] in ENDED else 'stop'} {name}"
    if row["state"] == "pending":
        return f"ganger explain {name}"
    if row["state"] in SUSPENDED:
        return f"ganger resume {name}   or: ganger stop {name}"
    if row["state"] in ENDED:
        return f"ganger logs {name}   or: ganger retry {name}"
    return f"ganger logs {name} -f   or: ganger stop {name}"
