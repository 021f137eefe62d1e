"""The return of a job to an older checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """The return of a job to an older checkpoint: newer ones of earlier attempts are set aside.

    Attributes:
        step: It goes on from the newest checkpoint of this step or before it.
        generation: The first attempt that does.
    """

    step: int
    generation: int
