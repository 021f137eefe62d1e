"""The clock of a node against that of the server."""

from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import is_number
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import NodeSample

NAME: Final = "clock_skew"
DOC: Final = "Clock of the node that differs from that of the server"

INITIAL_STATE: Final = None


def check(state: None, sample: NodeSample, rules: RuleBook) -> tuple[None, tuple[Finding, ...]]:
    """Return a finding while the clocks differ by more than the limit."""
    rule, offset_ms = rules.find("host", "clock_skew"), sample.host.clock_offset_ms
    if rule is None or rule.limit is None or not is_number(offset_ms) or abs(offset_ms) <= rule.limit:
        return None, ()
    sentence = f"the clock is {abs(offset_ms)} ms {'ahead of' if offset_ms > 0 else 'behind'} that of the server"
    return None, (Finding(rule=rule, sentence=sentence),)
