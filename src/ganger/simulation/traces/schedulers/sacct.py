"""The format of Slurm's accounting: `sacct -P -o JobID,User,Partition,Submit,Start,End,Timelimit,NNodes,ReqTRES,State`.

Fields are separated by `|`, below a header. A job of an array is a job (`7_3`). Steps (`7.batch`, `7.0`) are parts of a
job. The components of a heterogeneous job (`7+0`, `7+1`) start together, so they become one job, named by the first.

GPUs, CPUs and memory are those of ReqTRES, or of AllocTRES where the request says nothing of them; CPUs may also be
NCPUS. A type of GPU counts only if it was requested. Times are read as they are printed, without a time zone, or as
Unix seconds (`SLURM_TIME_FORMAT=%s`); Unknown and None are times that have not come. The duration is Elapsed, which
leaves out suspension, or else End less Start; a job that has not ended has none. A time limit that is not a time
(UNLIMITED, Partition_Limit) is none. The other columns, such as State and Account, are kept as text.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from ganger.model.cluster import gpu_type
from ganger.model.units import DAY_MS, HOUR_MS, KIB_BYTES, MINUTE_MS, SECOND_MS
from ganger.simulation.traces.record_checks import new_job_check, submitted_ms
from ganger.simulation.traces.trace import Findings, Flaw, RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import BadRow, Row, bounded

_JOB_ID: Final = re.compile(r"(?P<job>\d+(?:_\d+|_\[[^]]+\])?)(?:\+(?P<component>\d+))?(?P<step>\.\S+)?", re.ASCII)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_DURATION: Final = re.compile(
    r"(?:(?P<days>\d{1,9})-)?(?:(?P<hours>\d{1,9}):)?(?P<minutes>\d{1,9}):(?P<seconds>\d\d)", re.ASCII
)
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)")
_NO_TIME: Final = ("", "Unknown", "None", "N/A")
_KIB: Final = {suffix: 1024**power for power, suffix in enumerate("KMGTP")}
_GPU: Final = "gres/gpu"
_CPU_MILLI: Final = 1000


def job(row: Row) -> RecordedJob:
    """Return the job of a row."""
    name = row.required("name")
    match = _JOB_ID.fullmatch(name)
    if match is None:
        raise BadRow(Flaw.NOT_LEGAL, f"{name[:40]!r} is not a JobID")
    if match["step"]:
        raise BadRow(Flaw.PART_OF_A_JOB, f"{name} is a step of job {name.removesuffix(match['step'])}")
    submitted_at_ms, started_ms = _time_ms(row, "submitted"), _time_ms(row, "started")
    if submitted_at_ms is None:
        raise BadRow(Flaw.MISSING, "Submit is empty")
    gpus, gpu_types, cpu_milli, memory_bytes = _amounts(row)
    nodes = row.integer_or_none("nodes") or None
    return RecordedJob(
        name=name,
        submitted_ms=submitted_at_ms,
        duration_ms=_duration_ms(row, submitted_at_ms, started_ms),
        gpus=gpus,
        nodes=None if nodes is None or gpus % nodes else nodes,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        gpu_types=gpu_types,
        user=row.text("user"),
        queue=row.text("queue"),
        started_ms=started_ms,
        limit_ms=_limit_ms(row.text("limit")),
        extra=row.extra(),
        line=row.line,
    )


def _duration_ms(row: Row, submitted_at_ms: int, started_ms: int | None) -> int | None:
    """Return how long the job ran; None if it has not started or not ended."""
    ended_ms = _time_ms(row, "ended")
    times_ms = [time_ms for time_ms in (submitted_at_ms, started_ms, ended_ms) if time_ms is not None]
    if times_ms != sorted(times_ms):
        raise BadRow(Flaw.CONTRADICTION, f"Submit, Start and End are not in order: {row.text('name')}")
    if started_ms is None or ended_ms is None:
        return None
    elapsed = row.text("elapsed")
    return ended_ms - started_ms if not elapsed else _clock_ms("elapsed", elapsed)


def _limit_ms(text: str) -> int | None:
    return (_clock_ms("limit", text) or None) if _DURATION.fullmatch(text) else None


def _clock_ms(key: str, text: str) -> int:
    """Return the duration of `1-02:03:04`, `02:03:04` or `03:04`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {text[:40]!r} is not a duration")
    units = {"days": DAY_MS, "hours": HOUR_MS, "minutes": MINUTE_MS, "seconds": SECOND_MS}
    return bounded(key, sum(int(match[name] or 0) * unit_ms for name, unit_ms in units.items()))


def _time_ms(row: Row, key: str) -> int | None:
    """Return a time in Unix ms; None if it has not come."""
    text = row.text(key)
    if text in _NO_TIME:
        return None
    if _SECONDS.fullmatch(text):
        return bounded(key, int(text) * SECOND_MS)
    if not _TIME.fullmatch(text):
        raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {text[:40]!r} is not a time")
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_MS
    except ValueError as error:
        raise BadRow(Flaw.NOT_LEGAL, f"{key}: {text[:40]}: {error}") from None


