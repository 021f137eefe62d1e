"""Garbage collector: dependents are deleted after their owners, and the contents of a namespace with it.

The store reports every change; deletions happen in later iterations of the event loop, as the real one does in its own
time."""

import asyncio

from tools.fakeapi.store.resources import NAMESPACES
from tools.fakeapi.store.store import Change, Key, Table
from tools.fakeapi.writes.writes import DeleteOptions, Writes

Location = tuple[Table, Key]
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


class GarbageCollector:
    """Tracks live objects and their owners."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._alive: dict[str, Location] = {}
        self._owned: dict[str, dict[str, Location]] = {}
        """Owner UID -> dependent UID -> its location."""

    def on_change(self, table: Table, change: Change) -> None:
        """Handle a change; called by the store."""
        meta, location = change.new.meta, (table, change.new.key)
        owners = {owner.uid for owner in meta.owner_references}
        before = {owner.uid for owner in change.old.meta.owner_references} if change.old else set()
        for owner in before - owners if change.type != "DELETED" else before:
            self._owned.get(owner, {}).pop(meta.uid, None)
        if change.type == "DELETED":
            self._alive.pop(meta.uid, None)
            for owned in self._owned.pop(meta.uid, {}).values():
                self._schedule(owned)
            for owner in before & self._alive.keys():
                self._schedule(self._alive[owner])
            if table.resource == NAMESPACES:
                asyncio.get_running_loop().call_soon(self._delete_contents, change.new.key[1])
            return
        self._alive[meta.uid] = location
        for owner in owners:
            self._owned.setdefault(owner, {})[meta.uid] = location
        if (owners and not owners & self._alive.keys()) or b'"deletionTimestamp"' in change.new.raw:
            self._schedule(location)

    def _schedule(self, location: Location) -> None:
        asyncio.get_running_loop().call_soon(self._collect, location)

    def _collect(self, location: Location) -> None:
        """Delete what has lost its owners, and release owners that waited for their dependents."""
        table, key = location
        stored = table.objects.get(key)
        if stored is None:
            return
        owners = {owner.uid for owner in stored.meta.owner_references}
        if owners and not owners & self._alive.keys():
            self._writes.delete(table, stored, DeleteOptions(uid=stored.meta.uid))
            return
        obj = stored.read()
        finalizers = obj["metadata"].get("finalizers", [])
        if "deletionTimestamp" not in obj["metadata"] or not {FOREGROUND, ORPHAN} & set(finalizers):
            return
        owned = list(self._owned.get(stored.meta.uid, {}).values())
        if ORPHAN in finalizers:
            for orphan in owned:
                self._remove_owner(orphan, stored.meta.uid)
            owned = []
        for dependent_table, dependent_key in owned:
            dependent = dependent_table.objects[dependent_key]
            if b'"deletionTimestamp"' not in dependent.raw:
                self._writes.delete(
                    dependent_table, dependent, DeleteOptions(propagation="Foreground" if owned else "")
                )
        if not self._owned.get(stored.meta.uid):
            obj["metadata"]["finalizers"] = [name for name in finalizers if name not in (FOREGROUND, ORPHAN)]
            self._writes.replace(table, stored, obj)

    def _remove_owner(self, location: Location, owner: str) -> None:
        table, key = location
        obj = table.objects[key].read()
        rows = obj["metadata"]["ownerReferences"]
        obj["metadata"]["ownerReferences"] = [row for row in rows if row["uid"] != owner]
        self._writes.replace(table, table.objects[key], obj)

    def _delete_contents(self, namespace: str) -> None:
        for table in list(self._writes.store.tables.values()):
            for key in [key for key in table.objects if key[0] == namespace]:
                self._writes.delete(table, table.objects[key], DeleteOptions(grace_s=0))
