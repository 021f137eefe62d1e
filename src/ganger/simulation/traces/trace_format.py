"""What a format of traces is made of, and how a file is told to be of it. Called by `read`; each format is one file.

A format that has a header is told by its columns. Several may fit; then the one whose columns include those of all
others is meant (Muri's files are Tiresias's with more columns), and where there is none the file is refused with the
names of the candidates. A format without a header is told by the number of fields of the first line and its `looks`.
"""

import csv
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ganger.simulation.traces.trace import Flaw
from ganger.simulation.traces.trace_row import Broken, Row

T = TypeVar("T")
Watch = Callable[[T], tuple[Flaw, str] | None]
"""Sees every record in the order of the file; what is wrong with it after those before it."""


class Misfit(Exception):
    """Why a first line is not of a format."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the columns of one file are: of each word the index; the names and indices of the others."""

    fields: int
    at: Mapping[str, int]
    extra_columns: tuple[str, ...]
    extra: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """One format.

    columns: alternatives, each word -> name of its column; optional: words whose column may be missing; told_by:
    columns without a word that must be there. positions: where files have no header, the names of all columns in
    order, one tuple for each form. delimiter: None splits at blanks. comment: lines that begin with it say nothing.
    prefix: other columns are refused unless their name begins with it; without one they are all kept as they are.
    looks: whether fields of a first line may be of it. at_ms: when a record was; watch: made anew for every file.
    """

    name: str
    doc: str
    columns: tuple[Mapping[str, str], ...]
    record: Callable[[Row], T]
    watch: Callable[[], Watch[T]]
    at_ms: Callable[[T], int]
    optional: frozenset[str] = frozenset()
    told_by: frozenset[str] = frozenset()
    positions: tuple[tuple[str, ...], ...] = ()
    delimiter: str | None = ","
    comment: str = ""
    prefix: str = ""
    looks: Callable[[Sequence[str]], bool] = lambda _: True

    def split(self, text: str) -> list[str]:
        """The fields of a line. Broken: its quotes are wrong."""
        if self.delimiter != ",":
            return text.split(self.delimiter)
        try:
            return next(csv.reader((text,), strict=True))
        except csv.Error as error:
            raise Broken(Flaw.FIELDS, str(error)) from None

    def needs(self) -> tuple[frozenset[str], ...]:
        """The columns that must be there, for each alternative."""
        return tuple(
            self.told_by | {column for word, column in columns.items() if word not in self.optional}
            for columns in self.columns
        )

    def layout(self, first: str) -> Layout:
        """The layout that the first line tells, with or without a header. Misfit says why it tells none."""
        try:
            fields = [field.strip() for field in self.split(first)]
        except Broken as broken:
            raise Misfit(f"the first line is broken: {broken.what}") from None
        return self._headed(fields) if not self.positions else self._positioned(len(fields))

    def fit(self, first: str) -> frozenset[str] | None:
        """The columns that it needs of a file that begins so; None: the file is not of it."""
        if self.comment and first.lstrip().startswith(self.comment):
            return frozenset()
        try:
            fields = [field.strip() for field in self.split(first)]
        except Broken:
            return None
        if self.positions:
            known = any(len(fields) == len(names) for names in self.positions)
            return frozenset() if known and self.looks(fields) else None
        return max((needed for needed in self.needs() if needed <= {*fields}), key=len, default=None)

    def _headed(self, names: list[str]) -> Layout:
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Misfit(f"two columns are called {twice[0]!r}")
        missing = [sorted(needed - {*names}) for needed in self.needs()]
        least = min(missing, key=_length)
        if least:
            raise Misfit(f"no column {', '.join(least)}")
        return self._laid_out(names, self.columns[missing.index(least)])

    def _positioned(self, fields: int) -> Layout:
        """A single form is taken whatever the first line is: it may be broken."""
        forms = [names for names in self.positions if len(names) == fields or len(self.positions) == 1]
        if not forms:
            counts = " or ".join(str(len(names)) for names in self.positions)
            raise Misfit(f"the first line has {fields} fields, not {counts}")
        return self._laid_out(list(forms[0]), self.columns[0])

    def _laid_out(self, names: list[str], columns: Mapping[str, str]) -> Layout:
        at = {word: names.index(column) for word, column in columns.items() if column in names}
        extra = tuple(index for index in range(len(names)) if index not in at.values())
        for index in extra:
            if not names[index].startswith(self.prefix):
                raise Misfit(_unknown(names[index], list(columns.values()), self.prefix))
        extra_columns = tuple(names[index].removeprefix(self.prefix) for index in extra)
        return Layout(len(names), at, extra_columns, extra)


def _length(columns: Sequence[str]) -> int:
    return len(columns)


def _unknown(name: str, known: list[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]!r}?" if near else f"call it {prefix + name!r} to keep it as it is"
    return f"{name!r} is not a column of the format: {meant}"
