"""The table of all signatures, and the search in it: the first row that matches a text decides."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ganger.core.failure.failure_classes import CLASSES, Depth, FailureClass, Origin
from ganger.core.failure.log_signatures.collective_signatures import COLLECTIVE_SIGNATURES
from ganger.core.failure.log_signatures.gpu_signatures import GPU_SIGNATURES
from ganger.core.failure.log_signatures.host_signatures import PLATFORM_SIGNATURES, PROCESS_SIGNATURES
from ganger.core.failure.log_signatures.log_signature import LogSignature
from ganger.core.failure.log_signatures.program_signatures import PROGRAM_SIGNATURES

_TABLES: Final = (
    *GPU_SIGNATURES,
    *PLATFORM_SIGNATURES,
    *COLLECTIVE_SIGNATURES,
    *PROGRAM_SIGNATURES,
    *PROCESS_SIGNATURES,
)
SIGNATURES: Final[tuple[LogSignature, ...]] = (
    *(row for row in _TABLES if row.depth is None or row.depth < Depth.NETWORK),
    *(row for row in _TABLES if row.depth is not None and row.depth >= Depth.NETWORK),
)
"""Rows that only report the end of a process, and the noise, come last."""
BEGIN_CHARACTERS: Final = 1000
END_CHARACTERS: Final = 500
MAX_CACHED: Final = 50_000
"""Texts whose rows are remembered; then the memory is emptied."""
_DIGITS: Final = str.maketrans("", "", "0123456789")


@dataclass(frozen=True, slots=True)
class Match:
    """The row that matches a text, and the depth that the text has as evidence."""

    failure_class: FailureClass
    depth: int
    signature: LogSignature


class SignatureSearch:
    """Search for the signature of a text, which remembers the rows of texts that differ only in numbers."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[LogSignature, ...]] = {}

    def find(self, text: str, *, of_program: bool = False) -> Match | None:
        """Return the match of a text, None without one.

        of_program: the text is an exception of the program's own, which no fault of a machine explains: only classes
            with another origin match.
        """
        return next(
            (match for match in self._matches(_searched(text)) if not of_program or _is_of_program(match)), None
        )

    def has_rows(self, text: str) -> bool:
        """Return whether a text, or one that differs from it only in numbers, may match."""
        return bool(self._candidates(_searched(text)))

    def _matches(self, lowered: str) -> Iterator[Match]:
        for row in self._candidates(lowered):
            name = row.failure_class
            if row.numbers is not None:
                found = row.pattern.search(lowered)
                digits = next((group for group in found.groups() if group), "") if found else ""
                name = row.numbers.get(int(digits[:9]), name) if digits else ""
            if name:
                failure_class = CLASSES[name]
                depth = failure_class.depth if row.depth is None else row.depth
                yield Match(failure_class, depth, row)

    def _candidates(self, lowered: str) -> tuple[LogSignature, ...]:
        template = lowered.translate(_DIGITS)
        known = self._rows.get(template)
        if known is None:
            if len(self._rows) >= MAX_CACHED:
                self._rows.clear()
            known = self._rows[template] = tuple(row for row in SIGNATURES if row.pattern.search(lowered))
        return known


def _searched(text: str) -> str:
    """Return what is searched of a text, in lower case: its beginning and its end, since patterns take longer."""
    if len(text) > BEGIN_CHARACTERS + END_CHARACTERS:
        text = f"{text[:BEGIN_CHARACTERS]} ... {text[-END_CHARACTERS:]}"
    return text.lower()


@lru_cache(maxsize=MAX_CACHED)
def find_signature(text: str) -> Match | None:
    """Return the match of one text, None without one."""
    return SignatureSearch().find(text)


def _is_of_program(match: Match) -> bool:
    return not match.failure_class.suspects_node and match.failure_class.origin is not Origin.SYMPTOM
