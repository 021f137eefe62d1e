"""Public names of the SDK and of `ganger.train`, with signatures and summaries, for sdk.md and train.md."""

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final, cast

import ganger
from ganger import train

_TWINS: Final = {"AsyncClient": "Client", "AsyncJob": "Job"}
"""Classes whose methods are those of another class, awaited."""


def names() -> Iterator[tuple[str, str, str]]:
    """Yield kind, signature and summary of every public name of the SDK."""
    for name in ganger.__all__:
        found = getattr(ganger, name)
        if not inspect.isclass(found):
            yield "function", _call(f"ganger.{name}", found), _summary(found)
        elif name in _TWINS:
            yield "class", f"ganger.{name}", f"As {_TWINS[name]}, to be awaited"
        else:
            yield "class", f"ganger.{name}", _summary(found)


def methods(name: str) -> Iterator[tuple[str, str]]:
    """Yield signature and summary of every public method of a class."""
    for each, found in inspect.getmembers(getattr(ganger, name), callable):
        if not each.startswith("_"):
            yield _call(each, found, hidden=("id",) if name == "Job" else ()), _summary(found)


def in_training() -> Iterator[tuple[str, str]]:
    """Yield signature and summary of every public name of `ganger.train`."""
    for name in train.__all__:
        found = getattr(train, name)
        yield (name if inspect.isclass(found) else _call(name, found)), _summary(found)


def _call(name: str, found: Any, hidden: tuple[str, ...] = ()) -> str:
    """Return a signature. `hidden`: parameters that are left out, such as the id in methods of a job."""
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


def _summary(found: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
