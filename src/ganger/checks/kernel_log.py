"""Lines of the kernel that a node is in trouble: lockups, hung tasks, out of memory, errors of the kernel itself."""

import re
from collections.abc import Iterator
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.kernel_text import matched_text
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import NodeSample

NAME: Final = "kernel_log"
DOC: Final = "Lockups, hung tasks, out of memory of the machine, errors of the kernel, lost lines"

_LINES: Final = (
    (
        "soft_lockup",
        re.compile(r"soft lockup - CPU#(?P<cpu>\d{1,5}) stuck for (?P<seconds>\d{1,9})s! \[(?P<task>[^\]]{1,64})"),
    ),
    ("hard_lockup", re.compile(r"(?:hard LOCKUP|Hard LOCKUP|hard lockup) on cpu (?P<cpu>\d{1,5})")),
    ("rcu_stall", re.compile(r"rcu: .{0,60}detected (?:expedited )?stalls?\b|rcu_\w{1,20} self-detected stall")),
    ("hung_task", re.compile(r"task (?P<task>.{1,64}:\d{1,10}) blocked for more than (?P<seconds>\d{1,9}) seconds")),
    (
        "kernel_oops",
        re.compile(
            r"BUG: unable to handle|kernel BUG at |Kernel panic - not syncing|\bOops: |general protection fault, "
        ),
    ),
    (
        "memory_uncorrected",
        re.compile(r"EDAC .{0,40}\b[1-9]\d{0,9} UE\b|Hardware Error.{0,60}[Uu]ncorrected .{0,40}memory"),
    ),
    (
        "oom_host",
        re.compile(r"oom-kill:constraint=CONSTRAINT_(?:NONE|MEMORY_POLICY|CPUSET),.{0,600}task=(?P<task>[^,]{1,64})"),
    ),
    ("oom_host", re.compile(r"(?:^|[^p] )Out of memory: Killed process (?P<task>\d{1,10} \([^)]{1,64}\))")),
)
_WORDS: Final = (
    "lockup",
    "LOCKUP",
    "stall",
    "blocked for",
    "BUG",
    "panic",
    "Oops",
    "protection fault",
    "UE",
    "rror",
    "oom-kill:",
    "Killed process",
)

INITIAL_STATE: Final = None


def check(state: None, sample: NodeSample, rules: RuleBook) -> tuple[None, tuple[Finding, ...]]:
    """Return a finding for each such line, and one if lines were lost."""
    findings = list(_of_lines(sample, rules))
    rule = rules.find("host", "lines_lost")
    if rule is not None and sample.lines_lost > 0:
        sentence = f"{sample.lines_lost} lines of the kernel's log were lost: what they said is not known"
        findings.append(Finding(rule=rule, sentence=sentence, is_event=True))
    return None, tuple(findings)


def _of_lines(sample: NodeSample, rules: RuleBook) -> Iterator[Finding]:
    for line in sample.lines:
        if not any(word in line.text[:1000] for word in _WORDS):
            continue
        text = matched_text(line)
        for code, pattern in _LINES:
            match, rule = pattern.search(text), rules.find("host", code)
            if match is None or rule is None:
                continue
            details = ", ".join(f"{name} {value}" for name, value in match.groupdict().items())
            yield Finding(
                rule=rule,
                sentence=f"{rule.meaning}{f': {details}' if details else ''}",
                evidence=(line.text,),
                at_ms=line.at_ms,
                is_event=True,
            )
            break
