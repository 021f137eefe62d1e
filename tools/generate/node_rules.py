"""The blocks of the page of node checks: the checks, the severities, and the tables of rules."""

from collections.abc import Iterable, Iterator
from typing import Final

from ganger.check_api.rule import ANY, Rule
from ganger.check_api.rule_tables import OWN_RULES
from ganger.model.node_health.fault import Severity
from ganger.registry import checks
from tools.generate.markdown import code, table

_CURES: Final = {
    Severity.NOTE: "nothing: it is on record, and counts against the node",
    Severity.RESTART_JOB: "the job starts again; the node is suspect",
    Severity.RESET_DEVICE: "the node is drained, and the device reset or the service started again",
    Severity.REBOOT: "the node is drained and rebooted",
    Severity.REPLACE: "a person, and a part",
}


def node_checks() -> Iterator[str]:
    """Yield the table of checks."""
    return table(("check", "what it finds"), ((code(name), module.DOC) for name, module in sorted(checks().items())))


def severities() -> Iterator[str]:
    """Yield the table of severities."""
    return table(("severity", "what cures it"), ((code(one.name.lower()), _CURES[one]) for one in Severity))


def node_rules(name: str) -> Iterator[str]:
    """Yield a table of rules: one row for all codes that differ in nothing else."""
    groups: dict[tuple[str, ...], list[str]] = {}
    rules = OWN_RULES.table(name).values()
    has_limits = any(rule.limit is not None or rule.hold_s for rule in rules)
    for rule in rules:
        cells = (
            "any other" if rule.code == ANY else "",
            rule.meaning,
            code(rule.severity.name.lower()),
            *((_limit(rule),) if has_limits else ()),
            _repeat(rule),
            rule.action,
            code(rule.failure_class),
            f"{rule.source}, {rule.date}",
        )
        groups.setdefault(cells, []).append(rule.code)
    head = (
        "code",
        "meaning",
        "severity",
        *(("limit",) if has_limits else ()),
        "repeated",
        "what to do",
        "class",
        "source",
    )
    rows = ((cells[0] or _codes(codes), *cells[1:]) for cells, codes in groups.items())
    return table(head, rows)


def _codes(codes: Iterable[str]) -> str:
    """Return codes, numbers that follow each other as ranges."""
    spans: list[list[str]] = []
    for one in codes:
        if spans and one.isdigit() and spans[-1][-1].isdigit() and int(one) == int(spans[-1][-1]) + 1:
            spans[-1].append(one)
        else:
            spans.append([one])
    return ", ".join(code(span[0]) if len(span) == 1 else f"{code(span[0])}-{code(span[-1])}" for span in spans)


def _limit(rule: Rule) -> str:
    parts = []
    if rule.limit is not None:
        unit = {0: "", 1: " per s", 60: " per min", 3600: " per h"}.get(rule.per_s, f" in {rule.per_s} s")
        parts.append(f"{rule.limit:g}{unit}")
    if rule.hold_s:
        parts.append(f"for {rule.hold_s} s")
    return " ".join(parts)


def _repeat(rule: Rule) -> str:
    if (repeat := rule.repeat) is None:
        return ""
    hours = f"{repeat.within_s // 3600} h" if repeat.within_s >= 3600 else f"{repeat.within_s // 60} min"
    alone = ", on no other device" if repeat.is_alone else ""
    return f"{repeat.times} times in {hours}{alone}: {code(repeat.severity.name.lower())}"
