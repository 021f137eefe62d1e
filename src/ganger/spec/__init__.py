"""Job specs: parse text or a mapping into a `JobSpec`, or report all errors with their positions.

The keys, their forms and their documentation are in `model.job`; this package has the parsers of the forms and derives
pydantic models from both.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ganger.errors import RequestError
from ganger.framework_api.rank_environment import PREFIX
from ganger.model.job import Array, JobSpec
from ganger.registry import frameworks
from ganger.spec.infer_framework import add_defaults_that_inference_would_change, infer_framework
from ganger.spec.job_cross_checks import find_contradictions
from ganger.spec.parameters import insert_params, parameter_templates, used_parameters
from ganger.spec.schema import KIND, build, json_schema, to_mapping
from ganger.spec.spec_document import Document, Loc, SpecProblem, format_location, quote, read_mapping
from ganger.spec.text_fields import did_you_mean
from ganger.spec.validation import validate_mapping
from ganger.spec.yaml_text import documents, read_text

__all__ = ["change_spec", "json_schema", "parse_spec", "parse_specs", "spec_from_dict", "spec_to_dict"]

_AS_WRITTEN: Final[tuple[Loc, ...]] = (
    ("env",),
    ("run",),
    ("params",),
    ("labels",),
    ("placement", "node_selector"),
    ("pod", "metadata", "labels"),
    ("pod", "metadata", "annotations"),
)


# Keys of the designed spec that `model.job` does not have yet: refused by name, never ignored.
_UNSUPPORTED_KEYS: Final[dict[Loc, str]] = {
    ("data",): "name its directory: volumes: [{name: NAME, path: /PATH}]",
    ("services",): "start it by hand beside the job",
    ("sweep",): "submit one job for each value, in a shell loop",
    ("notify",): "wait for it: `ganger wait ID`",
    ("resources", "shm"): "pods have 64Gi, or what pod: {shm: 128Gi} says; on one machine leave it out",
    ("resources", "rdma"): "processes have the network of this machine: leave it out",
    ("limits", "idle"): "set time",
    ("limits", "cost"): "set time",
    ("retry", "on"): "set max: what is not the job's fault is tried again anyway",
}
_UNSUPPORTED_KINDS: Final = ("dev", "service", "sweep", "workflow")


def parse_spec(text: str | bytes, filename: str, overrides: Mapping[str, Any] | None = None) -> JobSpec:
    """Parse a YAML or JSON text into a job, with `overrides` from the command line merged over it.

    Raise bad_spec with `filename:line:column: message` for each error.
    """
    document = read_text(text, filename)
    declared = _declared_parameters(document)
    document.merge(read_mapping(overrides or {}, "the command line"))
    return _spec(document, declared)


def change_spec(fields: Mapping[str, Any], job: str, overrides: Mapping[str, Any], next: str) -> JobSpec:
    """Parse the mapping of an accepted job, as `spec_to_dict` returns it, with `overrides` merged over it.

    Parameters are inserted again, with the values of `overrides`. One that only replaced fields used is dropped: its
    old value would say of the new job what is not so. Raise no_such_parameter, with `next` as the remedy, for a value
    of a parameter that the job does not have; bad_spec with `job: message` for each error.
    """
    document = read_mapping(fields, job)
    declared = _declared_parameters(document)
    used_before = used_parameters(document.data)
    changes = read_mapping(overrides, "the command line")
    values = changes.data.get("params")
    document.merge(changes)
    used = used_parameters(document.data)
    for name in values if isinstance(values, dict) else ():
        if name not in declared | used:
            names = ", ".join(sorted(declared | used))
            known = f"; its parameters: {names}" if names else ": it has no parameters"
            raise RequestError("no_such_parameter", f"{job} has no parameter {name}{known}", next)
    params = document.data.get("params")
    if isinstance(params, dict):
        for name in used_before - used - frozenset(values if isinstance(values, dict) else ()):
            params.pop(name, None)
    return _spec(document, declared)


def parse_specs(text: str, filename: str, overrides: Mapping[str, Any] | None = None) -> tuple[JobSpec, ...]:
    """Parse a text of several documents into jobs, with `overrides` merged over each.

    Overrides of a parameter apply to the documents that mention its name. Raise bad_spec with the errors of all
    documents.
    """
    texts = documents(text) or [text]
    params = (overrides or {}).get("params")
    jobs, errors = [], []
    for document in texts:
        layered = dict(overrides or {})
        if isinstance(params, dict):
            others = "\n".join(other for other in texts if other is not document)
            layered["params"] = {
                name: value
                for name, value in params.items()
                if _mentions(name, document) or not _mentions(name, others)
            }
        try:
            jobs.append(parse_spec(document, filename, layered))
        except RequestError as error:
            errors.append(error)
    if errors:
        lines = dict.fromkeys(line for error in errors for line in error.detail.splitlines())
        raise RequestError("bad_spec", "\n".join(lines), errors[0].next)
    return tuple(jobs)


def _mentions(name: Any, text: str) -> bool:
    return re.search(rf"\b{re.escape(str(name))}\b", text) is not None


def spec_from_dict(data: Mapping[str, Any], where: str) -> JobSpec:
    """Parse a mapping, with the same keys as the text, into a job.

    Raise bad_spec with `where: message` for each error.
    """
    document = read_mapping(data, where)
    return _spec(document, _declared_parameters(document))


def spec_to_dict(spec: JobSpec) -> dict[str, Any]:
    """Return the mapping that a user would write for `spec`, ready for JSON and YAML, without default values.

    Texts have their parameters as they were written, so that others can be inserted (`change_spec`).
    """
    data = to_mapping(JobSpec, replace(spec, array=None) if spec.replica_groups else spec)
    add_defaults_that_inference_would_change(spec, data)
    if "run" in spec.templates:
        # The sizes that `torchrun --nproc-per-node ${{ params.n }}` implies are to follow the parameter.
        inferred = {key: value for key, value in data.items() if key not in ("nodes", "nproc_per_node")}
        infer_framework(inferred)
        implied = [key for key in ("nodes", "nproc_per_node") if key in data and inferred.get(key) == data[key]]
        data = {key: value for key, value in data.items() if key not in implied}
    _merge_templates(data, spec.templates)
    return data


def _merge_templates(data: dict[str, Any], templates: Mapping[str, Any]) -> None:
    """Write texts with parameters in the places of those that were inserted."""
    for key, template in templates.items():
        if isinstance(template, dict):
            _merge_templates(data.setdefault(key, {}), template)
        else:
            data[key] = template


def _declared_parameters(document: Document) -> frozenset[str]:
    """Return the names of the parameters of a document."""
    params = document.data.get("params") if isinstance(document.data, dict) else None
    return frozenset(params if isinstance(params, dict) else ())


def _spec(document: Document, declared: frozenset[str]) -> JobSpec:
    data = document.data
    if not isinstance(data, dict):
        what = f"a job is a mapping of keys such as `run: python train.py`, not {quote(data)}"
        raise document.error_for([SpecProblem((), what)])
    if "apiVersion" in data and "run" not in data:
        takes = "ganger apply -f" if str(data["apiVersion"]).startswith("kai.alibabacloud.com/") else "kubectl apply"
        what = f"an object of Kubernetes, kind {quote(data.get('kind'))}, is no job file: `{takes}` creates it"
        hint = "; a job file has the keys of the `spec` of a GangJob"
        raise document.error_for([SpecProblem(("apiVersion",), what + hint, key=True)])
    _keep_literal_text(document)
    _move_secrets(document)
    templates = parameter_templates(data)
    early_problems = [*_unsupported(document), *_no_command(data), *insert_params(document, declared)]
    early_problems += infer_framework(data)
    model, field_problems = validate_mapping(JobSpec, {key: value for key, value in data.items() if key != "kind"})
    claimed = {problem.path for problem in early_problems}
    unreadable_paths = {path[:end] for path in document.unreadable for end in range(1, len(path) + 1)}
    field_problems = [
        problem
        for problem in field_problems
        if problem.path not in unreadable_paths and not _within(problem.path, claimed)
    ]
    if problems := [*early_problems, *field_problems, *_collisions(data)]:
        raise document.error_for(problems)
    if model is None or document.unreadable:
        raise document.error_for([])
    spec: JobSpec = build(JobSpec, model, templates=templates)
    if spec.replica_groups and spec.array is None:  # each group is a gang of its own
        groups = spec.max_replica_groups or spec.replica_groups
        spec = replace(spec, array=Array(indices=tuple(range(groups))))
    if problems := list(find_contradictions(spec, data)):
        raise document.error_for(problems)
    return spec


def _keep_literal_text(document: Document) -> None:
    """Replace numbers and booleans among variables, labels and arguments by their text, so that 1.10 stays 1.10."""
    for path, text in document.texts.items():
        *parents, key = path
        if tuple(parents) in _AS_WRITTEN or (len(path) == 4 and path[0] == "roles" and path[2] in ("env", "run")):
            mapping = document.data
            for key_step in parents:
                mapping = mapping[key_step]
            mapping[key] = text


def _move_secrets(document: Document) -> None:
    """Turn variables without a value into secrets."""
    secrets = document.data.get("secrets", [])
    for path, env in _environments(document.data) if isinstance(secrets, list) else ():
        bare = [name for name, value in env.items() if value is None and (*path, name) not in document.unreadable]
        for name in bare:
            del env[name]
            if name not in secrets:
                place = document.values["secrets", len(secrets)] = document.keys[*path, name]
                document.values.setdefault(("secrets",), place)
                secrets = document.data["secrets"] = [*secrets, name]


def _no_command(data: dict[str, Any]) -> Iterator[SpecProblem]:
    if "run" not in data and not isinstance(data.get("roles"), dict):
        yield SpecProblem((), "run is missing: a job needs it")


def _within(path: Loc, claimed: set[Loc]) -> bool:
    return any(path[:end] in claimed for end in range(1, len(path) + 1))


def _collisions(data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Yield a problem for each variable that ganger sets itself."""
    framework = data.get("framework", "plain")
    module = frameworks().get(framework) if isinstance(framework, str) else None
    reserved = module.RESERVED if module else ()
    for path, name in _named_variables(data):
        if name.startswith(PREFIX):
            what = f"{format_location(path)}: names that begin with {PREFIX} are reserved: choose another"
            yield SpecProblem(path, what, key=True)
        elif name in reserved:
            yield SpecProblem(
                path, f"{format_location(path)}: ganger sets it for framework {framework}: leave it out", key=True
            )


