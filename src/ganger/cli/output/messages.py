"""The messages around a job's output: plan, pending reason, attempts, progress, outcome. Pure."""

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from ganger.cli.output.metric_text import TOTALS
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import format_clock, format_time, shell_quote
from ganger.cli.output.rank_lines import process_count
from ganger.model.idle.idle_rules import STOP, SUSPEND
from ganger.model.job import ENDED, WORKER
from ganger.model.job_metrics import format_metric
from ganger.model.pending_reason import ReasonCode
from ganger.model.units import MINUTE_MS, format_bytes, format_cpu, format_duration
from ganger.model.views.service_views import PARTS

Record = dict[str, Any]

ALWAYS: Final = ("queued", "starting", "productive", "recovery", "lost")
"""Parts of the time breakdown that are shown even if they are 0."""
COSTS: Final = ("detect", "recovery", "lost", "unobserved")
WAITING: Final = ("pending",)
SUSPENDED: Final = ("suspending", "suspended")
MAX_PREEMPTED: Final = 3
"""Jobs to preempt that are named."""
_MAX_RESTARTS: Final = re.compile(
    r"(?:torchrun|distributed\.\w+|accelerate[ .-]\S*launch)(?: -\S+(?: [^-\s]\S*)?)*?"
    r" (--max[-_]restarts[= ](\d{1,9}))(?= |$)"
)
_NNODES: Final = re.compile(r"--nnodes[= ](\d{1,6}:\d{1,6})(?= |$)")
_ELASTIC_OPTIONS: Final = {
    "torchrun": (_NNODES, re.compile(r"--(rdzv[-_][a-z_-]+)")),
    "paddle": (_NNODES, re.compile(r"--(elastic[-_][a-z_-]+)")),
    "deepspeed": (re.compile(r"--elastic[-_]training"), None),
    "horovod": (
        re.compile(r"--max-(?:np|num-proc)[= ]\d{1,6}(?= |$)"),
        re.compile(r"--(host-discovery-script|elastic-timeout|reset-limit|blacklist-cooldown-range)"),
    ),
}
"""Framework -> how its launcher is asked for a range of sizes, and its options about membership, which is ganger's."""
_NO_LAUNCHER: Final = "leave it out: ganger run --framework torch -- python train.py"
_OTHER_LAUNCHER: Final = re.compile(
    r"(?:^|[;&|(\n]|\brun\b(?: -\S+(?: [^-\s]\S*)??)*?) *(?:\S*/)?"
    r"(srun|composer|fabric run|lightning run|colossalai run|tune run|torchx run|axolotl train)\b"
)
"""Launchers that start ranks themselves, and that no framework of ganger takes the place of."""
_OTHER_VARIABLES: Final = {
    "SKYPILOT_NODE_RANK": "GANGER_NODE_RANK",
    "SKYPILOT_NODE_IPS": "GANGER_NODE_HOSTS",
    "SKYPILOT_NUM_NODES": "GANGER_NODES",
    "SKYPILOT_NUM_GPUS_PER_NODE": "GANGER_GPUS_PER_NODE",
    "SKYPILOT_TASK_ID": "GANGER_JOB_ID",
    "SLURM_PROCID": "GANGER_RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NODEID": "GANGER_NODE_RANK",
    "SLURM_NNODES": "GANGER_NODES",
    "SLURM_JOB_ID": "GANGER_JOB_ID",
    "SLURM_ARRAY_TASK_ID": "GANGER_ARRAY_INDEX",
}
"""Variables of other schedulers -> those that have their values here."""
RATE_OVER_MS: Final = 30_000
"""The period over which steps per second are measured: long enough to be steady, short enough to follow changes."""


def size(spec: Record) -> str:
    """Return `2 nodes x 8 H100`, with CPU and memory if requested; of roles: `1 chief, 2 CPUs + 2 ps, 1 CPU`."""
    roles = spec["roles"]
    workers = [] if roles and (not spec["run"] or WORKER in roles) else [_with_resources(_node_count(spec), spec)]
    counts = {name: _range(role["count"], role["max_count"]) for name, role in roles.items()}
    return " + ".join([*workers, *(_with_resources(f"{counts[name]} {name}", role) for name, role in roles.items())])


