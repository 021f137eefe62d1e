"""Interface of checks: what a module in `checks/` must have, and what it returns. `registry` finds these modules.

A check is a pure function of a sample and of its own state, so that a recorded list of samples gives the same faults
again. It says what it finds in each sample as long as it lasts. The driver (`run_checks`) turns findings into faults:
it waits until one has lasted as long as its rule says, counts repetitions, and reports each fault once.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from ganger.check_api.rule import Rule, RuleBook
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.node_sample import NodeSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault in one sample, by one rule.

    Attributes:
        device, gpu, sentence, evidence: As of a Fault.
        at_ms: When it happened, None for the time of the sample.
        severity: If it is not that of the rule.
        is_event: It happened, as a line of the kernel's log does; else it is a condition, which lasts while it is
            found.
        place: Part of the device that must be the same for a repetition, such as a processor or a link.
    """

    rule: Rule
    device: str = ""
    gpu: int | None = None
    sentence: str
    evidence: tuple[str, ...] = ()
    at_ms: int | None = None
    severity: Severity | None = None
    is_event: bool = False
    place: str = ""


class Check(Protocol):
    """A check.

    Attributes:
        NAME: In faults, and in the site's rules.
        DOC: One line for the documentation.
        INITIAL_STATE: Before the first sample. A state is a value that is never changed, and is bounded by the number
            of devices, whatever samples contain.
    """

    NAME: str
    DOC: str
    INITIAL_STATE: Any

    def check(self, state: Any, sample: NodeSample, rules: RuleBook) -> tuple[Any, tuple[Finding, ...]]:
        """Return the next state, and what is wrong in this sample.

        The time of the sample never jumps and never goes back: it is that of the driver, which follows the clock of
        the node while that runs steadily. Times of kernel lines are those of the node.
        """
        ...
