"""Node affinity: label expressions beyond equality, with the operators of Kubernetes.

A spec writes them like Kubernetes label selectors (`zone in (a, b), !broken, cores>32`): In is `=` or `in`, NotIn `!=`
or `notin`, Exists the key alone, DoesNotExist `!`, Gt `>`, Lt `<`. Source: labels and `nodeAffinity` in the Kubernetes
API.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.model.described import described as _spec

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class Operator(StrEnum):
    """A comparison of a label, named as in Kubernetes."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True, order=True)
class Expression:
    """A condition on one label. NotIn holds for a node without the label, Gt and Lt only for a whole number.

    Attributes:
        values: Ascending: at least one for In and NotIn, one whole number for Gt and Lt, none for the others.
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels satisfy the expression."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GT | Operator.LT:
                pass
        if value is None or not _NUMBER.fullmatch(value):
            return False
        number, bound = int(value), int(self.values[0])
        return number > bound if self.operator is Operator.GT else number < bound

    def __str__(self) -> str:
        """Return the shortest form that a spec may use."""
        if len(self.values) > 1:
            keyword = {Operator.IN: "in", Operator.NOT_IN: "notin"}[self.operator]
            return f"{self.key} {keyword} ({', '.join(self.values)})"
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case _:
                pass
        sign = {Operator.IN: "=", Operator.NOT_IN: "!=", Operator.GT: ">", Operator.LT: "<"}[self.operator]
        return f"{self.key}{sign}{self.values[0]}"


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """A conjunction of expressions."""

    expressions: tuple[Expression, ...]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels satisfy all expressions."""
        return all(expression.holds(labels) for expression in self.expressions)

    def __str__(self) -> str:
        """Return the term as a spec writes it."""
        return ", ".join(map(str, self.expressions))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Preference:
    """Labels that a job prefers its nodes to have."""

    match: Term = _spec("the preferred labels, written as in required: disk=ssd", form="term")
    weight: int = _spec("weight relative to the other preferences: 1 to 100", form="preference", default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Labels that nodes must have, or should have, beyond equality: the node affinity of Kubernetes."""

    required: tuple[Term, ...] = _spec(
        "labels that every node must have: zone in (a, b), !broken, cores>32; a list: any one of its items",
        form="terms",
        default=(),
    )
    preferred: tuple[Preference, ...] = _spec(
        "labels that nodes should have: the worst node of the gang is chosen as good as possible; ranks before "
        "packing, and after the requested level and GPU types",
        default=(),
    )
