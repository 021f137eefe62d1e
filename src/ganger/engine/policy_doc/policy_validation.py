"""The policy document as text: read, checked as a whole, written, compared.

All errors are reported together, each with its line, column and key path. The field types of `spec` check each value by
itself; contradictions between values, with the tree of queues or with the nodes are found here.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ruamel.yaml import YAML

from ganger.core.fold.fold_policy import parent_loop
from ganger.core.queues.quota import QueueTree
from ganger.core.queues.quota_figures import (
    EXTENDED_PREFIX,
    GPU_TYPE_PREFIX,
    RESOURCES,
    nominal,
    normalize_gpu_types,
    resource_scale,
)
from ganger.core.state.state import State
from ganger.core.undo import Undo
from ganger.engine.submit.quota_check import MAX_LEVELS, TOO_DEEP, levels_below_root
from ganger.errors import RequestError
from ganger.model.policy import ALL, FAIR_SHARE, PolicyDocument, Preemption
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.units import MINUTE_MS
from ganger.model.views.policy_views import PolicyChange
from ganger.spec.schema import build, by_key, model_of, to_mapping
from ganger.spec.spec_document import Document, Loc, SpecProblem, format_location, quote, read_mapping
from ganger.spec.text_fields import did_you_mean
from ganger.spec.validation import validate_mapping
from ganger.spec.yaml_text import read_text

NEXT: Final = "correct it, then see what it would change: ganger policy diff FILE"
_AMOUNTS: Final = ("nominal", "borrowing", "lending")
_KEYS: Final = {"gpu_milli": "gpus", "cpu_milli": "cpu", "memory_bytes": "memory"}


@dataclass(frozen=True, slots=True)
class Draft:
    """A document, and its source text: checks against the cluster report positions in it."""

    document: PolicyDocument
    source: Document


def read_policy(text: str | bytes, filename: str) -> Draft:
    """Return the document of a YAML or JSON text.

    Raise RequestError (bad_policy) with `filename:line:column: message` for each error of the document by itself.
    """
    try:
        return _draft(read_text(text, filename, "policy"))
    except RequestError as error:
        raise _bad_policy(error) from None


def policy_from_dict(data: Mapping[str, Any], where: str) -> Draft:
    """Return the document of a mapping. Raise RequestError (bad_policy) with `where: message` for each error."""
    try:
        return _draft(read_mapping(data, where))
    except RequestError as error:
        raise _bad_policy(error) from None


def check_fits(draft: Draft, state: State) -> PolicyDocument:
    """Return the document, if it names only what exists.

    Raise RequestError (bad_policy) for a type of GPU that no node has, or a level of the network that no node is in,
    unless the policy in force names it too.
    """
    document, gpu_types = draft.document, {gpu_type for gpu_type in state.nodes.attributes.gpu_types if gpu_type}
    missing = (
        _missing_types(document, state, gpu_types),
        _missing_labels(document, state),
        _missing_level(document, state),
    )
    if problems := [problem for group in missing for problem in group]:
        raise _bad_policy(draft.source.error_for(problems))
    return draft.document


def policy_to_dict(document: PolicyDocument, *, whole: bool = True) -> dict[str, Any]:
    """Return the mapping that a user would write; `whole`: including the defaults, so that all keys are visible."""
    data = to_mapping(PolicyDocument, document, whole=whole)
    data.get("queues", {}).get(ROOT, {}).pop("parent", None)
    return data


def policy_text(document: PolicyDocument) -> str:
    """Return the document as YAML."""
    yaml, stream = YAML(), io.StringIO()
    yaml.dump(policy_to_dict(document), stream)
    return stream.getvalue()


def changes(before: PolicyDocument, after: PolicyDocument) -> tuple[PolicyChange, ...]:
    """Return what differs, by key path, in the document's own terms; None: the key is absent."""
    old_values, new_values = (dict(_leaves(policy_to_dict(document), ())) for document in (before, after))
    paths = sorted({**old_values, **new_values}, key=_sort_key)
    return tuple(
        PolicyChange(path=format_location(path), before=old_values.get(path), after=new_values.get(path))
        for path in paths
        if old_values.get(path) != new_values.get(path)
    )


def _sort_key(path: Loc) -> tuple[int, tuple[str, ...]]:
    keys = tuple(by_key(PolicyDocument))
    return keys.index(str(path[0])), tuple(f"{key:09}" if isinstance(key, int) else key for key in path)


