"""Fields of a spec that constrain placement: GPU types, levels, node labels, taints, networks.

A reader takes what YAML or JSON gave and raises ValueError with a sentence that quotes it and says what is legal. Label
expressions have the syntax of `kubectl get -l`, with `>` and `<` for numbers: `zone in (a, b), !broken, cores>32`."""

import re
from typing import Any, Final

from ganger.model.affinity import Expression, Operator, Term
from ganger.model.terms import BALANCED, EXCLUSIVE, PACK, PREFERRED, REQUIRED, SHARED, SPREAD, WHOLE
from ganger.spec.amounts import GPU_TYPE_PATTERN, MAX_GPU_INDEX, read_gpu_type
from ganger.spec.spec_document import shown
from ganger.spec.text_fields import (
    LABEL_KEY_PATTERN,
    LABEL_PATTERN,
    did_you_mean,
    listed,
    read_label_key,
    read_label_value,
)

MODES: Final = (PREFERRED, REQUIRED)
STRATEGIES: Final = (PACK, SPREAD, BALANCED)
SHARING: Final = (SHARED, EXCLUSIVE, WHOLE)
NETWORKS: Final = ("ib", "roce", "tcp")
LEVEL_PATTERN: Final = r"[a-z][a-z0-9_]{0,31}"
NODE_NAME_PATTERN: Final = r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?"
TAINT_PATTERN: Final = rf"\*|{LABEL_KEY_PATTERN}(=({LABEL_PATTERN})?)?"
GPU_TYPES_PATTERN: Final = rf"{GPU_TYPE_PATTERN}(,{GPU_TYPE_PATTERN})*"


MAX_TERMS: Final = 32
"""The most terms in a list, and the most expressions in a term."""
MAX_PREFERENCE: Final = 100
"""The largest weight, as in Kubernetes."""

_LABEL_EXPRESSIONS: Final = re.compile(r"(?:[^,()]|\([^()]*\))+")
_SET_EXPRESSION: Final = re.compile(r"(?P<key>\S+)\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)")
_SIGN_EXPRESSION: Final = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<sign>==|!=|=|>|<)\s*(?P<value>[^\s=!<>]*)")
_KEY_EXPRESSION: Final = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s=!<>()]+)")
_SIGNS: Final = {"=": Operator.IN, "==": Operator.IN, "!=": Operator.NOT_IN, ">": Operator.GT, "<": Operator.LT}
_LEGAL_LABELS: Final = "write KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY notin (A, B), KEY, !KEY, KEY>5 or KEY<5"


def read_level(value: Any) -> str:
    """The name of a level; whether there is such a level is known at submission."""
    if isinstance(value, str) and re.fullmatch(LEVEL_PATTERN, value):
        return value
    raise ValueError(
        f"{shown(value)} is not a level of the network: write one that is a heading of `ganger node`, for instance rack"
    )


def read_gpu_types(value: Any) -> tuple[str, tuple[str, ...]]:
    """The first type, and those after it."""
    if not isinstance(value, list):
        return read_gpu_type(value), ()
    types = [read_gpu_type(each) for each in value]
    if not types:
        raise ValueError("an empty list of GPU types: write H100, or [H100, A100]")
    lower = [each.lower() for each in types]
    if again := next((each for index, each in enumerate(lower) if each in lower[:index]), None):
        raise ValueError(f"{shown(again)} is given twice: remove one")
    return types[0], tuple(types[1:])


def write_gpu_types(value: tuple[str, tuple[str, ...]]) -> str | list[str]:
    """A type, or a list."""
    first, others = value
    return [first, *others] if others else first


def read_networks(value: Any) -> tuple[str, ...]:
    """One network, or several, the first that has room."""
    found = value if isinstance(value, list) else [value]
    for each in found:
        if not isinstance(each, str) or each not in NETWORKS:
            meant = did_you_mean(each, NETWORKS) if isinstance(each, str) else ""
            raise ValueError(f"{shown(each)} is not a network: write {listed(NETWORKS)}, or a list of them{meant}")
    if len(found) != len(dict.fromkeys(found)):
        raise ValueError(f"{shown(value)}: a network is given twice: remove one")
    return tuple(found)


