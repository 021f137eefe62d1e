"""Server-side apply: field ownership, what a manager may change, and what is removed when its owner no longer sets it.

It handles apply patches, and records the managers of other writes. The fields of pods, nodes, events and leases have
owners from their first apply on: these objects change too often to track before.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tools.fakeapi.errors import StatusError, bad_request_error, modified_error, not_found_error
from tools.fakeapi.store.resources import Resource
from tools.fakeapi.store.store import Object, StoredObject, Table
from tools.fakeapi.writes.fields import Path, decode_paths, encode_paths, format_path, merge, remove_paths, values
from tools.fakeapi.writes.writes import Writes

UNTRACKED = {"pods", "nodes", "events", "leases"}


@dataclass(frozen=True, slots=True)
class Manager:
    """Writer of fields, its operation and subresource."""

    name: str
    operation: str
    sub: str


OwnedFields = dict[Manager, set[Path]]


def apply_patch(
    writes: Writes, target: tuple[Table, str, str, str], body: bytes, query: dict[str, str], *, dry: bool
) -> tuple[int, bytes]:
    """Create or change an object by the patch. Return the code and the object."""
    table, namespace, name, sub = target
    resource = table.resource
    if not (manager := query.get("fieldManager")):
        cause = {"reason": "FieldValueRequired", "message": "Required value: is required for apply patch"}
        details = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [{**cause, "field": "fieldManager"}]}
        text = 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
        raise StatusError(422, text, details=details)
    applied_object = _parse_object(body, name)
    own_manager = Manager(manager, "Apply", sub)
    old = table.objects.get((namespace, name))
    if old is None:
        return 201, _create(writes, table, namespace, applied_object, own_manager, dry=dry).raw
    live = old.read()
    _check_preconditions(resource, live["metadata"], applied_object["metadata"])
    own_values = {
        path: value for path, value in values(applied_object, resource).items() if _belongs(path, resource, sub)
    }
    result, owned = _merge_owned(live, applied_object, own_values, own_manager, resource)
    if query.get("force") not in ("true", "1"):
        _check_conflicts(live, own_values, _owned_fields(live), own_manager, resource)
    result["metadata"]["managedFields"] = _entries(live, owned, resource, writes.now())
    return 200, writes.replace(table, old, result, status=sub == "status", dry=dry).raw


def record_owner(old: StoredObject | None, obj: Object, resource: Resource, manager: Manager, now: str) -> None:
    """Record in `obj` the changes of a write that is not an apply: its writer owns them from now on."""
    live: Object = old.read() if old else {"metadata": {}}
    meta = obj.setdefault("metadata", {})
    meta.pop("managedFields", None)
    if entries := live["metadata"].get("managedFields"):
        meta["managedFields"] = entries
    elif resource.plural in UNTRACKED:
        return
    before, after = values(live, resource), values(obj, resource)
    writable = {path for path in after if _belongs(path, resource, manager.sub)}
    changed = {path for path in writable if path not in before or before[path] != after[path]}
    removed = {path for path in before if path not in after and _belongs(path, resource, manager.sub)}
    if not changed and not removed:
        return
    owned = {owner: fields - changed - removed for owner, fields in _owned_fields(live).items()}
    owned[manager] = owned.get(manager, set()) | changed
    meta["managedFields"] = _entries(live, owned, resource, now)


def _parse_object(body: bytes, name: str) -> Object:
    try:
        body_object = msgspec.json.decode(body)
    except msgspec.DecodeError:
        try:
            body_object = YAML(typ="safe", pure=True).load(body)
        except YAMLError as error:
            raise bad_request_error(f"error decoding YAML: {error}") from None
    if not isinstance(body_object, dict):
        raise bad_request_error("the object provided is no mapping")
    meta = body_object.setdefault("metadata", {})
    if meta.get("managedFields"):
        raise bad_request_error("metadata.managedFields must be nil")
    if meta.setdefault("name", name) != name:
        raise bad_request_error(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
    return body_object


def _create(
    writes: Writes, table: Table, namespace: str, applied_object: Object, own_manager: Manager, *, dry: bool
) -> StoredObject:
    resource = table.resource
    if own_manager.sub:
        raise not_found_error(resource.plural, resource.group, applied_object["metadata"]["name"])
    own_values = {path for path in values(applied_object, resource) if _belongs(path, resource, own_manager.sub)}
    applied_object["metadata"]["managedFields"] = _entries(
        {"metadata": {}}, {own_manager: own_values}, resource, writes.now()
    )
    return writes.create(table, namespace, applied_object, dry=dry)


def _check_preconditions(resource: Resource, live: dict[str, Any], applied_object: dict[str, Any]) -> None:
    for name in ("uid", "resourceVersion"):
        if applied_object.get(name) and applied_object[name] != live[name]:
            raise modified_error(resource.plural, resource.group, live["name"])


def _belongs(path: Path, resource: Resource, sub: str) -> bool:
    """Return whether a write to this subresource changes this path."""
    if sub == "status":
        return path[0] == "f:status"
    return not resource.status or path[0] != "f:status"


def _merge_owned(
    live: Object, applied_object: Object, own_values: dict[Path, Any], own_manager: Manager, resource: Resource
) -> tuple[Object, OwnedFields]:
    """Return the object with the applied fields and without those the manager dropped, and the new owners."""
    owned = _owned_fields(live)
    before = owned.pop(own_manager, set())
    shared = set().union(*owned.values())
    live_values = values(live, resource)
    owned = {
        owner: {
            path
            for path in fields
            if path not in own_values or path[-1] == "." or live_values.get(path) == own_values[path]
        }
        for owner, fields in owned.items()
    }
    owned[own_manager] = set(own_values)
    fields_to_set = {
        name: value
        for name, value in applied_object.items()
        if name == "metadata" or _belongs((f"f:{name}",), resource, own_manager.sub)
    }
    if own_manager.sub:
        fields_to_set["metadata"] = {}
    result = merge(live, fields_to_set, (), resource.schema, resource.custom)
    remove_paths(result, before - set(own_values) - shared)
    return result, owned


def _check_conflicts(
    live: Object, own_values: dict[Path, Any], owned: OwnedFields, own_manager: Manager, resource: Resource
) -> None:
    live_values = values(live, resource)
    times = {_manager(entry): entry.get("time", "") for entry in live["metadata"].get("managedFields", ())}
    conflicts = [
        (_describe_manager(owner, resource, times[owner]), format_path(path))
        for owner, fields in owned.items()
        if owner != own_manager
        for path in sorted(fields & own_values.keys())
        if path[-1] != "." and live_values.get(path) != own_values[path]
    ]
    if not conflicts:
        return
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {owner}", "field": field}
        for owner, field in conflicts
    ]
    text = f"1 conflict: conflict with {conflicts[0][0]}: {conflicts[0][1]}"
    if len(conflicts) > 1:
        lines = []
        for name in dict.fromkeys(owner for owner, _ in conflicts):
            lines += [f"conflicts with {name}:", *(f"- {field}" for owner, field in conflicts if owner == name)]
        text = f"{len(conflicts)} conflicts: " + "\n".join(lines)
    raise StatusError(409, f"Apply failed with {text}", details={"causes": causes})


def _describe_manager(manager: Manager, resource: Resource, time: str) -> str:
    sub = f' with subresource "{manager.sub}"' if manager.sub else ""
    how = f" using {resource.api_version} at {time}" if manager.operation == "Update" else ""
    return f'"{manager.name}"{sub}{how}'


def _manager(entry: Object) -> Manager:
    return Manager(entry["manager"], entry["operation"], entry.get("subresource", ""))


def _owned_fields(live: Object) -> OwnedFields:
    return {
        _manager(entry): set(decode_paths(entry["fieldsV1"])) for entry in live["metadata"].get("managedFields", ())
    }


def _entries(live: Object, owned: OwnedFields, resource: Resource, now: str) -> list[Object]:
    """Return managedFields; the time of an entry changes only with its fields."""
    old = {_manager(entry): entry for entry in live["metadata"].get("managedFields", ())}
    entries = []
    for manager, fields in owned.items():
        if not fields:
            continue
        entry = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": resource.api_version,
            "time": now,
            "fieldsType": "FieldsV1",
            "fieldsV1": encode_paths(fields),
            **({"subresource": manager.sub} if manager.sub else {}),
        }
        previous = old.get(manager)
        entries.append(previous if previous and previous["fieldsV1"] == entry["fieldsV1"] else entry)
    return entries
