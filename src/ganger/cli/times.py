"""Points in time, and job states, in the notation of sacct(1). Pure but for the local time zone.

Times: `2026-11-21`, `2026-11-21T12:00`, `11/21`, `12:00`, `today`, `now-2days`; also `2d`, `3h ago`.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ganger.model.job import GangState
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, parse_duration_ms

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_UNITS_MS: Final = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), SECOND_MS),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), MINUTE_MS),
    **dict.fromkeys(("h", "hour", "hours"), HOUR_MS),
    **dict.fromkeys(("d", "day", "days"), DAY_MS),
    **dict.fromkeys(("w", "week", "weeks"), 7 * DAY_MS),
}
_FROM_NOW: Final = re.compile(r"now([+-])(\d{1,9})\s*([a-z]*)")
_AGO: Final = re.compile(r"(\d{1,9})\s*([a-z]+)(?:\s+ago)?")
_SPAN: Final = re.compile(r"(\d+(\.\d+)?[smhd])+")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?")
_SHORT_DATE: Final = re.compile(r"(\d{1,2})[/.](\d{1,2})(?:[/.](\d{2}|\d{4}))?(?:-(.+))?")
_NAMED_HOURS: Final = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_NAMED_DAYS: Final = {"today": 0, "yesterday": -1, "tomorrow": 1}

_STATES: Final[dict[str, tuple[GangState, ...]]] = {
    **{str(state): (state,) for state in GangState},
    **dict.fromkeys(("pd",), (GangState.PENDING,)),
    **dict.fromkeys(("cf", "configuring"), (GangState.STARTING,)),
    **dict.fromkeys(("r",), (GangState.RUNNING,)),
    **dict.fromkeys(("s",), (GangState.SUSPENDED, GangState.SUSPENDING)),
    **dict.fromkeys(("rq", "requeued", "pr", "preempted"), (GangState.REQUEUEING,)),
    **dict.fromkeys(("cg", "completing"), (GangState.FINISHING, GangState.FAILING, GangState.STOPPING)),
    **dict.fromkeys(("cd", "completed"), (GangState.SUCCEEDED,)),
    **dict.fromkeys(("f", "nf", "node_fail", "oom", "out_of_memory", "bf", "boot_fail"), (GangState.FAILED,)),
    **dict.fromkeys(("ca", "cancelled", "canceled", "to", "timeout", "dl", "deadline"), (GangState.STOPPED,)),
}
"""State names of sacct(1), long and short -> ganger's states. A job that reached a limit is stopped."""


def parse_time(text: str, now_ms: int) -> int:
    """Return the Unix ms of a point in time, local unless it names a zone.

    A time of day alone is the most recent one. ValueError names the legal forms.
    """
    current = datetime.fromtimestamp(now_ms / 1000).astimezone()
    text_lower = text.strip().lower()
    for parse in (_relative, _time_of_day, _date):
        moment = parse(text_lower, current)
        if moment is not None:
            return int(moment.timestamp() * 1000)
    raise ValueError(f"{text!r} is not a time: write 2026-11-21, 2026-11-21T12:00, 12:00, 2d, now-2days or '3h ago'")


def parse_future_time(text: str, now_ms: int) -> int:
    """Return the Unix ms of a future time.

    `2h` and `in 2 hours` are relative to now; a time of day alone is the next one. ValueError names the legal forms.
    """
    text_lower = text.strip().lower().removeprefix("in ").removesuffix(" from now").strip()
    if _SPAN.fullmatch(text_lower):
        return now_ms + parse_duration_ms(text_lower)
    if (match := _AGO.fullmatch(text_lower)) and not text_lower.endswith("ago") and match[2] in _UNITS_MS:
        return now_ms + int(match[1]) * _UNITS_MS[match[2]]
    try:
        time_ms = parse_time(text_lower, now_ms)
    except (ValueError, OverflowError, OSError):
        forms = "now, 2h (from now), 22:00, tomorrow or 2026-11-21T22:00"
        raise ValueError(f"{text!r} is not a future time: write {forms}") from None
    is_time_time_of_day = text_lower in _NAMED_HOURS or _CLOCK.fullmatch(text_lower)
    return time_ms + DAY_MS if is_time_time_of_day and time_ms < now_ms else time_ms


