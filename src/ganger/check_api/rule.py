"""A rule of a check: one row of a table, and all rows that are in force."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ganger.model.node_health.fault import Severity

ANY: Final = "*"
"""Code of the row for what a table has no row of its own for."""
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Repeat:
    """The severity of a fault that happens several times on the same device.

    Attributes:
        is_alone: Not if other devices of the node have the same fault in that time: then the program is at fault.
    """

    times: int
    within_s: int
    severity: Severity
    is_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of a rule table.

    Attributes:
        table, code: xid and 79, nic and symbol_error, gpu and remap_failed: together its key.
        meaning: A noun phrase.
        action: What cures it, an imperative sentence without its stop.
        limit: The number above which it is a fault (below which, for free inodes and degrees to a slowdown); None if
            it has none.
        per_s: For a counter, the seconds in which it may grow by the limit; 0: from one sample to the next.
        hold_s: How long a condition must last before it is reported; an event is reported at once.
        repeat: The rule for several times, if there is one.
        failure_class: The class of failures of jobs that it causes, of `failure_classes.CLASSES`; empty for none.
        source, date: Of the row.
        is_shadow: Its faults are reported and counted, and nothing is done.
    """

    table: str
    code: str
    meaning: str
    severity: Severity
    action: str = ""
    limit: float | None = None
    per_s: int = 0
    hold_s: int = 0
    repeat: Repeat | None = None
    failure_class: str = ""
    source: str = ""
    date: str = ""
    is_shadow: bool = False

    @property
    def fault_code(self) -> str:
        """The code of its faults: xid_79, xid_149_fatal, sxid_20034, link_downed."""
        code = self.code.replace(" ", "_")
        return f"{self.table}_{code}" if self.table in ("xid", "sxid") else code


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The rules that are in force.

    Attributes:
        rows: By table and code.
        shadow_checks: NAMEs of checks whose faults are all in shadow mode.
    """

    rows: Mapping[str, Mapping[str, Rule]] = field(default_factory=dict)
    shadow_checks: tuple[str, ...] = ()

    def table(self, name: str) -> Mapping[str, Rule]:
        """Return the rows of a table by their codes."""
        return self.rows.get(name, {})

    def find(self, table: str, *codes: str) -> Rule | None:
        """Return the first of these rows that exists, the row for any other code last."""
        rows = self.table(table)
        return next((rows[code] for code in (*codes, ANY) if code in rows), None)


def rule_book(rules: Iterable[Rule], shadow_checks: tuple[str, ...] = ()) -> RuleBook:
    """Return a book of these rows; of two with the same table and code the later one counts."""
    rows: dict[str, dict[str, Rule]] = {}
    for rule in rules:
        rows.setdefault(rule.table, {})[rule.code] = rule
    return RuleBook(rows, shadow_checks)
