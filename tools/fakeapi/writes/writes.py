"""Creation, replacement and deletion of objects, with the real server's preconditions, errors and derived fields.

All times are the store's clock: the event loop's, shown as dates.
"""

import base64
import random
import re
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tools.fakeapi.errors import (
    already_exists_error,
    bad_request_error,
    conflict_error,
    internal_error,
    invalid_error,
    modified_error,
    not_found_error,
)
from tools.fakeapi.store.resources import CRDS, NAMESPACES, PODS, SECRETS, Resource, established_status
from tools.fakeapi.store.store import Object, Store, StoredObject, Table
from tools.fakeapi.writes import pods

SERVER_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NO_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN.pattern}')"
)


@dataclass(slots=True)
class DeleteOptions:
    """Options of a DELETE. grace_s: None leaves it to the object."""

    uid: str = ""
    version: str = ""
    grace_s: int | None = None
    propagation: str = "Background"


@dataclass(slots=True)
class Writes:
    """The store, its clock (seconds since 1970, by the loop's time) and the source of UIDs."""

    store: Store
    now_s: Callable[[], float]
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def now(self) -> str:
        """Return the time as objects have it: to the second."""
        return datetime.fromtimestamp(self.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def find(self, table: Table, namespace: str, name: str) -> StoredObject:
        """Return the object, or raise NotFound."""
        stored = table.objects.get((namespace, name))
        if stored is None:
            raise not_found_error(table.resource.plural, table.resource.group, name)
        return stored

    # -- create --------------------------------------------------------------------------------------------------------

    def create(self, table: Table, namespace: str, obj: Object, *, dry: bool = False) -> StoredObject:
        """Create an object; server-set fields are set, the status is dropped where it is a subresource."""
        self.complete(table, namespace, obj)
        return self._preview(table, obj) if dry else self.store.write(table, obj, None)

    def complete(self, table: Table, namespace: str, obj: Object) -> None:
        """Validate a new object and fill in server-set fields in place."""
        resource = table.resource
        meta = self._check_metadata(resource, namespace, obj)
        if meta.get("resourceVersion"):
            raise internal_error("resourceVersion should not be set on objects to be created")
        self._check_namespace(resource, namespace)
        if not meta.get("name"):
            if not (prefix := meta.get("generateName")):
                reason = ("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")
                raise invalid_error(resource.kind, resource.group, "", reason)
            meta["name"] = prefix + "".join(self.rng.choices(string.ascii_lowercase + string.digits, k=5))
        _check_name(resource, meta["name"])
        if (namespace, meta["name"]) in table.objects:
            raise already_exists_error(resource.plural, resource.group, meta["name"])
        for name in SERVER_FIELDS:
            meta.pop(name, None)
        meta["uid"] = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        meta["creationTimestamp"] = self.now()
        _drop_empty_metadata(meta)
        if resource.status:
            obj.pop("status", None)
        if resource.custom or "spec" in obj:
            meta["generation"] = 1
        if resource == SECRETS:
            _encode_secret(obj)
        if resource == PODS:
            pods.set_defaults(obj, self.now())
        elif resource == NAMESPACES:
            meta["labels"] = {**meta.get("labels", {}), "kubernetes.io/metadata.name": meta["name"]}
            obj |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        elif resource == CRDS:
            obj["status"] = established_status(obj, meta["creationTimestamp"])

    def _check_metadata(self, resource: Resource, namespace: str, obj: Object) -> dict[str, Any]:
        """Return the metadata of an object that may be written to this resource and namespace."""
        if obj.get("kind") != resource.kind or obj.get("apiVersion") != resource.api_version:
            raise bad_request_error(
                f'{obj.get("kind")} in version "{obj.get("apiVersion")}" cannot be handled as a {resource.kind}: '
                f"{resource.api_version} is expected"
            )
        meta: dict[str, Any] = obj.setdefault("metadata", {})
        if resource.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise bad_request_error(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        else:
            meta.pop("namespace", None)
        return meta

    def _check_namespace(self, resource: Resource, namespace: str) -> None:
        if resource.namespaced and ("", namespace) not in self.store.table(NAMESPACES).objects:
            raise not_found_error("namespaces", "", namespace)

    # -- replace -------------------------------------------------------------------------------------------------------

    def replace(
        self, table: Table, old: StoredObject, obj: Object, *, status: bool = False, dry: bool = False
    ) -> StoredObject:
        """Replace `old`: its status alone, or all but that. An unchanged object is not written."""
        resource = table.resource
        meta = self._check_metadata(resource, old.key[0], obj)
        current = old.read()
        self._check_preconditions(resource, current, meta)
        if status and resource.custom:
            managed_fields = {name: meta[name] for name in ("managedFields",) if name in meta}
            obj = {**current, "metadata": {**current["metadata"], **managed_fields}, "status": obj.get("status", {})}
        elif status:
            meta.update(
                {name: current["metadata"][name] for name in ("ownerReferences",) if name in current["metadata"]}
            )
            obj = {**current, "metadata": meta, "status": obj.get("status", {})}
        elif resource.status:
            obj.pop("status", None)
            obj |= {"status": current["status"]} if "status" in current else {}
        meta = obj["metadata"]
        for name in SERVER_FIELDS:
            meta.pop(name, None)
        meta.update({name: current["metadata"][name] for name in SERVER_FIELDS if name in current["metadata"]})
        meta["resourceVersion"] = current["metadata"]["resourceVersion"]
        if resource == SECRETS:
            _encode_secret(obj)
        if resource == PODS and not status:
            pods.check_update(current, obj)
        _drop_empty_metadata(meta)
        if obj == current:
            return old
        if "generation" in meta and not status and desired_state(obj) != desired_state(current):
            meta["generation"] += 1
        if dry:
            return self._preview(table, obj)
        new = self.store.write(table, obj, old)
        if "deletionTimestamp" in meta and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            return self.store.remove(table, new)
        return new

    def _check_preconditions(self, resource: Resource, current: Object, meta: dict[str, Any]) -> None:
        """Refuse a write that is not based on the current object."""
        name, old = current["metadata"]["name"], current["metadata"]
        if meta.get("name", name) != name:
            raise bad_request_error(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
            )
        meta["name"] = name
        if meta.get("uid", old["uid"]) != old["uid"]:
            message = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['uid']}"
            raise conflict_error(resource.plural, resource.group, name, message)
        version = meta.get("resourceVersion")
        if not version and resource.custom:
            reason = (
                "FieldValueInvalid",
                "metadata.resourceVersion",
                "Invalid value: 0: must be specified for an update",
            )
            raise invalid_error(resource.plural, resource.group, name, reason)
        if version and version != old["resourceVersion"]:
            raise modified_error(resource.plural, resource.group, name)

    def _preview(self, table: Table, obj: Object) -> StoredObject:
        """Return what would be written, for dryRun."""
        shadow = Store(history=1)
        shadow.version = self.store.version - 1
        return shadow.write(shadow.add(table.resource), obj, None)

    # -- delete --------------------------------------------------------------------------------------------------------

    def delete(
        self, table: Table, old: StoredObject, options: DeleteOptions, *, dry: bool = False
    ) -> StoredObject | None:
        """Delete an object, or mark one with finalizers or a grace period; return that."""
        obj = old.read()
        meta = obj["metadata"]
        _check_delete_preconditions(table.resource, meta, options)
        finalizers = list(meta.get("finalizers", ()))
        if options.propagation in ("Foreground", "Orphan"):
            mark = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}[options.propagation]
            finalizers += [mark] if mark not in finalizers else []
        grace_s = pods.grace_s(obj, options.grace_s) if table.resource == PODS else 0
        if dry:
            return old
        if not finalizers and not grace_s:
            self.store.remove(table, old)
            return None
        if "deletionTimestamp" in meta and finalizers == meta.get("finalizers", []):
            if grace_s >= meta.get("deletionGracePeriodSeconds", 0):
                return old
        elif "generation" in meta and "deletionTimestamp" not in meta:
            meta["generation"] += 1
        if finalizers:
            meta["finalizers"] = finalizers
        ends = datetime.fromtimestamp(self.now_s() + grace_s, UTC)
        meta["deletionTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        meta["deletionGracePeriodSeconds"] = grace_s
        return self.store.write(table, obj, old)


def _drop_empty_metadata(meta: dict[str, Any]) -> None:
    """Drop empty metadata."""
    for name in ("labels", "annotations", "finalizers", "ownerReferences"):
        if name in meta and not meta[name]:
            del meta[name]


def _encode_secret(secret: Object) -> None:
    """Convert stringData into data in place."""
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in secret.pop("stringData", {}).items()}
    if encoded:
        secret["data"] = {**secret.get("data", {}), **encoded}
    secret.setdefault("type", "Opaque")


def _check_name(resource: Resource, name: str) -> None:
    if SUBDOMAIN.fullmatch(name) or resource.group == "rbac.authorization.k8s.io":
        return
    message = f'Invalid value: "{name}": {NO_SUBDOMAIN}'
    raise invalid_error(resource.kind, resource.group, name, ("FieldValueInvalid", "metadata.name", message))


def _check_delete_preconditions(resource: Resource, meta: dict[str, Any], options: DeleteOptions) -> None:
    preconditions = (
        ("UID", "uid", options.uid, "deleted and then recreated"),
        (
            "ResourceVersion",
            "resourceVersion",
            options.version,
            "modified",
        ),
    )
    for title, name, expected, happened in preconditions:
        if expected and expected != meta[name]:
            message = (
                f"the {title} in the precondition ({expected}) does not match the {title} in record ({meta[name]}). "
                f"The object might have been {happened}"
            )
            raise conflict_error(resource.kind, resource.group, meta["name"], message)


def desired_state(obj: Object) -> Object:
    """Return what the generation counts changes of: all but metadata and status."""
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}
