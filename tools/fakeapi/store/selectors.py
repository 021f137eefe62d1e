"""Label and field selectors, parsed once and matched against every object."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tools.fakeapi.errors import bad_request_error
from tools.fakeapi.store.resources import Resource
from tools.fakeapi.store.store import StoredObject

Match = Callable[[Mapping[str, str]], bool]
FIELDS = {
    "pods": {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    },
    "nodes": {"spec.unschedulable"},
    "namespaces": {"status.phase"},
    "secrets": {"type"},
    "events": {"involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type"},
}
_SET = re.compile(r"^\s*([^\s!=,()]+)\s+(in|notin)\s+\(([^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=,()]+)\s*$")


def parse_label_selector(text: str) -> Match | None:
    """Parse `labelSelector`; None if it selects everything. Refuses invalid text."""
    terms = [_label_term(term) for term in re.split(r",(?![^(]*\))", text) if term.strip()]
    if not terms:
        return None
    return lambda labels: all(term(labels) for term in terms)


def _label_term(text: str) -> Match:
    if match := _SET.match(text):
        key, operator, value_list = match.groups()
        values = {value.strip() for value in value_list.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.match(text):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTS.match(text):
        absent, key = match.groups()
        return lambda labels: (key in labels) != bool(absent)
    raise bad_request_error(f"unable to parse requirement: {text.strip()!r}")


def parse_selector_object(selector: Mapping[str, Any]) -> Match:
    """Parse a LabelSelector object (matchLabels, matchExpressions)."""
    terms = [f"{key}={value}" for key, value in selector.get("matchLabels", {}).items()]
    for row in selector.get("matchExpressions", ()):
        key, values = row["key"], ",".join(row.get("values", ()))
        shapes = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        terms.append(shapes.get(row["operator"], f"!{key}"))
    return parse_label_selector(",".join(terms)) or (lambda _: True)


class Selection:
    """Objects of one list or watch: of a namespace, by labels and by fields."""

    def __init__(self, resource: Resource, namespace: str, label_text: str = "", field_text: str = "") -> None:
        self._namespace = namespace
        self._labels = parse_label_selector(label_text)
        self._fields = parse_field_selector(field_text, resource.plural)
        self.selective = bool(self._labels or self._fields)

    def selects(self, stored: StoredObject) -> bool:
        if self._namespace and stored.key[0] != self._namespace:
            return False
        if any((stored.field(path) == value) != equal for path, value, equal in self._fields):
            return False
        return self._labels is None or self._labels(stored.labels)


def parse_field_selector(text: str, plural: str) -> list[tuple[str, str, bool]]:
    """Parse `fieldSelector` into (path, value, equal) terms. Refuses fields that the resource does not index."""
    terms = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _EQUAL.match(term)
        if match is None:
            raise bad_request_error(f"invalid selector: '{term}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in {"metadata.name", "metadata.namespace"} | FIELDS.get(plural, set()):
            only = 'only "metadata.name", "metadata.namespace"'
            known = f"field label not supported: {path}"
            raise bad_request_error(known if plural in FIELDS else f'"{path}" is not a known field selector: {only}')
        terms.append((path, value, operator != "!="))
    return terms
