"""The policy document as text: read, checked as a whole, written, compared. Called by
`engine.policy_doc.policy_service`.

Whatever is wrong is told at once, each with its line, column and key path. What is wrong with a value by itself the
forms of `spec` say; what is wrong between them, with the tree of queues or with the nodes there are, is here.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ruamel.yaml import YAML

from ganger.core.fold.fold_policy import circle_of
from ganger.core.queues.quota import GPU_TYPE_PREFIX, RESOURCES, QueueTree, nominal, normalize_gpu_types, resource_scale
from ganger.core.state.state import State
from ganger.core.undo import Undo
from ganger.engine.submit.quota_check import MAX_LEVELS, TOO_DEEP, levels_below_root
from ganger.errors import RequestError
from ganger.model.policy import PolicyDocument
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.views.service_views import PolicyChange
from ganger.spec.schema import build, by_key, model_of, written
from ganger.spec.spec_document import Document, Loc, SpecProblem, dotted, read_mapping, shown
from ganger.spec.text_fields import did_you_mean
from ganger.spec.validation import validated
from ganger.spec.yaml_text import read_text

NEXT: Final = "correct it, then see what it would change: ganger policy diff FILE"
_AMOUNTS: Final = ("nominal", "borrowing", "lending")
_KEYS: Final = {"gpu_milli": "gpus", "cpu_milli": "cpu", "memory_bytes": "memory"}


@dataclass(frozen=True, slots=True)
class Draft:
    """A document, and the text it was read from: its places are still wanted when it is held against the cluster."""

    document: PolicyDocument
    source: Document


def read_policy(text: str | bytes, filename: str) -> Draft:
    """The document that a YAML or JSON text is. Refused (bad_policy) with `filename:line:column: what` for each thing
    that is wrong with it by itself."""
    try:
        return _draft(read_text(text, filename, "policy"))
    except RequestError as refused:
        raise _bad(refused) from None


def policy_from_dict(data: Mapping[str, Any], where: str) -> Draft:
    """The same of a mapping, with `where: what` for each error."""
    try:
        return _draft(read_mapping(data, where))
    except RequestError as refused:
        raise _bad(refused) from None


def check_fits(draft: Draft, state: State) -> PolicyDocument:
    """The document, if all it speaks of is there. Refused (bad_policy): a type of GPU that no node has, or a level of
    the network that no node is in, unless the policy in force speaks of it too."""
    there = {kind for kind in state.nodes.gpu_types if kind}
    if problems := [*_missing_types(draft.document, state, there), *_missing_labels(draft.document, state)]:
        raise _bad(draft.source.refusal(problems))
    return draft.document


def policy_to_dict(document: PolicyDocument) -> dict[str, Any]:
    """The mapping that a person would write, with what is as it is anyway too: all that can be changed is seen."""
    data = written(PolicyDocument, document, whole=True)
    data.get("queues", {}).get(ROOT, {}).pop("parent", None)
    return data


def policy_text(document: PolicyDocument) -> str:
    """The same as YAML."""
    yaml, stream = YAML(), io.StringIO()
    yaml.dump(policy_to_dict(document), stream)
    return stream.getvalue()


def changes(before: PolicyDocument, after: PolicyDocument) -> tuple[PolicyChange, ...]:
    """What differs, by key path, in the words of the document; None: it is not written."""
    was, now = (dict(_leaves(policy_to_dict(each), ())) for each in (before, after))
    paths = sorted({**was, **now}, key=_order_of)
    return tuple(
        PolicyChange(path=dotted(at), before=was.get(at), after=now.get(at))
        for at in paths
        if was.get(at) != now.get(at)
    )


def _order_of(at: Loc) -> tuple[int, tuple[str, ...]]:
    keys = tuple(by_key(PolicyDocument))
    return keys.index(str(at[0])), tuple(f"{key:09}" if isinstance(key, int) else key for key in at)


def _leaves(value: Any, at: Loc) -> Iterator[tuple[Loc, Any]]:
    """Every value that has nothing below it, and every queue, which may have nothing to say."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, (*at, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(each, (*at, index))
    else:
        yield at, "" if value == {} else value
    if len(at) == 2 and at[0] == "queues" and value:
        yield at, ""