def _leaves(value: Any, path: Loc) -> Iterator[tuple[Loc, Any]]:
    """Yield every value that has nothing below it, and every queue, which may have no keys."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, "" if value == {} else value
    if len(path) == 2 and path[0] == "queues" and value:
        yield path, ""


# -- reading -----------------------------------------------------------------------------------------------------------


def _bad_policy(error: RequestError) -> RequestError:
    return RequestError("bad_policy", error.detail, NEXT)


def _draft(source: Document) -> Draft:
    data = source.data
    if not isinstance(data, dict):
        message = f"a policy is a mapping of keys such as `half_life: 7d`, not {quote(data)}"
        raise source.error_for([SpecProblem((), message)])
    model, wrong = validate_mapping(PolicyDocument, data)
    unreadable = {path[:end] for path in source.unreadable for end in range(1, len(path) + 1)}
    wrong = [problem for problem in wrong if problem.path not in unreadable]
    if model is None or wrong or source.unreadable:
        # The valid queues are checked against each other all the same, so that all errors are reported at once.
        raise source.error_for([*wrong, *_valid_queue_problems(data)])
    document = _completed(build(PolicyDocument, model))
    if problems := list(_contradictions(document, data)):
        raise source.error_for(problems)
    return Draft(document, source)


def _contradicting_preemption(rules: Preemption) -> Iterator[SpecProblem]:
    """Yield what one rule of preemption gives and another one takes back."""
    if (rules.reclaim, rules.priority) == (FAIR_SHARE, ALL):
        message = "with reclaim: fair_share jobs would be preempted in turn: write queue or none"
        yield SpecProblem(("preemption", "priority"), f"preemption.priority: {ALL}: {message}")


def _completed(document: PolicyDocument) -> PolicyDocument:
    """Return the document with the queues root and default, and with types of GPUs in lower-case."""
    queues = {ROOT: Queue(name=ROOT, parent=None), DEFAULT: Queue(name=DEFAULT), **document.queues}
    queues = {name: normalize_gpu_types(queue) for name, queue in sorted(queues.items())}
    return replace(document, queues=queues | {ROOT: replace(queues[ROOT], parent=None)})


def _valid_queue_problems(data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Yield contradictions between those queues of a faulty document that are valid themselves."""
    queues = data.get("queues")
    if not isinstance(queues, dict):
        return
    valid: dict[str, Any] = {}
    for name, queue in queues.items():
        model, problems = validate_mapping(PolicyDocument, {"queues": {name: queue}})
        if model is not None and not problems:
            valid[name] = queue
    document = _completed(build(PolicyDocument, model_of(PolicyDocument).model_validate({"queues": valid})))
    parents = {name: queue.parent for name, queue in document.queues.items()}
    faulty = [name for name in queues if name not in valid]
    for problem in _contradictions(document, {"queues": valid}):
        # Nothing is certain below a queue that has errors itself.
        if problem.path[-1] != "parent" or parents.get(str(problem.path[1])) not in faulty:
            yield problem


