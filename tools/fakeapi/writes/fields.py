"""Fields of an object as managedFields name them, and their values.

A path is a tuple of steps: `f:spec` goes to a field, `k:{"type":"Ready"}` to the list item with that key, `v:"x"` to a
member of a set, and `.` at its end means the item itself. Lists without keys are atomic.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tools.fakeapi.store.resources import Resource
from tools.fakeapi.store.store import Object
from tools.fakeapi.writes.patches import MERGE_KEYS

Path = tuple[str, ...]
UNMANAGED = {
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "generateName",
}
Schema = dict[str, Any]


def values(obj: Object, resource: Resource) -> dict[Path, Any]:
    """Return the value of each path that can have an owner."""
    return dict(_walk((), _managed_fields(obj), resource.schema, resource.custom))


def _managed_fields(obj: Object) -> Object:
    managed = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
    managed["metadata"] = {name: value for name, value in managed.get("metadata", {}).items() if name not in UNMANAGED}
    return managed


def _walk(path: Path, value: Any, schema: Schema, custom: bool) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value and schema.get("x-kubernetes-map-type") != "atomic":
        for name, inner in value.items():
            yield from _walk((*path, f"f:{name}"), inner, schema_of_field(schema, name), custom)
        return
    keys = list_keys(path, schema, custom) if isinstance(value, list) else ()
    if isinstance(value, list) and _is_set(path, schema):
        yield from (((*path, f"v:{json.dumps(item)}"), item) for item in value)
    elif keys and all(isinstance(item, dict) for item in value):
        for item in value:
            item_path = (*path, item_step(item, keys))
            yield (*item_path, "."), None
            for name, inner in item.items():
                yield from _walk(
                    (*item_path, f"f:{name}"), inner, schema_of_field(schema.get("items", {}), name), custom
                )
    elif path not in ((), ("f:metadata",)):
        yield path, value


def schema_of_field(schema: Schema, name: str) -> Schema:
    """Return the schema of a field of an object; empty where none is known."""
    field_schema: Schema = schema.get("properties", {}).get(name) or schema.get("additionalProperties") or {}
    return field_schema if isinstance(field_schema, dict) else {}


def list_keys(path: Path, schema: Schema, custom: bool) -> tuple[str, ...]:
    """Return the key fields of the items of the list at `path`; none if it is atomic."""
    if schema.get("x-kubernetes-list-type") == "map":
        return tuple(schema["x-kubernetes-list-map-keys"])
    if (not custom or path[:1] == ("f:metadata",)) and (key := MERGE_KEYS.get(path[-1][2:])):
        return (key,)
    return ()


def _is_set(path: Path, schema: Schema) -> bool:
    return path == ("f:metadata", "f:finalizers") or schema.get("x-kubernetes-list-type") == "set"


def item_step(item: Object, keys: Iterable[str]) -> str:
    """Return the step to an item of a list with keys."""
    return "k:" + json.dumps({key: item.get(key) for key in keys}, separators=(",", ":"))


def merge(live: Any, applied: Any, path: Path, schema: Schema, custom: bool) -> Any:
    """Merge the applied object into the live one: objects and lists with keys are merged, all else is replaced."""
    if isinstance(applied, dict) and isinstance(live, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        result = dict(live)
        for name, value in applied.items():
            result[name] = merge(live.get(name), value, (*path, f"f:{name}"), schema_of_field(schema, name), custom)
        return result
    if not isinstance(applied, list) or not isinstance(live, list):
        return applied
    if _is_set(path, schema):
        return [*live, *(item for item in applied if item not in live)]
    keys = list_keys(path, schema, custom)
    if not keys:
        return applied
    rows = {item_step(item, keys): item for item in live}
    for item in applied:
        step = item_step(item, keys)
        rows[step] = merge(rows.get(step, {}), item, (*path, step), schema.get("items", {}), custom)
    return list(rows.values())


def remove_paths(obj: Object, paths: Iterable[Path]) -> None:
    """Remove the values at the paths in place, and objects that become empty."""
    # List items first: without its key an item could not be found.
    for path in sorted(paths, key=lambda path: (path[-1] != ".", -len(path))):
        _remove(obj, path[:-1] if path[-1] == "." else path)


def _remove(value: Any, path: Path) -> None:
    step, rest = path[0], path[1:]
    if isinstance(value, list):
        list_item = next((item for item in value if _is_item(item, step)), None)
        if list_item is not None and rest:
            _remove(list_item, rest)
        elif list_item is not None:
            value.remove(list_item)
    elif isinstance(value, dict) and step[2:] in value:
        if rest:
            _remove(value[step[2:]], rest)
        if not rest or (value[step[2:]] in ({}, []) and step != "f:metadata"):
            del value[step[2:]]


def _is_item(item: Any, step: str) -> bool:
    identity = json.loads(step[2:])
    return item == identity if step[:2] == "v:" else all(item.get(key) == value for key, value in identity.items())


def encode_paths(paths: Iterable[Path]) -> Object:
    """Return paths in the form of FieldsV1."""
    root: Object = {}
    for path in sorted(paths):
        node = root
        for step in path:
            node = node.setdefault(step, {})
    return root


def decode_paths(fields_tree: Object, prefix: Path = ()) -> Iterator[Path]:
    """Return the paths in FieldsV1."""
    for step, inner in fields_tree.items():
        if inner:
            yield from decode_paths(inner, (*prefix, step))
        else:
            yield (*prefix, step)


def format_path(path: Path) -> str:
    """Return a path as conflicts name it, such as `.status.conditions[type="Ready"].status`."""
    text = ""
    for step in path:
        if step[:2] == "f:":
            text += f".{step[2:]}"
        elif step[:2] == "k:":
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(step[2:]).items()) + "]"
        elif step[:2] == "v:":
            text += f"[={step[2:]}]"
    return text
