"""Parameters: `${{ params.NAME }}` becomes the value of NAME in `params`.

They may occur in run, setup and env, also those of roles, and in parallel. Inserted text is not searched again.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from ganger.spec.spec_document import Document, Loc, SpecProblem, format_location, quote
from ganger.spec.text_fields import did_you_mean

_MARK: Final = re.compile(r"\$\{\{\s*(param[^}]*?)\s*\}\}")
_NAME: Final = re.compile(r"params\.([A-Za-z_][A-Za-z0-9_]*)")
_WITH_THEM: Final = ("run", "setup", "env")


def parameter_templates(data: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a job's mapping that has parameters, as it is before they are inserted.

    A command that is a list is whole, so that its words keep their places.
    """
    templates: dict[str, Any] = {}
    for path, text in _texts(data):
        if _MARK.search(text) is None:
            continue
        *around, key = [step for step in path if isinstance(step, str)]
        source, target = data, templates
        for step in around:
            source, target = source[step], target.setdefault(step, {})
        target[key] = list(source[key]) if isinstance(source[key], list) else source[key]
    return templates


def used_parameters(data: dict[str, Any]) -> frozenset[str]:
    """Return the names of the parameters in a job's mapping."""
    marks = (mark for _, text in _texts(data) for mark in _MARK.finditer(text))
    return frozenset(name[1] for mark in marks if (name := _NAME.fullmatch(mark[1])))


def insert_params(document: Document, declared: frozenset[str]) -> Iterator[SpecProblem]:
    """Insert every parameter; yield a problem for each that is undefined, and for each that is unused and undeclared.

    Args:
        document: Its `data` is a mapping.
        declared: Parameters of the file.
    """
    params = document.data.get("params", {})
    if not isinstance(params, dict):
        return
    used = used_parameters(document.data)
    for path, text in list(_texts(document.data)):
        yield from _insert(document.data, path, text, params)
    known = sorted(declared | used)
    for name in params:
        if name not in known:
            what = f"params.{name}: the file has no parameter {name}{did_you_mean(name, known)}"
            yield SpecProblem(("params", name), what, key=True)


def _insert(data: Any, path: Loc, text: str, params: dict[str, Any]) -> Iterator[SpecProblem]:
    """Replace the text at `path`, unless one of its parameters is invalid."""
    errors = []
    for mark in _MARK.finditer(text):
        name = _NAME.fullmatch(mark[1])
        if name is None:
            errors.append(f"{quote(mark[0])} is not a parameter: write ${{{{ params.NAME }}}}")
        elif name[1] not in params:
            hint = did_you_mean(name[1], params)
            remedy = f"write it under params, or give --param {name[1]}=VALUE"
            errors.append(f"there is no parameter {name[1]}: {remedy}{hint}")
    if errors:
        yield SpecProblem(path, f"{format_location(path)}: {errors[0]}")
        return
    *around, key = path
    for step in around:
        data = data[step]
    data[key] = _MARK.sub(lambda mark: str(params[mark[1].partition(".")[2]]), text)


def _texts(data: dict[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Yield every text that may contain parameters, with its location."""
    roles = data.get("roles")
    places: list[Loc] = [(key,) for key in (*_WITH_THEM, "parallel")]
    places += [("roles", role, key) for role in (roles if isinstance(roles, dict) else ()) for key in _WITH_THEM]
    for path in places:
        yield from _texts_at(data, path)


def _texts_at(data: Any, path: Loc) -> Iterator[tuple[Loc, str]]:
    value = data
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, str):
        yield path, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield from (((*path, key), text) for key, text in inside if isinstance(text, str))
