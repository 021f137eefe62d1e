"""The elements of an array job as text: `0-99%10`, `1,3,5-9:2`. Called by `spec.field_types`.

Slurm's words: a list of indices and ranges, a step after a colon, the number of elements at a time after a percent
sign. An index that is named twice is one element.
"""

import re
from typing import Any, Final

from ganger.model.job import Array
from ganger.spec.spec_document import shown

MAX_ELEMENTS: Final = 100_000
MAX_INDEX: Final = 9_999_999
PART_PATTERN: Final = r"\d{1,7}(-\d{1,7}(:[1-9]\d{0,6})?)?"
ARRAY_PATTERN: Final = rf"{PART_PATTERN}(,{PART_PATTERN})*(%[1-9]\d{{0,6}})?"
_LEGAL: Final = "write 0-99, 1,3,5-9:2, or 0-99%10 for ten at a time"


def read_array(value: Any) -> Array:
    """The elements that a text stands for; a whole number is one element."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(ARRAY_PATTERN, text):
        raise ValueError(f"{shown(value)} is not an array: {_LEGAL}; an index is at most {MAX_INDEX}")
    listed, _, limit = text.partition("%")
    ranges = [_range(part) for part in listed.split(",")]
    count = sum(map(len, ranges))
    if count > MAX_ELEMENTS:
        raise ValueError(f"{shown(value)} has {count} elements: an array has at most {MAX_ELEMENTS}")
    indices = tuple(sorted({index for each in ranges for index in each}))
    return Array(indices=indices, limit=int(limit) if limit else None)


def _range(part: str) -> range:
    bounds, _, step = part.partition(":")
    first, _, last = bounds.partition("-")
    if last and int(last) < int(first):
        raise ValueError(f"{shown(part)} has no elements: write the lower index first")
    return range(int(first), int(last or first) + 1, int(step or 1))


def write_array(value: Array) -> str:
    """The shortest text: runs of two or more with the same step are ranges."""
    parts, at = [], 0
    while at < len(value.indices):
        end = _end_of_run(value.indices, at)
        first, last = value.indices[at], value.indices[end - 1]
        step = value.indices[at + 1] - first if end - at > 1 else 1
        parts.append(str(first) if first == last else f"{first}-{last}" + (f":{step}" if step > 1 else ""))
        at = end
    return ",".join(parts) + (f"%{value.limit}" if value.limit is not None else "")


def _end_of_run(indices: tuple[int, ...], at: int) -> int:
    """The end of the longest run from `at` in which every two neighbours are equally far apart; a pair is one only when
    it has no gap."""
    end = at + 1
    while end < len(indices) and indices[end] - indices[end - 1] == indices[at + 1] - indices[at]:
        end += 1
    gapless = end - at < 2 or indices[at + 1] - indices[at] == 1
    return end if gapless or end - at > 2 else at + 1
