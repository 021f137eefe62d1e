"""Patches: JSON merge patch (RFC 7396), JSON patch (RFC 6902) and the strategic merge patch of built-in objects.

Server-side apply is in `apply`. Arguments are not changed.
"""

import copy
from collections.abc import Iterator
from typing import Any

from tools.fakeapi.errors import StatusError, bad_request_error

MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "taints": "key",
    "ownerReferences": "uid",
    "addresses": "type",
    "ports": "containerPort",
    "schedulingGates": "name",
}
"""Lists that a strategic merge patch merges by a key of their items; others are replaced."""


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396): null removes, objects are merged, all else is replaced."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result


def apply_strategic_patch(target: Any, patch: Any, name: str = "") -> Any:
    """Apply a strategic merge patch: lists of known items are merged by key; `$patch: delete` removes an item."""
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for field, value in patch.items():
            if value is None:
                result.pop(field, None)
            elif not field.startswith("$"):
                result[field] = apply_strategic_patch(result.get(field), value, field)
        return result
    key = MERGE_KEYS.get(name)
    if isinstance(patch, list) and name == "finalizers":
        return [*(target or ()), *(row for row in patch if row not in (target or ()))]
    if not isinstance(patch, list) or key is None or not isinstance(target, list):
        return patch
    rows = {row.get(key): row for row in target}
    for row in patch:
        if row.get("$patch") == "delete":
            rows.pop(row.get(key), None)
        else:
            rows[row.get(key)] = apply_strategic_patch(rows.get(row.get(key)), row)
    return list(rows.values())


def apply_json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902). Refused with 422 if a test fails or a path does not exist."""
    if not isinstance(operations, list):
        raise bad_request_error("a JSON patch is a list of operations")
    result = copy.deepcopy(target)
    for operation in operations:
        try:
            result = _apply_operation(result, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            text = f"the server rejected our request due to an error in our request: {operation}: {error}"
            raise StatusError(422, text) from None
    return result


def _apply_operation(target: Any, operation: dict[str, Any]) -> Any:
    name, path = operation["op"], list(_steps(operation["path"]))
    if name == "test":
        if _get(target, path) != operation.get("value"):
            raise ValueError(f"testing value {operation['path']} failed")
    elif name in ("add", "replace"):
        if name == "replace":
            _get(target, path)
            target = _remove(target, path) if path else target
        target = _set(target, path, operation["value"])
    elif name == "remove":
        target = _remove(target, path)
    elif name in ("move", "copy"):
        source = list(_steps(operation["from"]))
        value = copy.deepcopy(_get(target, source))
        target = _set(_remove(target, source) if name == "move" else target, path, value)
    else:
        raise ValueError(f"unknown operation {name}")
    return target


def _steps(pointer: str) -> Iterator[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"path {pointer} does not begin with /")
    for step in pointer.split("/")[1:]:
        yield step.replace("~1", "/").replace("~0", "~")


def _get(target: Any, path: list[str]) -> Any:
    for step in path:
        target = target[int(step)] if isinstance(target, list) else target[step]
    return target


def _set(target: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _get(target, path[:-1])
    if isinstance(parent, list):
        parent.insert(len(parent) if path[-1] == "-" else int(path[-1]), value)
    else:
        parent[path[-1]] = value
    return target


def _remove(target: Any, path: list[str]) -> Any:
    parent = _get(target, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return target