# -- reading ----------------------------------------------------------------------------------------------------------


def _bad(refused: RequestError) -> RequestError:
    return RequestError("bad_policy", refused.detail, NEXT)


def _draft(source: Document) -> Draft:
    data = source.data
    if not isinstance(data, dict):
        what = f"a policy is a mapping of keys such as `half_life: 7d`, not {shown(data)}"
        raise source.refusal([SpecProblem((), what)])
    model, wrong = validated(PolicyDocument, data)
    unread = {at[:end] for at in source.unreadable for end in range(1, len(at) + 1)}
    wrong = [problem for problem in wrong if problem.at not in unread]
    if model is None or wrong or source.unreadable:
        # What is sound is held against the rest all the same, so that nothing is told only after the next try.
        raise source.refusal([*wrong, *_of_sound_queues(data)])
    document = _whole(build(PolicyDocument, model))
    if problems := list(_contradictions(document, data)):
        raise source.refusal(problems)
    return Draft(document, source)


def _whole(document: PolicyDocument) -> PolicyDocument:
    """With root and default, and types of GPUs in lower-case."""
    queues = {ROOT: Queue(name=ROOT, parent=None), DEFAULT: Queue(name=DEFAULT), **document.queues}
    queues = {name: normalize_gpu_types(queue) for name, queue in sorted(queues.items())}
    return replace(document, queues=queues | {ROOT: replace(queues[ROOT], parent=None)})


def _of_sound_queues(data: dict[str, Any]) -> Iterator[SpecProblem]:
    """What is wrong between those queues of a document with faults that have none themselves."""
    given = data.get("queues")
    if not isinstance(given, dict):
        return
    sound: dict[str, Any] = {}
    for name, queue in given.items():
        model, wrong = validated(PolicyDocument, {"queues": {name: queue}})
        if model is not None and not wrong:
            sound[name] = queue
    document = _whole(build(PolicyDocument, model_of(PolicyDocument).model_validate({"queues": sound})))
    parents = {name: queue.parent for name, queue in document.queues.items()}
    faulty = [name for name in given if name not in sound]
    for problem in _contradictions(document, {"queues": sound}):
        # Below a queue with a fault of its own nothing is certain.
        if problem.at[-1] != "parent" or parents.get(str(problem.at[1])) not in faulty:
            yield problem


