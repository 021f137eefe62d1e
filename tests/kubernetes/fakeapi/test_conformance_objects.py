"""Objects on the real API server and the fake one: created, changed, deleted, rejected."""

from typing import Any

from tests.kubernetes.fakeapi.api_session import MERGE, STEPS, STRATEGIC, ApiSession, config_map, pod, take
from tests.kubernetes.fakeapi.worlds import FORBIDDEN_USER, case


@case
async def test_what_is_made_has_what_only_the_server_says(api: ApiSession) -> None:
    created = await api.created(api.path("configmaps"), config_map("a", {"x": "1"}, labels={"team": "ml"}))
    meta = created["metadata"]
    assert meta["namespace"] == api.namespace
    assert meta["uid"]
    assert int(meta["resourceVersion"]) > 0
    assert meta["creationTimestamp"].endswith("Z")
    assert list(created)[:2] == ["kind", "apiVersion"]
    actual = await api.get(api.path("configmaps", "a"))
    assert (actual.code, actual.body) == (200, created)


@case
async def test_a_second_of_the_same_name_is_refused(api: ApiSession) -> None:
    await api.created(api.path("configmaps"), config_map("a"))
    again = await api.ask("POST", api.path("configmaps"), config_map("a"))
    assert again.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "a" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "a", "kind": "configmaps"},
        "code": 409,
    }


@case
async def test_what_is_not_there_is_not_found(api: ApiSession) -> None:
    actual = await api.get(api.path("pods", "gone"))
    assert (actual.code, actual.reason) == (404, "NotFound")
    assert actual.body["message"] == 'pods "gone" not found'
    assert actual.body["details"] == {"name": "gone", "kind": "pods"}


@case
async def test_an_unknown_resource_is_not_found(api: ApiSession) -> None:
    actual = await api.get(api.path("gadgets"))
    assert (actual.code, actual.reason) == (404, "NotFound")
    assert actual.body["message"] == "the server could not find the requested resource"


@case
async def test_a_namespace_must_be_there(api: ApiSession) -> None:
    path = "/api/v1/namespaces/nobody-made-it/configmaps"
    refused = await api.ask("POST", path, config_map("a"))
    assert (refused.code, refused.reason) == (404, "NotFound")
    assert refused.body["message"] == 'namespaces "nobody-made-it" not found'


@case
async def test_a_stale_write_is_a_conflict(api: ApiSession) -> None:
    created = await api.created(api.path("configmaps"), config_map("a"))
    path = api.path("configmaps", "a")
    first = await api.ask("PUT", path, {**created, "data": {"x": "1"}})
    assert first.code == 200
    second = await api.ask("PUT", path, {**created, "data": {"x": "2"}})
    assert (second.code, second.reason) == (409, "Conflict")
    assert second.body["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert second.body["details"] == {"name": "a", "kind": "configmaps"}


@case
async def test_what_changes_nothing_writes_nothing(api: ApiSession) -> None:
    created = await api.created(api.path("configmaps"), config_map("a", {"x": "1"}))
    same = await api.ask("PUT", api.path("configmaps", "a"), created)
    assert same.version == created["metadata"]["resourceVersion"]
    patched = await api.ask("PATCH", api.path("configmaps", "a"), {"data": {"x": "1"}}, MERGE)
    assert patched.version == created["metadata"]["resourceVersion"]


@case
async def test_a_merge_patch_joins_and_takes_away(api: ApiSession) -> None:
    await api.created(api.path("configmaps"), config_map("a", {"x": "1", "y": "1"}))
    patched = await api.ask("PATCH", api.path("configmaps", "a"), {"data": {"x": None, "z": "2"}}, MERGE)
    assert (patched.code, patched.body["data"]) == (200, {"y": "1", "z": "2"})


@case
async def test_a_merge_patch_can_ask_for_a_version(api: ApiSession) -> None:
    created = await api.created(api.path("configmaps"), config_map("a"))
    patch = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"x": "1"}}
    path = api.path("configmaps", "a")
    assert (await api.ask("PATCH", path, patch, MERGE)).code == 200
    patch["data"] = {"x": "2"}
    assert (await api.ask("PATCH", path, patch, MERGE)).code == 409


