"""Parsers of amounts: counts, CPUs, sizes, durations and GPUs.

A parser takes a value of YAML or JSON and raises ValueError with a sentence that quotes it and names valid values. The
limits keep every sum over a gang within 64 bits.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from ganger.model.job import MAX_PRIORITY, PRIORITIES, GpuRequest
from ganger.model.queue import MAX_FIGURE, MAX_PERIOD_MS, is_period
from ganger.model.units import (
    DAY_MS,
    GIB_BYTES,
    HOUR_MS,
    KIB_BYTES,
    MIB_BYTES,
    MINUTE_MS,
    SECOND_MS,
    parse_bytes,
    parse_cpu_milli,
    parse_duration_ms,
)
from ganger.spec.spec_document import quote
from ganger.spec.text_fields import did_you_mean, join_words

NEVER: Final = "never"
MAX_NODES: Final = 65_536
MAX_PROCESSES: Final = 1024
MAX_GPUS: Final = 1024
MAX_GPU_INDEX: Final = MAX_GPUS - 1
MAX_CPU_MILLI: Final = 65_536_000
MAX_MEMORY_BYTES: Final = 64 * 1024 * GIB_BYTES
MAX_DURATION_MS: Final = 3650 * DAY_MS
MAX_RETRIES: Final = 1000
MAX_KEPT: Final = 10_000
MAX_STEPS: Final = 1_000_000_000
UNITS_PATTERN: Final = r"\d+(\.\d+)?(k|M|G|T|Ki|Mi|Gi|Ti)"
"""A number of units of a resource, or of bytes, with a suffix."""
MAX_SAMPLES: Final = 1_000_000_000
MAX_RESERVED: Final = 1_000_000
_TYPE_REST: Final = r"[-A-Za-z0-9_.]{0,39}"
GPU_TYPE_PATTERN: Final = rf"[A-Za-z0-9]{_TYPE_REST}"
_TYPES: Final = rf"{GPU_TYPE_PATTERN}(?:,{GPU_TYPE_PATTERN})*"


def _suggest_gpu(text: str) -> str | None:
    """Return the request that a text resembles: `H100:8` for 8xH100, 8:H100, H100x8 and the like."""
    if text.isascii() and text.isdigit():
        return f"{text} without quotes"
    if match := re.fullmatch(rf"([1-9]\d{{0,3}}) ?[x*: ] ?([A-Za-z]{_TYPE_REST})", text, re.IGNORECASE):
        return f"{match[2]}:{match[1]}"
    if match := re.fullmatch(rf"({GPU_TYPE_PATTERN}?) ?[x*] ?([1-9]\d{{0,3}})", text, re.IGNORECASE):
        return f"{match[1]}:{match[2]}"
    return f"{text}:1" if re.fullmatch(GPU_TYPE_PATTERN, text) else None


def _is_whole(value: Any) -> bool:
    """Return whether the value is an integer; bool is a subclass of int, but not a number to users."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(what: str, low: int, high: int) -> Callable[[Any], int]:
    """Return a parser of whole numbers from `low` to `high`; `what` names them in the error."""

    def read(value: Any) -> int:
        if _is_whole(value) and low <= value <= high:
            return int(value)
        unquoted = " without quotes" if isinstance(value, str) and value.strip().isdigit() else ""
        raise ValueError(f"{quote(value)} is not {what}: write a whole number from {low} to {high}{unquoted}")

    return read


def range_of(nouns: str) -> Callable[[Any], tuple[int, int | None]]:
    """Return a parser of a number of these and, of a range, the largest: 2, or 2..8."""

    def read(value: Any) -> tuple[int, int | None]:
        match = re.fullmatch(r"\s*(\d{1,6})\s*\.\.\s*(\d{1,6})\s*", value) if isinstance(value, str) else None
        if match is None:
            return whole(f"a number of {nouns}", 1, MAX_NODES)(value), None
        low, high, start = int(match[1]), int(match[2]), f"{quote(value)} is not a range of {nouns}: "
        if not 1 <= low <= MAX_NODES or not 1 <= high <= MAX_NODES:
            raise ValueError(f"{start}write two whole numbers from 1 to {MAX_NODES}, 2..8")
        if low >= high:
            instead = f"write {low}" if low == high else f"write {high}..{low}"
            raise ValueError(f"{start}the second number must be the larger one: {instead}")
        return low, high

    return read


read_node_range: Final = range_of("nodes")
read_group_range: Final = range_of("replica groups")


def write_range(value: tuple[int, int | None]) -> int | str:
    """Return one number, or two joined by dots."""
    low, high = value
    return low if high is None else f"{low}..{high}"


def read_priority(value: Any) -> int:
    """Parse a name or a number."""
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if _is_whole(value) and -MAX_PRIORITY <= value <= MAX_PRIORITY:
        return int(value)
    legal = f"{join_words(PRIORITIES)}, or a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
    meant = did_you_mean(value, PRIORITIES) if isinstance(value, str) else ""
    raise ValueError(f"{quote(value)} is not a priority: write {legal}{meant}")


def write_priority(value: int) -> str | int:
    """Return the name if there is one."""
    return next((name for name, priority in PRIORITIES.items() if priority == value), value)


