"""Parameters: `${{ params.NAME }}` becomes the value that `params` has for NAME. Called by `spec`.

They stand in run, setup and env, also those of roles, and in parallel. What was inserted is not looked at again.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from ganger.spec.spec_document import Document, Loc, SpecProblem, dotted, shown
from ganger.spec.text_fields import did_you_mean

_MARK: Final = re.compile(r"\$\{\{\s*(param[^}]*?)\s*\}\}")
_NAME: Final = re.compile(r"params\.([A-Za-z_][A-Za-z0-9_]*)")
_WITH_THEM: Final = ("run", "setup", "env")


def insert_params(document: Document, declared: frozenset[str]) -> Iterator[SpecProblem]:
    """Put every parameter in; a problem for each that is not defined, and for each that is neither `declared`, in the
    file, nor used. `document.data` is a mapping."""
    params = document.data.get("params", {})
    if not isinstance(params, dict):
        return
    used: set[str] = set()
    for at, text in list(_texts(document.data)):
        used |= {name[1] for mark in _MARK.finditer(text) if (name := _NAME.fullmatch(mark[1]))}
        yield from _insert(document.data, at, text, params)
    known = sorted(declared | used)
    for name in params:
        if name not in known:
            what = f"params.{name}: the file has no parameter {name}{did_you_mean(name, known)}"
            yield SpecProblem(("params", name), what, key=True)


def _insert(data: Any, at: Loc, text: str, params: dict[str, Any]) -> Iterator[SpecProblem]:
    """Replace the text at `at`, unless something is wrong with a parameter in it."""
    wrong = []
    for mark in _MARK.finditer(text):
        name = _NAME.fullmatch(mark[1])
        if name is None:
            wrong.append(f"{shown(mark[0])} is not a parameter: write ${{{{ params.NAME }}}}")
        elif name[1] not in params:
            meant = did_you_mean(name[1], params)
            remedy = f"write it under params, or give --param {name[1]}=VALUE"
            wrong.append(f"there is no parameter {name[1]}: {remedy}{meant}")
    if wrong:
        yield SpecProblem(at, f"{dotted(at)}: {wrong[0]}")
        return
    *around, key = at
    for step in around:
        data = data[step]
    data[key] = _MARK.sub(lambda mark: str(params[mark[1].partition(".")[2]]), text)


def _texts(data: dict[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Every text that may have parameters in it, with its place."""
    roles = data.get("roles")
    places: list[Loc] = [(key,) for key in (*_WITH_THEM, "parallel")]
    places += [("roles", role, key) for role in (roles if isinstance(roles, dict) else ()) for key in _WITH_THEM]
    for at in places:
        yield from _texts_at(data, at)


def _texts_at(data: Any, at: Loc) -> Iterator[tuple[Loc, str]]:
    value = data
    for step in at:
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, str):
        yield at, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield from (((*at, key), text) for key, text in inside if isinstance(text, str))