@case
async def test_a_json_patch_tests_before_it_writes(api: ApiSession) -> None:
    await api.created(api.path("configmaps"), config_map("a", {"x": "1"}))
    path = api.path("configmaps", "a")
    steps = [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "replace", "path": "/data/x", "value": "2"}]
    assert (await api.ask("PATCH", path, steps, STEPS)).body["data"] == {"x": "2"}
    refused = await api.ask("PATCH", path, steps, STEPS)
    assert (refused.code, refused.reason) == (422, "Invalid")


@case
async def test_an_unknown_kind_of_patch_is_refused(api: ApiSession) -> None:
    await api.created(api.path("configmaps"), config_map("a"))
    refused = await api.ask("PATCH", api.path("configmaps", "a"), {}, "application/json")
    assert (refused.code, refused.reason) == (415, "UnsupportedMediaType")


@case
async def test_what_cannot_be_made_says_why(api: ApiSession) -> None:
    path = api.path("configmaps")
    bodies = {
        "resourceVersion should not be set on objects to be created": (500, config_map("a", resourceVersion="5")),
        "the namespace of the provided object does not match the namespace sent on the request": (
            400,
            config_map("a", namespace="default"),
        ),
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required': (
            422,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}},
        ),
    }
    for message, (code, body) in bodies.items():
        refused = await api.ask("POST", path, body)
        assert (refused.code, refused.body["message"]) == (code, message)
    assert (await api.ask("POST", path, pod("a"))).reason == "BadRequest"
    assert (await api.ask("POST", path, "no object")).reason == "BadRequest"
    misnamed = await api.ask("POST", path, config_map("Not_A_Name"))
    assert misnamed.reason == "Invalid"
    assert misnamed.body["details"]["causes"][0]["field"] == "metadata.name"
    assert misnamed.body["message"].startswith('ConfigMap "Not_A_Name" is invalid: metadata.name: Invalid value: ')


@case
async def test_a_name_can_be_left_to_the_server(api: ApiSession) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}
    names = [(await api.created(api.path("configmaps"), body))["metadata"]["name"] for _ in range(2)]
    assert all(len(name) == len("made-") + 5 for name in names)
    assert len(set(names)) == 2


@case
async def test_a_dry_run_writes_nothing(api: ApiSession) -> None:
    path = api.path("configmaps")
    dry_run = await api.ask("POST", path, config_map("a"), dryRun="All")
    assert (dry_run.code, dry_run.body["metadata"]["name"]) == (201, "a")
    assert (await api.get(api.path("configmaps", "a"))).code == 404
    created = await api.created(path, config_map("a"))
    dry_run = await api.ask("PUT", api.path("configmaps", "a"), {**created, "data": {"x": "1"}}, dryRun="All")
    assert dry_run.body["data"] == {"x": "1"}
    assert (await api.ask("DELETE", api.path("configmaps", "a"), dryRun="All")).code == 200
    assert (await api.get(api.path("configmaps", "a"))).body == created


@case
async def test_wrong_ways_to_ask(api: ApiSession) -> None:
    for method, path in (("POST", api.path("configmaps", "a")), ("PUT", api.path("configmaps"))):
        refused = await api.ask(method, path, config_map("a"))
        assert (refused.code, refused.reason) == (405, "MethodNotAllowed")
        assert refused.body["message"] == "the server does not allow this method on the requested resource"
    assert (await api.get(api.path("configmaps", "a", "status"))).code == 404
    unknown = await api.get("/apis/nobody.example/v1/things")
    assert (unknown.code, unknown.body) == (404, "404 page not found\n")