def _node_count(spec: Record) -> str:
    """Return `2 nodes`, `2..8 nodes` of an elastic gang, and `2 nodes and 1 spare` of one that holds more."""
    nodes = f"{_node_range(spec)} nodes" if spec["max_nodes"] else count(spec["nodes"], "node")
    return f"{nodes} and {count(spec['spares'], 'spare')}" if spec["spares"] else nodes


def counted_processes(spec: Record, noun: str = "process") -> str:
    """Return `2 processes`, and `2..8 processes` of an elastic gang."""
    roles = {name: role | {"max_count": None} for name, role in spec["roles"].items()}
    least, most = process_count(spec | {"max_nodes": None, "roles": roles}), process_count(spec)
    return f"{least}..{count(most, noun)}" if least < most else count(most, noun)


def _node_range(spec: Record) -> str:
    """Return the number of nodes as `--nodes` takes it."""
    return _range(spec["nodes"], spec["max_nodes"])


def _range(least: int, most: int | None) -> str:
    return f"{least}..{most}" if most else str(least)


def _with_resources(label: str, request: Record) -> str:
    """Return `label` with the resources of each of them."""
    resources = request["resources"]
    gpu = resources["gpu"]
    parts = [label]
    if gpu["count"]:
        parts[0] += f" x {gpu['count']} {gpu['type'] or ('GPUs' if gpu['count'] != 1 else 'GPU')}"
    if gpu["milli"] is not None or gpu["memory_bytes"] is not None:
        compute = f"{gpu['milli'] / 1000:g}" if gpu["milli"] is not None else ""
        memory = format_bytes(gpu["memory_bytes"]) if gpu["memory_bytes"] is not None else ""
        parts[0] += f" x {'/'.join(filter(None, (compute, memory)))} of one {gpu['type'] or 'GPU'}"
    if resources["cpu_milli"] is not None:
        parts.append(f"{format_cpu(resources['cpu_milli'])} CPU" + ("" if resources["cpu_milli"] == 1000 else "s"))
    if resources["memory_bytes"]:
        parts.append(f"{format_bytes(resources['memory_bytes'])} memory")
    return ", ".join(parts)


def element_noun(spec: Record) -> str:
    """Return what one of the gangs of an array is called."""
    return "replica group" if spec["replica_groups"] else "element"


def plan_lines(name: str, spec: Record, start: str, resumes: str = "") -> list[str]:
    """Return the plan: what is requested, when it starts, and from which checkpoint of another job."""
    times = f"{count(len(spec['array']['indices']), element_noun(spec))} of " if spec["array"] else ""
    limit_ms = spec["limits"]["time_ms"]
    limit = f", at most {format_duration(limit_ms)}" if limit_ms else ""
    request = f"{times}{size(spec)}  {counted_processes(spec)}, {spec['framework']}{limit}"
    lines = [
        f"Plan   {name}  queue {spec['queue']}  {request}",
        f"       start: {start}",
        *([f"       begins from {resumes}"] if resumes else []),
    ]
    lines += [f"       {text}" for text in _elastic_texts(spec)]
    if (retries := _retries_of_launcher(spec)) is not None:
        lines.append(f"       {retries}")
    run = spec["run"]
    if texts := _srun_texts(run):
        lines += [f"       {text}" for text in texts]
    elif spec["framework"] == "plain":
        lines += [f"       {text}" for text in _unset_variables(_line(run))]
        if match := _OTHER_LAUNCHER.search(_line(run)):
            times = f"ganger starts it {counted_processes(spec, 'time')}"
            lines.append(f"       {match[1]} starts ranks itself, and {times}: {_NO_LAUNCHER}")
    if process_count(spec) > 1 and spec["framework"] == "plain" and _is_python(run):
        lines.append("       plain: RANK and MASTER_ADDR of torch are only set with --framework torch")
    return lines


