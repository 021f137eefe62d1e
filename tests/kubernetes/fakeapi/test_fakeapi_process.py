"""The fake API server as a process of its own, as benches start it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.fakeapi.api_session import ApiSession, binding, take

ROOT = Path(__file__).parents[3]


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Path]:
    """Yield its kubeconfig once it serves; stop it at the end."""
    config, port = folder / "config", folder / "port"
    command = [sys.executable, "-m", "tools.fakeapi", "--kubeconfig", config, "--port-file", port, *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.strip().endswith(f":{port.read_text()}")
            yield config
        finally:
            process.terminate()
        assert process.wait() == 0


def asking(config: Path, case: Callable[[ApiSession], Awaitable[None]]) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            await case(ApiSession(Credentials.from_kubeconfig([config]), session, "default"))

    asyncio.run(run())


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_it_is_full_and_serves(scheme: str, tmp_path: Path) -> None:
    async def case(client: ApiSession) -> None:
        pods, unread = [], ""
        while True:
            page = await client.get("/api/v1/pods", limit="3", **({"continue": unread} if unread else {}))
            pods += page.body["items"]
            if not (unread := page.body["metadata"].get("continue", "")):
                break
        assert len(pods) == 9
        assert len({pod["metadata"]["uid"] for pod in pods}) == 9
        places = sorted(pod["spec"].get("nodeName", "") for pod in pods)
        assert places == ["", "", "node-0", "node-0", "node-0", "node-0", "node-1", "node-1", "node-1"]
        nodes = (await client.get("/api/v1/nodes")).body["items"]
        assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["8", "8"]
        async with client.watch(client.path("pods"), resourceVersion=page.version) as events:
            bound = await client.ask("POST", client.path("pods", "pending-1", "binding"), binding("pending-1"))
            assert bound.code == 201
            assert await take(events, 1) == [("MODIFIED", "pending-1")]

    options = ["--pods", "7", "--nodes", "2", "--pending", "2", *(["--plain"] if scheme == "http" else [])]
    with serving(tmp_path, *options) as config:
        server = json.loads(config.read_text())["clusters"][0]["cluster"]["server"]
        assert server.startswith(f"{scheme}://127.0.0.1:")
        asking(config, case)


def test_it_changes_pods_and_runs_what_is_bound(tmp_path: Path) -> None:
    async def case(client: ApiSession) -> None:
        async with client.watch(client.path("pods"), resourceVersion="0") as events:
            seen: dict[str, list[int]] = {}
            async for event in events:
                meta = event["object"]["metadata"]
                seen.setdefault(meta["name"], []).append(int(meta["resourceVersion"]))
                if all(len(versions) > 3 for versions in seen.values()):
                    break
        assert seen.keys() == {"pod-0", "pod-1", "pending-0"}
        assert all(versions == sorted(set(versions)) for versions in seen.values())
        await client.ask("POST", client.path("pods", "pending-0", "binding"), binding("pending-0", "node-0"))
        fields = "metadata.name=pending-0,status.phase=Running"
        async with client.watch(client.path("pods"), fieldSelector=fields) as events:
            assert (await anext(events))["object"]["status"]["podIP"]

    with serving(tmp_path, "--pods", "2", "--pending", "1", "--nodes", "1", "--churn", "200", "--kubelet") as config:
        asking(config, case)
