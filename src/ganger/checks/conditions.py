"""Findings of other programs: conditions of node-problem-detector, the health of DCGM and gpud."""

from dataclasses import replace
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.kernel_text import shown
from ganger.check_api.rule import ANY, RuleBook
from ganger.model.node_health.node_sample import NodeSample

NAME: Final = "conditions"
DOC: Final = "Conditions of node-problem-detector, health of DCGM and gpud"

_MAX_NAME: Final = 64
INITIAL_STATE: Final = None


def check(state: None, sample: NodeSample, rules: RuleBook) -> tuple[None, tuple[Finding, ...]]:
    """Return the conditions that are bad, each by the row of its name."""
    findings = []
    for condition in sample.conditions:
        name = condition.name[:_MAX_NAME]
        rule = rules.find("condition", name)
        if rule is None or not condition.is_bad:
            continue
        findings.append(
            Finding(
                rule=replace(rule, code=name) if rule.code == ANY else rule,
                device=condition.device,
                sentence=shown(f"{condition.source} reports {name}: {condition.message or rule.meaning}"),
            )
        )
    return None, tuple(findings)
