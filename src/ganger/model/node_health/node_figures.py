"""Figures of a node and of its GPUs as they are kept over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A machine, or one GPU, at one moment or as the mean of a while. None is "not measured".

    Attributes:
        busy_permille: Of the machine's CPUs, or of the time of the GPU.
        memory_bytes: In use.
        power_mw, temperature_c: Of a GPU.
        received_bytes_s, sent_bytes_s: Per second, over all ports of the machine.
    """

    busy_permille: int | None = None
    memory_bytes: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    received_bytes_s: int | None = None
    sent_bytes_s: int | None = None


NOT_MEASURED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSamples:
    """The recorded work of a GPU, oldest first: two sequences of equal length, which may be arrays.

    Attributes:
        times_ms: Unix ms of each sample.
        busy_permille: Part of the time in which it had work; NOT_MEASURED where that is not known.
    """

    times_ms: Sequence[int] = ()
    busy_permille: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWork:
    """The recorded work of the GPUs of a node.

    Attributes:
        samples: Of each GPU, by its UUID, without gaps where it was measured.
        problem: The reason why nothing is recorded, empty if something is.
    """

    samples: Mapping[str, GpuSamples] = field(default_factory=dict)
    problem: str = ""
