"""The declaration of a trace format, and the detection of a file's format by its first line.

A format with a header is detected by its columns. If several fit, the one whose columns include those of all others is
taken (Muri's files are Tiresias's with more columns); if there is none, the file is refused with the candidates. A
format without a header is detected by the number of fields of the first line and by `matches`.
"""

import csv
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ganger.simulation.traces.trace import Findings, Flaw
from ganger.simulation.traces.trace_row import BadRow, Row

T = TypeVar("T")
RecordCheck = Callable[[T], tuple[Flaw, str] | None]
"""Returns the flaw of a record after those before it. It receives every record in the order of the file."""


class FormatMismatch(Exception):
    """The reason why a first line is not of a format."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one file.

    fields: number of fields of a line
    indices: index of the field of each key
    extra_columns, extra: names and indices of the other columns
    """

    fields: int
    indices: Mapping[str, int]
    extra_columns: tuple[str, ...]
    extra: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """One format.

    columns: name of the column of each key; several alternatives
    record: makes a record of a row
    new_check: makes the check of the records of a file
    time_of: returns the time of a record in ms
    optional: keys whose column may be missing
    marker_columns: columns without a key that must be there
    positions: of files without a header the names of all columns in order, for each form
    delimiter: None splits at blanks
    comment: prefix of lines that are skipped
    prefix: prefix of the other columns' names, without which they are refused; empty: any name is kept
    unprefixed: other columns that are kept without the prefix
    matches: returns whether the fields of a first line may be of the format
    combine: joins records that several rows describe, and notes a flaw for each row that is no record of its own
    """

    name: str
    doc: str
    columns: tuple[Mapping[str, str], ...]
    record: Callable[[Row], T]
    new_check: Callable[[], RecordCheck[T]]
    time_of: Callable[[T], int]
    optional: frozenset[str] = frozenset()
    marker_columns: frozenset[str] = frozenset()
    positions: tuple[tuple[str, ...], ...] = ()
    delimiter: str | None = ","
    comment: str = ""
    prefix: str = ""
    unprefixed: frozenset[str] = frozenset()
    matches: Callable[[Sequence[str]], bool] = lambda _: True
    combine: Callable[[list[T], Findings], list[T]] = lambda records, _: records

    def split(self, text: str) -> list[str]:
        """Return the fields of a line. BadRow: its quotes are wrong."""
        if self.delimiter != ",":
            return text.split(self.delimiter)
        try:
            return next(csv.reader((text,), strict=True))
        except csv.Error as error:
            raise BadRow(Flaw.FIELDS, str(error)) from None

    def required_columns(self) -> tuple[frozenset[str], ...]:
        """Return the columns that must be there, for each alternative."""
        return tuple(
            self.marker_columns | {column for key, column in columns.items() if key not in self.optional}
            for columns in self.columns
        )

    def layout(self, first_line: str) -> Layout:
        """Return the layout of a file. FormatMismatch: its first line is not of the format."""
        try:
            fields = [field.strip() for field in self.split(first_line)]
        except BadRow as bad_row:
            raise FormatMismatch(f"the first line is broken: {bad_row.text}") from None
        return self._layout_of_header(fields) if not self.positions else self._layout_of_positions(len(fields))

    def fit(self, first_line: str) -> frozenset[str] | None:
        """Return the columns that the format requires of a file with this first line; None: it is not of the format."""
        if self.comment and first_line.lstrip().startswith(self.comment):
            return frozenset()
        try:
            fields = [field.strip() for field in self.split(first_line)]
        except BadRow:
            return None
        if self.positions:
            has_known_length = any(len(fields) == len(names) for names in self.positions)
            return frozenset() if has_known_length and self.matches(fields) else None
        fitting = (required for required in self.required_columns() if required <= {*fields})
        return max(fitting, key=len, default=None)

    def _layout_of_header(self, names: list[str]) -> Layout:
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise FormatMismatch(f"two columns are called {duplicates[0]!r}")
        missing = [sorted(required - {*names}) for required in self.required_columns()]
        fewest = min(missing, key=len)
        if fewest:
            raise FormatMismatch(f"no column {', '.join(fewest)}")
        return self._layout(names, self.columns[missing.index(fewest)])

    def _layout_of_positions(self, fields: int) -> Layout:
        """Return the layout of a file without a header; a single form is taken even if the first line is broken."""
        forms = [names for names in self.positions if len(names) == fields or len(self.positions) == 1]
        if not forms:
            counts = " or ".join(str(len(names)) for names in self.positions)
            raise FormatMismatch(f"the first line has {fields} fields, not {counts}")
        return self._layout(list(forms[0]), self.columns[0])

    def _layout(self, names: list[str], columns: Mapping[str, str]) -> Layout:
        indices = {key: names.index(column) for key, column in columns.items() if column in names}
        extra = tuple(index for index in range(len(names)) if index not in indices.values())
        for index in extra:
            if not names[index].startswith(self.prefix) and names[index] not in self.unprefixed:
                raise FormatMismatch(_unknown_column(names[index], list(columns.values()), self.prefix))
        extra_columns = tuple(names[index].removeprefix(self.prefix) for index in extra)
        for name in self.unprefixed & {*names}:
            if f"{self.prefix}{name}" in names:
                raise FormatMismatch(f"two columns are called {name!r}: {name} and {self.prefix}{name}")
        return Layout(len(names), indices, extra_columns, extra)


def _unknown_column(name: str, known: list[str], prefix: str) -> str:
    similar = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {similar[0]!r}?" if similar else f"call it {prefix + name!r} to keep it as it is"
    return f"{name!r} is not a column of the format: {hint}"