def write_networks(value: tuple[str, ...]) -> str | list[str]:
    """A network, or a list."""
    return value[0] if len(value) == 1 else list(value)


def read_node_name(value: Any) -> str:
    """The name of a node; whether there is such a node is known at submission."""
    if isinstance(value, str) and re.fullmatch(NODE_NAME_PATTERN, value):
        return value
    raise ValueError(f"{shown(value)} is not a name of a node: write one that `ganger node` shows, for instance n1")


def read_devices(value: Any) -> tuple[int, ...]:
    """Indices of GPUs on a node, rising."""
    found = value if isinstance(value, list) else [value]
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= MAX_GPU_INDEX:
            what = f"is not a GPU of a node: write its index, from 0 to {MAX_GPU_INDEX}, or a list of them"
            raise ValueError(f"{shown(each)} {what}")
    if len(found) != len(dict.fromkeys(found)):
        raise ValueError(f"{shown(value)}: a GPU is given twice: remove one")
    return tuple(sorted(found))


def read_taint(value: Any) -> str:
    """What a job tolerates: a taint, all of a key, or all."""
    if isinstance(value, str) and re.fullmatch(TAINT_PATTERN, value):
        return value
    raise ValueError(f"{shown(value)} is not a taint: write KEY, KEY=VALUE, or '*' for every one")


def read_term(value: Any) -> Term:
    """Read a term: expressions with commas between them, all of which must hold."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not what labels are to be: {_LEGAL_LABELS}, with ', ' between them")
    pieces = _LABEL_EXPRESSIONS.findall(value)
    if ",".join(pieces) != value:
        quotes = ", in quotes within [ ] or { }" if value.count("(") != value.count(")") else ""
        raise ValueError(
            f"{shown(value)} is not what labels are to be: {_LEGAL_LABELS}, with one ',' between them{quotes}"
        )
    expressions = [_expression(piece.strip()) for piece in pieces]
    if len(expressions) > MAX_TERMS:
        raise ValueError(f"{shown(value)} has more than {MAX_TERMS} expressions")
    if again := next((each for index, each in enumerate(expressions) if each in expressions[:index]), None):
        raise ValueError(f"{shown(str(again))} is given twice: remove one")
    return Term(tuple(expressions))


def read_terms(value: Any) -> tuple[Term, ...]:
    """Read one term, or a list of terms of which at least one must hold."""
    found = value if isinstance(value, list) else [value]
    if not found:
        raise ValueError(f"an empty list holds for no node: {_LEGAL_LABELS}, or leave it out")
    if len(found) > MAX_TERMS:
        raise ValueError(f"a list of more than {MAX_TERMS} terms")
    terms = tuple(map(read_term, found))
    if again := next((each for index, each in enumerate(terms) if each in terms[:index]), None):
        raise ValueError(f"{shown(str(again))} is given twice: remove one")
    return terms


def write_terms(value: tuple[Term, ...]) -> str | list[str]:
    """Return a term, or a list of terms, as the user would write it."""
    return str(value[0]) if len(value) == 1 else list(map(str, value))


def _expression(text: str) -> Expression:
    if found := _SET_EXPRESSION.fullmatch(text):
        values = [each.strip() for each in found["values"].split(",")]
        if values == [""]:
            raise ValueError(f"{shown(text)} names no value: write {found['key']} {found['word']} (A, B)")
        operator = Operator.IN if found["word"] == "in" else Operator.NOT_IN
    elif found := _SIGN_EXPRESSION.fullmatch(text):
        values, operator = [found["value"]], _SIGNS[found["sign"]]
    elif found := _KEY_EXPRESSION.fullmatch(text):
        values, operator = [], Operator.DOES_NOT_EXIST if found["no"] else Operator.EXISTS
    else:
        raise ValueError(f"{shown(text)} is not what a label is to be: {_LEGAL_LABELS}")
    read = _whole_number if operator in (Operator.GT, Operator.LT) else read_label_value
    return Expression(read_label_key(found["key"]), operator, tuple(sorted(dict.fromkeys(map(read, values)))))


def _whole_number(text: str) -> str:
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return text
    raise ValueError(f"{shown(text)} is not a whole number: > and < compare with one, as in cores>32")
