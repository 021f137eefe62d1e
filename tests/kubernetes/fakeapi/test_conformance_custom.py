"""Custom resources and server-side apply, on the real API server and the fake one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kubernetes.fakeapi.api_session import APPLY, MERGE, STEPS, STRATEGIC, Answer, ApiSession, config_map
from tests.kubernetes.fakeapi.worlds import case

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CONDITIONS = {
    "type": "array",
    "items": {**ANYTHING, "required": ["type"], "properties": {"type": {"type": "string"}}},
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


@asynccontextmanager
async def widgets(api: ApiSession) -> AsyncIterator[str]:
    """Define a resource of the case's own; yield its plural and group once it is established."""
    group = f"{api.namespace}.ganger.dev"
    schema = {
        "type": "object",
        "properties": {"spec": ANYTHING, "status": {**ANYTHING, "properties": {"conditions": CONDITIONS}}},
    }
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    name = f"widgets.{group}"
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    await api.created(CRDS, crd)
    try:
        async with api.watch(CRDS, fieldSelector=f"metadata.name={name}") as events:
            async for event in events:
                rows = event["object"].get("status", {}).get("conditions") or []
                if any((row["type"], row["status"]) == ("Established", "True") for row in rows):
                    break
        # A server of a highly available control plane may serve it a moment later.
        async for _ in _until_served(api, name):
            pass
        yield name
    finally:
        await api.ask("DELETE", f"{CRDS}/{name}")


async def _until_served(api: ApiSession, name: str) -> AsyncIterator[Answer]:
    while (answer := await api.get(api.path(name))).code == 404:
        yield answer


def widget(plural: str, name: str, spec: Any = None, **more: Any) -> dict[str, Any]:
    group = plural.partition(".")[2]
    return {"apiVersion": f"{group}/v1alpha1", "kind": "Widget", "metadata": {"name": name, **more}, "spec": spec or {}}


@case
async def test_generations_count_what_is_wanted(api: ApiSession) -> None:
    async with widgets(api) as plural:
        path = api.path(plural, "w")
        created = await api.created(api.path(plural), {**widget(plural, "w", {"size": 1}), "status": {"phase": "No"}})
        assert created["metadata"]["generation"] == 1
        assert "status" not in created
        response = await api.ask("PATCH", api.path(plural, "w", "status"), {"status": {"phase": "Yes"}}, MERGE)
        assert (response.body["metadata"]["generation"], response.body["status"]) == (1, {"phase": "Yes"})
        labelled = await api.ask("PATCH", path, {"metadata": {"labels": {"x": "1"}}, "status": {"phase": "No"}}, MERGE)
        assert (labelled.body["metadata"]["generation"], labelled.body["status"]) == (1, {"phase": "Yes"})
        changed = await api.ask("PATCH", path, {"spec": {"size": 2}}, MERGE)
        assert changed.body["metadata"]["generation"] == 2
        patch = {"spec": {"size": 9}, "metadata": {"labels": {"x": "2"}}, "status": {"phase": "Still"}}
        apart = (await api.ask("PATCH", api.path(plural, "w", "status"), patch, MERGE)).body
        assert (apart["spec"], apart["metadata"]["labels"], apart["status"]["phase"]) == (
            {"size": 2},
            {"x": "1"},
            "Still",
        )
        listed = (await api.get(api.path(plural))).body
        assert (listed["kind"], listed["items"][0]["kind"]) == ("WidgetList", "Widget")


