"""Labels that the nodes of a job are to have, beyond equality: the node affinity of Kubernetes, one operator for one.

Written in a spec as selectors are in Kubernetes (`zone in (a, b), !broken, cores>32`); read by
`spec.placement_fields`, compared by `core.nodes.node_attributes`. In is `=` or `in`, NotIn `!=` or `notin`, Exists the
key alone, DoesNotExist `!`, Gt `>`, Lt `<`. Source: the labels and `nodeAffinity` of the API of Kubernetes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.model.described import described as _spec

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class Operator(StrEnum):
    """How a label is compared, as Kubernetes calls it."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True, order=True)
class Expression:
    """What one label is to be. `values`: rising, at least one for In and NotIn, one whole number for Gt and Lt, none
    for the others. NotIn holds without the label, Gt and Lt only where it is a whole number."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels are as they are to be."""
        has = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return has in self.values
            case Operator.NOT_IN:
                return has not in self.values
            case Operator.EXISTS:
                return has is not None
            case Operator.DOES_NOT_EXIST:
                return has is None
        if has is None or not _NUMBER.fullmatch(has):
            return False
        return int(has) > int(self.values[0]) if self.operator is Operator.GT else int(has) < int(self.values[0])

    def __str__(self) -> str:
        """As a spec has it, as short as can be."""
        if len(self.values) > 1:
            word = {Operator.IN: "in", Operator.NOT_IN: "notin"}[self.operator]
            return f"{self.key} {word} ({', '.join(self.values)})"
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
        sign = {Operator.IN: "=", Operator.NOT_IN: "!=", Operator.GT: ">", Operator.LT: "<"}[self.operator]
        return f"{self.key}{sign}{self.values[0]}"


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """Expressions that hold together."""

    expressions: tuple[Expression, ...]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether all of them do."""
        return all(expression.holds(labels) for expression in self.expressions)

    def __str__(self) -> str:
        """As a spec has it."""
        return ", ".join(map(str, self.expressions))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Preference:
    """Labels that a job would rather have its nodes have."""

    match: Term = _spec("what is preferred, written as in required: disk=ssd", form="term")
    weight: int = _spec("how much that counts beside the others: 1 to 100", form="preference", default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Labels that nodes are to have, beyond equality: the node affinity of Kubernetes."""

    required: tuple[Term, ...] = _spec(
        "labels that each of its nodes must have: zone in (a, b), !broken, cores>32; a list: any one of them",
        form="terms",
        default=(),
    )
    preferred: tuple[Preference, ...] = _spec(
        "labels that they had better have: the worst of its nodes is as good as can be; that goes before packing, and "
        "after the level and types that are asked for",
        default=(),
    )
