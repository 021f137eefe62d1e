"""An informer in an hour of random faults and changes: in the end its cache equals the server, without duplicates."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.resources import PODS
from tests.kubernetes.scripted import run
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

HOUR_S: Final = 3_600.0
SETTLES_S: Final = 90.0
"""A silent watch counts as dead after 75 s (informer.WATCH_TIMEOUT_S), and the next one follows within 10 s."""


class Records:
    """Versions of objects as an informer reports them, and the number of repeated reports."""

    def __init__(self) -> None:
        self.versions: dict[Key, str] = {}
        self.repeated = 0

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        known = (new or old).metadata.key  # type: ignore[union-attr]  # one of the two is set
        before = self.versions.pop(known, None)
        self.repeated += before != (old and old.metadata.resource_version)
        if new is not None:
            self.repeated += before == new.metadata.resource_version
            self.versions[known] = new.metadata.resource_version


@pytest.mark.parametrize("seed", range(1_000, 1_005))
def test_the_store_equals_the_server(seed: int, tmp_path: Path) -> None:
    async def hour() -> None:
        chance = random.Random(seed)
        loop = asyncio.get_running_loop()
        async with FakeApi(seed=seed) as server, followed(server, tmp_path) as (_, records):
            until_s = loop.time() + HOUR_S
            while loop.time() < until_s:
                await chance.choice(FAULTS)(server, chance)
                for _ in range(chance.randrange(4)):
                    change(server, f"{chance.randrange(10)}")
                await asyncio.sleep(chance.choice((0, 0.5, 20, 120)))
            server.server.faults.clear()
            await until(lambda: records.versions == stored(server), SETTLES_S)
            assert records.repeated == 0

    run(hour())


def test_an_hour_of_bookmarks_needs_one_list(tmp_path: Path) -> None:
    async def hour() -> None:
        async with FakeApi() as server:
            change(server, "first")
            async with followed(server, tmp_path) as (api, records):
                await asyncio.sleep(HOUR_S)
                change(server, "last")
                await until(lambda: records.versions == stored(server))
                verbs = [use.verb for use in api.requests.elements()]
                assert verbs.count("list") == 1

    run(hour())


@asynccontextmanager
async def followed(server: FakeApi, folder: Path) -> AsyncIterator[tuple[ApiClient, Records]]:
    """Yield the client of an informer that has listed the pods, and what it reports."""
    access = Credentials.from_kubeconfig([server.kubeconfig(folder / "kubeconfig")])
    async with ApiClient(access, PROGRAM) as api:
        records = Records()
        informer = Informer(api, PODS, records)
        task = asyncio.create_task(informer.run())
        await informer.synced.wait()
        yield api, records
        assert not task.done()
        task.cancel()


def stored(server: FakeApi) -> dict[Key, str]:
    return {Key(*pod.key): str(pod.version) for pod in server.table("pods").objects.values()}


def change(server: FakeApi, name: str) -> None:
    """Create a pod, change one, and delete one."""
    for verb in ("made", "changed", "deleted"):
        server.put(pod(f"{verb}-{name}"))
    server.put(pod(f"changed-{name}", changed=str(server.store.version)))
    server.delete("pods", f"deleted-{name}")


def pod(name: str, **labels: str) -> dict[str, Any]:
    about = {"name": name, "namespace": "default", "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about,
        "spec": {"containers": [{"name": "main", "image": "example"}]},
    }


async def nothing(server: FakeApi, chance: random.Random) -> None:
    pass


async def cut(server: FakeApi, chance: random.Random) -> None:
    server.cut_watches(mid_line=chance.random() < 0.5)


async def freeze(server: FakeApi, chance: random.Random) -> None:
    server.freeze_watches()


async def double(server: FakeApi, chance: random.Random) -> None:
    server.double_events()


async def forget(server: FakeApi, chance: random.Random) -> None:
    """Break the watches and compact history, so that resuming them is refused."""
    server.cut_watches("pods")
    await asyncio.sleep(0)
    server.put(pod("unseen"))
    server.delete("pods", "unseen")
    server.compact()


async def restart(server: FakeApi, chance: random.Random) -> None:
    await server.restart(chance.choice((0.0, 1.0, 100.0)))


async def refuse(server: FakeApi, chance: random.Random) -> None:
    """Let some of the next requests fail."""
    outcomes = ({"status": 429, "retry_after_s": 3}, {"status": 500}, {"dropped": True}, {"hung": True}, {"lost": True})
    server.inject(Fault(times=chance.randrange(1, 4), **chance.choice(outcomes)))


FAULTS: Final[tuple[Callable[[FakeApi, random.Random], Awaitable[None]], ...]] = (
    nothing,
    cut,
    freeze,
    double,
    forget,
    restart,
    refuse,
)
