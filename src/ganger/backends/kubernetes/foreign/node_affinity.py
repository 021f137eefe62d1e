"""Node affinity of a pod or a volume in the model's form.

What the model does not have (affinity between pods, terms on fields of a node) is rejected, and never ignored.
"""

from typing import Final

import msgspec

from ganger.kubeapi.objects import ApiStruct
from ganger.model.affinity import Affinity, Expression, Operator, Preference, Term

_NUMERIC: Final = (Operator.GT, Operator.LT)
_PHASE: Final = "DuringSchedulingIgnoredDuringExecution"
_SET_OPERATORS: Final = (Operator.IN, Operator.NOT_IN)


class UnsupportedAffinityError(Exception):
    """The model cannot express an affinity. The message says why, and what to do."""


class LabelRequirement(ApiStruct, frozen=True):
    """Condition on one label; an operator is missing where only `values` may be compared."""

    key: str = ""
    operator: str = Operator.IN
    values: tuple[str, ...] = ()


class _Term(ApiStruct, frozen=True):
    match_expressions: tuple[LabelRequirement, ...] = ()
    match_fields: tuple[LabelRequirement, ...] = ()


class NodeTerms(ApiStruct, frozen=True):
    """Terms of which a node must meet one."""

    node_selector_terms: tuple[_Term, ...] = ()


class _Preferred(ApiStruct, frozen=True):
    weight: int = 1
    preference: _Term = _Term()


class _NodeAffinity(ApiStruct, frozen=True):
    required: NodeTerms | None = msgspec.field(default=None, name=f"required{_PHASE}")
    preferred: tuple[_Preferred, ...] = msgspec.field(default=(), name=f"preferred{_PHASE}")


class _Affinity(ApiStruct, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: dict[str, object] | None = None
    pod_anti_affinity: dict[str, object] | None = None


def parse_affinity(affinity: msgspec.Raw) -> Affinity:
    """Return the affinity in the model's form. Raises UnsupportedAffinityError."""
    if not affinity:
        return Affinity()
    try:
        parsed = msgspec.json.decode(affinity, type=_Affinity)
    except msgspec.ValidationError as error:
        raise UnsupportedAffinityError(f"its affinity cannot be read: {error}") from None
    if parsed.pod_affinity or parsed.pod_anti_affinity:
        message = "ganger does not support podAffinity or podAntiAffinity; use nodeAffinity or nodeSelector"
        raise UnsupportedAffinityError(message)
    nodes = parsed.node_affinity or _NodeAffinity()
    required: tuple[Term, ...] = ()
    if nodes.required is not None:
        required = parse_terms(nodes.required)
    # A preference without expressions prefers every node, which has no effect.
    preferred = [Preference(match=_term(term.preference), weight=term.weight) for term in nodes.preferred]
    return Affinity(required=required, preferred=tuple(term for term in preferred if term.match.expressions))


def parse_terms(terms: NodeTerms) -> tuple[Term, ...]:
    """Return the terms in the model's form. Raises UnsupportedAffinityError."""
    parsed = tuple(term for term in map(_term, terms.node_selector_terms) if term.expressions)
    if not parsed:
        raise UnsupportedAffinityError("its nodeAffinity has no term that matches a node; give it matchExpressions")
    return parsed


def _term(term: _Term) -> Term:
    if term.match_fields:
        message = "ganger does not support matchFields of nodeAffinity; match the label kubernetes.io/hostname"
        raise UnsupportedAffinityError(message)
    return Term(tuple(map(parse_requirement, term.match_expressions)))


def parse_requirement(requirement: LabelRequirement) -> Expression:
    """Return a condition in the model's form. Raises UnsupportedAffinityError."""
    try:
        operator = Operator(requirement.operator)
    except ValueError:
        message = (
            f"ganger does not know the operator {requirement.operator} of nodeAffinity; it knows {', '.join(Operator)}"
        )
        raise UnsupportedAffinityError(message) from None
    if operator in _NUMERIC and not (len(requirement.values) == 1 and requirement.values[0].lstrip("-").isdecimal()):
        raise UnsupportedAffinityError(f"{operator} of nodeAffinity compares {requirement.key} with one whole number")
    if operator in _SET_OPERATORS and not requirement.values:
        raise UnsupportedAffinityError(f"{operator} of nodeAffinity compares {requirement.key} with at least one value")
    return Expression(requirement.key, operator, tuple(sorted(set(requirement.values))))
