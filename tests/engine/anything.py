"""Any value of the model: a Hypothesis strategy for a type, every field of every dataclass drawn, defaults too."""

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers() | st.integers(-(2**80), 2**80),
    str: st.text(max_size=8),
}


@cache
def anything(of: Any) -> st.SearchStrategy[Any]:
    """Values of a type as dataclasses of the model write it."""
    origin, arguments = get_origin(of), get_args(of)
    if of in PLAIN:
        return PLAIN[of]
    if origin in (Union, types.UnionType):
        return st.one_of(*map(anything, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[1:] != (...,):
        return st.tuples(*map(anything, arguments))
    if origin is tuple:
        return st.lists(anything(arguments[0]), max_size=3).map(tuple)
    if origin is list:
        return st.lists(anything(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(anything(arguments[0]), anything(arguments[1]), max_size=3)
    if isinstance(of, type) and issubclass(of, Enum):
        return st.sampled_from(list(of))
    assert is_dataclass(of), f"no strategy for {of}"
    hints = get_type_hints(of)
    # A class that holds more of itself is drawn without.
    parts = {field.name: hints[field.name] for field in fields(of) if of not in get_args(hints[field.name])}
    return st.builds(cast(Callable[..., Any], of), **{name: anything(hint) for name, hint in parts.items()})