def _srun_texts(run: str | list[str]) -> list[str]:
    """Return what became of srun and its options, nothing for a command in which ganger does not replace it."""
    if "srun" not in str(run):
        return []
    from ganger.framework_api.srun import find_srun

    srun = find_srun(("/bin/sh", "-c", run) if isinstance(run, str) else tuple(run))
    if srun is None:
        return []
    ignored = ", ".join(f"--{name}" for name in srun.without_effect)
    texts = ["srun: its options become those of the job; SLURM_* variables are set"]
    return [*texts, f"srun: without effect: {ignored}"] if ignored else texts


def _unset_variables(line: str) -> list[str]:
    """Return a sentence for each variable of another scheduler that the command uses."""
    names = dict.fromkeys(re.findall(r"\$\{?((?:SKYPILOT|SLURM)_[A-Z_]+)", line))
    return [f"{name} is not set here: use {_OTHER_VARIABLES[name]}" for name in names if name in _OTHER_VARIABLES]


def _elastic_texts(spec: Record) -> Iterator[str]:
    """Yield what became of the options of a launcher about a changing number of nodes."""
    asks, unused = _ELASTIC_OPTIONS.get(spec["framework"], (None, None))
    line, nodes = _line(spec["run"]), _node_range(spec)
    if match := asks and asks.search(line):
        if spec["max_nodes"] and match[match.re.groups].replace(":", "..") in (nodes, match[0]):
            yield f"{match[0]}: taken as --nodes {nodes}; ganger resizes the job by a new attempt"
        else:
            yield f"{match[0]} is not used: --nodes {nodes} takes precedence"
    if names := dict.fromkeys(unused.findall(line) if unused else ()):
        yield f"{', '.join(f'--{name}' for name in names)}: without effect; ganger sets the membership"


def _retries_of_launcher(spec: Record) -> str | None:
    """Return what became of torchrun's `--max-restarts`, None for a command without it."""
    match = _MAX_RESTARTS.search(_line(spec["run"])) if spec["framework"] == "torchrun" else None
    retries = spec["retry"]["max"]
    if match is None or retries is None:
        return None
    if int(match[2]) == retries:
        return f"{match[1]}: taken as --retry {retries}; ganger restarts the whole gang"
    return f"{match[1]} is not used: --retry {retries} takes precedence"


def _line(run: str | list[str]) -> str:
    return run if isinstance(run, str) else " ".join(run)


def start_text(job: Record) -> str:
    """Return when a submitted job starts, as far as known."""
    row, reason = job["row"], job["reason"]
    if row["nodes"]:
        return f"now, on {', '.join(row['nodes'])}"
    waits = waiting_message(reason, row["submitted_ms"]) if reason else "in the next scheduling cycle"
    elements = row["elements"] or {}
    if started := sum(elements.values()) - elements.get("pending", 0):
        progress = f"now, {started} of {count(sum(elements.values()), element_noun(job['spec']))}"
        if "pending" in elements:
            return f"{progress}; {waits if reason else 'the others as they fit'}"
        return progress
    return waits


def dry_run_start_text(plan: Record, now_ms: int) -> str:
    """Return when the job would start."""
    if plan["starts_now"]:
        return f"now, on {', '.join(plan['nodes'])}"
    if plan["preempted"]:
        return _preemption_text(plan["preempted"])
    expected = f"; expected start: {start_range_text(plan['forecast'], now_ms)}" if plan["forecast"] else ""
    return (plan["reason"]["sentence"] if plan["reason"] else "it would be pending") + expected


def _preemption_text(preempted: list[Record]) -> str:
    """Return which jobs would be preempted or give up nodes, by which rule, and what that costs."""
    shrunk = [f"{job['job']} by {count(job['nodes'], 'node')}" for job in preempted if job["nodes"]]
    whole = [job["job"] for job in preempted if not job["nodes"]]
    actions = [f"{verb} {_first_names(names)}" for verb, names in (("shrink", shrunk), ("preempt", whole)) if names]
    rules = sorted({job["rule"] for job in preempted})
    notice_ms, unsaved_ms = max(job["notice_ms"] for job in preempted), sum(job["unsaved_ms"] for job in preempted)
    notice = f"up to {format_duration(notice_ms)} of notice" if notice_ms else "without a notice"
    unsaved = f"{format_duration(unsaved_ms)} of unsaved work" if unsaved_ms else "no unsaved work"
    return f"would {' and '.join(actions)} ({', '.join(rules)}; {notice}; {unsaved})"


