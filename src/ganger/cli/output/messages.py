"""The sentences around a job's output: the plan, why it waits, attempts, progress, and how it ended.

Called by `run`, `follow` and `jobs`. Pure: what the server sent in, text out.
"""

import re
from collections import deque
from typing import Any, Final

from ganger.cli.output.rank_lines import processes_of
from ganger.cli.output.tables import clock, quoted
from ganger.model.job import ENDED, WORKER
from ganger.model.units import format_bytes, format_cpu, format_duration
from ganger.model.views.service_views import PARTS

Record = dict[str, Any]

ALWAYS: Final = ("queued", "starting", "productive", "recovery", "lost")
"""Parts of a ledger that are shown though they are 0."""
COSTS: Final = ("detect", "recovery", "lost")
WAITING: Final = ("pending",)
SUSPENDED: Final = ("suspending", "suspended")
STARTERS: Final = ("torchrun", "paddle")
"""Frameworks with a starter that takes a range of nodes."""
_NODES_FROM_TO: Final = re.compile(r"(--nnodes[= ](\d{1,6}):(\d{1,6}))(?= |$)")
RATE_OVER_MS: Final = 30_000
"""The time over which steps per second are measured: long enough to be steady, short enough to follow a change."""


def size(spec: Record) -> str:
    """`2 nodes x 8 H100`, with CPU and memory where they were asked for; of roles: `1 chief, 2 CPUs + 2 ps, 1 CPU`."""
    roles = spec["roles"]
    workers = [] if roles and (not spec["run"] or WORKER in roles) else [_needs(count(spec["nodes"], "node"), spec)]
    return " + ".join([*workers, *(_needs(f"{role['count']} {name}", role) for name, role in roles.items())])


def _needs(what: str, asks: Record) -> str:
    """What there is of something, and the resources that each of them asks for."""
    asked = asks["resources"]
    gpu = asked["gpu"]
    parts = [what]
    if gpu["count"]:
        parts[0] += f" x {gpu['count']} {gpu['type'] or ('GPUs' if gpu['count'] != 1 else 'GPU')}"
    if gpu["milli"] is not None or gpu["memory_bytes"] is not None:
        compute = f"{gpu['milli'] / 1000:g}" if gpu["milli"] is not None else ""
        memory = format_bytes(gpu["memory_bytes"]) if gpu["memory_bytes"] is not None else ""
        parts[0] += f" x {'/'.join(filter(None, (compute, memory)))} of one {gpu['type'] or 'GPU'}"
    if asked["cpu_milli"] is not None:
        parts.append(f"{format_cpu(asked['cpu_milli'])} CPU" + ("" if asked["cpu_milli"] == 1000 else "s"))
    if asked["memory_bytes"]:
        parts.append(f"{format_bytes(asked['memory_bytes'])} memory")
    return ", ".join(parts)


