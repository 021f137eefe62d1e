"""Parsers of placement fields: GPU types, levels, node labels, taints, networks and their addresses.

A parser takes a value of YAML or JSON and raises ValueError with a sentence that quotes it and names valid values.
Label expressions have the syntax of `kubectl get -l`, with `>` and `<` for numbers: `zone in (a, b), !broken,
cores>32`.
"""

import re
from ipaddress import ip_address, ip_network
from typing import Any, Final

from ganger.model.affinity import Expression, Operator, Term
from ganger.model.cluster import FABRICS, IB, ROCE
from ganger.model.terms import BALANCED, EXCLUSIVE, PACK, PREFERRED, REQUIRED, SHARED, SPREAD, WHOLE
from ganger.spec.amounts import GPU_TYPE_PATTERN, MAX_GPU_INDEX, read_gpu_type
from ganger.spec.spec_document import quote
from ganger.spec.text_fields import (
    LABEL_KEY_PATTERN,
    LABEL_PATTERN,
    did_you_mean,
    join_words,
    read_label_key,
    read_label_value,
)

MODES: Final = (PREFERRED, REQUIRED)
RDMA: Final = (IB, ROCE)
NETWORKS: Final = (*FABRICS, "rdma")
"""What a job may write for its network."""
STRATEGIES: Final = (PACK, SPREAD, BALANCED)
SHARING: Final = (SHARED, EXCLUSIVE, WHOLE)
LEVEL_PATTERN: Final = r"[a-z][a-z0-9_]{0,31}"
NODE_NAME_PATTERN: Final = r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?"
TAINT_PATTERN: Final = rf"\*|{LABEL_KEY_PATTERN}(=({LABEL_PATTERN})?)?"
OBJECT_NAME_PATTERN: Final = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
NETWORK_REF_PATTERN: Final = rf"[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?/{OBJECT_NAME_PATTERN}"
INTERFACE_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}"
RAIL_PATTERN: Final = r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?"
GPU_TYPES_PATTERN: Final = rf"{GPU_TYPE_PATTERN}(,{GPU_TYPE_PATTERN})*"


MAX_TERMS: Final = 32
"""The maximum number of terms in a list, and of expressions in a term."""
MAX_PREFERENCE: Final = 100
"""The maximum weight, as in Kubernetes."""

_LABEL_EXPRESSIONS: Final = re.compile(r"(?:[^,()]|\([^()]*\))+")
_SET_EXPRESSION: Final = re.compile(r"(?P<key>\S+)\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)")
_SIGN_EXPRESSION: Final = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<sign>==|!=|=|>|<)\s*(?P<value>[^\s=!<>]*)")
_KEY_EXPRESSION: Final = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s=!<>()]+)")
_SIGNS: Final = {"=": Operator.IN, "==": Operator.IN, "!=": Operator.NOT_IN, ">": Operator.GT, "<": Operator.LT}
_LEGAL_LABELS: Final = "write KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY notin (A, B), KEY, !KEY, KEY>5 or KEY<5"


def read_level(value: Any) -> str:
    """Parse the name of a level; whether the level exists is checked at submission."""
    if isinstance(value, str) and re.fullmatch(LEVEL_PATTERN, value):
        return value
    raise ValueError(
        f"{quote(value)} is not a level of the network: write one that is a heading of `ganger node`, for instance rack"
    )


def read_gpu_types(value: Any) -> tuple[str, tuple[str, ...]]:
    """Parse the first type, and those after it."""
    if not isinstance(value, list):
        return read_gpu_type(value), ()
    types = [read_gpu_type(item) for item in value]
    if not types:
        raise ValueError("an empty list of GPU types: write H100, or [H100, A100]")
    lower = [item.lower() for item in types]
    if duplicate := next((item for index, item in enumerate(lower) if item in lower[:index]), None):
        raise ValueError(f"{quote(duplicate)} is given twice: remove one")
    return types[0], tuple(types[1:])


def write_gpu_types(value: tuple[str, tuple[str, ...]]) -> str | list[str]:
    """Return a type, or a list."""
    first, others = value
    return [first, *others] if others else first


def read_networks(value: Any) -> tuple[str, ...]:
    """Parse one network, or several in order of preference; `rdma` stands for all on which there is RDMA."""
    if value == "rdma":
        return RDMA
    networks = value if isinstance(value, list) else [value]
    for network in networks:
        if not isinstance(network, str) or network not in FABRICS:
            meant = did_you_mean(network, NETWORKS) if isinstance(network, str) else ""
            raise ValueError(
                f"{quote(network)} is not a network: write {join_words(FABRICS)}, a list of them, or rdma{meant}"
            )
    if len(networks) != len(dict.fromkeys(networks)):
        raise ValueError(f"{quote(value)}: a network is given twice: remove one")
    return tuple(networks)


