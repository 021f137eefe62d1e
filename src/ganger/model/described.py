"""Dataclass fields with their documentation: the form in which a user writes the value, and one sentence.

`spec` parses, writes and documents the fields from this metadata alone, so that a field is described once.
"""

from dataclasses import field
from typing import Any


def described(doc: str, *, form: str = "", key: str = "", default: Any = ..., factory: Any = None) -> Any:
    """Return a dataclass field with documentation.

    `form`: The parser in `spec`.
    `key`: The key that the user writes, where it differs from the name; fields with the same key are parts of one
        value.
    """
    metadata = {"doc": doc, "form": form, "key": key}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    if default is ...:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def naming(form: str) -> Any:
    """Return the field for an object's name, which is written as the object's key; `form`: that of the name."""
    return field(metadata={"names": form})