def _first_names(names: list[str]) -> str:
    more = len(names) - MAX_PREEMPTED
    return ", ".join(names[:MAX_PREEMPTED]) + (f" and {more} more" if more > 0 else "")


def start_range_text(forecast: Record, now_ms: int, latest_ms: int | None = None) -> str:
    """Return the forecast start of a pending job, with what it is based on; `latest_ms` is the reserved start."""
    expected_ms = forecast["expected_ms"]
    if expected_ms is None:
        return f"unknown, since {forecast['depends_on'][0]}"
    basis = "by time limits" if forecast["basis"] == "limits" else "by time limits and earlier jobs of the users"
    first, last = forecast["from_ms"] // MINUTE_MS, -(-forecast["until_ms"] // MINUTE_MS)
    if last - first <= 1:
        return f"{format_time(expected_ms, now_ms)}, {basis}"
    # Whole minutes claim no precision, but are neither in the past nor after the reserved start.
    begin_ms, end_ms = max(first * MINUTE_MS, now_ms), last * MINUTE_MS
    end_ms = end_ms if latest_ms is None else min(end_ms, max(latest_ms, expected_ms))
    begin, end = format_clock(begin_ms, now_ms), format_clock(end_ms, now_ms)
    return f"{begin} to {end}, most likely {format_time(expected_ms, now_ms)}, {basis}"


def waiting_message(reason: Record, now_ms: int) -> str:
    """Return the pending reason, and until when it holds if that is known."""
    sentence: str = reason["sentence"]
    expected = f"; expected at {format_clock(reason['until_ms'], now_ms)}" if reason["until_ms"] else ""
    return f"{sentence if sentence.startswith('waiting') else f'pending: {sentence}'}{expected}"


def failed_attempt_message(event: Record, job: Record) -> str | None:
    """Return one line about a failed attempt and where the next one resumes; None if it was the last one."""
    after = event["data"]["generation"] + 1
    next_attempt = next((attempt for attempt in job["attempts"] if attempt["generation"] == after), None)
    if next_attempt is not None:
        step = next_attempt["resumed_step"]
    elif job["row"]["state"] in ("failing", "stopping", *ENDED):
        return None
    else:
        step = job["checkpoint_step"]
    failed = next((attempt for attempt in job["attempts"] if attempt["generation"] == after - 1), None)
    if failed is not None and failed["started_ms"] is None:
        return f"{event['sentence']}; restarting: none of its processes had begun"
    failed_on = failed["resumed_step"] if failed is not None else None
    if step is not None and failed_on is not None and step < failed_on:
        return f"{event['sentence']}; failed on the checkpoint of step {failed_on}, trying the one of step {step}"
    if step is None and not any(attempt["observed"] for attempt in job["attempts"]):
        return f"{event['sentence']}; restarting: ganger saw no progress reports, it resumes from its own saves"
    return f"{event['sentence']}; restarting from {'the beginning' if step is None else f'step {step}'}"


def summary_lines(job: Record) -> list[str]:
    """Return the outcome, the time breakdown and the next command to type."""
    row, ledger = job["row"], job["ledger"]
    name, attempts = shell_quote(row["id"]), len(job["attempts"])
    attempts_text = f" in {attempts} attempts" if attempts > 1 else ""
    reason = f": {row['sentence']}" if row["sentence"] and row["state"] != "succeeded" else ""
    mark = "✓" if row["state"] == "succeeded" else "✗"
    following = {
        "succeeded": f"ganger get {name}",
        "failed": f"ganger logs {name} --rank all --tail 50   or: ganger events {name}",
        "stopped": f"ganger get {name}",
    }
    if row["elements"]:
        following["failed"] = f"ganger ls {name} --state failed"
    scope = f"all {element_noun(job['spec'])}s: " if row["elements"] else ""
    lasted = format_duration(row["ended_ms"] - row["submitted_ms"])
    return [
        f"{mark} {row['id']} {row['state']} after {lasted}{attempts_text}{reason}",
        f"  {scope}{ledger_line(ledger)}",
        f"  next: {following[row['state']]}",
    ]


