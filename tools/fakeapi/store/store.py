"""Store: every object as the bytes it is sent as, one version counter, and the history of changes.

An object is kept as JSON and parsed only to change it: 50,000 pods then cost what their text costs, and a list is one
join.
"""

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import msgspec

from tools.fakeapi.store.resources import Resource

Object = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); the namespace of cluster-scoped objects is empty."""


class _Owner(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _Meta(msgspec.Struct, rename="camel", frozen=True, gc=False):
    uid: str = ""
    labels: dict[str, str] | None = None
    owner_references: tuple[_Owner, ...] = ()


class _Head(msgspec.Struct, frozen=True, gc=False):
    metadata: _Meta = _Meta()


class _Spec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    node_name: str = ""
    restart_policy: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""
    unschedulable: bool = False


class _Status(msgspec.Struct, rename="camel", frozen=True, gc=False):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    nominated_node_name: str = ""


class _Involved(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Selectable(msgspec.Struct, rename="camel", frozen=True, gc=False):
    spec: _Spec = _Spec()
    status: _Status = _Status()
    involved_object: _Involved = _Involved()
    reason: str = ""
    type: str = ""


_head = msgspec.json.Decoder(_Head)
_selectable = msgspec.json.Decoder(_Selectable)
_object = msgspec.json.Decoder()
encode = msgspec.json.Encoder().encode


class StoredObject:
    """One object at a version."""

    __slots__ = ("_meta", "_selectable", "key", "raw", "version")

    def __init__(self, key: Key, raw: bytes, version: int) -> None:
        self.key, self.raw, self.version = key, raw, version
        self._meta: _Meta | None = None
        self._selectable: _Selectable | None = None

    def read(self) -> Object:
        """Return a new dict, which may be changed."""
        obj: Object = _object.decode(self.raw)
        return obj

    @property
    def meta(self) -> _Meta:
        if self._meta is None:
            self._meta = _head.decode(self.raw).metadata
        return self._meta

    @property
    def labels(self) -> dict[str, str]:
        return self.meta.labels or {}

    def field(self, path: str) -> str:
        """Return the value of a field that selectors index."""
        if path.startswith("metadata."):
            return self.key[path == "metadata.name"]
        if self._selectable is None:
            self._selectable = _selectable.decode(self.raw)
        value: Any = self._selectable
        for name in path.split("."):
            value = getattr(value, re.sub(r"IP$|[A-Z]", lambda upper: "_" + upper[0].lower(), name))
        return str(value).lower() if isinstance(value, bool) else str(value)

    def copy_at(self, version: int) -> "StoredObject":
        """Return the same object with another version, as a deletion reports it."""
        obj = self.read()
        obj["metadata"]["resourceVersion"] = str(version)
        return StoredObject(self.key, encode(obj), version)


class Change:
    """One write. `old` is what it replaced, `new` the result; of a deletion, the last state."""

    __slots__ = ("chunk", "new", "old", "type", "version")

    def __init__(self, type_: str, old: StoredObject | None, new: StoredObject) -> None:
        self.type, self.old, self.new, self.version = type_, old, new, new.version
        self.chunk: bytes | None = None


class Table:
    """Objects of one resource, and their history since the last compaction."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.objects: dict[Key, StoredObject] = {}
        self.history: list[Change] = []
        self._ordered: tuple[int, list[StoredObject]] = (-1, [])
        head = {"kind": resource.kind, "apiVersion": resource.api_version}
        self.head = encode(head)[:-1] + b","
        # In lists, built-in objects have no kind; custom ones do.
        self.item_start = 0 if resource.custom else len(self.head)

    def changes_since(self, version: int) -> list[Change]:
        """Return the changes after a version, oldest first."""
        return self.history[bisect_right(self.history, version, key=lambda change: change.version) :]

    def objects_at(self, version: int) -> list[StoredObject]:
        """Return the objects at a version, in the order of their keys."""
        newest = self.history[-1].version if self.history else 0
        known_version = min(version, newest) if self.history else 0
        if self._ordered[0] != known_version:
            objects = self.objects
            if later := self.changes_since(version):
                objects = dict(objects)
                for change in reversed(later):
                    if change.old is None:
                        del objects[change.new.key]
                    else:
                        objects[change.old.key] = change.old
            self._ordered = (known_version, [objects[key] for key in sorted(objects)])
        return self._ordered[1]

    def drop_order(self) -> None:
        """Drop cached orders, which are wrong once history was compacted."""
        self._ordered = (-1, [])


class Store:
    """All tables. `listeners` are called with the table and the change, in order, before the write returns."""

    def __init__(self, history: int) -> None:
        self.version = 1
        self.compacted = 0
        self.tables: dict[tuple[str, str, str], Table] = {}
        self.listeners: list[Callable[[Table, Change], None]] = []
        self._history = history

    def add(self, resource: Resource) -> Table:
        table = Table(resource)
        self.tables[resource.group, resource.version, resource.plural] = table
        return table

    def table(self, resource: Resource) -> Table:
        return self.tables[resource.group, resource.version, resource.plural]

    def write(self, table: Table, obj: Object, old: StoredObject | None) -> StoredObject:
        """Create an object, or replace `old`; its version is set in place."""
        meta = obj["metadata"]
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        key = (meta.get("namespace", ""), meta["name"])
        # kind and apiVersion come first, whatever their order was: lists cut them off by position.
        body = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
        new = StoredObject(key, table.head + encode(body)[1:], self.version)
        table.objects[key] = new
        self.publish(table, Change("MODIFIED" if old else "ADDED", old, new))
        return new

    def remove(self, table: Table, old: StoredObject) -> StoredObject:
        """Remove an object; return its last state with the version of its deletion."""
        self.version += 1
        del table.objects[old.key]
        removed = old.copy_at(self.version)
        self.publish(table, Change("DELETED", old, removed))
        return removed

    def publish(self, table: Table, change: Change) -> None:
        """Record a change and notify all listeners."""
        table.history.append(change)
        if len(table.history) > self._history:
            self.compacted = max(self.compacted, table.history[len(table.history) // 2].version)
            del table.history[: len(table.history) // 2 + 1]
            table.drop_order()
        for listener in self.listeners:
            listener(table, change)
        change.chunk = None

    def compact(self) -> None:
        """Forget every change: older versions are gone."""
        self.compacted = self.version
        for table in self.tables.values():
            table.history.clear()
            table.drop_order()
