"""The keys of the policy document, as its classes declare them, for policy.md."""

from collections.abc import Iterator
from dataclasses import MISSING, Field
from typing import Any

from ganger.model.policy import PolicyDocument
from ganger.spec.field_types import forms
from ganger.spec.schema import by_key, container_type, form_of, inner
from tools.generate.markdown import code, table


def policy_keys() -> Iterator[str]:
    """Return a table with a row for each key: its meaning and its default."""
    return field_rows(PolicyDocument)


def field_rows(noun: type) -> Iterator[str]:
    """Return such a table for another class."""
    return table(("key", "meaning", "without it"), _rows(noun, ""))


def _rows(noun: type, above: str) -> Iterator[tuple[str, str, str]]:
    for key, (part, *_) in by_key(noun).items():
        yield code(above + key), part.metadata["doc"], _default(noun, key, part)
        within, kind = inner(noun, key), container_type(noun, key)
        if within is not None and not form_of(noun, key):
            named = {dict: f"{key}.NAME.", tuple: f"{key}[]."}.get(kind or type(None), f"{key}.")
            yield from _rows(within, above + named)


def _default(noun: type, key: str, part: Field[Any]) -> str:
    if part.default is MISSING:
        return "must be written" if part.default_factory is MISSING else ""
    form = form_of(noun, key)
    if form == "jobs" or (form and part.default is not None):
        return code(str(forms()[form].write(part.default)))
    return ""
