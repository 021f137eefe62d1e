"""Points in time and states as users of `sacct` write them. Called by the options of `ls` and `logs`.

Forms of sacct(1): `2026-11-21`, `2026-11-21T12:00`, `11/21`, `12:00`, `today`, `now-2days`; and `2d`, `3h ago`. Pure
but for the local time zone.
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
"""What sacct(1) calls a state, long and short -> ours. A job that a limit ended is stopped."""


def parse_time(text: str, now_ms: int) -> int:
    """Unix ms of a point in time, local where it does not say; a time of day alone is the last such. ValueError says
    what is legal."""
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    word = text.strip().lower()
    for read in (_relative, _of_day, _calendar):
        found = read(word, now)
        if found is not None:
            return int(found.timestamp() * 1000)
    raise ValueError(f"{text!r} is no time: write 2026-11-21, 2026-11-21T12:00, 12:00, 2d, now-2days or '3h ago'")


def parse_ahead(text: str, now_ms: int) -> int:
    """The same of a time to come: `2h` and `in 2 hours` are in two hours, a time of day alone the next such. ValueError
    says what is legal."""
    word = text.strip().lower().removeprefix("in ").removesuffix(" from now").strip()
    if _SPAN.fullmatch(word):
        return now_ms + parse_duration_ms(word)
    if (found := _AGO.fullmatch(word)) and not word.endswith("ago") and found[2] in _UNITS_MS:
        return now_ms + int(found[1]) * _UNITS_MS[found[2]]
    try:
        then_ms = parse_time(word, now_ms)
    except (ValueError, OverflowError, OSError):
        forms = "now, 2h (from now), 22:00, tomorrow or 2026-11-21T22:00"
        raise ValueError(f"{text!r} is no time to come: write {forms}") from None
    is_of_day = word in _NAMED_HOURS or _CLOCK.fullmatch(word)
    return then_ms + DAY_MS if is_of_day and then_ms < now_ms else then_ms


def parse_states(text: str) -> tuple[GangState, ...]:
    """States from `running,failed` or `R,PD`, in any case. ValueError names the nearest."""
    found: dict[GangState, None] = {}
    for word in text.lower().split(","):
        if word.strip() not in _STATES:
            from difflib import get_close_matches

            near = get_close_matches(word.strip(), _STATES, 1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"there is no state {word.strip()!r}{meant} States: {', '.join(GangState)}")
        found |= dict.fromkeys(_STATES[word.strip()])
    return tuple(found)


class Time(click.ParamType[int]):
    """A point in time as Unix ms."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ganger.cli.output.tables import now_ms

        try:
            return parse_time(value, now_ms())
        except (ValueError, OverflowError, OSError) as error:
            self.fail(str(error), param, ctx)


class Ahead(Time):
    """A point in time to come."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ganger.cli.output.tables import now_ms

        try:
            return parse_ahead(value, now_ms())
        except (ValueError, OverflowError, OSError) as error:
            self.fail(str(error), param, ctx)


class States(click.ParamType[tuple[GangState, ...]]):
    """One or several states, parted by commas."""

    name = "state"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse_states(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        """Our states, after the last comma."""
        from click.shell_completion import CompletionItem

        before, comma, begun = incomplete.rpartition(",")
        return [CompletionItem(before + comma + state) for state in GangState if state.startswith(begun.lower())]


def _relative(word: str, now: datetime) -> datetime | None:
    """`now`, `now-2days`, `3h ago`, `1h30m ago`, and `2d`, which is that long ago."""
    if word == "now":
        return now
    if (found := _FROM_NOW.fullmatch(word)) and found[3] in _UNITS_MS:
        sign = 1 if found[1] == "+" else -1
        return now + timedelta(milliseconds=sign * int(found[2]) * _UNITS_MS[found[3]])
    if (found := _AGO.fullmatch(word)) and found[2] in _UNITS_MS:
        return now - timedelta(milliseconds=int(found[1]) * _UNITS_MS[found[2]])
    if word.endswith(" ago"):
        return now - timedelta(milliseconds=parse_duration_ms(word.removesuffix(" ago").strip()))
    if _SPAN.fullmatch(word):
        return now - timedelta(milliseconds=parse_duration_ms(word))
    return None


def _of_day(word: str, now: datetime) -> datetime | None:
    """`12:00`, `4:00 pm`, `noon`: the last such time; `today`, `yesterday`: the beginning of the day."""
    if word in _NAMED_DAYS:
        return _local(now.date().isoformat()) + timedelta(days=_NAMED_DAYS[word])
    hour, minute, second = _NAMED_HOURS.get(word, -1), 0, 0
    if found := _CLOCK.fullmatch(word):
        hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
        if found[4]:
            hour = hour % 12 + (12 if found[4] == "pm" else 0)
    if hour < 0:
        return None
    then = _local(now.date().isoformat()).replace(hour=hour, minute=minute, second=second)
    return then if then <= now else then - timedelta(days=1)


def _calendar(word: str, now: datetime) -> datetime | None:
    """`2026-11-21`, with a time and a zone or without; `11/21`, `11/21/26`, `11/21-12:00`."""
    if found := _SHORT_DATE.fullmatch(word):
        year = int(found[3] or now.year)
        word = f"{year if year > 99 else 2000 + year}-{int(found[1]):02}-{int(found[2]):02}"
        word += f"T{found[4]}" if found[4] else ""
    try:
        return _local(word.upper())
    except ValueError:
        return None


def _local(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.astimezone()


TIME: Final = Time()
AHEAD: Final = Ahead()
STATES: Final = States()
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def span_options(what: str) -> Callable[[Decorated], Decorated]:
    """`--since` and `--until`, for a command whose help says `what` lies between them."""
    since = click.option(
        "--since", type=TIME, help=f"Only {what} then or later: 2026-11-21, 12:00, 2d (ago), now-2days."
    )
    until = click.option("--until", type=TIME, help=f"Only {what} then or before.")
    return lambda command: since(until(command))
