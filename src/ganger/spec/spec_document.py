"""Documents: a user's text or mapping as plain values with their positions.

Errors of single values are found here (a key that is not text, a character that no program accepts, too many values),
errors of fields elsewhere.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ganger.errors import RequestError

MAX_VALUES: Final = 10_000
MAX_DEPTH: Final = 32

Loc = tuple[str | int, ...]
"""Keys and indices from the root to a value."""


class SourcePosition(NamedTuple):
    """A line and column, from 1. Values that were never text come after those of a text, ordered by line."""

    text: bool
    line: int
    column: int
    where: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}:{self.column}" if self.text else self.where

    @property
    def order(self) -> tuple[bool, int, int]:
        """Sort key in reading order."""
        return not self.text, self.line, self.column


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """An error: its location, and a sentence. `key`: the key is wrong, not the value."""

    path: Loc
    what: str
    key: bool = False


@dataclass(slots=True)
class Document:
    """A document.

    Attributes:
        data: Dicts, lists and scalars.
        values, keys: Positions of values and keys, by location.
        texts: Numbers and booleans as they were written.
        unreadable: Errors found while the document was read.
    """

    where: str
    data: Any = None
    values: dict[Loc, SourcePosition] = field(default_factory=dict)
    keys: dict[Loc, SourcePosition] = field(default_factory=dict)
    texts: dict[Loc, str] = field(default_factory=dict)
    unreadable: dict[Loc, tuple[SourcePosition, str]] = field(default_factory=dict)

    def place(self, problem: SpecProblem) -> SourcePosition:
        """Return the position of a problem: its key, its value, or the innermost value around it."""
        path = problem.path
        if problem.key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
        return self.values[path]

    def error_for(self, problems: Iterable[SpecProblem]) -> RequestError:
        """Return the error that lists these problems and all unreadable values, one a line, in reading order."""
        placed = [(self.place(problem), problem.what) for problem in problems]
        return spec_error(*sorted([*self.unreadable.values(), *placed], key=lambda pair: pair[0].order))

    def merge(self, other: "Document") -> None:
        """Merge the mapping `other` over this one: mappings in both are merged, everything else is replaced."""
        if isinstance(self.data, dict):
            self._join(self.data, other.data, ())
            for table, added in zip(self.tables(), other.tables(), strict=True):
                table |= {path: entry for path, entry in added.items() if path not in table}

    def _join(self, base: dict[str, Any], added: dict[str, Any], path: Loc) -> None:
        for key, value in added.items():
            child_path = (*path, key)
            if isinstance(value, dict) and isinstance(base.get(key), dict):
                self._join(base[key], value, child_path)
            else:
                base[key] = value
                for table in self.tables():
                    for stale in [location for location in table if location[: len(child_path)] == child_path]:
                        del table[stale]

    def tables(self) -> tuple[dict[Loc, Any], ...]:
        """Return all attributes that are keyed by location."""
        return self.values, self.keys, self.texts, self.unreadable


def read_mapping(data: Mapping[str, Any], where: str) -> Document:
    """Return a document with a deep copy of `data`."""
    document = Document(where)
    document.data = Walk(document).value(data, ())
    return document


class Walk:
    """Fills a document with values and positions, and limits their number, so that aliases cannot explode."""

    def __init__(self, document: Document) -> None:
        """Start with no values."""
        self.document = document
        self.count = 0

    def value(self, value: Any, path: Loc) -> Any:
        """Return a Python value as it goes into the document."""
        place = SourcePosition(text=False, line=self.count, column=0, where=self.document.where)
        self.document.values[path] = self.document.keys[path] = self.enter(path, place)
        if isinstance(value, Mapping):
            legal = [key for key in value if isinstance(key, str) and is_encodable(key)]
            if len(legal) < len(value):
                self.unreadable(
                    path, self.document.values[path], f"a key of {format_location(path) or 'it'} is not text"
                )
            return {key: self.value(value[key], (*path, key)) for key in legal}
        if isinstance(value, list | tuple):
            return [self.value(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, str):
            return self.text(value, path)
        if isinstance(value, bool | int | float):
            self.document.texts[path] = _plain(value)
        return value

    def enter(self, path: Loc, place: SourcePosition) -> SourcePosition:
        """Count one more value; raise bad_spec beyond the limits."""
        self.count += 1
        if len(path) > MAX_DEPTH:
            raise spec_error((place, f"the document is nested more than {MAX_DEPTH} deep"))
        if self.count > MAX_VALUES:
            raise spec_error((place, f"the document has more than {MAX_VALUES} values"))
        return place

    def text(self, text: str, path: Loc) -> str:
        """Return a text after checking its characters."""
        if not is_encodable(text):
            what = f"{quote(text)} has a character that no program can be given: zero, or half of a pair"
            self.unreadable(path, self.document.values[path], what)
        return join_surrogates(text)

    def unreadable(self, path: Loc, place: SourcePosition, what: str) -> None:
        """Record an error of the text itself."""
        self.document.unreadable[path] = (place, what)


def quote(value: Any) -> str:
    """Return the beginning of a value on one line, as errors quote it."""
    if value is None:
        return "nothing"
    text = repr(value[:60]) if isinstance(value, str) else _plain(value)
    return text if len(text) <= 60 else f"{text[:56]}..."


def format_location(path: Loc) -> str:
    """Return a location as text: `resources.gpu`, `run[2]`."""
    parts = [
        f"[{key}]" if isinstance(key, int) else f".{key[:60] if key.isprintable() else quote(key)}" for key in path
    ]
    return "".join(parts).removeprefix(".")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return repr(value)
    except ValueError:  # an integer too long to be printed
        return f"a number of about {int(math.log10(abs(value)))} digits"


def join_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined, as which JSON escapes characters beyond U+FFFF."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def is_encodable(text: str) -> bool:
    """Return whether the text can be passed to a program."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in join_surrogates(text))


def spec_error(*placed: tuple[SourcePosition, str]) -> RequestError:
    """Return the bad_spec error with one line for each problem."""
    return RequestError(
        "bad_spec",
        "\n".join(f"{place}: {what}" for place, what in placed),
        next="correct it, then check it with `--dry-run`",
    )
