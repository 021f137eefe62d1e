"""Labels that nodes are to have, written as selectors are in Kubernetes: `zone in (a, b), !broken, cores>32`.

Called by `spec.field_types`. A reader takes what YAML or JSON gave and raises ValueError with a sentence that quotes
it and says what is legal. Source of the syntax: `kubectl get -l`, with `>` and `<` for numbers.
"""

import re
from typing import Any, Final

from ganger.model.affinity import Expression, Operator, Term
from ganger.spec.spec_document import shown
from ganger.spec.text_fields import read_label_key, read_label_value

MAX_TERMS: Final = 32
"""Terms of a list, and expressions of a term."""
MAX_PREFERENCE: Final = 100
"""Of a weight, as in Kubernetes."""

_PIECES: Final = re.compile(r"(?:[^,()]|\([^()]*\))+")
_SET: Final = re.compile(r"(?P<key>\S+)\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)")
_SIGN: Final = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<sign>==|!=|=|>|<)\s*(?P<value>[^\s=!<>]*)")
_ALONE: Final = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s=!<>()]+)")
_SIGNS: Final = {"=": Operator.IN, "==": Operator.IN, "!=": Operator.NOT_IN, ">": Operator.GT, "<": Operator.LT}
_LEGAL: Final = "write KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY notin (A, B), KEY, !KEY, KEY>5 or KEY<5"


def read_term(value: Any) -> Term:
    """Expressions with commas between them, all of which are to hold."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not what labels are to be: {_LEGAL}, with ', ' between them")
    pieces = _PIECES.findall(value)
    if ",".join(pieces) != value:
        quotes = ", in quotes within [ ] or { }" if value.count("(") != value.count(")") else ""
        raise ValueError(f"{shown(value)} is not what labels are to be: {_LEGAL}, with one ',' between them{quotes}")
    expressions = [_expression(piece.strip()) for piece in pieces]
    if len(expressions) > MAX_TERMS:
        raise ValueError(f"{shown(value)} has more than {MAX_TERMS} expressions")
    if again := next((each for index, each in enumerate(expressions) if each in expressions[:index]), None):
        raise ValueError(f"{shown(str(again))} is given twice: remove one")
    return Term(tuple(expressions))


def read_terms(value: Any) -> tuple[Term, ...]:
    """One term, or several, any one of which is to hold."""
    found = value if isinstance(value, list) else [value]
    if not found:
        raise ValueError(f"an empty list holds for no node: {_LEGAL}, or leave it out")
    if len(found) > MAX_TERMS:
        raise ValueError(f"a list of more than {MAX_TERMS} terms")
    terms = tuple(map(read_term, found))
    if again := next((each for index, each in enumerate(terms) if each in terms[:index]), None):
        raise ValueError(f"{shown(str(again))} is given twice: remove one")
    return terms


def write_terms(value: tuple[Term, ...]) -> str | list[str]:
    """A term, or a list."""
    return str(value[0]) if len(value) == 1 else list(map(str, value))


def _expression(text: str) -> Expression:
    if found := _SET.fullmatch(text):
        values = [each.strip() for each in found["values"].split(",")]
        if values == [""]:
            raise ValueError(f"{shown(text)} names no value: write {found['key']} {found['word']} (A, B)")
        operator = Operator.IN if found["word"] == "in" else Operator.NOT_IN
    elif found := _SIGN.fullmatch(text):
        values, operator = [found["value"]], _SIGNS[found["sign"]]
    elif found := _ALONE.fullmatch(text):
        values, operator = [], Operator.DOES_NOT_EXIST if found["no"] else Operator.EXISTS
    else:
        raise ValueError(f"{shown(text)} is not what a label is to be: {_LEGAL}")
    read = _whole if operator in (Operator.GT, Operator.LT) else read_label_value
    return Expression(read_label_key(found["key"]), operator, tuple(sorted(dict.fromkeys(map(read, values)))))


def _whole(text: str) -> str:
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return text
    raise ValueError(f"{shown(text)} is not a whole number: > and < compare with one, as in cores>32")