def read_nproc(value: Any) -> int | None:
    """Parse the number of processes on each node; None: auto."""
    if value == "auto":
        return None
    if _is_whole(value) and 1 <= value <= MAX_PROCESSES:
        return int(value)
    raise ValueError(
        f"{quote(value)} is not a number of processes: write auto, or a whole number from 1 to {MAX_PROCESSES}"
    )


def read_degree(value: Any) -> int:
    """Parse one factor of the number of processes; text of digits is valid because parameters are text."""
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,6}", value) else value
    if _is_whole(number) and 1 <= number <= MAX_NODES:
        return int(number)
    raise ValueError(f"{quote(value)} is not a number of processes: write a whole number from 1 to {MAX_NODES}")


def read_gpu(value: Any) -> Any:
    """Return the mapping that a short form stands for; a mapping as it is."""
    if isinstance(value, dict):
        share = [key for key in ("milli", "memory") if value.get(key) is not None]
        if share and "count" in value:
            raise ValueError(f"a share of one GPU, and a number of GPUs: leave out count, or {' and '.join(share)}")
        if "type" in value and not share and not value.get("count"):
            raise ValueError(f"a GPU type without a number: add count, from 1 to {MAX_GPUS}, or milli for a share")
        return value
    if _is_whole(value):
        return {"count": value}
    if isinstance(value, str) and (match := re.fullmatch(rf"({_TYPES}):([1-9]\d{{0,3}})", value)):
        types = match[1].split(",")
        return {"type": types if len(types) > 1 else types[0], "count": int(match[2])}
    if isinstance(value, str) and (suggestion := _suggest_gpu(value)):
        raise ValueError(
            f"{quote(value)} is not a GPU request: write a number, or TYPE:NUMBER; did you mean {suggestion}?"
        )
    raise ValueError(f"{quote(value)} is not a GPU request: write 8, H100:8, or {{count: 8, type: H100}}")


def write_gpu(value: GpuRequest) -> str | int | dict[str, Any]:
    """Return the short form; a share has none."""
    if value.is_share:
        types = [value.type, *value.other_types] if value.other_types else value.type
        memory = None if value.memory_bytes is None else write_bytes(value.memory_bytes)
        data = {"milli": value.milli, "memory": memory, "type": types}
        return {key: item for key, item in data.items() if item is not None}
    return f"{','.join((value.type, *value.other_types))}:{value.count}" if value.type else value.count


def read_gpu_type(value: Any) -> str:
    """Parse a GPU type, in the case it was written in."""
    if isinstance(value, str) and re.fullmatch(GPU_TYPE_PATTERN, value):
        return value
    raise ValueError(
        f"{quote(value)} is not a GPU type: write letters, digits, '-', '_' and '.', "
        f"at most 40 characters, for instance H100 or A100-80GB"
    )


def read_cpu(value: Any) -> int:
    """Parse thousandths of a CPU."""
    return _quantity(value, parse_cpu_milli, "a number of CPUs: write 2, 0.5 or 500m", 0, MAX_CPU_MILLI)


def write_cpu(value: int) -> str | int:
    """Return a whole number, or thousandths with the suffix m."""
    return value // 1000 if value % 1000 == 0 else f"{value}m"


def read_bytes(value: Any) -> int:
    """Parse a size in bytes."""
    return _quantity(
        value, parse_bytes, "a size up to 64Ti: write 512Mi, 1.5Gi, 2G, or a number of bytes", 0, MAX_MEMORY_BYTES
    )


def units(low: int, high: int) -> Callable[[Any], int]:
    """Return a parser of amounts of a resource from `low` to `high`: a whole number, or 50Gi."""

    def read(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(UNITS_PATTERN, value):
            return _quantity(value, parse_bytes, f"a number of units up to {high}", low, high)
        return whole("a number of units, such as 8 or 50Gi", low, high)(value)

    return read


def read_gpu_memory(value: Any) -> int:
    """Parse bytes of a device's memory, at least one."""
    return _quantity(value, parse_bytes, "a part of a GPU's memory: write 10Gi or 512Mi", 1, MAX_MEMORY_BYTES)


def write_bytes(value: int) -> str | int:
    """Return the size in the largest binary unit that is exact."""
    for unit, size in (("Gi", GIB_BYTES), ("Mi", MIB_BYTES), ("Ki", KIB_BYTES)):
        if value and value % size == 0:
            return f"{value // size}{unit}"
    return value


def duration(low_ms: int) -> Callable[[Any], int]:
    """Return a parser of durations in ms, from `low_ms` on."""
    least = "more than 0" if low_ms else "0 or more"
    what = f"a duration of {least} and at most 3650d: write 90s, 30m, 1h30m, 2d, 4:00:00, or a number of seconds"

    def read(value: Any) -> int:
        return _quantity(value, parse_duration_ms, what, low_ms, MAX_DURATION_MS)

    return read


def _quantity(value: Any, parse: Callable[[Any], int], legal: str, low: int, high: int) -> int:
    """Parse a quantity with a unit within limits; text that is too long is rejected unparsed."""
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool) and len(quote(value)) <= 40:
            parsed = parse(value)
            if low <= parsed <= high:
                return parsed
    except ValueError:
        pass
    raise ValueError(f"{quote(value)} is not {legal}") from None