# -- amounts -----------------------------------------------------------------------------------------------------------


def _amounts(row: Row) -> tuple[int, tuple[str, ...], int | None, int | None]:
    """Return GPUs, their requested types, thousandths of CPUs and bytes of memory."""
    requested, allocated = _tres(row, "requested"), _tres(row, "allocated")
    both = allocated | requested
    gpu_resources = {name: amount for name, amount in requested.items() if name.startswith(_GPU)}
    gpu_resources = gpu_resources or {name: amount for name, amount in allocated.items() if name.startswith(_GPU)}
    typed = [name for name in gpu_resources if name.startswith(f"{_GPU}:")]
    # The untyped amount is that of all types together.
    gpus = gpu_resources.get(_GPU) or sum(gpu_resources[name] for name in typed)
    types = tuple(_type(name.removeprefix(f"{_GPU}:").lower()) for name in typed if name in requested)
    cpus = both.get("cpu") or row.integer_or_none("cpus")
    memory_bytes = both.get("mem")
    return gpus, types, None if cpus is None else bounded("cpus", cpus * _CPU_MILLI), memory_bytes


def _type(name: str) -> str:
    """Return the type of a GPU, `a100` for `nvidia_a100_80gb_pcie`; a part of one (`a100_1g.5gb`) keeps its name."""
    return name if "." in name else gpu_type(name.replace("_", " "))


def _tres(row: Row, key: str) -> dict[str, int]:
    """Return the amounts of `cpu=8,gres/gpu:a100=4,mem=64G`: memory in bytes."""
    amounts = {}
    for part in filter(None, row.text(key).split(",")):
        name, _, text = part.partition("=")
        match = _AMOUNT.fullmatch(text)
        if name == "mem" and match is not None:
            kib = Fraction(match[1]) * _KIB[match[2] or "M"]
            amounts[name] = bounded(key, round(kib * KIB_BYTES))
        elif name == "cpu" or name.startswith(_GPU):
            if not _SECONDS.fullmatch(text):
                raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {part[:40]!r} is not an amount")
            amounts[name] = int(text)
    return amounts


# -- heterogeneous jobs ------------------------------------------------------------------------------------------------


def joined_components(jobs: list[RecordedJob], findings: Findings) -> list[RecordedJob]:
    """Return the jobs, with the components of a heterogeneous job in the place of its first one.

    They start together: amounts are added, and the job runs until the last of them has ended.
    """
    leaders: dict[str, int] = {}
    joined: list[RecordedJob] = []
    for job in jobs:
        name, plus, _ = job.name.partition("+")
        if plus and name in leaders:
            joined[leaders[name]] = _together(joined[leaders[name]], job)
            findings.add(Flaw.PART_OF_A_JOB, job.line, f"{job.name} is a component of job {name}")
            continue
        if plus:
            leaders[name] = len(joined)
            job = replace(job, name=name)  # noqa: PLW2901 - the same job, without the number of its component
        joined.append(job)
    return joined


def _together(first: RecordedJob, other: RecordedJob) -> RecordedJob:
    durations_ms = (first.duration_ms, other.duration_ms)
    limits_ms = [limit_ms for limit_ms in (first.limit_ms, other.limit_ms) if limit_ms is not None]
    return replace(
        first,
        submitted_ms=min(first.submitted_ms, other.submitted_ms),
        duration_ms=None if None in durations_ms else max(filter(None, durations_ms), default=0),
        gpus=first.gpus + other.gpus,
        nodes=None,
        cpu_milli=_sum((first.cpu_milli, other.cpu_milli)),
        memory_bytes=_sum((first.memory_bytes, other.memory_bytes)),
        gpu_types=tuple(dict.fromkeys((*first.gpu_types, *other.gpu_types))),
        limit_ms=max(limits_ms, default=None),
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


FORMAT: Final = Format(
    name="sacct",
    doc="Slurm's accounting, as `sacct -P` prints it",
    columns=(
        {
            "name": "JobID",
            "user": "User",
            "queue": "Partition",
            "submitted": "Submit",
            "started": "Start",
            "ended": "End",
            "elapsed": "Elapsed",
            "limit": "Timelimit",
            "nodes": "NNodes",
            "cpus": "NCPUS",
            "requested": "ReqTRES",
            "allocated": "AllocTRES",
        },
    ),
    optional=frozenset({"user", "queue", "elapsed", "limit", "nodes", "cpus", "requested", "allocated"}),
    record=job,
    new_check=new_job_check,
    time_of=submitted_ms,
    delimiter="|",
    combine=joined_components,
)