@case
async def test_a_forbidden_query_names_the_missing_right(api: ApiSession) -> None:
    refused = await api.ask("GET", api.path("pods"), user=FORBIDDEN_USER)
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.body["message"] == (
        f'pods is forbidden: User "{FORBIDDEN_USER}" cannot list resource "pods" in API group "" '
        f'in the namespace "{api.namespace}"'
    )
    assert refused.body["details"] == {"kind": "pods"}
    refused = await api.ask("DELETE", api.path("leases.coordination.k8s.io", "a"), user=FORBIDDEN_USER)
    assert refused.body["message"] == (
        f'leases.coordination.k8s.io "a" is forbidden: User "{FORBIDDEN_USER}" cannot delete resource "leases" in API '
        f'group "coordination.k8s.io" in the namespace "{api.namespace}"'
    )
    refused = await api.ask("GET", "/api/v1/nodes", user=FORBIDDEN_USER)
    assert refused.body["message"].endswith('cannot list resource "nodes" in API group "" at the cluster scope')
    refused = await api.ask("POST", api.path("pods", "a", "binding"), {}, user=FORBIDDEN_USER)
    assert 'cannot create resource "pods/binding" in API group ""' in refused.body["message"]


@case
async def test_a_secret_is_given_as_text_and_kept_as_bytes(api: ApiSession) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "abc"}}
    created = await api.created(api.path("secrets"), {**secret, "data": {"key": "eHl6"}})
    assert (created["data"], created["type"]) == ({"token": "YWJj", "key": "eHl6"}, "Opaque")
    assert "stringData" not in created
    changed = await api.ask("PATCH", api.path("secrets", "s"), {"stringData": {"token": "def"}}, MERGE)
    assert changed.body["data"] == {"token": "ZGVm", "key": "eHl6"}


@case
async def test_a_lease_keeps_its_microseconds(api: ApiSession) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.123456Z"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}
    created = await api.created(api.path("leases.coordination.k8s.io"), lease)
    assert created["spec"] == spec
    path = api.path("leases.coordination.k8s.io", "l")
    assert (await api.ask("PUT", path, {**created, "spec": {**spec, "holderIdentity": "b"}})).code == 200
    assert (await api.ask("PUT", path, {**created, "spec": {**spec, "holderIdentity": "c"}})).code == 409


@case
async def test_a_node_is_cordoned_by_its_spec_and_described_by_its_status(api: ApiSession) -> None:
    path, name = "/api/v1/nodes", api.namespace
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "9"}}}
    await api.created(path, node)
    try:
        patch = {
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
        }
        response = await api.ask("PATCH", f"{path}/{name}/status", patch, STRATEGIC)
        assert response.body["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        patch = {"spec": {"unschedulable": True}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}
        cordoned = await api.ask("PATCH", f"{path}/{name}", patch, STRATEGIC)
        assert cordoned.body["spec"]["unschedulable"] is True
        assert cordoned.body["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        listed = await api.get(path, fieldSelector=f"spec.unschedulable=true,metadata.name={name}")
        assert listed.names == [name]
    finally:
        await api.ask("DELETE", f"{path}/{name}")


# -- deleting ----------------------------------------------------------------------------------------------------------


@case
async def test_deleting_tells_what_went(api: ApiSession) -> None:
    created = await api.created(api.path("configmaps"), config_map("a"))
    deletion = await api.ask("DELETE", api.path("configmaps", "a"))
    assert deletion.code == 200
    assert deletion.body["status"] == "Success"
    assert deletion.body["details"] == {"name": "a", "kind": "configmaps", "uid": created["metadata"]["uid"]}
    assert (await api.ask("DELETE", api.path("configmaps", "a"))).code == 404


@case
async def test_deleting_the_wrong_one_is_a_conflict(api: ApiSession) -> None:
    created = await api.created(api.path("configmaps"), config_map("a"))
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "another"}}
    refused = await api.ask("DELETE", api.path("configmaps", "a"), options)
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert refused.body["message"] == (
        'Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (another) does not match the UID '
        f"in record ({created['metadata']['uid']}). The object might have been deleted and then recreated"
    )
    options["preconditions"] = {"resourceVersion": "1"}
    assert (await api.ask("DELETE", api.path("configmaps", "a"), options)).code == 409
    options["preconditions"] = {"uid": created["metadata"]["uid"]}
    assert (await api.ask("DELETE", api.path("configmaps", "a"), options)).code == 200


