"""The time that ranks get between SIGTERM and SIGKILL."""

from typing import Final

from ganger.model.decision import FAILURES, Cause

KILL_AFTER_FAILURE_MS: Final = 500
KILL_AFTER_MS: Final = 5_000


def kill_after_ms(cause: Cause) -> int:
    """Return the time between SIGTERM and SIGKILL: short after a failure, when ranks only hang in a collective."""
    return KILL_AFTER_FAILURE_MS if cause in FAILURES else KILL_AFTER_MS
