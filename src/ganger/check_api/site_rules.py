"""Rules of a site: a TOML file with rows that replace or add rows of ganger's tables, and shadow mode.

```toml
shadow_checks = ["nic"]

[[xid]]
code = 63
severity = "reset_device"
shadow = true
```

The columns that a row has replace those of the row with its code; all others stay. If anything in the file is wrong,
nothing of it applies.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ganger.check_api.rule import Repeat, Rule, RuleBook
from ganger.model.node_health.fault import Severity

SEVERITIES: Final = {severity.name.lower(): severity for severity in Severity}
EXTENSIBLE: Final = ("xid", "sxid", "nic", "condition")
"""Tables that take rows with new codes: numbers, counters in sysfs, names of conditions."""
_NEEDED: Final = ("meaning", "severity", "source", "date")
_SHADOW_CHECKS: Final = "shadow_checks"
_MAX_LIMIT: Final = 1e18
_MAX_S: Final = 366 * 86_400
_MAX_TIMES: Final = 64
_MAX_TEXT: Final = 200
_CODES: Final = {
    "xid": (re.compile(r"\d{1,6}(?: [a-z]+(?: \d{1,2})?)?|\*"), 'a number, as in code = 79, or "149 fatal 4"'),
    "sxid": (re.compile(r"\d{1,6}|fatal|nonfatal|\*"), "a number, as in code = 20034"),
    "nic": (re.compile(r"[a-z][a-z0-9_]{0,63}(?:\.[a-z]{1,16})?"), 'a counter in sysfs, as in code = "symbol_error"'),
    "condition": (re.compile(r"[\w.-]{1,64}|\*"), 'the name of a condition, as in code = "KernelDeadlock"'),
}


class SiteRulesError(ValueError):
    """A file of rules that does not apply; `errors` has a sentence for each wrong place."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class _WrongCellError(ValueError):
    """A value that a column does not take; the text is the rest of the sentence."""


def read_site_rules(file: str, text: str, own: RuleBook, checks: tuple[str, ...]) -> RuleBook:
    """Return the rules in force with a site's file of that name and text. Raise SiteRulesError if anything is wrong."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SiteRulesError((f"{file} is not valid TOML: {error}; correct that line",)) from None
    errors: list[str] = []
    shadow_checks = document.pop(_SHADOW_CHECKS, [])
    if not isinstance(shadow_checks, list) or any(name not in checks for name in shadow_checks):
        errors.append(f"{file}: {_SHADOW_CHECKS} is {_shown(shadow_checks)}: write a list of {', '.join(checks)}")
        shadow_checks = []
    rows = {name: dict(table) for name, table in own.rows.items()}
    for table, entries in document.items():
        if table not in rows:
            errors.append(f"{file}: there is no table {_shown(table)}; write [[{']], [['.join(sorted(rows))}]]")
        elif not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            errors.append(f"{file}: {table} is not a list of rows; write [[{table}]] above each row")
        else:
            errors += _read_table(_Place(file, text, table), entries, rows[table])
    if errors:
        raise SiteRulesError(tuple(errors))
    return RuleBook(rows, tuple(shadow_checks))


class _Place:
    """File and table in messages, with the lines of the table's rows."""

    def __init__(self, file: str, text: str, table: str) -> None:
        self.file, self.table = file, table
        header = re.compile(rf"\s*\[\[\s*[\"']?{table}[\"']?\s*\]\]")
        self._lines = [number for number, line in enumerate(text.splitlines(), 1) if header.match(line)]

    def of(self, number: int, code: object) -> str:
        line = f", line {self._lines[number]}" if number < len(self._lines) else ""
        return f"{self.file}{line}: table {self.table}, row {number + 1} (code {_shown(code)})"


