"""Tokens of launchers, on the fake API server: a GangJob's launchers are not those of a later one of the same name."""

import asyncio
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint, PodBootstrap
from ganger.gang_jobs.object_names import key_of
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import GANG, JOB, controller
from tests.kubernetes.nodes.test_unready_nodes import placed, scene
from tests.waiting import until
from tools.fakeapi import FakeApi

HELLO = {"v": 2, "type": "hello", "gang": GANG, "pid": 1, "start_ticks": 1}


async def is_welcome(port: int, node: str, token: str, generation: int = 1) -> bool:
    """Connect as a launcher does; tell if the controller answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hello = HELLO | {"node": node, "token": token, "generations": [generation], "generation": generation}
    writer.write(json.dumps(hello).encode() + b"\n")
    answer = await reader.readline()
    writer.close()
    return bool(answer) and json.loads(answer)["type"] == "welcome"


def uid_of(api: FakeApi) -> str:
    gang_job: Any = api.get("gangjobs", "big")
    uid: str = gang_job["metadata"]["uid"]
    return uid


def mounted_tokens(api: FakeApi) -> dict[tuple[str, int], str]:
    """Return the token that each pod mounts, by node and attempt."""
    secret: Any = api.get("secrets", "big-ganger")
    tokens = {}
    for pod in api.objects("pods"):
        volume = next(volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == "identity")
        (key,) = (item["key"] for item in volume["items"] if item["path"] == "token")
        assert volume["secretName"] == "big-ganger"
        if key in secret["data"]:
            attempt = int(pod["metadata"]["labels"]["ganger.dev/generation"])
            tokens[pod["spec"]["nodeName"], attempt] = b64decode(secret["data"][key]).decode()
    return tokens


def test_the_token_of_a_deleted_job_is_none_of_the_next_job_of_its_name(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            node = next(iter(await placed(api, system)))
            port = await system.backend.listener.open("127.0.0.1", 0, None)
            old_token = mounted_tokens(api)[node, 1]
            assert await is_welcome(port, node, old_token)
            api.delete("gangjobs", "big")
            api.put(JOB)
            new_token = system.backend.bootstrap.token(GANG, uid_of(api), 1, node)
            jobs, uid = system.backend._cache.jobs, uid_of(api)
            await until(lambda: key_of(GANG) in jobs and jobs[key_of(GANG)].metadata.uid == uid)
            assert not await is_welcome(port, node, old_token)
            assert await is_welcome(port, node, new_token)

    scene(tmp_path, play)


def test_a_token_is_of_one_attempt_on_one_node(tmp_path: Path) -> None:
    """Attempt 1 loses a pod. What it could read opens nothing of attempt 2, and nothing of its other node."""

    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            await placed(api, system)
            port = await system.backend.listener.open("127.0.0.1", 0, None)
            first = mounted_tokens(api)
            assert len(set(first.values())) == len(first) == 2
            (node, _), (other, _) = first
            token = first[node, 1]
            assert await is_welcome(port, node, token)
            assert not await is_welcome(port, other, token), "it is not that node's"
            assert not await is_welcome(port, node, token, generation=2), "it is not that attempt's"
            api.delete("pods", "big-1-0")
            await until(lambda: any(attempt == 2 for _, attempt in mounted_tokens(api)))
            await until(lambda: len(mounted_tokens(api)) == 2)
            second = mounted_tokens(api)
            assert {attempt for _, attempt in second} == {2}, "the Secret has nothing of attempt 1 any more"
            assert not set(first.values()) & set(second.values())
            for place in {node for node, _ in second}:
                assert not await is_welcome(port, place, token, generation=2)
                assert await is_welcome(port, place, second[place, 2], generation=2)

    scene(tmp_path, play)


def test_a_launcher_says_nothing_of_another_attempt(tmp_path: Path) -> None:
    """A launcher that shows its own token and then reports the end of the next attempt is dropped."""

    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            node = next(iter(await placed(api, system)))
            port = await system.backend.listener.open("127.0.0.1", 0, None)
            token = system.backend.bootstrap.token(GANG, uid_of(api), 7, node)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            about = {"v": 2, "gang": GANG, "node": node, "n": 1, "generation": 1}
            hello = HELLO | {"node": node, "token": token, "generations": [], "generation": 7}
            for message in (hello, about | {"type": "cleared"}):
                writer.write(json.dumps(message).encode() + b"\n")
            answers = [json.loads(line)["type"] for line in (await reader.read()).splitlines()]
            writer.close()
            assert "ack" not in answers
            assert system.state_of(GANG) == "starting"

    scene(tmp_path, play)


TOKEN_PARTS = (GANG, "u1", 1, "n1")


@pytest.mark.parametrize(
    ("parts", "is_same"),
    [
        (TOKEN_PARTS, True),
        (("big.other", "u1", 1, "n1"), False),
        ((GANG, "u2", 1, "n1"), False),
        ((GANG, "u1", 2, "n1"), False),
        ((GANG, "u1", 1, "n2"), False),
    ],
)
def test_tokens_differ_by_each_part(parts: tuple[str, str, int, str], is_same: bool, tmp_path: Path) -> None:
    (tmp_path / "launcher").write_bytes(b"")
    endpoint = LauncherEndpoint(address="none:1", certificate="", key=b"k")
    bootstrap = PodBootstrap(None, tmp_path / "launcher", endpoint, "none")  # type: ignore[arg-type]
    assert (bootstrap.token(*TOKEN_PARTS) == bootstrap.token(*parts)) == is_same
    if parts[3] == TOKEN_PARTS[3]:
        assert (bootstrap.token(*TOKEN_PARTS[:3], "") == bootstrap.token(*parts[:3], "")) == is_same