def _named_variables(data: dict[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Yield every variable that the user names, with its location."""
    for path, env in _environments(data):
        yield from (((*path, name), name) for name in env)
    secrets = data.get("secrets")
    for index, name in enumerate(secrets if isinstance(secrets, list) else ()):
        if isinstance(name, str):
            yield ("secrets", index), name


def _environments(data: dict[str, Any]) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """Return the variables of the job and of its roles, each with their location."""
    roles = data.get("roles")
    places: list[tuple[Loc, Any]] = [(("env",), data.get("env"))]
    for role, role_data in roles.items() if isinstance(roles, dict) else ():
        places.append((("roles", role, "env"), role_data.get("env") if isinstance(role_data, dict) else None))
    return ((path, env) for path, env in places if isinstance(env, dict))


def _unsupported(document: Document) -> Iterator[SpecProblem]:
    """Yield a problem for every key that is planned but not yet supported. `document.data` is a mapping."""
    for path, instead in _UNSUPPORTED_KEYS.items():
        if _has_key(document.data, path):
            yield SpecProblem(path, f"{format_location(path)} is not yet supported: {instead}", key=True)
    yield from _unsupported_kind(document.data)


def _has_key(data: Any, path: Loc) -> bool:
    for key in path:
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
        yield SpecProblem(("kind",), f"kind: {quote(kind)} is not a kind of work: write job, or leave it out{meant}")
