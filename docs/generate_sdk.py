"""The public names of the SDK and of `ganger.train`, with what they take and what they say: called by
`generate_blocks.py` for sdk.md and train.md.
"""
# ruff: noqa: INP001 - a script's part, found by its path

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final, cast

import ganger
from ganger import train

_TWINS: Final = {"AsyncClient": "Client", "AsyncJob": "Job"}
"""These have the methods of those, to be awaited."""


def names() -> Iterator[tuple[str, str, str]]:
    """Every public name: what it is (class, function, values), how it is called, and what it says."""
    for name in ganger.__all__:
        found = getattr(ganger, name)
        if not inspect.isclass(found):
            yield "function", _call(f"ganger.{name}", found), _said(found)
        elif name in _TWINS:
            yield "class", f"ganger.{name}", f"As {_TWINS[name]}, to be awaited"
        else:
            yield "class", f"ganger.{name}", _said(found)


def methods(name: str) -> Iterator[tuple[str, str]]:
    """The public methods of a class: how each is called, and what it says."""
    for each, found in inspect.getmembers(getattr(ganger, name), callable):
        if not each.startswith("_"):
            yield _call(each, found, hidden=("id",) if name == "Job" else ()), _said(found)


def in_training() -> Iterator[tuple[str, str]]:
    """Every public name of `ganger.train`: how it is called, and what it says."""
    for name in train.__all__:
        found = getattr(train, name)
        yield (name if inspect.isclass(found) else _call(name, found)), _said(found)


def _call(name: str, found: Any, hidden: tuple[str, ...] = ()) -> str:
    """With the names of its parameters. `hidden`: a job's own id, which its methods have already."""
    shown: list[str] = []
    parameters = inspect.signature(cast("FunctionType", found)).parameters.values()
    for each in parameters:
        if each.name in ("self", "cls", *hidden):
            continue
        if each.kind is each.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f"={each.default!r}"
        shown.append(f"{star}{each.name}{default}")
    return f"{name}({', '.join(shown)})"


def _said(found: Any) -> str:
    """Its docstring's first paragraph."""
    return " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
