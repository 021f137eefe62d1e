"""The elements of an array job as text: `0-99%10`, `1,3,5-9:2`.

As in Slurm: a list of indices and ranges, a step after a colon, the number of simultaneous elements after a percent
sign. An index that is named twice is one element.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ganger.model.job import Array
from ganger.spec.spec_document import quote

MAX_ELEMENTS: Final = 100_000
MAX_INDEX: Final = 9_999_999
PART_PATTERN: Final = r"\d{1,7}(-\d{1,7}(:[1-9]\d{0,6})?)?"
ARRAY_PATTERN: Final = rf"{PART_PATTERN}(,{PART_PATTERN})*(%[1-9]\d{{0,6}})?"
_LEGAL: Final = "write 0-99, 1,3,5-9:2, or 0-99%10 for ten at a time"


def read_array(value: Any) -> Array:
    """Parse the elements of an array; a whole number is one element."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(ARRAY_PATTERN, text):
        raise ValueError(f"{quote(value)} is not an array: {_LEGAL}; an index is at most {MAX_INDEX}")
    indices_text, _, limit = text.partition("%")
    ranges = [_range(part) for part in indices_text.split(",")]
    count = sum(map(len, ranges))
    if count > MAX_ELEMENTS:
        raise ValueError(f"{quote(value)} has {count} elements: an array has at most {MAX_ELEMENTS}")
    indices = tuple(sorted({index for index_range in ranges for index in index_range}))
    return Array(indices=indices, limit=int(limit) if limit else None)


def _range(part: str) -> range:
    bounds, _, step = part.partition(":")
    first, _, last = bounds.partition("-")
    if last and int(last) < int(first):
        raise ValueError(f"{quote(part)} has no elements: write the lower index first")
    return range(int(first), int(last or first) + 1, int(step or 1))


def array_without_successes(array: Array, unsuccessful: Sequence[int]) -> dict[str, str]:
    """Return the override with which an array runs its unsuccessful elements again, ascending; all if there are none.

    They keep their indices, by which they know their part of the work and find their checkpoints.
    """
    return {"array": write_array(replace(array, indices=tuple(unsuccessful)))} if unsuccessful else {}


def write_array(value: Array) -> str:
    """Return the shortest text: runs of two or more with the same step are ranges."""
    parts, start = [], 0
    while start < len(value.indices):
        end = _end_of_run(value.indices, start)
        first, last = value.indices[start], value.indices[end - 1]
        step = value.indices[start + 1] - first if end - start > 1 else 1
        parts.append(str(first) if first == last else f"{first}-{last}" + (f":{step}" if step > 1 else ""))
        start = end
    return ",".join(parts) + (f"%{value.limit}" if value.limit is not None else "")


def _end_of_run(indices: tuple[int, ...], start: int) -> int:
    """Return the end of the longest run from `start` with a constant step; a pair is a run only without a gap."""
    end = start + 1
    while end < len(indices) and indices[end] - indices[end - 1] == indices[start + 1] - indices[start]:
        end += 1
    gapless = end - start < 2 or indices[start + 1] - indices[start] == 1
    return end if gapless or end - start > 2 else start + 1
