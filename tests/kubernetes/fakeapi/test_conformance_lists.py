"""Lists and watches of the real API server and the fake one: chunks, versions, selectors, bookmarks."""

import asyncio

from tests.kubernetes.fakeapi.api_session import MERGE, ApiSession, binding, config_map, pod, take
from tests.kubernetes.fakeapi.worlds import case


@case
async def test_pages_are_of_one_version(api: ApiSession) -> None:
    for name in "abcde":
        await api.created(api.path("configmaps"), config_map(name, labels={"of": "case"}))
    path = api.path("configmaps")
    first = await api.get(path, limit="2", labelSelector="of=case")
    assert first.names == ["a", "b"]
    await api.ask("DELETE", api.path("configmaps", "d"))
    second = await api.get(path, limit="2", labelSelector="of=case", **{"continue": first.body["metadata"]["continue"]})
    third = await api.get(path, limit="2", labelSelector="of=case", **{"continue": second.body["metadata"]["continue"]})
    assert (second.names, third.names) == (["c", "d"], ["e"])
    assert first.version == second.version == third.version
    assert "continue" not in third.body["metadata"]
    assert (await api.get(path, labelSelector="of=case")).names == ["a", "b", "c", "e"]


@case
async def test_built_in_items_do_not_say_their_kind(api: ApiSession) -> None:
    await api.created(api.path("configmaps"), config_map("a"))
    listed = (await api.get(api.path("configmaps"), fieldSelector="metadata.name=a")).body
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert not {"kind", "apiVersion"} & listed["items"][0].keys()


@case
async def test_selectors_choose(api: ApiSession) -> None:
    for name, labels in {"a": {"tier": "x"}, "b": {"tier": "y"}, "c": {}}.items():
        await api.created(api.path("pods"), pod(name, labels=labels))
    await api.ask("POST", api.path("pods", "b", "binding"), binding("b"))
    path = api.path("pods")
    for selector, names in {
        "tier=x": ["a"],
        "tier!=x": ["b", "c"],
        "tier in (x, y)": ["a", "b"],
        "tier notin (x)": ["b", "c"],
        "tier": ["a", "b"],
        "!tier": ["c"],
        "tier,tier!=y": ["a"],
    }.items():
        assert (await api.get(path, labelSelector=selector)).names == names, selector
    for selector, names in {
        "spec.nodeName=nowhere": ["b"],
        "spec.nodeName=": ["a", "c"],
        "spec.nodeName!=": ["b"],
        "metadata.name=c": ["c"],
        "status.phase=Pending,metadata.name!=a": ["b", "c"],
        "spec.schedulerName=conformance": ["a", "b", "c"],
    }.items():
        assert (await api.get(path, fieldSelector=selector)).names == names, selector
    assert (await api.get(path, fieldSelector="spec.nonsense=1")).code == 400


@case
async def test_a_watch_goes_on_where_a_list_ended(api: ApiSession) -> None:
    path = api.path("configmaps")
    listed = await api.get(path)
    await api.created(path, config_map("a"))
    await api.ask("PATCH", api.path("configmaps", "a"), {"data": {"x": "1"}}, MERGE)
    async with api.watch(path, resourceVersion=listed.version) as events:
        assert await take(events, 2) == [("ADDED", "a"), ("MODIFIED", "a")]
        await api.ask("DELETE", api.path("configmaps", "a"))
        deleted = await anext(events)
    assert deleted["type"] == "DELETED"
    assert deleted["object"]["data"] == {"x": "1"}
    assert int(deleted["object"]["metadata"]["resourceVersion"]) > int(listed.version)


@case
async def test_a_watch_with_a_selector_tells_of_comers_and_goers(api: ApiSession) -> None:
    path = api.path("configmaps")
    listed = await api.get(path)
    async with api.watch(path, resourceVersion=listed.version, labelSelector="in") as events:
        await api.created(path, config_map("a"))
        await api.ask("PATCH", api.path("configmaps", "a"), {"metadata": {"labels": {"in": "1"}}}, MERGE)
        after_removal = await api.ask(
            "PATCH", api.path("configmaps", "a"), {"metadata": {"labels": {"in": None}}}, MERGE
        )
        assert await take(events, 1) == [("ADDED", "a")]
        last_event = await anext(events)
    assert last_event["type"] == "DELETED"
    assert last_event["object"]["metadata"]["labels"] == {"in": "1"}
    assert last_event["object"]["metadata"]["resourceVersion"] == after_removal.version


@case
async def test_a_watch_ends_when_its_time_is_over(api: ApiSession) -> None:
    path = api.path("configmaps")
    listed = await api.get(path)
    async with api.watch(path, resourceVersion=listed.version, timeoutSeconds="1") as events:
        assert [event["type"] async for event in events if event["type"] != "BOOKMARK"] == []


@case
async def test_a_watch_can_begin_with_all_there_is(api: ApiSession) -> None:
    path = api.path("configmaps")
    for name in "ab":
        await api.created(path, config_map(name, labels={"of": "case"}))
    options = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "labelSelector": "of=case",
    }
    async with api.watch(path, **options) as events:
        assert sorted(await take(events, 2)) == [("ADDED", "a"), ("ADDED", "b")]
        mark = await anext(events)
        assert mark["type"] == "BOOKMARK"
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await api.created(path, config_map("c", labels={"of": "case"}))
        assert await take(events, 1) == [("ADDED", "c")]


