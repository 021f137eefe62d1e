"""Tokens of launchers, on the fake API server: a GangJob's launchers are not those of a later one of the same name."""

import asyncio
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from bench.kubernetes.binding import GANG, JOB, Controlled, controller
from ganger.backends.kubernetes.object_names import key_of
from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint, PodBootstrap
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.controller.test_controller_faults import until
from tests.kubernetes.nodes.test_unready_nodes import placed, scene
from tools.fakeapi import FakeApi

HELLO = {"v": 2, "type": "hello", "gang": GANG, "pid": 1, "start_ticks": 1, "generations": [1], "generation": 1}


async def is_welcome(port: int, node: str, token: str) -> bool:
    """Connect as a launcher does; tell if the controller answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(json.dumps(HELLO | {"node": node, "token": token}).encode() + b"\n")
    answer = await reader.readline()
    writer.close()
    return bool(answer) and json.loads(answer)["type"] == "welcome"


def token_of(api: FakeApi, system: Controlled) -> str:
    gang_job: Any = api.get("gangjobs", "big")
    return system.backend.bootstrap.token(key_of(GANG), gang_job["metadata"]["uid"])


def test_the_token_of_a_deleted_job_is_none_of_the_next_job_of_its_name(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            node = next(iter(await placed(api, system)))
            port = await system.backend.listener.open("127.0.0.1", 0, None)
            old_token = token_of(api, system)
            secret: Any = api.get("secrets", "big-ganger")
            assert b64decode(secret["data"]["token"]).decode() == old_token, "the pods have it"
            assert await is_welcome(port, node, old_token)
            api.delete("gangjobs", "big")
            api.put(JOB)
            new_token = token_of(api, system)
            assert new_token != old_token
            jobs, new_job = system.backend._cache.jobs, api.get("gangjobs", "big")
            await until(lambda: key_of(GANG) in jobs and jobs[key_of(GANG)].metadata.uid == new_job["metadata"]["uid"])
            assert not await is_welcome(port, node, old_token)
            assert await is_welcome(port, node, new_token)

    scene(tmp_path, play)


@pytest.mark.parametrize("uid", ["u2", "u1"])
def test_tokens_differ_by_uid_alone(uid: str, tmp_path: Path) -> None:
    (tmp_path / "launcher").write_bytes(b"")
    endpoint = LauncherEndpoint(address="none:1", certificate="", key=b"k")
    bootstrap = PodBootstrap(None, tmp_path / "launcher", endpoint, "none")  # type: ignore[arg-type]
    is_same = uid == "u1"
    assert (bootstrap.token(key_of(GANG), "u1") == bootstrap.token(key_of(GANG), uid)) == is_same
    assert (bootstrap.agent_token(GANG, "u1", 1) == bootstrap.agent_token(GANG, uid, 1)) == is_same