def write_duration(value: int) -> str:
    """Return an exact duration with all units that are needed: 1h30m, 1s250ms."""
    parts = []
    for unit, size in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS), ("ms", 1)):
        count, value = divmod(value, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def read_moment(value: Any) -> int:
    """Parse a date, or a date and a time, in Unix ms."""
    try:
        moment = datetime.fromisoformat(value)
        moment_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{quote(value)} is not a time: write 2030-01-31, or 2030-01-31T18:00Z") from None
    if not 0 <= moment_ms <= MAX_FIGURE:
        raise ValueError(f"{quote(value)} is before 1970: write a time to come")
    return moment_ms


def write_moment(value: int) -> str:
    """Return a time in UTC, to the millisecond where it has any."""
    moment = datetime.fromtimestamp(value / 1000, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds" if value % 1000 else "seconds") + "Z"


def read_hang_time(value: Any) -> int:
    """Parse a duration in ms, or 0 for `never`."""
    return 0 if value == NEVER else duration(1)(value)


def write_hang_time(value: int) -> str:
    """Return the duration, or `never` for 0."""
    return write_duration(value) if value else NEVER


def read_save_interval(value: Any) -> int:
    """Parse a duration in ms, or 0 for `auto`."""
    return 0 if value == "auto" else duration(1)(value)


def write_save_interval(value: int) -> str:
    """Return the duration, or `auto` for 0."""
    return write_duration(value) if value else "auto"


def read_backoff(value: Any) -> tuple[int, int]:
    """Parse (first, longest) pause in ms."""
    legal = "a pause: write 10s, or 10s..5m for one that doubles from 10s to 5m"
    first, dots, longest = value.partition("..") if isinstance(value, str) else (value, "", "")
    first_ms = _quantity(first, parse_duration_ms, legal, 0, MAX_DURATION_MS)
    longest_ms = _quantity(longest, parse_duration_ms, legal, 0, MAX_DURATION_MS) if dots else first_ms
    if longest_ms < first_ms:
        raise ValueError(f"{quote(value)} is not {legal}; the second is not shorter than the first")
    return first_ms, longest_ms


def write_backoff(value: tuple[int, int]) -> str:
    """Return one pause, or two joined by dots."""
    first_ms, longest_ms = value
    first = write_duration(first_ms)
    return first if first_ms == longest_ms else f"{first}..{write_duration(longest_ms)}"


def read_cpus(value: Any) -> int:
    """Parse thousandths of a CPU of a whole queue."""
    return _quantity(value, parse_cpu_milli, "a number of CPUs: write 512, 0.5 or 500m", 0, MAX_FIGURE)


def read_memory(value: Any) -> int:
    """Parse bytes of a whole queue."""
    legal = "a size up to 8000Ti: write 512Gi, 1.5Ti, 2G, or a number of bytes"
    return _quantity(value, parse_bytes, legal, 0, MAX_FIGURE)


def read_lasting(value: Any) -> int:
    """Parse a time in ms that is not limited to that of one job, such as node-hours."""
    legal = "a time of 0 or more: write 30m, 8h, 128h, 30d, or a number of seconds"
    return _quantity(value, parse_duration_ms, legal, 0, MAX_FIGURE)


def read_longest(value: Any) -> int:
    """Parse the longest time of one job in ms."""
    legal = "a time of more than 0: write 30m, 8h, 30d, or a number of seconds"
    return _quantity(value, parse_duration_ms, legal, 1, MAX_FIGURE)


def read_period(value: Any) -> int:
    """Parse the length of a period that node time is limited in, in ms."""
    legal = "a period of whole hours up to 8d, or whole days up to 366d: write 12h, 7d, 30d"
    parsed = _quantity(value, parse_duration_ms, legal, HOUR_MS, MAX_PERIOD_MS)
    if is_period(parsed):
        return parsed
    raise ValueError(f"{quote(value)} is not {legal}")


def read_half_life(value: Any) -> int:
    """Parse milliseconds, with a minimum because each period of decay recomputes all usage."""
    legal = "a half-life from 1h to 3650d: write 7d, 36h, or a number of seconds"
    return _quantity(value, parse_duration_ms, legal, HOUR_MS, MAX_DURATION_MS)


def read_jobs(value: Any) -> int | None:
    """Parse a number of jobs; None: all."""
    if value == "all":
        return None
    if _is_whole(value) and 0 <= value <= MAX_RESERVED:
        return int(value)
    raise ValueError(f"{quote(value)} is not a number of jobs: write all, or a whole number from 0 to {MAX_RESERVED}")


def write_jobs(value: int | None) -> str | int:
    """Return a number, or all."""
    return "all" if value is None else value


def read_priority_key(value: Any) -> int:
    """Parse a priority that is a key, and therefore text."""
    number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,4}", value) else value
    return read_priority(number)


def write_priority_key(value: int) -> str:
    """Return the name if there is one, else the number as text."""
    return str(write_priority(value))