@case
async def test_an_empty_list_is_a_list(api: ApiSession) -> None:
    listed = await api.get(api.path("leases.coordination.k8s.io"))
    assert (listed.body["kind"], listed.body["items"]) == ("LeaseList", [])
    assert int(listed.version) > 0


@case
async def test_a_page_says_how_much_is_left(api: ApiSession) -> None:
    for name in "abc":
        await api.created(api.path("pods"), pod(name))
    meta = (await api.get(api.path("pods"), limit="1")).body["metadata"]
    assert meta["remainingItemCount"] == 2
    assert "remainingItemCount" not in (await api.get(api.path("pods"), limit="1", labelSelector="!x")).body["metadata"]


@case
async def test_versions_have_rules(api: ApiSession) -> None:
    path = api.path("configmaps")
    await api.created(path, config_map("a"))
    before = (await api.get(path)).version
    after = (await api.created(path, config_map("b")))["metadata"]["resourceVersion"]
    exact = await api.get(path, resourceVersion=before, resourceVersionMatch="Exact")
    assert exact.version == before
    assert "b" not in exact.names
    newer = await api.get(path, resourceVersion=after, resourceVersionMatch="NotOlderThan")
    assert "b" in newer.names
    assert "b" in (await api.get(path, resourceVersion=after)).names
    assert "b" not in (await api.get(path, resourceVersion=before, limit="500")).names
    for query, code, reason in (
        ({"resourceVersion": "1", "resourceVersionMatch": "Exact"}, 410, "Expired"),
        ({"resourceVersionMatch": "Exact"}, 422, "Invalid"),
        ({"resourceVersion": "5", "resourceVersionMatch": "Nearly"}, 422, "Invalid"),
        ({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422, "Invalid"),
        ({"resourceVersion": "five"}, 400, "BadRequest"),
        ({"continue": "no-token"}, 400, "BadRequest"),
        ({"limit": "few"}, 400, "BadRequest"),
        ({"labelSelector": "a in b"}, 400, "BadRequest"),
    ):
        refused = await api.get(path, **query)
        assert (refused.code, refused.reason) == (code, reason), query


@case
async def test_a_version_of_the_future_is_a_timeout(api: ApiSession) -> None:
    refused = await api.get(api.path("configmaps"), resourceVersion="999999999")
    assert (refused.code, refused.reason) == (504, "Timeout")
    assert refused.body["message"].startswith("Timeout: Too large resource version: 999999999, current: ")
    assert refused.body["details"] == {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }


@case
async def test_a_watch_from_too_long_ago_ends_with_an_error_in_the_stream(api: ApiSession) -> None:
    async with api.watch(api.path("configmaps"), resourceVersion="1") as events:
        received = [event async for event in events]
    (error,) = received
    assert error["type"] == "ERROR"
    status = error["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")


@case
async def test_a_watch_from_nowhere_begins_with_what_there_is(api: ApiSession) -> None:
    path = api.path("leases.coordination.k8s.io")
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}}
    await api.created(path, lease)
    for query in ({}, {"resourceVersion": "0"}):
        async with api.watch(path, **query) as events:
            assert await take(events, 1) == [("ADDED", "a")]


@case
async def test_watch_options_have_rules(api: ApiSession) -> None:
    path = api.path("configmaps")
    whys = {
        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided": {
            "resourceVersionMatch": "NotOlderThan"
        },
        "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan": {"sendInitialEvents": "true"},
    }
    for why, query in whys.items():
        refused = await api.get(path, watch="true", timeoutSeconds="1", **query)
        assert (refused.code, refused.reason) == (422, "Invalid")
        assert refused.body["message"] == (
            f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: {why}'
        )


@case
async def test_a_watch_can_be_of_one_object(api: ApiSession) -> None:
    path = api.path("configmaps")
    listed = await api.get(path)
    async with api.watch(path, resourceVersion=listed.version, fieldSelector="metadata.name=b") as events:
        for name in "ab":
            await api.created(path, config_map(name))
        assert await take(events, 1) == [("ADDED", "b")]


@case
async def test_watches_of_a_field_tell_of_comers(api: ApiSession) -> None:
    path = api.path("pods")
    listed = await api.get(path)
    async with api.watch(path, resourceVersion=listed.version, fieldSelector="spec.nodeName=nowhere") as events:
        for name in "ab":
            await api.created(path, pod(name))
        await api.ask("POST", api.path("pods", "b", "binding"), binding("b"))
        assert await take(events, 1) == [("ADDED", "b")]


@case
async def test_a_bookmark_says_a_version_and_nothing_else(api: ApiSession) -> None:
    path = api.path("leases.coordination.k8s.io")
    listed = await api.get(path)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}}
    query = {"resourceVersion": listed.version, "allowWatchBookmarks": "true", "timeoutSeconds": "4"}
    async with api.watch(path, **query) as events, asyncio.timeout(30):
        created = await api.created(path, lease)
        assert await take(events, 1) == [("ADDED", "a")]
        mark = await anext(events)
    assert mark["type"] == "BOOKMARK"
    meta = mark["object"]["metadata"]
    assert mark["object"]["kind"] == "Lease"
    assert meta.keys() <= {"resourceVersion", "creationTimestamp"}
    assert int(meta["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
