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
        member = getattr(ganger, name)
        if not inspect.isclass(member):
            yield "function", _call(f"ganger.{name}", member), _summary(member)
        elif name in _TWINS:
            yield "class", f"ganger.{name}", f"As {_TWINS[name]}, to be awaited"
        else:
            yield "class", f"ganger.{name}", _summary(member)


def methods(name: str) -> Iterator[tuple[str, str]]:
    """Yield signature and summary of every public method of a class."""
    for method_name, method in inspect.getmembers(getattr(ganger, name), callable):
        if not method_name.startswith("_"):
            yield _call(method_name, method, hidden=("id",) if name == "Job" else ()), _summary(method)


def in_training() -> Iterator[tuple[str, str]]:
    """Yield signature and summary of every public name of `ganger.train`."""
    for name in train.__all__:
        member = getattr(train, name)
        yield (name if inspect.isclass(member) else _call(name, member)), _summary(member)


def _call(name: str, function: Any, hidden: tuple[str, ...] = ()) -> str:
    """Return a signature. `hidden`: parameters that are left out, such as the id in methods of a job."""
    shown: list[str] = []
    parameters = inspect.signature(cast("FunctionType", function)).parameters.values()
    for parameter in parameters:
        if parameter.name in ("self", "cls", *hidden):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{star}{parameter.name}{default}")
    return f"{name}({', '.join(shown)})"


def _summary(member: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())
