"""What pydantic finds wrong with a mapping, in our words: which value, and what to write instead. Called by
`spec` and by `engine.policy_doc.policy_text`."""

from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ganger.spec.schema import ANY, keys_at, legal_keys, model_of
from ganger.spec.spec_document import Loc, SpecProblem, dotted, shown
from ganger.spec.text_fields import did_you_mean, nearest

_LISTS: Final = ("after", "volumes", "rules", "pools", "preferred", "slices", "topology")
_KEY: Final = "[key]"
"""What pydantic puts at the end of a location when the key itself is wrong."""


def validated(noun: type, data: dict[str, Any]) -> tuple[BaseModel | None, list[SpecProblem]]:
    """The model of a class that a mapping stands for, or everything that is wrong with it."""
    try:
        return model_of(noun).model_validate(data), []
    except ValidationError as error:
        return None, [_problem(noun, each) for each in error.errors(include_url=False)]


def _problem(noun: type, error: ErrorDetails) -> SpecProblem:
    """One of pydantic's errors in our words."""
    at = error["loc"]
    if len(at) > 2 and at[-1] == _KEY:
        return SpecProblem(at[:-1], f"{dotted(at[:-2])}: {error['ctx']['error']}", key=True)
    match error["type"]:
        case "extra_forbidden":
            return SpecProblem(at, _unknown(noun, at), key=True)
        case "missing":
            return SpecProblem(at[:-1], f"{dotted(at)} is missing: write it")
        case "value_error":
            return SpecProblem(at, f"{dotted(at)}: {error['ctx']['error']}")
        case _:
            return SpecProblem(at, f"{dotted(at)}: {shown(error['input'])} is not legal: write {_kind_of(noun, at)}")


def _kind_of(noun: type, at: Loc) -> str:
    """What is written at a location that has no form of its own."""
    if legal := keys_at(noun, at):
        return f"a mapping with keys of {', '.join(legal)}"
    if legal := keys_at(noun, (*at, 0)):
        kind = "a list of mappings" if at[-1] in _LISTS else "a mapping of names to mappings"
        return f"{kind} with keys of {', '.join(legal)}"
    return "a mapping, one `NAME: value` a line"


def _unknown(noun: type, at: Loc) -> str:
    """The sentence for an unknown key: what is legal there, and what was probably meant there or elsewhere."""
    *around, key = at
    here = keys_at(noun, tuple(around))
    meant = did_you_mean(str(key), here)
    if not meant:
        places = ((where, names) for where, names in legal_keys(noun).items() if ANY not in where)
        # Of equal names the outermost is meant.
        outermost_last = sorted(places, key=lambda place: -len(place[0]))
        elsewhere = {name: dotted((*where, name)) for where, names in outermost_last for name in names}
        found = nearest(str(key), elsewhere)
        meant = f"; did you mean {elsewhere[found]!r}?" if found else ""
    return f"{dotted(at)} is not a key: legal here are {', '.join(here)}{meant}"
