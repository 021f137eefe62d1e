"""Errors of pydantic as sentences: which value is wrong, and what to write instead."""

from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ganger.spec.schema import ANY, keys_at, legal_keys, model_of
from ganger.spec.spec_document import Loc, SpecProblem, format_location, quote
from ganger.spec.text_fields import did_you_mean, nearest

_LISTS: Final = ("after", "namespaces", "volumes", "rules", "pools", "preferred", "rails", "slices", "topology")
OTHER_NAMES: Final = {
    "num_nodes": "nodes",
    "accelerators": "resources.gpu",
    "workdir": "code",
    "envs": "env",
    "image_id": "image",
    "use_spot": "placement: {tolerations: [spot]}",
    "file_mounts": "volumes",
    "job_recovery": "retry",
    "nproc": "nproc_per_node",
    "command": "run",
}
"""Keys of SkyPilot's task files and of others that no key here resembles enough -> what to write."""
_KEY: Final = "[key]"
"""The end of pydantic's location when the key itself is wrong."""


def validate_mapping(cls: type, data: dict[str, Any]) -> tuple[BaseModel | None, list[SpecProblem]]:
    """Return the model of a class for a mapping, or all errors."""
    try:
        return model_of(cls).model_validate(data), []
    except ValidationError as error:
        return None, [_problem(cls, item) for item in error.errors(include_url=False)]


def _problem(cls: type, error: ErrorDetails) -> SpecProblem:
    """Return one of pydantic's errors as a problem."""
    path = error["loc"]
    if len(path) > 2 and path[-1] == _KEY:
        return SpecProblem(path[:-1], f"{format_location(path[:-2])}: {error['ctx']['error']}", key=True)
    match error["type"]:
        case "extra_forbidden":
            return SpecProblem(path, _unknown(cls, path), key=True)
        case "missing":
            return SpecProblem(path[:-1], f"{format_location(path)} is missing: write it")
        case "value_error":
            return SpecProblem(path, f"{format_location(path)}: {error['ctx']['error']}")
        case _:
            return SpecProblem(
                path,
                f"{format_location(path)}: {quote(error['input'])} is not valid: write {_kind_of(cls, path)}",
            )


def _kind_of(cls: type, path: Loc) -> str:
    """Return what to write at a location without a form of its own."""
    if legal := keys_at(cls, path):
        return f"a mapping with keys of {', '.join(legal)}"
    if legal := keys_at(cls, (*path, 0)):
        kind = "a list of mappings" if path[-1] in _LISTS else "a mapping of names to mappings"
        return f"{kind} with keys of {', '.join(legal)}"
    return "a mapping, one `NAME: value` a line"


def _unknown(cls: type, path: Loc) -> str:
    """Return the sentence for an unknown key: the valid keys, and a similar one there or elsewhere."""
    *around, key = path
    if key in OTHER_NAMES:
        return f"{format_location(path)} is not a valid key: write {OTHER_NAMES[key]}"
    if around[-1:] == ["resources"] and "/" in str(key):
        where = format_location((*around, "extended"))
        return f"{format_location(path)} is an extended resource: write {where}: {{{key}: 1}}"
    here = keys_at(cls, tuple(around))
    places = ((where, names) for where, names in legal_keys(cls).items() if ANY not in where)
    # Of equal names the outermost is meant.
    outermost_last = sorted(places, key=lambda place: -len(place[0]))
    elsewhere = {name: format_location((*where, name)) for where, names in outermost_last for name in names}
    meant = "" if key in elsewhere else did_you_mean(str(key), here)
    if not meant:
        name_meant = nearest(str(key), elsewhere)
        meant = f"; did you mean {elsewhere[name_meant]!r}?" if name_meant else ""
    return f"{format_location(path)} is not a valid key; valid keys: {', '.join(here)}{meant}"
