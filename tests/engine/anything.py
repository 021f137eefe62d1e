"""A Hypothesis strategy for any value of a type of the model: every field of every dataclass drawn, defaults too."""

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

BASE_STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers() | st.integers(-(2**80), 2**80),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    Any: st.recursive(
        st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
        lambda value: st.lists(value, max_size=2) | st.dictionaries(st.text(max_size=8), value, max_size=2),
        max_leaves=3,
    ),
}


@cache
def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type as dataclasses of the model declare it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in BASE_STRATEGIES:
        return BASE_STRATEGIES[kind]
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
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    assert is_dataclass(kind), f"no strategy for {kind}"
    hints = get_type_hints(kind)
    # A field of the class's own type is left out, to end the recursion.
    parts = {field.name: hints[field.name] for field in fields(kind) if kind not in get_args(hints[field.name])}
    return st.builds(cast(Callable[..., Any], kind), **{name: anything(hint) for name, hint in parts.items()})
