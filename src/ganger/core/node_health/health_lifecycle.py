"""The lifecycle of a node's health as a table: (state, step) -> state. What is not in the table cannot happen.

Source: the remediation machines of NVSentinel and of Azure's HPC node health checks (reference: reliability).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ganger.model.node_health.health_decision import HealthAction as A
from ganger.model.node_health.health_record import OUT
from ganger.model.node_health.health_record import HealthState as H


class HealthStep(StrEnum):
    """A step that is not decided: a fault that makes a node suspect, and an operator who vouches for a node."""

    FAULT = "fault"
    VOUCH = "vouch"


S = HealthStep

HEALTH: Final[Mapping[tuple[H, HealthStep | A], H]] = {
    (H.HEALTHY, S.FAULT): H.SUSPECT,
    (H.SUSPECT, A.RECOVER): H.HEALTHY,
    (H.SUSPECT, S.VOUCH): H.HEALTHY,
    (H.HEALTHY, A.CORDON): H.CORDONED,
    (H.SUSPECT, A.CORDON): H.CORDONED,
    (H.PROBATION, A.CORDON): H.CORDONED,
    (H.RETIRED, A.CORDON): H.CORDONED,
    # Its jobs may stay until their next checkpoint, or their end.
    (H.CORDONED, A.DRAIN): H.DRAINING,
    (H.CORDONED, A.REPAIR): H.REPAIRING,
    (H.DRAINING, A.REPAIR): H.REPAIRING,
    # Another step of the ladder, or the same one again.
    (H.REPAIRING, A.REPAIR): H.REPAIRING,
    (H.VALIDATING, A.REPAIR): H.REPAIRING,
    (H.REPAIRING, A.VALIDATE): H.VALIDATING,
    (H.CORDONED, A.VALIDATE): H.VALIDATING,
    (H.RETIRED, A.VALIDATE): H.VALIDATING,
    (H.VALIDATING, A.RETURN): H.PROBATION,
    # Nothing more happens by itself: a person has to act.
    (H.CORDONED, A.HOLD): H.CORDONED,
    (H.DRAINING, A.HOLD): H.CORDONED,
    (H.REPAIRING, A.HOLD): H.CORDONED,
    (H.VALIDATING, A.HOLD): H.CORDONED,
    (H.PROBATION, A.RELEASE): H.HEALTHY,
    **{(state, A.RETIRE): H.RETIRED for state in H if state is not H.RETIRED},
    **{(state, S.VOUCH): H.PROBATION for state in OUT},
}


class IllegalHealthStep(ValueError):
    """A step that the table does not contain; the message lists the legal ones."""


def health_next(state: H, step: HealthStep | A) -> H:
    """Return the state of a node's health after `step`; raise IllegalHealthStep for a pair not in the table."""
    if (state, step) not in HEALTH:
        legal = ", ".join(sorted(allowed.value for origin, allowed in HEALTH if origin is state))
        raise IllegalHealthStep(f"the node is {state}: cannot take {step}; it accepts {legal}")
    return HEALTH[state, step]
