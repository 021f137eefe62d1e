"""Reads a job: text or a mapping in, a `JobSpec` out, or one error that names everything that is wrong and where.

Called by `engine.service` for what the faces send. The keys, their forms and their docs are in `model.job`; the
readers of the forms are here, and what pydantic makes of both. Source: DESIGN section 5, reference/experience.md 6.1.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ganger.engine.registry import frameworks
from ganger.engine.spec.document import Document, Loc, Problem, dotted, read_mapping, shown
from ganger.engine.spec.later import later
from ganger.engine.spec.schema import build, json_schema, legal_keys, model_of, written
from ganger.engine.spec.text import read_text
from ganger.engine.spec.words import did_you_mean, nearest
from ganger.model.job import JobSpec
from ganger.model.placed import PREFIX

__all__ = ["json_schema", "parse_spec", "spec_from_dict", "spec_to_dict"]

_KEY: Final = "[key]"
"""What pydantic puts at the end of a location when the key itself is wrong."""


def parse_spec(text: str | bytes, filename: str, overrides: Mapping[str, Any] | None = None) -> JobSpec:
    """The job that a YAML or JSON text describes, with `overrides` (a mapping, from the command line) over it.

    Refused (bad_spec) with `filename:line:column: what` for each error.
    """
    document = read_text(text, filename)
    document.lay_over(read_mapping(overrides or {}, "the command line"))
    return _spec(document)


def spec_from_dict(data: Mapping[str, Any], where: str) -> JobSpec:
    """The job that a mapping describes, in the same words as the text. Refused (bad_spec) with `where: what` for each
    error."""
    return _spec(read_mapping(data, where))


def spec_to_dict(spec: JobSpec) -> dict[str, Any]:
    """The mapping that a user would write for `spec`, ready for JSON and YAML: defaults are left out."""
    return written(JobSpec, spec)


def _spec(document: Document) -> JobSpec:
    data = document.data
    if not isinstance(data, dict):
        what = f"a job is a mapping of keys such as `run: python train.py`, not {shown(data)}"
        raise document.refusal([Problem((), what)])
    _take_as_written(document)
    coming = list(later(document))
    model, wrong = _validated({key: value for key, value in data.items() if key != "kind"})
    claimed = {problem.at for problem in coming}
    unread = {at[:end] for at in document.unreadable for end in range(1, len(at) + 1)}
    wrong = [problem for problem in wrong if problem.at not in unread and not _within(problem.at, claimed)]
    if problems := [*coming, *wrong, *_collisions(data)]:
        raise document.refusal(problems)
    if model is None or document.unreadable:
        raise document.refusal([])
    spec: JobSpec = build(JobSpec, model)
    return spec


def _take_as_written(document: Document) -> None:
    """A number among variables or arguments is the text that was written: 1.10 stays 1.10, true stays true."""
    for (key, *rest), text in ((at, text) for at, text in document.texts.items() if len(at) == 2):
        if key in ("env", "run"):
            document.data[key][rest[0]] = text


def _within(at: Loc, claimed: set[Loc]) -> bool:
    return any(at[:end] in claimed for end in range(1, len(at) + 1))


def _validated(data: dict[str, Any]) -> tuple[BaseModel | None, list[Problem]]:
    try:
        return model_of(JobSpec).model_validate(data), []
    except ValidationError as error:
        return None, [_problem(each) for each in error.errors(include_url=False)]


def _problem(error: ErrorDetails) -> Problem:
    """One of pydantic's errors in our words."""
    at = error["loc"]
    if len(at) > 2 and at[-1] == _KEY:
        return Problem(at[:-1], f"{dotted(at[:-2])}: {error['ctx']['error']}", key=True)
    match error["type"]:
        case "extra_forbidden":
            return Problem(at, _unknown(at), key=True)
        case "missing":
            return Problem(at[:-1], f"{dotted(at)} is missing: a job needs it")
        case "value_error":
            return Problem(at, f"{dotted(at)}: {error['ctx']['error']}")
        case _:
            legal = legal_keys().get(at, ())
            keys = f" with keys of {', '.join(legal)}" if legal else ", one `NAME: value` a line"
            return Problem(at, f"{dotted(at)}: {shown(error['input'])} is not legal: write a mapping{keys}")


def _unknown(at: Loc) -> str:
    """The sentence for an unknown key: what is legal there, and what was probably meant there or elsewhere."""
    *around, key = at
    legal = legal_keys()
    here = legal[tuple(around)]
    meant = did_you_mean(str(key), here)
    if not meant:
        elsewhere = {name: dotted((*where, name)) for where, names in legal.items() for name in names}
        found = nearest(str(key), elsewhere)
        meant = f"; did you mean {elsewhere[found]!r}?" if found else ""
    return f"{dotted(at)} is not a key: legal here are {', '.join(here)}{meant}"


def _collisions(data: dict[str, Any]) -> Iterator[Problem]:
    """Variables that ganger sets itself."""
    env, framework = data.get("env"), data.get("framework", "plain")
    module = frameworks().get(framework) if isinstance(framework, str) else None
    reserved = module.RESERVED if module else ()
    for name in env if isinstance(env, dict) else ():
        at = ("env", name)
        if name.startswith(PREFIX):
            what = f"{dotted(at)}: names that begin with {PREFIX} are ganger's: choose another"
            yield Problem(at, what, key=True)
        elif name in reserved:
            yield Problem(at, f"{dotted(at)}: ganger sets it for framework {framework}: leave it out", key=True)