def ledger_line(ledger: Record) -> str:
    """Return `queued 2.0s · starting 1.1s · productive 58.0s · checkpoint 1.2s`."""
    always = [part for part in ALWAYS if part != "lost" or not ledger["unobserved_ms"]]
    parts = [part for part in PARTS if ledger[f"{part}_ms"] or part in always]
    return " · ".join(f"{part} {format_duration(ledger[f'{part}_ms'])}" for part in parts)


def cost_lines(ledger: Record) -> list[str]:
    """Return the cost of each cause: `hung: 2 failures, 2 restarts; detect 3.0s · recovery 8.1s · lost 40.2s`."""
    lines = []
    for loss in ledger["losses"]:
        failures = f"{count(loss['failures'], 'failure')}, " if loss["failures"] else ""
        costs = (f"{part} {format_duration(loss[f'{part}_ms'])}" for part in COSTS if loss[f"{part}_ms"])
        text = f"{failures}{count(loss['restarts'], 'restart')}; {' · '.join(costs)}"
        lines.append(f"{loss['cause']}: {text.removesuffix('; ')}")
    return lines


MAX_METRICS: Final = 4
"""Metrics of a report in a line: as many have room beside step, rate and remaining time in 80 columns."""


class Progress:
    """Formats the progress of a job; steps per second come from its reports."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()

    def text(self, job: Record) -> str:
        """Return `step 120/400  loss 2.31  acc 0.61  4.1 steps/s  ETA 1m 08s`, as far as the job reports it."""
        report = job["progress"] or {}
        if report.get("step") is None:
            nodes = ", ".join(job["row"]["nodes"])
            return f"{job['row']['state']} on {nodes}" if nodes else str(job["row"]["state"])
        metrics = report.get("metrics") or {}
        total = next((metrics[name] for name in TOTALS if metrics.get(name)), None)
        step = report["step"]
        parts = [f"step {step}" + (f"/{total:g}" if total else "")]
        # The loss first, then the others as the script names them. None stands for a number that is not finite.
        numbers = {name: value for name, value in metrics.items() if value is None or isinstance(value, int | float)}
        names = sorted(numbers.keys() - {*TOTALS}, key=lambda name: (name != "loss", [*numbers].index(name)))
        parts += [f"{name} {format_metric(numbers[name])}" for name in names[:MAX_METRICS]]
        if report["t"] is not None and (rate := self._steps_per_s(report["t"], step)):
            parts.append(f"{rate:.3g} steps/s")
            if total and total > step:
                parts.append(f"ETA {format_duration(int((total - step) / rate * 1000))}")
        if report.get("phase"):
            parts.append(f"({report['phase']})")
        return "  ".join(parts)

    def _steps_per_s(self, at_ms: int, step: int) -> float | None:
        """Return the rate over the last reports of this attempt, None until there are two."""
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
    arguments = command.split() if isinstance(command, str) else command
    return bool(arguments) and arguments[0].rpartition("/")[2].startswith("python")


def period_text(reason: Record | None, now_ms: int) -> str | None:
    """Return when enough has passed of the period in which the node time of a job's user is limited, or None."""
    if reason is None or reason["code"] != ReasonCode.USER_NODE_TIME_USED or reason["until_ms"] is None:
        return None
    return f"enough of the period has passed by {format_time(reason['until_ms'], now_ms)}, if you start nothing else"


def idle_text(idle: Record, now_ms: int) -> str:
    """Return since when a job has no activity, and what follows if it stays so."""
    what = {SUSPEND: "suspended", STOP: "stopped"}[idle["action"]]
    since, until = (format_time(idle[key], now_ms) for key in ("since_ms", "until_ms"))
    return f"no activity since {since}: it will be {what} at {until}"
