"""What a policy file must have. Files in `policies/` are modules with these names; `engine.registry` finds them."""

from typing import Any, Protocol

from ganger.core.gang import Gang
from ganger.core.state import State


class Policy(Protocol):
    """A queue order.

    NAME: how it is chosen; PROMISES: liveness laws it keeps ("work_conservation", "no_starvation"); ORDERS_RUNNING:
    whether running gangs compete too, so that one may be stopped for another; STARVES_AFTER_MS: age from which nodes
    are held for a waiting gang, None for never.
    """

    NAME: str
    PROMISES: tuple[str, ...]
    ORDERS_RUNNING: bool
    STARVES_AFTER_MS: int | None

    def key(self, gang: Gang, state: State, now_ms: int) -> tuple[Any, ...]:
        """The gang's place in the order: smaller is earlier. Must be total (end with `gang.number`) and may depend on
        what is used now: it is asked again after every start of a round."""
        ...

    def turn_ms(self, gang: Gang, now_ms: int) -> int | None:
        """When the gang's key changes although nothing happens; None: not. Asked where running gangs are ordered."""
        ...
