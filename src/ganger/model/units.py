"""Conversion between text and integers: durations in milliseconds, sizes in bytes, CPUs in thousandths.

Forms follow Kubernetes and Slurm usage: `90s`, `1h30m`, `512Mi`, `1.5Gi`, `2` or `500m` CPUs.
"""

import re
from fractions import Fraction
from typing import Final

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
KIB_BYTES: Final = 1024
MIB_BYTES: Final = 1024 * KIB_BYTES
GIB_BYTES: Final = 1024 * MIB_BYTES

DEVICE_MILLI: Final = 1000
"""The compute of one whole GPU."""
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
"""The disk of nodes, in bytes; it is counted as one of the extended resources."""

_DURATION_MS: Final = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
_SIZE_BYTES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": KIB_BYTES,
    "Mi": MIB_BYTES,
    "Gi": GIB_BYTES,
    "Ti": 1024 * GIB_BYTES,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_CLOCK_DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)|(\d+)-(\d+)(?::(\d\d))?")
"""Forms of Slurm that mean one thing: H:MM:SS, D-HH:MM:SS, D-HH and D-HH:MM."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?B?")
_CPU = re.compile(r"(\d+)m|(\d+(?:\.\d+)?)")


def parse_duration_ms(text: str | int | float) -> int:
    """Return milliseconds from `90s`, `1h30m`, `4:00:00`, `1-12:00:00` or a number of seconds.

    Raise ValueError with valid forms.
    """
    if isinstance(text, int | float) or re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        return int(Fraction(str(text)) * SECOND_MS)
    if clock := _CLOCK_DURATION.fullmatch(text.strip()):
        day, hour, minute, second, *short = (int(number or 0) for number in clock.groups())
        days, hours, minutes = day + short[0], hour + short[1], minute + short[2]
        return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + second * SECOND_MS
    parts = _DURATION.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise ValueError(f"{text!r} is not a duration: write 90s, 30m, 1h30m, 2d, 4:00:00, or a number of seconds")
    return int(sum(Fraction(number) * _DURATION_MS[unit] for number, unit in parts))


def parse_bytes(text: str | int) -> int:
    """Return bytes from `512Mi`, `1.5Gi`, `2G`, or a bare number of bytes; raise ValueError with valid forms."""
    match = _SIZE.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a size: write 512Mi, 1.5Gi, 2G, or a number of bytes")
    return int(Fraction(match[1]) * _SIZE_BYTES[match[2] or ""])


def parse_cpu_milli(text: str | int | float) -> int:
    """Return thousandths of a CPU from `2`, `0.5` or `500m`; raise ValueError with valid forms."""
    match = _CPU.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a number of CPUs: write 2, 0.5 or 500m")
    return int(match[1]) if match[1] else int(Fraction(match[2]) * 1000)


def format_duration(duration_ms: int) -> str:
    """Return a duration in its two largest units: `1h 05m`, `12m 03s`, `4.2s`, `250ms`."""
    if duration_ms < SECOND_MS:
        return f"{duration_ms}ms"
    if duration_ms < MINUTE_MS:
        return f"{duration_ms / SECOND_MS:.1f}s"
    if duration_ms < HOUR_MS:
        return f"{duration_ms // MINUTE_MS}m {duration_ms % MINUTE_MS // SECOND_MS:02d}s"
    if duration_ms < DAY_MS:
        return f"{duration_ms // HOUR_MS}h {duration_ms % HOUR_MS // MINUTE_MS:02d}m"
    return f"{duration_ms // DAY_MS}d {duration_ms % DAY_MS // HOUR_MS:02d}h"


def format_node_time(node_ms: int) -> str:
    """Return node-hours: `128 node-hours`, `0.5 node-hours`."""
    return f"{node_ms / HOUR_MS:g} node-hours"


def format_period(period_ms: int) -> str:
    """Return a period of whole days or hours: `30d`, `12h`."""
    return f"{period_ms // DAY_MS}d" if period_ms % DAY_MS == 0 else f"{period_ms // HOUR_MS}h"


def format_bytes(size_bytes: int) -> str:
    """Return a size in the largest binary unit that leaves at least one: `1.5Gi`, `512Mi`, `17`."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size_bytes >= _SIZE_BYTES[unit]:
            return f"{size_bytes / _SIZE_BYTES[unit]:.1f}".removesuffix(".0") + unit
    return str(size_bytes)


def format_resource(name: str, amount: int) -> str:
    """Return an amount of an extended resource with its name: `8 rdma/hca`, `50Gi ephemeral-storage`."""
    return f"{format_extended(name, amount)} {name}"


def format_extended(name: str, amount: int) -> str:
    """Return an amount of an extended resource: `8`, or `50Gi` of disk."""
    return format_bytes(amount) if name == EPHEMERAL_STORAGE else str(amount)


def format_cpu(cpu_milli: int) -> str:
    """Return a number of CPUs: `2`, `0.5`."""
    return f"{cpu_milli / 1000:g}"


def format_failure_rate(node_failure_ms: int) -> str:
    """Return `one failure every 154 node-days`, from the node time in which one is expected."""
    days = node_failure_ms / DAY_MS
    return f"one failure every {days:.3g} node-days" if days >= 1 else f"one failure every {24 * days:.3g} node-hours"