def _read_table(place: _Place, entries: list[dict[str, Any]], rows: dict[str, Rule]) -> Iterator[str]:
    """Change the rows of one table; yield a sentence for each wrong place."""
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        where = place.of(number, entry.get("code"))
        try:
            code = _read_code(place.table, entry.get("code"), rows)
        except _WrongCellError as error:
            yield f"{where}, column code: {error}"
            continue
        if code in seen:
            yield f"{where}, column code: another row of the file has it; keep one of them"
            continue
        seen.add(code)
        before = rows.get(code)
        missing = [column for column in _NEEDED if before is None and column not in entry]
        if missing:
            yield f"{where}, column {missing[0]}: a new row needs it; add {', '.join(missing)}"
            continue
        cells, errors = _read_cells(entry)
        if "limit" in entry and (before.limit is None if before else place.table != "nic"):
            errors.append("limit: what this row is about has no number; leave the column out")
        yield from (f"{where}, column {error}" for error in errors)
        if not errors:
            base = before or Rule(table=place.table, code=code, meaning="", severity=Severity.NOTE)
            rows[code] = replace(base, **cells)


def _read_code(table: str, value: object, rows: Mapping[str, Rule]) -> str:
    code = str(value) if type(value) in (str, int) else ""
    if code in rows:
        return code
    if table not in EXTENSIBLE:
        raise _WrongCellError(f"there is no such row; write one of {', '.join(sorted(rows))}")
    pattern, example = _CODES[table]
    if not pattern.fullmatch(code):
        raise _WrongCellError(f"{_shown(value)} is not {example}")
    return code


def _read_cells(entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of a row as attributes of a rule, and the sentences of wrong ones."""
    cells: dict[str, Any] = {}
    errors = []
    for column, value in entry.items():
        if column == "code":
            continue
        if column not in _COLUMNS:
            errors.append(f"{_shown(column)}: there is no such column; write one of code, {', '.join(_COLUMNS)}")
            continue
        attribute, read = _COLUMNS[column]
        try:
            cells[attribute] = read(value)
        except _WrongCellError as error:
            errors.append(f"{column}: {error}")
    return cells, errors


def _read_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise _WrongCellError(f"{_shown(value)} is not a line of text of up to {_MAX_TEXT} characters")
    return value


def _read_date(value: object) -> str:
    text = str(value)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise _WrongCellError(f"{_shown(value)} is not a date; write it as 2026-08-22")
    return text


def _read_severity(value: object) -> Severity:
    if not isinstance(value, str) or value not in SEVERITIES:
        raise _WrongCellError(f"{_shown(value)} is not a severity; write one of {', '.join(SEVERITIES)}")
    return SEVERITIES[value]


def _read_limit(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= _MAX_LIMIT:  # type: ignore[arg-type, operator]
        raise _WrongCellError(f"{_shown(value)} is not a number of at least 0")
    return value  # type: ignore[return-value]


def _read_seconds(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_S:
        raise _WrongCellError(f"{_shown(value)} is not a whole number of seconds from 0 to {_MAX_S}")
    return value


def _read_shadow(value: object) -> bool:
    if not isinstance(value, bool):
        raise _WrongCellError(f"{_shown(value)} is neither true nor false")
    return value


def _read_repeat(value: object) -> Repeat | None:
    example = 'write { times = 2, within_s = 86400, severity = "reset_device" }, or false for none'
    if value is False:
        return None
    if not isinstance(value, dict) or not {"times", "within_s", "severity"} <= value.keys():
        raise _WrongCellError(f"{_shown(value)} is not a rule for repetitions; {example}")
    if unknown := sorted(value.keys() - {"times", "within_s", "severity", "alone"}):
        raise _WrongCellError(f"{_shown(unknown[0])} is not a part of it; {example}")
    times = value["times"]
    if type(times) is not int or not 2 <= times <= _MAX_TIMES:
        raise _WrongCellError(f"times is {_shown(times)}, not a whole number from 2 to {_MAX_TIMES}; {example}")
    severity = _read_severity(value["severity"])
    return Repeat(times, _read_seconds(value["within_s"]), severity, _read_shadow(value.get("alone", False)))


_COLUMNS: Final[dict[str, tuple[str, Callable[[object], Any]]]] = {
    "meaning": ("meaning", _read_text),
    "severity": ("severity", _read_severity),
    "action": ("action", _read_text),
    "limit": ("limit", _read_limit),
    "per_s": ("per_s", _read_seconds),
    "hold_s": ("hold_s", _read_seconds),
    "repeat": ("repeat", _read_repeat),
    "source": ("source", _read_text),
    "date": ("date", _read_date),
    "shadow": ("is_shadow", _read_shadow),
}
"""Columns of the file, each with its attribute of `Rule` and the function that reads it."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
