"""Discovery: groups, versions, resources, health."""

import re
from collections.abc import Iterable
from typing import Any

from tools.fakeapi.store.resources import Resource

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3-fakeapi",
    "gitTreeState": "clean",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
SUBRESOURCES = {
    "pods": [("binding", "Binding", ["create"]), ("eviction", "Eviction", ["create"])],
}


def document(path: str, resources: Iterable[Resource]) -> dict[str, Any] | None:
    """Return the response of a discovery path; None where there is none."""
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(_groups(resources).values())}
    if match := re.fullmatch(r"/apis/([^/]+)", path):
        group = _groups(resources).get(match[1])
        return {"kind": "APIGroup", "apiVersion": "v1", **group} if group else None
    if match := re.fullmatch(r"/(?:api|apis/([^/]+))/([^/]+)", path):
        name, version = match[1] or "", match[2]
        rows = [row for r in resources if (r.group, r.version) == (name, version) for row in _rows(r)]
        group_version = f"{name}/{version}" if name else version
        return (
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}
            if rows
            else None
        )
    return None


def _groups(resources: Iterable[Resource]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for resource in resources:
        if not resource.group:
            continue
        version_entry = {"groupVersion": resource.api_version, "version": resource.version}
        group = groups.setdefault(
            resource.group, {"name": resource.group, "versions": [], "preferredVersion": version_entry}
        )
        if version_entry not in group["versions"]:
            group["versions"].append(version_entry)
    return groups


def _rows(resource: Resource) -> list[dict[str, Any]]:
    row = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": VERBS,
        **({"shortNames": list(resource.short)} if resource.short else {}),
    }
    rows = [row]
    subs = [("status", resource.kind, ["get", "patch", "update"])] if resource.status else []
    for name, kind, verbs in subs + SUBRESOURCES.get(resource.plural, []):
        rows.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind,
                "verbs": verbs,
            }
        )
    return rows
