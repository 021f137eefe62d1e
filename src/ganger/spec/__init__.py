"""Reads a job: text or a mapping in, a `JobSpec` out, or one error that names everything that is wrong and where.

Called by `engine.service` for what the faces send. The keys, their forms and their docs are in `model.job`; the
readers of the forms are here, and what pydantic makes of both. Source: DESIGN section 5, reference/experience.md 6.1.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ganger.errors import RequestError
from ganger.framework_api.rank_environment import PREFIX
from ganger.model.job import JobSpec
from ganger.registry import frameworks
from ganger.spec.cross_checks import contradictions
from ganger.spec.infer_framework import recognise, say_what_is_not_recognised
from ganger.spec.parameters import insert_params
from ganger.spec.schema import KIND, build, json_schema, written
from ganger.spec.spec_document import Document, Loc, SpecProblem, dotted, read_mapping, shown
from ganger.spec.text_fields import did_you_mean
from ganger.spec.validation import validated
from ganger.spec.yaml_text import documents, read_text

__all__ = ["json_schema", "parse_spec", "parse_specs", "spec_from_dict", "spec_to_dict"]

_AS_WRITTEN: Final[tuple[Loc, ...]] = (("env",), ("run",), ("params",), ("labels",), ("placement", "node_selector"))


# Keys of the designed spec that `model.job` does not have yet: refused by name, never ignored.
_UNSUPPORTED_KEYS: Final[dict[Loc, str]] = {
    ("data",): "name its directory: volumes: [{name: NAME, path: /PATH}]",
    ("services",): "start it by hand beside the job",
    ("sweep",): "submit one job for each value, in a shell loop",
    ("notify",): "wait for it: `ganger wait ID`",
    ("resources", "shm"): "processes share the shared memory of this machine: leave it out",
    ("resources", "rdma"): "processes have the network of this machine: leave it out",
    ("limits", "idle"): "set time",
    ("limits", "cost"): "set time",
    ("retry", "on"): "set max: what is not the job's fault is tried again anyway",
}
_UNSUPPORTED_KINDS: Final = ("dev", "service", "sweep", "workflow")


def parse_spec(text: str | bytes, filename: str, overrides: Mapping[str, Any] | None = None) -> JobSpec:
    """The job that a YAML or JSON text describes, with `overrides` (a mapping, from the command line) over it.

    Refused (bad_spec) with `filename:line:column: what` for each error.
    """
    document = read_text(text, filename)
    declared = _declared(document)
    document.lay_over(read_mapping(overrides or {}, "the command line"))
    return _spec(document, declared)


def parse_specs(text: str, filename: str, overrides: Mapping[str, Any] | None = None) -> tuple[JobSpec, ...]:
    """The jobs that a text of several documents describes, `overrides` over each of them; of a parameter, over those
    that have a word of its name. Refused (bad_spec) with all that is wrong with any of them."""
    texts = documents(text) or [text]
    params = (overrides or {}).get("params")
    specs, wrong = [], []
    for each in texts:
        over = dict(overrides or {})
        if isinstance(params, dict):
            others = "\n".join(other for other in texts if other is not each)
            over["params"] = {name: value for name, value in params.items() if _in(name, each) or not _in(name, others)}
        try:
            specs.append(parse_spec(each, filename, over))
        except RequestError as refused:
            wrong.append(refused)
    if wrong:
        lines = dict.fromkeys(line for each in wrong for line in each.detail.splitlines())
        raise RequestError("bad_spec", "\n".join(lines), wrong[0].next)
    return tuple(specs)


def _in(name: Any, text: str) -> bool:
    return re.search(rf"\b{re.escape(str(name))}\b", text) is not None


def spec_from_dict(data: Mapping[str, Any], where: str) -> JobSpec:
    """The job that a mapping describes, in the same words as the text. Refused (bad_spec) with `where: what` for each
    error."""
    document = read_mapping(data, where)
    return _spec(document, _declared(document))


def spec_to_dict(spec: JobSpec) -> dict[str, Any]:
    """The mapping that a user would write for `spec`, ready for JSON and YAML: defaults are left out."""
    data = written(JobSpec, spec)
    say_what_is_not_recognised(spec, data)
    return data


def _declared(document: Document) -> frozenset[str]:
    """The parameters that a document has."""
    params = document.data.get("params") if isinstance(document.data, dict) else None
    return frozenset(params if isinstance(params, dict) else ())


def _spec(document: Document, declared: frozenset[str]) -> JobSpec:
    data = document.data
    if not isinstance(data, dict):
        what = f"a job is a mapping of keys such as `run: python train.py`, not {shown(data)}"
        raise document.refusal([SpecProblem((), what)])
    _take_as_written(document)
    _take_secrets(document)
    coming = [*_unsupported(document), *_no_command(data), *insert_params(document, declared)]
    recognise(data)
    model, wrong = validated(JobSpec, {key: value for key, value in data.items() if key != "kind"})
    claimed = {problem.at for problem in coming}
    unread = {at[:end] for at in document.unreadable for end in range(1, len(at) + 1)}
    wrong = [problem for problem in wrong if problem.at not in unread and not _within(problem.at, claimed)]
    if problems := [*coming, *wrong, *_collisions(data)]:
        raise document.refusal(problems)
    if model is None or document.unreadable:
        raise document.refusal([])
    spec: JobSpec = build(JobSpec, model)
    if problems := list(contradictions(spec, data)):
        raise document.refusal(problems)
    return spec


def _take_as_written(document: Document) -> None:
    """A number among variables, labels or arguments is the text that was written: 1.10 stays 1.10, true stays true."""
    for at, text in document.texts.items():
        *around, key = at
        if tuple(around) in _AS_WRITTEN or (len(at) == 4 and at[0] == "roles" and at[2] in ("env", "run")):
            mapping = document.data
            for step in around:
                mapping = mapping[step]
            mapping[key] = text


def _take_secrets(document: Document) -> None:
    """A variable without a value is a secret."""
    secrets = document.data.get("secrets", [])
    for at, env in _environments(document.data) if isinstance(secrets, list) else ():
        bare = [name for name, value in env.items() if value is None and (*at, name) not in document.unreadable]
        for name in bare:
            del env[name]
            if name not in secrets:
                place = document.values["secrets", len(secrets)] = document.keys[*at, name]
                document.values.setdefault(("secrets",), place)
                secrets = document.data["secrets"] = [*secrets, name]


def _no_command(data: dict[str, Any]) -> Iterator[SpecProblem]:
    if "run" not in data and not isinstance(data.get("roles"), dict):
        yield SpecProblem((), "run is missing: a job needs it")


def _within(at: Loc, claimed: set[Loc]) -> bool:
    return any(at[:end] in claimed for end in range(1, len(at) + 1))


def _collisions(data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Variables that ganger sets itself."""
    framework = data.get("framework", "plain")
    module = frameworks().get(framework) if isinstance(framework, str) else None
    reserved = module.RESERVED if module else ()
    for at, name in _given_names(data):
        if name.startswith(PREFIX):
            what = f"{dotted(at)}: names that begin with {PREFIX} are ganger's: choose another"
            yield SpecProblem(at, what, key=True)
        elif name in reserved:
            yield SpecProblem(at, f"{dotted(at)}: ganger sets it for framework {framework}: leave it out", key=True)