def parse_states(text: str) -> tuple[GangState, ...]:
    """Return the states in `running,failed` or `R,PD`, in any case. ValueError suggests the nearest name."""
    states: dict[GangState, None] = {}
    for name in map(str.strip, text.lower().split(",")):
        if name not in _STATES:
            from difflib import get_close_matches

            matches = get_close_matches(name, _STATES, 1)
            hint = f"; did you mean {matches[0]!r}?" if matches else "."
            raise ValueError(f"there is no state {name!r}{hint} States: {', '.join(GangState)}")
        states |= dict.fromkeys(_STATES[name])
    return tuple(states)


class Time(click.ParamType[int]):
    """A point in time, as Unix ms, read by `parse`."""

    name = "time"

    def __init__(self, parse: Callable[[str, int], int]) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ganger.cli.output.print_output import current_time_ms

        try:
            return self.parse(value, current_time_ms())
        except (ValueError, OverflowError, OSError) as error:
            self.fail(str(error), param, ctx)


class States(click.ParamType[tuple[GangState, ...]]):
    """One or several states, separated by commas."""

    name = "state"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse_states(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        """Complete the state after the last comma."""
        from click.shell_completion import CompletionItem

        before, comma, prefix = incomplete.rpartition(",")
        return [CompletionItem(before + comma + state) for state in GangState if state.startswith(prefix.lower())]


def _relative(text: str, current: datetime) -> datetime | None:
    """Parse `current`, `now-2days`, `3h ago`, `1h30m ago` and `2d`, which means 2 days ago."""
    if text == "now":
        return current
    if (match := _FROM_NOW.fullmatch(text)) and match[3] in _UNITS_MS:
        sign = 1 if match[1] == "+" else -1
        return current + timedelta(milliseconds=sign * int(match[2]) * _UNITS_MS[match[3]])
    if (match := _AGO.fullmatch(text)) and match[2] in _UNITS_MS:
        return current - timedelta(milliseconds=int(match[1]) * _UNITS_MS[match[2]])
    if text.endswith(" ago"):
        return current - timedelta(milliseconds=parse_duration_ms(text.removesuffix(" ago").strip()))
    if _SPAN.fullmatch(text):
        return current - timedelta(milliseconds=parse_duration_ms(text))
    return None


def _time_of_day(text: str, current: datetime) -> datetime | None:
    """Parse `12:00`, `4:00 pm`, `noon` as the most recent one, and `today`, `yesterday` as the start of the day."""
    if text in _NAMED_DAYS:
        return _local(current.date().isoformat()) + timedelta(days=_NAMED_DAYS[text])
    hour, minute, second = _NAMED_HOURS.get(text, -1), 0, 0
    if match := _CLOCK.fullmatch(text):
        hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
        if match[4]:
            hour = hour % 12 + (12 if match[4] == "pm" else 0)
    if hour < 0:
        return None
    moment = _local(current.date().isoformat()).replace(hour=hour, minute=minute, second=second)
    return moment if moment <= current else moment - timedelta(days=1)


def _date(text: str, current: datetime) -> datetime | None:
    """Parse `2026-11-21`, with or without time and zone, and `11/21`, `11/21/26`, `11/21-12:00`."""
    if match := _SHORT_DATE.fullmatch(text):
        year = int(match[3] or current.year)
        text = f"{year if year > 99 else 2000 + year}-{int(match[1]):02}-{int(match[2]):02}"
        text += f"T{match[4]}" if match[4] else ""
    try:
        return _local(text.upper())
    except ValueError:
        return None


def _local(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.astimezone()


TIME: Final = Time(parse_time)
FUTURE_TIME: Final = Time(parse_future_time)
STATES: Final = States()
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def time_range_options(noun: str) -> Callable[[Decorated], Decorated]:
    """Return `--since` and `--until`, whose help says that `noun` lie between them."""
    since_option = click.option(
        "--since", type=TIME, help=f"Only {noun} at or after this time, such as 2026-11-21, 12:00, 2d (ago), now-2days."
    )
    until_option = click.option("--until", type=TIME, help=f"Only {noun} at or before this time.")
    return lambda command: since_option(until_option(command))