@case
async def test_a_finalizer_holds_what_is_deleted(api: ApiSession) -> None:
    await api.created(api.path("configmaps"), config_map("a", finalizers=["ganger.dev/held"]))
    path = api.path("configmaps", "a")
    marked = await api.ask("DELETE", path)
    assert marked.code == 200
    assert marked.body["metadata"]["deletionTimestamp"]
    assert (await api.get(path)).code == 200
    assert (await api.ask("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)).code == 200
    assert (await api.get(path)).code == 404


@case
async def test_many_are_deleted_at_once(api: ApiSession) -> None:
    for name in "abc":
        await api.created(api.path("configmaps"), config_map(name, labels={"go": "yes"} if name != "b" else {}))
    answer = await api.ask("DELETE", api.path("configmaps"), labelSelector="go=yes")
    assert answer.code == 200
    assert not {"a", "c"} & set((await api.get(api.path("configmaps"))).names)
    assert "b" in (await api.get(api.path("configmaps"))).names


def _owned(name: str, owner: dict[str, Any], **more: bool) -> dict[str, Any]:
    meta = owner["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"], **more}
    return config_map(name, ownerReferences=[reference])


@case
async def test_what_is_owned_goes_with_its_owner(api: ApiSession) -> None:
    path = api.path("configmaps")
    owner = await api.created(path, config_map("owner"))
    owned = await api.created(path, _owned("owned", owner))
    async with api.watch(path, resourceVersion=owned["metadata"]["resourceVersion"]) as events:
        await api.ask("DELETE", api.path("configmaps", "owner"))
        deletion = [(await take(events, 1))[0], (await take(events, 1))[0]]
        assert deletion == [("DELETED", "owner"), ("DELETED", "owned")]
        late = await api.created(path, _owned("late", owner))
        assert late["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
        assert await take(events, 2) == [("ADDED", "late"), ("DELETED", "late")]


@case
async def test_in_the_foreground_what_is_owned_goes_first(api: ApiSession) -> None:
    path = api.path("configmaps")
    owner = await api.created(path, config_map("owner"))
    owned = await api.created(path, _owned("owned", owner, blockOwnerDeletion=True))
    async with api.watch(path, resourceVersion=owned["metadata"]["resourceVersion"]) as events:
        marked = await api.ask("DELETE", api.path("configmaps", "owner"), propagationPolicy="Foreground")
        assert marked.body["metadata"]["finalizers"] == ["foregroundDeletion"]
        deleted = []
        while len(deleted) < 2:
            event = await anext(events)
            deleted += [event["object"]["metadata"]["name"]] if event["type"] == "DELETED" else []
    assert deleted == ["owned", "owner"]


@case
async def test_an_orphan_stays(api: ApiSession) -> None:
    path = api.path("configmaps")
    owner = await api.created(path, config_map("owner"))
    owned = await api.created(path, _owned("owned", owner))
    async with api.watch(path, resourceVersion=owned["metadata"]["resourceVersion"]) as events:
        await api.ask("DELETE", api.path("configmaps", "owner"), propagationPolicy="Orphan")
        async for event in events:
            if event["type"] == "DELETED":
                assert event["object"]["metadata"]["name"] == "owner"
                break
    remaining = await api.get(api.path("configmaps", "owned"))
    assert "ownerReferences" not in remaining.body["metadata"]