def write_networks(value: tuple[str, ...]) -> str | list[str]:
    """Return a network, or a list."""
    return value[0] if len(value) == 1 else list(value)


def read_cidr(value: Any) -> str:
    """Parse a range of addresses."""
    try:
        if isinstance(value, str) and "/" in value:
            return str(ip_network(value))
    except ValueError as error:
        raise ValueError(f"{quote(value)} is not a range of addresses: {error}") from None
    raise ValueError(f"{quote(value)} is not a range of addresses: write one such as 10.0.0.0/16")


def read_ip_address(value: Any) -> str:
    """Parse an IP address."""
    try:
        if isinstance(value, str):
            return str(ip_address(value))
    except ValueError:
        pass
    raise ValueError(f"{quote(value)} is not an IP address: write one such as 10.0.0.1")


def read_node_name(value: Any) -> str:
    """Parse the name of a node; whether the node exists is checked at submission."""
    if isinstance(value, str) and re.fullmatch(NODE_NAME_PATTERN, value):
        return value
    raise ValueError(f"{quote(value)} is not a name of a node: write one that `ganger node` shows, for instance n1")


def read_devices(value: Any) -> tuple[int, ...]:
    """Parse indices of GPUs of a node into ascending order."""
    devices = value if isinstance(value, list) else [value]
    for device in devices:
        if isinstance(device, bool) or not isinstance(device, int) or not 0 <= device <= MAX_GPU_INDEX:
            problem = f"is not a GPU of a node: write its index, from 0 to {MAX_GPU_INDEX}, or a list of them"
            raise ValueError(f"{quote(device)} {problem}")
    if len(devices) != len(dict.fromkeys(devices)):
        raise ValueError(f"{quote(value)}: a GPU is given twice: remove one")
    return tuple(sorted(devices))


def read_taint(value: Any) -> str:
    """Parse a toleration: a taint, all taints of a key, or all."""
    if isinstance(value, str) and re.fullmatch(TAINT_PATTERN, value):
        return value
    raise ValueError(f"{quote(value)} is not a taint: write KEY, KEY=VALUE, or '*' for every one")


def read_term(value: Any) -> Term:
    """Parse a term: expressions joined by commas, all of which must hold."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{quote(value)} is not a label selector: {_LEGAL_LABELS}, with ', ' between them")
    pieces = _LABEL_EXPRESSIONS.findall(value)
    if ",".join(pieces) != value:
        quotes = ", in quotes within [ ] or { }" if value.count("(") != value.count(")") else ""
        raise ValueError(f"{quote(value)} is not a label selector: {_LEGAL_LABELS}, with one ',' between them{quotes}")
    expressions = [_expression(piece.strip()) for piece in pieces]
    if len(expressions) > MAX_TERMS:
        raise ValueError(f"{quote(value)} has more than {MAX_TERMS} expressions")
    if duplicate := next((item for index, item in enumerate(expressions) if item in expressions[:index]), None):
        raise ValueError(f"{quote(str(duplicate))} is given twice: remove one")
    return Term(tuple(expressions))


def read_terms(value: Any) -> tuple[Term, ...]:
    """Parse one term, or a list of terms of which at least one must hold."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError(f"an empty list holds for no node: {_LEGAL_LABELS}, or leave it out")
    if len(items) > MAX_TERMS:
        raise ValueError(f"a list of more than {MAX_TERMS} terms")
    terms = tuple(map(read_term, items))
    if duplicate := next((term for index, term in enumerate(terms) if term in terms[:index]), None):
        raise ValueError(f"{quote(str(duplicate))} is given twice: remove one")
    return terms


def write_terms(value: tuple[Term, ...]) -> str | list[str]:
    """Return a term, or a list of terms, as the user would write it."""
    return str(value[0]) if len(value) == 1 else list(map(str, value))


def _expression(text: str) -> Expression:
    if match := _SET_EXPRESSION.fullmatch(text):
        values = [item.strip() for item in match["values"].split(",")]
        if values == [""]:
            raise ValueError(f"{quote(text)} names no value: write {match['key']} {match['word']} (A, B)")
        operator = Operator.IN if match["word"] == "in" else Operator.NOT_IN
    elif match := _SIGN_EXPRESSION.fullmatch(text):
        values, operator = [match["value"]], _SIGNS[match["sign"]]
    elif match := _KEY_EXPRESSION.fullmatch(text):
        values, operator = [], Operator.DOES_NOT_EXIST if match["no"] else Operator.EXISTS
    else:
        raise ValueError(f"{quote(text)} is not a label expression: {_LEGAL_LABELS}")
    read = _whole_number if operator in (Operator.GT, Operator.LT) else read_label_value
    return Expression(read_label_key(match["key"]), operator, tuple(sorted(dict.fromkeys(map(read, values)))))


def _whole_number(text: str) -> str:
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return text
    raise ValueError(f"{quote(text)} is not a whole number: > and < compare with one, as in cores>32")
