"""One signature: a pattern that is found in a line, and the class of failures that the line stands for."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSignature:
    """A row of a signature table.

    Attributes:
        failure_class: A name of `failure_classes.CLASSES`.
        pattern: Searched for in the line in lower case. It holds no digits, so that lines that differ only in numbers
            match alike; where a number decides, it is a group of the pattern, and `numbers` has its
            class; another number stands for `failure_class`, or does not match if that is "".
        source, date: Program, and when its messages were last compared with the row.
        depth: The depth of the class in this row, if it differs from that of the class.
        cancels: Classes that lines of the same log do not stand for: the line says that nothing is wrong there.
    """

    failure_class: str
    pattern: re.Pattern[str]
    source: str
    date: str
    numbers: dict[int, str] | None = None
    depth: int | None = None
    cancels: tuple[str, ...] = ()


def rows(
    source: str, date: str, *pairs: tuple[str, str], depth: int | None = None, cancels: tuple[str, ...] = ()
) -> tuple[LogSignature, ...]:
    """Return rows of one source, each from a class and a pattern."""
    return tuple(
        LogSignature(name, re.compile(pattern), source, date, depth=depth, cancels=cancels) for name, pattern in pairs
    )


def numbered(source: str, date: str, pattern: str, numbers: dict[int, str], depth: int | None = None) -> LogSignature:
    """Return a row whose class is that of the number in one of its groups; another number does not match."""
    return LogSignature("", re.compile(pattern), source, date, numbers, depth)
