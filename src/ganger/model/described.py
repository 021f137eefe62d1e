"""Fields that say what they are: how they are written, and one sentence. Used by the classes that people write down.

`spec` reads, writes and documents them by this alone, so that a field is described once.
"""

from dataclasses import field
from typing import Any


def described(doc: str, *, form: str = "", key: str = "", default: Any = ..., factory: Any = None) -> Any:
    """A dataclass field. `form` names the parser in `spec`; `key` is what the user writes. Fields with the
    same key are the parts of one text."""
    metadata = {"doc": doc, "form": form, "key": key}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    if default is ...:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def naming(form: str) -> Any:
    """The field with a thing's name, where it is written as the key that the thing stands under. `form`: the name's."""
    return field(metadata={"names": form})