def count(number: int, noun: str) -> str:
    """`1 node`, `2 processes`."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def plan_lines(name: str, spec: Record, start: str) -> list[str]:
    """The plan block: what is asked for, and when it starts."""
    processes = processes_of(spec)
    times = f"{count(len(spec['array']['indices']), 'element')} of " if spec["array"] else ""
    wanted = f"{times}{size(spec)}  {count(processes, 'process')}, {spec['framework']}"
    lines = [
        f"Plan   {name}  queue {spec['queue']}  {wanted}",
        f"       start: {start}",
    ]
    if (asked := _range_of_nodes(spec)) is not None:
        lines.append(f"       {asked}: it starts with {spec['nodes']}, never with fewer; for fewer: --nodes N")
    if processes > 1 and spec["framework"] == "plain" and _is_python(spec["run"]):
        lines.append("       plain: a torch script gets its RANK and MASTER_ADDR only with --framework torch")
    return lines


def _range_of_nodes(spec: Record) -> str | None:
    """`--nnodes 1:2`, if the command asks for any number between two, of which the greater was taken."""
    run = spec["run"]
    found = _NODES_FROM_TO.search(run if isinstance(run, str) else " ".join(run))
    is_range = found is not None and int(found[2]) < int(found[3]) == spec["nodes"]
    return found[1] if found is not None and is_range and spec["framework"] in STARTERS else None


def start_of_job(job: Record) -> str:
    """When a job that was just submitted starts, as far as is known."""
    row, reason = job["row"], job["reason"]
    if row["nodes"]:
        return f"now, on {', '.join(row['nodes'])}"
    waits = waiting(reason, row["submitted_ms"]) if reason else "in the next round"
    elements = row["elements"] or {}
    if started := sum(elements.values()) - elements.get("pending", 0):
        now = f"now, {started} of {count(sum(elements.values()), 'element')}"
        return f"{now}; {waits}" if "pending" in elements else now
    return waits


def start_of_dry_run(plan: Record, now: int) -> str:
    """When it would start."""
    if plan["starts_now"]:
        return f"now, on {', '.join(plan['nodes'])}"
    expected = f"; at the latest {clock(plan['earliest_ms'], now)}" if plan["earliest_ms"] else ""
    return (plan["reason"]["sentence"] if plan["reason"] else "it would wait") + expected


def waiting(reason: Record, now: int) -> str:
    """Why it waits, and until when if that is known."""
    said: str = reason["sentence"]
    until = f"; expected at {clock(reason['until_ms'], now)}" if reason["until_ms"] else ""
    return f"{said if said.startswith('waiting') else f'waiting: {said}'}{until}"


def attempt_failed(event: Record, job: Record) -> str | None:
    """One line about a failed attempt and where the next one begins. None when it was the last: the summary tells."""
    after = event["data"]["generation"] + 1
    next_attempt = next((attempt for attempt in job["attempts"] if attempt["generation"] == after), None)
    if next_attempt is not None:
        step = next_attempt["resumed_step"]
    elif job["row"]["state"] in ("failing", "stopping", *ENDED):
        return None
    else:
        step = job["checkpoint_step"]
    failed_on = next((each["resumed_step"] for each in job["attempts"] if each["generation"] == after - 1), None)
    if step is not None and failed_on is not None and step < failed_on:
        return f"{event['sentence']}; failed on the checkpoint of step {failed_on}, trying the one of step {step}"
    return f"{event['sentence']}; restarting from {'the beginning' if step is None else f'step {step}'}"


def summary(job: Record) -> list[str]:
    """How it ended, where the time went, what to type next."""
    row, ledger = job["row"], job["ledger"]
    name, attempts = quoted(row["id"]), len(job["attempts"])
    tries = f" in {attempts} attempts" if attempts > 1 else ""
    how = f": {row['sentence']}" if row["sentence"] and row["state"] != "succeeded" else ""
    mark = "✓" if row["state"] == "succeeded" else "✗"
    following = {
        "succeeded": f"ganger get {name}",
        "failed": f"ganger logs {name} --rank all --tail 50   or: ganger events {name}",
        "stopped": f"ganger get {name}",
    }
    if row["elements"]:
        following["failed"] = f"ganger ls {name} --state failed"
    return [
        f"{mark} {row['id']} {row['state']} after {format_duration(row['ended_ms'] - row['submitted_ms'])}{tries}{how}",
        f"  {ledger_line(ledger)}",
        f"  next: {following[row['state']]}",
    ]


def ledger_line(ledger: Record) -> str:
    """`queued 2.0s · starting 1.1s · productive 58.0s · checkpoint 1.2s`: what there was, but those always."""
    there = [part for part in PARTS if ledger[f"{part}_ms"] or part in ALWAYS]
    return " · ".join(f"{part} {format_duration(ledger[f'{part}_ms'])}" for part in there)


def cost_lines(ledger: Record) -> list[str]:
    """What each cause of an end has cost: `hung: 2 failures, 2 restarts; detect 3.0s · recovery 8.1s · lost 40.2s`."""
    lines = []
    for loss in ledger["losses"]:
        failures = f"{count(loss['failures'], 'failure')}, " if loss["failures"] else ""
        costs = (f"{part} {format_duration(loss[f'{part}_ms'])}" for part in COSTS if loss[f"{part}_ms"])
        what = f"{failures}{count(loss['restarts'], 'restart')}; {' · '.join(costs)}"
        lines.append(f"{loss['cause']}: {what.removesuffix('; ')}")
    return lines


class Progress:
    """The line that says how far the job is. Steps per second come from the reports themselves."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()

    def text(self, job: Record) -> str:
        """`step 120/400  loss 2.31  4.1 steps/s  ETA 1m 08s`, as far as the job reports it."""
        report = job["progress"] or {}
        if report.get("step") is None:
            nodes = ", ".join(job["row"]["nodes"])
            return f"{job['row']['state']} on {nodes}" if nodes else str(job["row"]["state"])
        metrics = report.get("metrics") or {}
        total = metrics.get("total_steps") or metrics.get("steps")
        step = report["step"]
        parts = [f"step {step}" + (f"/{total:g}" if total else "")]
        if isinstance(loss := metrics.get("loss"), int | float):
            parts.append(f"loss {loss:.4g}")
        if rate := self._steps_per_s(report["t"], step):
            parts.append(f"{rate:.3g} steps/s")
            if total and total > step:
                parts.append(f"ETA {format_duration(int((total - step) / rate * 1000))}")
        if report.get("phase"):
            parts.append(f"({report['phase']})")
        return "  ".join(parts)

    def _steps_per_s(self, at_ms: int, step: int) -> float | None:
        """Over the last reports of this attempt; None until there are two."""
        samples = self._samples
        if samples and step < samples[-1][1]:
            samples.clear()
        if not samples or at_ms > samples[-1][0]:
            samples.append((at_ms, step))
        while len(samples) > 2 and at_ms - samples[0][0] > RATE_OVER_MS:
            samples.popleft()
        (first_ms, first), (last_ms, last) = samples[0], samples[-1]
        return (last - first) * 1000 / (last_ms - first_ms) if last_ms > first_ms and last > first else None


def _is_python(command: str | list[str]) -> bool:
    words = command.split() if isinstance(command, str) else command
    return bool(words) and words[0].rpartition("/")[2].startswith("python")
