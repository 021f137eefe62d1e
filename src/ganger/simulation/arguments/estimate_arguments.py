"""The estimates of durations: `--estimates recorded|exact|factor=N|noisy=N`."""

import re
from typing import Final

from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.duration_estimates import RECORDED, EstimateKind, Estimates

LARGEST_FACTOR: Final = 1_000
_FORM: Final = re.compile(r"(recorded|exact)|(factor|noisy)=(\d{1,9}(?:\.\d{1,9})?)")


def estimates_from(text: str | None, seed: int = 0) -> Estimates:
    """Return the estimates; without text those of the trace. InvalidArgument: they cannot be read."""
    if text is None:
        return RECORDED
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"{text!r} is not a way to estimate durations",
            "--estimates recorded, exact, factor=2 (twice the duration) or noisy=3 (one to three times, drawn)",
        )
    plain, kind, number = match.groups()
    if plain:
        return Estimates(EstimateKind(plain))
    factor = float(number)
    if not 1 <= factor <= LARGEST_FACTOR:
        raise InvalidArgument(
            f"--estimates {text}: {number} is not from 1 to {LARGEST_FACTOR}; an estimate is a job's time limit, and "
            "below its duration it would end the job",
            f"--estimates {kind}=2",
        )
    return Estimates(EstimateKind(kind), factor, seed)