@case
async def test_custom_resources_are_replaced_only_by_who_knows_them(api: ApiSession) -> None:
    async with widgets(api) as plural:
        created = await api.created(api.path(plural), widget(plural, "w"))
        path = api.path(plural, "w")
        blind = await api.ask("PUT", path, widget(plural, "w", {"size": 2}))
        assert (blind.code, blind.reason) == (422, "Invalid")
        assert blind.body["details"]["causes"][0]["field"] == "metadata.resourceVersion"
        assert (await api.ask("PUT", path, {**created, "spec": {"size": 2}})).code == 200
        assert (await api.ask("PUT", path, {**created, "spec": {"size": 3}})).code == 409
        assert (await api.ask("PATCH", path, {"spec": {}}, STRATEGIC)).code == 415
        steps = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": created["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/metadata/annotations", "value": {"ganger.dev/x": "1"}},
        ]
        assert (await api.ask("PATCH", path, steps, STEPS)).code == 422
        steps.pop(0)
        assert (await api.ask("PATCH", path, steps, STEPS)).body["metadata"]["annotations"] == {"ganger.dev/x": "1"}


@case
async def test_being_deleted_is_a_new_generation(api: ApiSession) -> None:
    async with widgets(api) as plural:
        await api.created(api.path(plural), widget(plural, "w", finalizers=["ganger.dev/held"]))
        marked = await api.ask("DELETE", api.path(plural, "w"))
        assert marked.body["metadata"]["generation"] == 2
        assert marked.body["metadata"]["deletionGracePeriodSeconds"] == 0
        again = await api.ask("DELETE", api.path(plural, "w"))
        assert again.version == marked.version
        await api.ask("PATCH", api.path(plural, "w"), {"metadata": {"finalizers": []}}, MERGE)
        assert (await api.get(api.path(plural, "w"))).code == 404


@case
async def test_a_resource_is_there_as_long_as_its_definition(api: ApiSession) -> None:
    async with widgets(api) as plural:
        group = plural.partition(".")[2]
        served = await api.get(f"/apis/{group}/v1alpha1")
        assert {row["name"] for row in served.body["resources"]} == {"widgets", "widgets/status"}
        (first,) = [row for row in served.body["resources"] if row["name"] == "widgets"]
        assert (first["kind"], first["namespaced"]) == ("Widget", True)
        groups = (await api.get("/apis")).body["groups"]
        assert group in {row["name"] for row in groups}
        assert (await api.get(api.path(f"gadgets.{group}"))).code == 404


# -- server-side apply -------------------------------------------------------------------------------------------------


async def _apply(api: ApiSession, path: str, body: Any, manager: str = "ganger", **query: str) -> Answer:
    return await api.ask("PATCH", path, body, APPLY, fieldManager=manager, **query)


@case
async def test_apply_makes_and_changes_and_takes_away(api: ApiSession) -> None:
    path = api.path("configmaps", "a")
    created = await _apply(api, path, config_map("a", {"x": "1", "y": "1"}))
    assert (created.code, created.body["data"]) == (201, {"x": "1", "y": "1"})
    (entry,) = created.body["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("ganger", "Apply")
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}, "f:y": {}}}
    same = await _apply(api, path, config_map("a", {"x": "1", "y": "1"}))
    assert (same.code, same.version) == (200, created.version)
    changed = await _apply(api, path, config_map("a", {"x": "2"}))
    assert (changed.code, changed.body["data"]) == (200, {"x": "2"})


@case
async def test_apply_leaves_alone_what_is_not_its_own(api: ApiSession) -> None:
    path = api.path("configmaps", "a")
    await api.created(api.path("configmaps"), config_map("a", {"theirs": "1"}, labels={"kept": "yes"}))
    await _apply(api, path, config_map("a", {"ours": "1"}))
    remaining = await _apply(api, path, config_map("a", {"others": "1"}))
    assert remaining.body["data"] == {"theirs": "1", "others": "1"}
    assert remaining.body["metadata"]["labels"] == {"kept": "yes"}