def _given_names(data: dict[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Every variable that the user names, with its place."""
    for at, env in _environments(data):
        yield from (((*at, name), name) for name in env)
    secrets = data.get("secrets")
    for index, name in enumerate(secrets if isinstance(secrets, list) else ()):
        if isinstance(name, str):
            yield ("secrets", index), name


def _environments(data: dict[str, Any]) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """The variables of the job and of its roles."""
    roles = data.get("roles")
    places: list[tuple[Loc, Any]] = [(("env",), data.get("env"))]
    for role, asked in roles.items() if isinstance(roles, dict) else ():
        places.append((("roles", role, "env"), asked.get("env") if isinstance(asked, dict) else None))
    return ((at, env) for at, env in places if isinstance(env, dict))


def _unsupported(document: Document) -> Iterator[SpecProblem]:
    """Yield a problem for every key that is planned but not yet supported. `document.data` is a mapping."""
    for at, instead in _UNSUPPORTED_KEYS.items():
        if _has_key(document.data, at):
            yield SpecProblem(at, f"{dotted(at)} is not yet supported: {instead}", key=True)
    yield from _unsupported_kind(document.data)
    nodes = document.data.get("nodes")
    if isinstance(nodes, str) and re.fullmatch(r"\s*\d+\s*\.\.\s*\d+\s*", nodes):
        yield SpecProblem(("nodes",), f"nodes: a range, {shown(nodes)}, is not yet supported: write one number")


def _has_key(data: Any, at: Loc) -> bool:
    for key in at:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def _unsupported_kind(data: dict[str, Any]) -> Iterator[SpecProblem]:
    kind = data.get("kind", KIND)
    if kind in _UNSUPPORTED_KINDS:
        yield SpecProblem(("kind",), f"kind: {kind} is not yet supported: write job, or leave it out")
    elif kind != KIND:
        meant = did_you_mean(kind, (KIND, *_UNSUPPORTED_KINDS)) if isinstance(kind, str) else ""
        yield SpecProblem(("kind",), f"kind: {shown(kind)} is not a kind of work: write job, or leave it out{meant}")