def _contradictions(document: PolicyDocument, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """What is wrong between values that are right by themselves."""
    queues, given = document.queues, data.get("queues") or {}
    if isinstance(given.get(ROOT), dict) and "parent" in given[ROOT]:
        yield SpecProblem(
            ("queues", ROOT, "parent"), "queues.root.parent: root is above all queues: leave it out", key=True
        )
    astray = list(_astray(queues))
    yield from astray
    if not astray:
        yield from _over_promised(queues)
    for name, queue in queues.items():
        types = queue.nominal.gpu_types
        if queue.nominal.gpus is not None and sum(types.values()) > queue.nominal.gpus:
            place = ("queues", name, "nominal", "gpu_types")
            what = f"the types add up to {sum(types.values())}, and nominal.gpus is {queue.nominal.gpus}"
            yield SpecProblem(place, f"{dotted(place)}: {what}")
    names = [pool.name for pool in document.pools]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = ("pools", index, "name")
            yield SpecProblem(where, f"{dotted(where)}: {shown(name)} is given twice: name it otherwise")
    yield from _contradicting_levels(document)


def _contradicting_levels(document: PolicyDocument) -> Iterator[SpecProblem]:
    """Levels of one name, and labels that would be the same domain on two levels."""
    names: dict[str, None] = {}
    level_of: dict[str, str] = {}
    for index, level in enumerate(document.topology):
        if level.name in names:
            where: Loc = ("topology", index, "level")
            yield SpecProblem(where, f"{dotted(where)}: {shown(level.name)} is given twice: name it otherwise")
        for at, key in enumerate(level.labels):
            if key in level_of:
                where = ("topology", index, "labels", at)
                what = f"{shown(key)} is the level {level_of[key]} already: a label is one level"
                yield SpecProblem(where, f"{dotted(where)}: {what}")
            else:
                level_of[key] = level.name
        names[level.name] = None


def _astray(queues: dict[str, Queue]) -> Iterator[SpecProblem]:
    """Queues whose parent is not there, circles, each told once, and queues that are too far down."""
    told: dict[str, None] = {}
    for name, queue in queues.items():
        at = ("queues", name, "parent")
        if queue.parent is not None and queue.parent not in queues:
            meant = did_you_mean(queue.parent, queues)
            yield SpecProblem(at, f"{dotted(at)}: there is no queue {queue.parent} in the document{meant}")
        elif name not in told and (circle := circle_of(queues, name)):
            told |= dict.fromkeys(circle)
            around = " is above ".join((*reversed(circle), circle[-1]))
            yield SpecProblem(at, f"{dotted(at)}: {around}: put one of them below {ROOT}")
        elif name not in told and levels_below_root(queues, name) == MAX_LEVELS + 1:
            yield SpecProblem(at, f"{dotted(at)}: {TOO_DEEP}")


def _over_promised(queues: dict[str, Queue]) -> Iterator[SpecProblem]:
    """Queues that have less than those below them are guaranteed together."""
    tree = QueueTree(queues.values(), (0,) * len(RESOURCES), Undo())
    for at, queue in enumerate(tree.queues):
        for r, resource in enumerate(tree.resources):
            own, scale = nominal(queue, resource), resource_scale(resource)
            below = {tree.queues[child].name: tree.guaranteed[child][r] // scale for child in tree.children[at]}
            own = None if own is None else own // scale
            if own is not None and sum(below.values()) > own:
                listed = ", ".join(f"{name} {amount}" for name, amount in below.items() if amount)
                place = ("queues", queue.name, "nominal", *_keys_of(resource))
                what = f"it is guaranteed {own}, and the queues below it are {sum(below.values())}: {listed}"
                yield SpecProblem(place, f"{dotted(place)}: {what}")


def _keys_of(resource: str) -> tuple[str, ...]:
    return (
        ("gpu_types", resource.removeprefix(GPU_TYPE_PREFIX))
        if resource.startswith(GPU_TYPE_PREFIX)
        else (_KEYS[resource],)
    )


def _missing_labels(document: PolicyDocument, state: State) -> Iterator[SpecProblem]:
    """Levels none of whose labels any node has."""
    keys = {key: None for node in state.nodes.nodes for key, value in node.labels.items() if value}
    if not state.nodes.nodes:
        return
    for index, level in enumerate(document.topology):
        if level not in state.rules.topology and not any(key in keys for key in level.labels):
            at = ("topology", index, "labels")
            meant = next(filter(None, (did_you_mean(key, keys) for key in level.labels)), "")
            yield SpecProblem(at, f"{dotted(at)}: no node has a label {' or '.join(level.labels)}{meant}")


def _missing_types(document: PolicyDocument, state: State, there: Iterable[str]) -> Iterator[SpecProblem]:
    if not state.nodes.nodes:
        return
    types = sorted(there)
    for name, queue in document.queues.items():
        before = state.queues.get(name)
        for part in _AMOUNTS:
            for kind in getattr(queue, part).gpu_types:
                if kind not in types and not (before and kind in getattr(before, part).gpu_types):
                    at = ("queues", name, part, "gpu_types", kind)
                    here = f"types here: {', '.join(types) or 'none'}"
                    what = f"{dotted(at)}: no node has {kind} GPUs; {here}{did_you_mean(kind, types)}"
                    yield SpecProblem(at, what, key=True)
