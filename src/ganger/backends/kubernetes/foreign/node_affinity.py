"""The node affinity of a pod, as the model says it, operator for operator. Pure; called by `derived`.

What the model does not have (affinity between pods, terms by the fields of a node) is refused, and never passed over.
"""

from typing import Final

import msgspec

from ganger.kubeapi.objects import Fields
from ganger.model.affinity import Affinity, Expression, Operator, Preference, Term

_NUMBERS: Final = (Operator.GT, Operator.LT)
_WHEN: Final = "DuringSchedulingIgnoredDuringExecution"
_WORDS: Final = (Operator.IN, Operator.NOT_IN)


class Unreadable(Exception):
    """What of an affinity the model cannot say, and what to do."""


class _Requirement(Fields, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class _Term(Fields, frozen=True):
    match_expressions: tuple[_Requirement, ...] = ()
    match_fields: tuple[_Requirement, ...] = ()


class _Selector(Fields, frozen=True):
    node_selector_terms: tuple[_Term, ...] = ()


class _Preferred(Fields, frozen=True):
    weight: int = 1
    preference: _Term = _Term()


class _NodeAffinity(Fields, frozen=True):
    required: _Selector | None = msgspec.field(default=None, name=f"required{_WHEN}")
    preferred: tuple[_Preferred, ...] = msgspec.field(default=(), name=f"preferred{_WHEN}")


class _Affinity(Fields, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: dict[str, object] | None = None
    pod_anti_affinity: dict[str, object] | None = None


def read(affinity: msgspec.Raw) -> Affinity:
    """The same in the model. Raises Unreadable."""
    if not affinity:
        return Affinity()
    try:
        said = msgspec.json.decode(affinity, type=_Affinity)
    except msgspec.ValidationError as error:
        raise Unreadable(f"its affinity cannot be read: {error}") from None
    if said.pod_affinity or said.pod_anti_affinity:
        raise Unreadable("ganger does not heed podAffinity or podAntiAffinity; use nodeAffinity or nodeSelector")
    nodes = said.node_affinity or _NodeAffinity()
    required: tuple[Term, ...] = ()
    if nodes.required is not None:
        required = tuple(term for each in nodes.required.node_selector_terms if (term := _term(each)).expressions)
        if not required:
            raise Unreadable("its nodeAffinity has no term that any node fits; give it matchExpressions")
    # A preference without expressions is for every node, which is for none.
    preferred = [Preference(match=_term(each.preference), weight=each.weight) for each in nodes.preferred]
    return Affinity(required=required, preferred=tuple(each for each in preferred if each.match.expressions))


def _term(said: _Term) -> Term:
    if said.match_fields:
        raise Unreadable("ganger does not heed matchFields of nodeAffinity; match the label kubernetes.io/hostname")
    return Term(tuple(map(_expression, said.match_expressions)))


def _expression(said: _Requirement) -> Expression:
    try:
        operator = Operator(said.operator)
    except ValueError:
        why = f"ganger does not know the operator {said.operator} of nodeAffinity; it knows {', '.join(Operator)}"
        raise Unreadable(why) from None
    if operator in _NUMBERS and not (len(said.values) == 1 and said.values[0].lstrip("-").isdecimal()):
        raise Unreadable(f"{operator} of nodeAffinity compares {said.key} with one whole number")
    if operator in _WORDS and not said.values:
        raise Unreadable(f"{operator} of nodeAffinity compares {said.key} with at least one value")
    return Expression(said.key, operator, tuple(sorted(set(said.values))))
