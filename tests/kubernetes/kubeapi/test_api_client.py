"""Retries and error messages of the client: against scripted responses."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import RETRY_FOR_S, ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Added, Bookmark, Modified, ObjectMeta
from ganger.kubeapi.request import ObjectRef, Permission
from ganger.kubeapi.resources import NODES, PODS, ListOptions
from tests.kubernetes.scripted import Answer, broken, pod, refused, run, serving
from tools.fakeapi import FakeApi

META = ObjectMeta(name="a", namespace="team", uid="u1", resource_version="7")


def call_api(answer: Answer, ask: Callable[[ApiClient], Awaitable[Any]], folder: Path) -> Any:
    """Return the result of a request."""

    async def run_both() -> Any:
        async with serving(answer, folder) as access, ApiClient(access, PROGRAM) as api:
            return await ask(api)

    return run(run_both())


class RemoteRecords:
    """A server that sends one response after the other, the last forever, and records the requests."""

    def __init__(self, *answers: web.Response | Callable[[web.Request], web.Response]) -> None:
        self._answers = list(answers)
        self.call_api: list[tuple[str, str, Any]] = []
        self.at_s: list[float] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.call_api.append((request.method, request.path_qs, body))
        self.at_s.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            return answer(request)
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.call_api]


def ok(body: Any) -> web.Response:
    return web.json_response(body)


@pytest.mark.parametrize("first", [refused(500, "InternalError"), refused(503, ""), refused(429, ""), broken])
def test_what_passes_is_asked_again(first: Any, tmp_path: Path) -> None:
    server = RemoteRecords(first, ok(pod("a")))
    actual = call_api(server, lambda api: api.get(PODS, "a", "team"), tmp_path)
    assert actual.metadata.name == "a"
    assert server.methods == ["GET", "GET"]


def test_a_server_that_wants_to_be_left_alone_is(tmp_path: Path) -> None:
    busy = refused(429, "TooManyRequests")
    busy.headers["Retry-After"] = "7"
    server = RemoteRecords(busy, refused(429, "TooManyRequests", retryAfterSeconds=3), ok(pod("a")))
    call_api(server, lambda api: api.get(PODS, "a", "team"), tmp_path)
    assert server.at_s[1] - server.at_s[0] >= 7
    assert server.at_s[2] - server.at_s[1] >= 3


def test_it_is_not_asked_for_ever(tmp_path: Path) -> None:
    server = RemoteRecords(refused(503, "ServiceUnavailable", "starting"))
    with pytest.raises(ApiError, match="could not get pods team/a: 503 ServiceUnavailable: starting") as error:
        call_api(server, lambda api: api.get(PODS, "a", "team"), tmp_path)
    assert error.value.is_retryable
    assert server.at_s[-1] - server.at_s[0] <= RETRY_FOR_S
    assert len(server.call_api) > 5


def test_no_server_there(tmp_path: Path) -> None:
    async def ask() -> None:
        async with FakeApi(tls=True) as server:
            access = Credentials.from_kubeconfig([server.kubeconfig(tmp_path / "config")])
        async with ApiClient(access, PROGRAM) as api:
            says = f"could not get nodes n: NoAnswer: {access.url}: Connect call failed"
            with pytest.raises(ApiError, match=says) as error:
                await api.get(NODES, "n")
        assert not error.value.outcome_unknown
        assert "SSLContext" not in str(error.value)

    run(ask())


@pytest.mark.parametrize(
    ("code", "reason", "property_"), [(404, "NotFound", "missing"), (409, "Conflict", "conflict"), (410, "", "expired")]
)
def test_permanent_errors_are_raised_at_once(code: int, reason: str, property_: str, tmp_path: Path) -> None:
    server = RemoteRecords(refused(code, reason))
    with pytest.raises(ApiError) as error:
        call_api(server, lambda api: api.get(PODS, "a", "team"), tmp_path)
    assert getattr(error.value, property_)
    assert len(server.call_api) == 1


def test_an_error_names_the_fields_it_is_about(tmp_path: Path) -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "must be positive", "field": "spec.nodes"}]
    server = RemoteRecords(refused(422, "Invalid", "bad job", causes=causes))
    with pytest.raises(ApiError) as error:
        call_api(server, lambda api: api.create(PODS, pod("a")), tmp_path)
    assert str(error.value) == "could not create pods team/a: 422 Invalid: bad job (spec.nodes: must be positive)"
    assert error.value.causes[0].field == "spec.nodes"


def test_a_page_of_a_proxy_is_an_error_that_can_be_read(tmp_path: Path) -> None:
    server = RemoteRecords(web.Response(status=403, body=b"<html>\n <b>go away</b></html>", content_type="text/html"))
    with pytest.raises(ApiError, match="could not get pods team/a: 403 Forbidden: <html> <b>go away</b></html>"):
        call_api(server, lambda api: api.get(PODS, "a", "team"), tmp_path)


def test_an_answer_that_is_something_else(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="Unreadable: Object missing required field `metadata`"):
        call_api(RemoteRecords(ok({})), lambda api: api.get(PODS, "a", "team"), tmp_path)


def test_a_list_is_read_page_by_page(tmp_path: Path) -> None:
    server = RemoteRecords(
        ok({"metadata": {"resourceVersion": "9", "continue": "x y&z"}, "items": [pod("a"), pod("b")]}),
        refused(429, ""),
        ok({"metadata": {"resourceVersion": "9"}, "items": [pod("c")]}),
    )
    actual = call_api(server, lambda api: api.list(PODS, ListOptions("team", labels="k in (v,w)")), tmp_path)
    assert [item.metadata.name for item in actual] == ["a", "b", "c"]
    first, _, last = (path for _, path, _ in server.call_api)
    assert first == "/api/v1/namespaces/team/pods?labelSelector=k+in+(v,w)&limit=500"
    assert last == first + "&continue=x+y%26z"


def test_a_list_of_nothing(tmp_path: Path) -> None:
    assert (
        call_api(
            RemoteRecords(ok({"metadata": {"resourceVersion": "9"}, "items": None})),
            lambda api: api.list(PODS),
            tmp_path,
        )
        == []
    )


def test_a_watch_tells_what_comes_whole_lines_at_a_time(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.query["resourceVersion"] == "5"
        stream = web.StreamResponse()
        await stream.prepare(request)
        for piece in (
            b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVer',
            b'sion":"6"}}}\n{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8","creationTimestamp":null},',
            b'"spec":{"containers":null}}}\n{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"9"},',
            b'"status":{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":null}]}}}\n',
        ):
            await stream.write(piece)
            await asyncio.sleep(1)
        return stream

    async def ask(api: ApiClient) -> list[Any]:
        return [news async for news in api.watch(PODS, ListOptions(), "5", timeout_s=300, read_timeout_s=60)]

    actual = call_api(answer, ask, tmp_path)
    assert [type(news) for news in actual] == [Bookmark, Added, Bookmark, Modified]
    assert [news.object.metadata.resource_version for news in actual] == ["5", "6", "8", "9"]


# -- what must not be done twice ---------------------------------------------------------------------------------------


class Once:
    """A server of pods that carries out some writes without a response."""

    def __init__(self, *faults: str) -> None:
        self.faults = list(faults)
        self.pods: dict[str, Any] = {}
        self.writes: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        name = request.path.split("/")[6] if request.path.count("/") > 5 else ""
        if request.method == "GET":
            return ok(self.pods[name]) if name in self.pods else refused(404, "NotFound")
        self.writes.append(request.path)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            return broken(request)
        answer = self._write(await request.json(), name)
        return {"after": lambda: broken(request), "500": lambda: refused(500, "InternalError")}.get(
            fault, lambda: answer
        )()

    def _write(self, body: Any, name: str) -> web.Response:
        if not name:
            if body["metadata"]["name"] in self.pods:
                return refused(409, "AlreadyExists")
            self.pods[body["metadata"]["name"]] = body
            return ok(body)
        actual = self.pods[name]
        if actual["spec"].get("nodeName") or actual["metadata"]["uid"] != body["metadata"]["uid"]:
            return refused(409, "Conflict")
        actual["spec"]["nodeName"] = body["target"]["name"]
        actual["metadata"]["annotations"] |= body["metadata"]["annotations"]
        return ok({"kind": "Status", "status": "Success"})


@pytest.mark.parametrize("faults", [(), ("before",), ("after",), ("500",), ("before", "after"), ("before", "500")])
def test_an_object_is_made_once(faults: tuple[str, ...], tmp_path: Path) -> None:
    server = Once(*faults)
    created = call_api(server, lambda api: api.create(PODS, pod("a")), tmp_path)
    assert created.metadata.annotations[PROGRAM.mark] == server.pods["a"]["metadata"]["annotations"][PROGRAM.mark]
    assert len(server.writes) == 1 + faults.count("before")


@pytest.mark.parametrize("faults", [(), ("before",)])
def test_another_object_of_that_name_is_not_taken_for_ours(faults: tuple[str, ...], tmp_path: Path) -> None:
    server = Once(*faults)
    server.pods["a"] = pod("a")
    with pytest.raises(ApiError, match="AlreadyExists"):
        call_api(server, lambda api: api.create(PODS, pod("a")), tmp_path)


@pytest.mark.parametrize("faults", [(), ("before",), ("after",), ("500",), ("before", "before", "after")])
def test_a_pod_is_bound_once(faults: tuple[str, ...], tmp_path: Path) -> None:
    server = Once(*faults)
    server.pods["a"] = pod("a")
    call_api(server, lambda api: api.bind(META, "n1", {"gpus": "0,1"}), tmp_path)
    assert server.pods["a"]["spec"]["nodeName"] == "n1"
    assert server.pods["a"]["metadata"]["annotations"] == {"gpus": "0,1"}
    assert len(server.writes) == 1 + faults.count("before")


@pytest.mark.parametrize(
    "there",
    [
        pod("a", uid="u2"),
        pod("a", node="n2", gpus="0,1"),
        pod("a", node="n1", gpus="2,3"),
        pod("a", uid="u2", node="n1", gpus="0,1"),
    ],
    ids=["another pod", "another node", "another's devices", "another pod on the node"],
)
@pytest.mark.parametrize("faults", [(), ("before",)])
def test_a_pod_that_another_caller_bound_is_no_success(there: Any, faults: tuple[str, ...], tmp_path: Path) -> None:
    server = Once(*faults)
    server.pods["a"] = there
    with pytest.raises(ApiError) as error:
        call_api(server, lambda api: api.bind(META, "n1", {"gpus": "0,1"}), tmp_path)
    assert error.value.conflict


def test_steps_are_not_done_twice(tmp_path: Path) -> None:
    server = RemoteRecords(broken, ok(pod("a")))
    with pytest.raises(ApiError) as error:
        call_api(
            server, lambda api: api.patch(ObjectRef(PODS, "team", "a"), [{"op": "remove", "path": "/spec/x"}]), tmp_path
        )
    assert error.value.outcome_unknown
    assert len(server.call_api) == 1


def test_steps_that_were_not_begun_are_done_again(tmp_path: Path) -> None:
    server = RemoteRecords(refused(429, ""), ok(pod("a")))
    call_api(
        server, lambda api: api.patch(ObjectRef(PODS, "team", "a"), [{"op": "remove", "path": "/spec/x"}]), tmp_path
    )
    assert len(server.call_api) == 2


def test_a_quota_that_two_requests_race_for_is_no_conflict(tmp_path: Path) -> None:
    server = RemoteRecords(
        refused(409, "Conflict", "Operation cannot be fulfilled", kind="resourcequotas"), ok(pod("a"))
    )
    call_api(server, lambda api: api.create(PODS, pod("a")), tmp_path)
    assert server.methods == ["POST", "POST"]


def test_what_is_gone_needs_no_deleting(tmp_path: Path) -> None:
    server = RemoteRecords(broken, refused(404, "NotFound"))
    assert call_api(server, lambda api: api.delete(PODS, META, unchanged=True, grace_s=0), tmp_path) is False
    assert server.call_api[0][2]["preconditions"] == {"uid": "u1", "resourceVersion": "7"}
    assert server.call_api[0][2]["gracePeriodSeconds"] == 0


def test_requests_are_counted_as_a_role_names_them(tmp_path: Path) -> None:
    server = RemoteRecords(refused(429, ""), ok(pod("a")))

    async def ask(api: ApiClient) -> Any:
        await api.get(PODS, "a", "team")
        await api.bind(META, "n1", {})
        await api.merge(ObjectRef(PODS, "team", "a", "status"), {"status": {}})
        await api.apply(PODS, pod("a"))
        await api.delete(PODS, META)
        return api.requests

    assert call_api(server, ask, tmp_path) == {
        Permission("get", "", "pods"): 2,
        Permission("create", "", "pods/binding"): 1,
        Permission("patch", "", "pods/status"): 1,
        Permission("patch", "", "pods"): 1,
        Permission("delete", "", "pods"): 1,
    }


def test_a_write_is_not_sent_again_once_this_process_may_not_write(tmp_path: Path) -> None:
    server = RemoteRecords(refused(429, ""), ok(pod("a")))

    async def ask(api: ApiClient) -> Any:
        api.fence(lambda: not server.call_api)
        with pytest.raises(ApiError, match="could not create pods team/a: Fenced: ") as error:
            await api.create(PODS, pod("a"))
        assert not error.value.outcome_unknown
        return await api.get(PODS, "a", "team")

    assert call_api(server, ask, tmp_path).metadata.name == "a"
    assert server.methods == ["POST", "GET"]
