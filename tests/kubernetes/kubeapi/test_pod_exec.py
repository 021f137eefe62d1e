"""Output of a command in a container, as the API server sends it over a WebSocket."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
from aiohttp import web

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key
from ganger.kubeapi.pod_exec import CommandError
from tests.kubernetes.scripted import refused, run, serving

SUCCESS = b'\3{"metadata":{},"status":"Success"}'
FAILURE = b'\3{"status":"Failure","message":"command terminated with exit code 3","reason":"NonZeroExitCode"}'
ARGV = ("echo", "a b", "ä&command=no", "")


def output(folder: Path, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> bytes:
    """Return the output of a command in a pod."""

    async def read() -> bytes:
        async with serving(answer, folder) as credentials, ApiClient(credentials, PROGRAM) as api:
            return b"".join([block async for block in api.command_output(Key("team", "p1"), "main", ARGV)])

    return run(read())


def sends(*messages: bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/namespaces/team/pods/p1/exec"
        assert tuple(request.query.getall("command")) == ARGV
        assert (request.query["container"], request.query["stdout"]) == ("main", "true")
        assert request.headers["Accept"] == "*/*"  # a real server has no JSON for this
        websocket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await websocket.prepare(request)
        for message in messages:
            await websocket.send_bytes(message)
        return websocket

    return answer


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SUCCESS], b""),
        ([b"\1", b"\2", b"\1one ", b"\2warning", b"\1two", b"\377\1", SUCCESS], b"one two"),
        ([b"\1" + bytes(1 << 20), SUCCESS], bytes(1 << 20)),
    ],
)
def test_stdout_is_what_comes(tmp_path: Path, messages: Iterable[bytes], expected: bytes) -> None:
    assert output(tmp_path, sends(*messages)) == expected


def test_another_exit_code_has_the_error_output(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="exit code 3") as caught:
        output(tmp_path, sends(b"\1part", b"\2no su", b"\2ch file", FAILURE))
    assert caught.value.error_output == "no such file"


def test_a_connection_that_ends_before_the_command_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="the connection ended before the command") as caught:
        output(tmp_path, sends(b"\1part"))
    assert caught.value.is_retryable


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_keeps_its_status(tmp_path: Path, status: int) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return refused(status, "No")

    with pytest.raises(ApiError, match="could not get pods/exec team/p1") as caught:
        output(tmp_path, refuse)
    assert caught.value.status == status
