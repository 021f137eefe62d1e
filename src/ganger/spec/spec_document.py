"""What a user wrote, as plain values that know where they stand. Called by `spec`, filled by it and by `text`.

What is wrong with a value by itself (a key that is no text, a character that no program can be given, more values than
any job has) is found here; what is wrong with fields is found by the others.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ganger.errors import RequestError

MAX_VALUES: Final = 10_000
MAX_DEPTH: Final = 32

Loc = tuple[str | int, ...]
"""Keys and indices from the top to a value."""


class SourcePosition(NamedTuple):
    """Line and column from 1. What never was text comes after what was, and its line only keeps the order."""

    text: bool
    line: int
    column: int
    where: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}:{self.column}" if self.text else self.where

    @property
    def order(self) -> tuple[bool, int, int]:
        """Sorts as a person reads."""
        return not self.text, self.line, self.column


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One thing that is wrong: which value, and a sentence. `key`: it is the key that is wrong, not the value."""

    at: Loc
    what: str
    key: bool = False


@dataclass(slots=True)
class Document:
    """`data` is dicts, lists and scalars; `texts` has numbers and truth values as they were written."""

    where: str
    data: Any = None
    values: dict[Loc, SourcePosition] = field(default_factory=dict)
    keys: dict[Loc, SourcePosition] = field(default_factory=dict)
    texts: dict[Loc, str] = field(default_factory=dict)
    unreadable: dict[Loc, tuple[SourcePosition, str]] = field(default_factory=dict)
    """What the walk itself found wrong."""

    def place(self, problem: SpecProblem) -> SourcePosition:
        """Where a problem stands: its key, its value, or the nearest thing around it."""
        at = problem.at
        if problem.key and at in self.keys:
            return self.keys[at]
        while at not in self.values and at:
            at = at[:-1]
        return self.values[at]

    def refusal(self, problems: Iterable[SpecProblem]) -> RequestError:
        """The error that names them and what is unreadable, one a line, in the order of the text."""
        placed = [(self.place(problem), problem.what) for problem in problems]
        return refused(*sorted([*self.unreadable.values(), *placed], key=lambda pair: pair[0].order))

    def lay_over(self, other: "Document") -> None:
        """Let the mapping `other` win, key by key: mappings in both are joined, everything else is replaced."""
        if isinstance(self.data, dict):
            self._join(self.data, other.data, ())
            for mine, others in zip(self.tables(), other.tables(), strict=True):
                mine |= {at: found for at, found in others.items() if at not in mine}

    def _join(self, mine: dict[str, Any], others: dict[str, Any], at: Loc) -> None:
        for key, value in others.items():
            here = (*at, key)
            if isinstance(value, dict) and isinstance(mine.get(key), dict):
                self._join(mine[key], value, here)
            else:
                mine[key] = value
                for table in self.tables():
                    for stale in [each for each in table if each[: len(here)] == here]:
                        del table[stale]

    def tables(self) -> tuple[dict[Loc, Any], ...]:
        """Everything that is kept by location."""
        return self.values, self.keys, self.texts, self.unreadable


def read_mapping(data: Mapping[str, Any], where: str) -> Document:
    """The document that `data` is; nothing of it is shared."""
    document = Document(where)
    document.data = Walk(document).value(data, ())
    return document


class Walk:
    """Fills a document, notes places, and counts, so that aliases cannot explode."""

    def __init__(self, document: Document) -> None:
        """Nothing is counted yet."""
        self.document = document
        self.count = 0

    def value(self, value: Any, at: Loc) -> Any:
        """A value of Python as it goes into the document."""
        place = SourcePosition(text=False, line=self.count, column=0, where=self.document.where)
        self.document.values[at] = self.document.keys[at] = self.enter(at, place)
        if isinstance(value, Mapping):
            legal = [key for key in value if isinstance(key, str) and sound(key)]
            if len(legal) < len(value):
                self.unreadable(at, self.document.values[at], f"a key of {dotted(at) or 'it'} is not text")
            return {key: self.value(value[key], (*at, key)) for key in legal}
        if isinstance(value, list | tuple):
            return [self.value(item, (*at, index)) for index, item in enumerate(value)]
        if isinstance(value, str):
            return self.text(value, at)
        if isinstance(value, bool | int | float):
            self.document.texts[at] = _plain(value)
        return value

    def enter(self, at: Loc, place: SourcePosition) -> SourcePosition:
        """Count one more value. Refused beyond what any job needs."""
        self.count += 1
        if len(at) > MAX_DEPTH:
            raise refused((place, f"it is nested more than {MAX_DEPTH} deep"))
        if self.count > MAX_VALUES:
            raise refused((place, f"it has more than {MAX_VALUES} values"))
        return place

    def text(self, text: str, at: Loc) -> str:
        """Text that has been looked at."""
        if not sound(text):
            what = f"{shown(text)} has a character that no program can be given: zero, or half of a pair"
            self.unreadable(at, self.document.values[at], what)
        return joined(text)

    def unreadable(self, at: Loc, place: SourcePosition, what: str) -> None:
        """Note something wrong with the text itself."""
        self.document.unreadable[at] = (place, what)


def shown(value: Any) -> str:
    """A value as an error quotes it: its beginning, on one line."""
    if value is None:
        return "nothing"
    text = repr(value[:60]) if isinstance(value, str) else _plain(value)
    return text if len(text) <= 60 else f"{text[:56]}..."


def dotted(at: Loc) -> str:
    """A location as a person names it: `resources.gpu`, `run[2]`."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{key[:60] if key.isprintable() else shown(key)}" for key in at]
    return "".join(parts).removeprefix(".")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return repr(value)
    except ValueError:  # an integer too long to be printed
        return f"a number of about {int(math.log10(abs(value)))} digits"


def joined(text: str) -> str:
    r"""JSON writes characters beyond the first 65,536 as two escapes, \ud83d\ude00; YAML leaves them apart."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def sound(text: str) -> bool:
    """Whether a program can be given the text."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in joined(text))


def refused(*placed: tuple[SourcePosition, str]) -> RequestError:
    """The error with one line for each."""
    return RequestError(
        "bad_spec",
        "\n".join(f"{place}: {what}" for place, what in placed),
        next="correct it, then check it with `--dry-run`",
    )