def _contradictions(document: PolicyDocument, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Yield contradictions between values that are valid by themselves."""
    queues, written_queues = document.queues, data.get("queues") or {}
    if isinstance(written_queues.get(ROOT), dict) and "parent" in written_queues[ROOT]:
        yield SpecProblem(
            ("queues", ROOT, "parent"), "queues.root.parent: root is above all queues: leave it out", key=True
        )
    misplaced = list(_misplaced_queues(queues))
    yield from misplaced
    if not misplaced:
        yield from _overcommitted(queues)
    for name, queue in queues.items():
        types = queue.nominal.gpu_types
        if queue.nominal.gpus is not None and sum(types.values()) > queue.nominal.gpus:
            path: Loc = ("queues", name, "nominal", "gpu_types")
            message = f"the types add up to {sum(types.values())}, and nominal.gpus is {queue.nominal.gpus}"
            yield SpecProblem(path, f"{format_location(path)}: {message}")
    names = [pool.name for pool in document.pools]
    for index, name in enumerate(names):
        if name in names[:index]:
            path = ("pools", index, "name")
            yield SpecProblem(path, f"{format_location(path)}: {quote(name)} is used twice: choose another name")
    yield from _duplicate_levels(document)
    yield from _contradicting_preemption(document.preemption)
    if document.defrag.every_ms is not None and document.defrag.every_ms < MINUTE_MS:
        yield SpecProblem(("defrag", "every"), "defrag.every: each search is an event of the log: write 1m or more")


def _duplicate_levels(document: PolicyDocument) -> Iterator[SpecProblem]:
    """Yield levels of one name, and labels that would be the same domain on two levels."""
    names: dict[str, None] = {}
    level_of: dict[str, str] = {}
    for index, level in enumerate(document.topology):
        if level.name in names:
            path: Loc = ("topology", index, "level")
            yield SpecProblem(path, f"{format_location(path)}: {quote(level.name)} is used twice: choose another name")
        for label_index, key in enumerate(level.labels):
            if key in level_of:
                path = ("topology", index, "labels", label_index)
                message = f"{quote(key)} already belongs to the level {level_of[key]}: a label is one level"
                yield SpecProblem(path, f"{format_location(path)}: {message}")
            else:
                level_of[key] = level.name
        names[level.name] = None


def _misplaced_queues(queues: dict[str, Queue]) -> Iterator[SpecProblem]:
    """Yield queues without their parent, cycles (each once), and queues that are too deep."""
    reported: dict[str, None] = {}
    for name, queue in queues.items():
        path = ("queues", name, "parent")
        if queue.parent is not None and queue.parent not in queues:
            hint = did_you_mean(queue.parent, queues.keys() - {name})
            yield SpecProblem(path, f"{format_location(path)}: there is no queue {queue.parent} in the document{hint}")
        elif name not in reported and (cycle := parent_loop(queues, name)):
            reported |= dict.fromkeys(cycle)
            chain = " is above ".join((*reversed(cycle), cycle[-1]))
            yield SpecProblem(path, f"{format_location(path)}: {chain}: put one of them below {ROOT}")
        elif name not in reported and levels_below_root(queues, name) == MAX_LEVELS + 1:
            yield SpecProblem(path, f"{format_location(path)}: {TOO_DEEP}")


def _overcommitted(queues: dict[str, Queue]) -> Iterator[SpecProblem]:
    """Yield queues that have less than is guaranteed to the queues below them together."""
    tree = QueueTree(queues.values(), (0,) * len(RESOURCES), Undo())
    for index, queue in enumerate(tree.queues):
        for r, resource in enumerate(tree.resources):
            guaranteed, scale = nominal(queue, resource), resource_scale(resource)
            children = {tree.queues[child].name: tree.guaranteed[child][r] // scale for child in tree.children[index]}
            guaranteed = None if guaranteed is None else guaranteed // scale
            if guaranteed is not None and sum(children.values()) > guaranteed:
                listed = ", ".join(f"{name} {amount}" for name, amount in children.items() if amount)
                path = ("queues", queue.name, "nominal", *_amount_path(resource))
                total = sum(children.values())
                message = f"queue {queue.name} is guaranteed {guaranteed}, and its children {total}: {listed}"
                yield SpecProblem(path, f"{format_location(path)}: {message}")


def _amount_path(resource: str) -> tuple[str, ...]:
    for prefix, key in ((GPU_TYPE_PREFIX, "gpu_types"), (EXTENDED_PREFIX, "extended")):
        if resource.startswith(prefix):
            return key, resource.removeprefix(prefix)
    return (_KEYS[resource],)


def _missing_labels(document: PolicyDocument, state: State) -> Iterator[SpecProblem]:
    """Yield levels none of whose labels any node has."""
    keys = {key: None for node in state.nodes.nodes for key, value in node.labels.items() if value}
    if not state.nodes.nodes:
        return
    for index, level in enumerate(document.topology):
        if level not in state.document.topology and not any(key in keys for key in level.labels):
            path = ("topology", index, "labels")
            hint = next(filter(None, (did_you_mean(key, keys) for key in level.labels)), "")
            yield SpecProblem(path, f"{format_location(path)}: no node has a label {' or '.join(level.labels)}{hint}")


def _missing_level(document: PolicyDocument, state: State) -> Iterator[SpecProblem]:
    """Yield the level in which room is made if the network has no such level."""
    levels = [level.name for level in document.topology] or state.nodes.topology.levels
    level = document.defrag.level
    if state.nodes.nodes and level is not None and level not in (state.document.defrag.level, *levels):
        known = f"levels here: {', '.join(levels) or 'none'}"
        message = f"defrag.level: the network has no level {level}; {known}{did_you_mean(level, levels)}"
        yield SpecProblem(("defrag", "level"), message)


def _missing_types(document: PolicyDocument, state: State, gpu_types: Iterable[str]) -> Iterator[SpecProblem]:
    if not state.nodes.nodes:
        return
    types = sorted(gpu_types)
    for name, queue in document.queues.items():
        before = state.document.queues.get(name)
        for part in _AMOUNTS:
            for gpu_type in getattr(queue, part).gpu_types:
                if gpu_type not in types and not (before and gpu_type in getattr(before, part).gpu_types):
                    path = ("queues", name, part, "gpu_types", gpu_type)
                    known = f"types here: {', '.join(types) or 'none'}"
                    message = (
                        f"{format_location(path)}: no node has {gpu_type} GPUs; {known}{did_you_mean(gpu_type, types)}"
                    )
                    yield SpecProblem(path, message, key=True)