@case
async def test_who_applies_over_another_is_in_conflict(api: ApiSession) -> None:
    path = api.path("configmaps", "a")
    await _apply(api, path, config_map("a", {"x": "1", "y": "1"}), "first")
    agreed = await _apply(api, path, config_map("a", {"x": "1"}), "second")
    assert agreed.code == 200
    refused = await _apply(api, path, config_map("a", {"x": "2"}), "second")
    assert refused.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'Apply failed with 1 conflict: conflict with "first": .data.x',
        "reason": "Conflict",
        "details": {
            "causes": [{"reason": "FieldManagerConflict", "message": 'conflict with "first"', "field": ".data.x"}]
        },
        "code": 409,
    }
    forced = await _apply(api, path, config_map("a", {"x": "2", "y": "2"}), "second", force="true")
    assert forced.body["data"] == {"x": "2", "y": "2"}
    dropped = await _apply(api, path, config_map("a"), "first")
    assert dropped.body["data"] == {"x": "2", "y": "2"}


@case
async def test_who_writes_otherwise_owns_as_well(api: ApiSession) -> None:
    path = api.path("configmaps", "a")
    await _apply(api, path, config_map("a", {"x": "1", "y": "1"}))
    await api.ask("PATCH", path, {"data": {"x": "2", "y": "2"}}, MERGE, fieldManager="hand")
    refused = await _apply(api, path, config_map("a", {"x": "1", "y": "1"}))
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert refused.body["message"].startswith('Apply failed with 2 conflicts: conflicts with "hand" using v1')
    assert refused.body["message"].endswith(":\n- .data.x\n- .data.y")


@case
async def test_apply_asks_for_a_manager_and_a_version_if_one_is_said(api: ApiSession) -> None:
    path = api.path("configmaps", "a")
    nameless = await api.ask("PATCH", path, config_map("a"), APPLY)
    assert (nameless.code, nameless.reason) == (422, "Invalid")
    assert nameless.body["message"].endswith("fieldManager: Required value: is required for apply patch")
    created = await _apply(api, path, config_map("a", {"x": "1"}))
    assert (await _apply(api, path, config_map("a", {"x": "2"}, resourceVersion=created.version))).code == 200
    assert (await _apply(api, path, config_map("a", {"x": "3"}, resourceVersion=created.version))).code == 409


@case
async def test_conditions_are_applied_one_by_one(api: ApiSession) -> None:
    async with widgets(api) as plural:
        await api.created(api.path(plural), widget(plural, "w", {"size": 1}))
        path = api.path(plural, "w", "status")
        bare = {name: value for name, value in widget(plural, "w").items() if name != "spec"}

        def status(type_: str, value: str, **more: Any) -> dict[str, Any]:
            return {**bare, "status": {"conditions": [{"type": type_, "status": value}], **more}}

        await _apply(api, path, status("Placed", "True", nodes=["a", "b"]), "one")
        applied = await _apply(api, path, status("Healthy", "False"), "two")
        rows = {row["type"]: row["status"] for row in applied.body["status"]["conditions"]}
        assert rows == {"Placed": "True", "Healthy": "False"}
        assert applied.body["metadata"]["generation"] == 1
        again = await _apply(api, path, status("Running", "True", nodes=["c"]), "one")
        rows = {row["type"]: row["status"] for row in again.body["status"]["conditions"]}
        assert rows == {"Healthy": "False", "Running": "True"}
        assert (again.body["status"]["nodes"], again.body["spec"]) == (["c"], {"size": 1})
        entries = {row["manager"]: row for row in again.body["metadata"]["managedFields"] if "subresource" in row}
        assert entries["two"]["fieldsV1"] == {
            "f:status": {"f:conditions": {'k:{"type":"Healthy"}': {".": {}, "f:status": {}, "f:type": {}}}}
        }


@case
async def test_apply_to_what_is_not_there_makes_it_but_not_its_status(api: ApiSession) -> None:
    async with widgets(api) as plural:
        body = widget(plural, "w", {"size": 1})
        assert (await _apply(api, api.path(plural, "w", "status"), {**body, "status": {"x": 1}})).code == 404
        created = await _apply(api, api.path(plural, "w"), {**body, "status": {"x": 1}})
        assert created.code == 201
        assert (created.body["metadata"]["generation"], "status" in created.body) == (1, False)
