"""A store that follows an API server whose watches fail in every way: how long until it is right again.

Once, on real time, with the fake API server in a process of its own, over TLS: each fault, and the seconds from its end
(a half-open connection counts as over at once) until the store equals the server. And on a loop that skips waiting:
random schedules of faults, an hour each while objects change, and an hour in which nothing happens but bookmarks.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.kubeapi import api_server
from bench.kubeapi.api_server import ApiServer
from bench.measure import Figure, median
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.resources import PODS
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

BAR_S: Final = 90.0
SCHEDULES: Final = 40
HOUR_S: Final = 3_600.0
POLL_S: Final = 0.1


class RemoteRecords:
    """Objects as an informer reports them, and the number of repeated reports."""

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


def run() -> list[Figure]:
    real = asyncio.run(_each_fault_once())
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        random_s, repeated = zip(*(runner.run(schedule(seed)) for seed in range(SCHEDULES)), strict=True)
        lists, watches = runner.run(_hour_of_bookmarks())
    return [
        *(_longest(f"watch_chaos_{name}", [seconds]) for name, seconds in real.items()),
        _longest("watch_chaos_random", random_s),
        _none("watch_chaos_repeated", repeated),
        _none("watch_chaos_hour_lists", [lists - 1.0]),
        median("watch_chaos_hour_watches", "", [watches]),
    ]


# -- on real time ------------------------------------------------------------------------------------------------------


async def _each_fault_once() -> dict[str, float]:
    """Return the seconds until the store was right again, by fault."""
    faults = {
        "changes": [],
        "cut": [("cut",)],
        "expired": [("forget",)],
        "duplicates": [("double",)],
        "restart": [("restart", 5.0)],
        "half_open": [("freeze",)],
    }
    took = {}
    with api_server.api_server() as server:
        async with ApiClient(Credentials.from_kubeconfig([server.kubeconfig]), PROGRAM) as api:
            records = RemoteRecords()
            informer = Informer(api, PODS, records)
            task = asyncio.create_task(informer.run())
            await informer.synced.wait()
            for name, commands in faults.items():
                pods = name.replace("_", "-")
                await asyncio.to_thread(server.call, "change", f"before-{pods}")
                await _equal(server, records)
                for command in commands:
                    await asyncio.to_thread(server.call, *command)
                await asyncio.to_thread(server.call, "change", f"after-{pods}")
                took[name] = await _equal(server, records)
            task.cancel()
    return took


async def _equal(server: ApiServer, records: RemoteRecords) -> float:
    """Return the seconds until the informer's records equal the server's state."""

    async def right() -> bool:
        versions = await asyncio.to_thread(server.call, "versions")
        return {"/".join(key): version for key, version in records.versions.items()} == versions

    return await _until(right)


async def _until(right: Callable[[], Awaitable[bool]]) -> float:
    """Return the seconds on the loop's clock until the condition holds."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not await right():  # noqa: ASYNC110 - the condition is on another process, or on a callback
        await asyncio.sleep(POLL_S)
    return loop.time() - began_s


# -- on a loop that skips waiting --------------------------------------------------------------------------------------


@asynccontextmanager
async def _followed(server: FakeApi) -> AsyncIterator[tuple[ApiClient, RemoteRecords]]:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder:
        access = Credentials.from_kubeconfig([server.kubeconfig(Path(folder) / "kubeconfig")])
        async with ApiClient(access, PROGRAM) as api:
            records = RemoteRecords()
            informer = Informer(api, PODS, records)
            task = asyncio.create_task(informer.run())
            await informer.synced.wait()
            yield api, records
            assert not task.done()
            task.cancel()


async def schedule(seed: int) -> tuple[float, float]:
    """Run an hour of changes and faults; return the seconds until the store is right, and the repeated reports."""
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    async with FakeApi(seed=seed) as server, _followed(server) as (_, records):
        until_s = loop.time() + HOUR_S
        while loop.time() < until_s:
            await chance.choice(FAULTS)(server, chance)
            for _ in range(chance.randrange(4)):
                await api_server.change(server, f"{chance.randrange(10)}")
            await asyncio.sleep(chance.choice((0, 0.5, 20, 120)))
        server.server.faults.clear()

        async def right() -> bool:
            stored_pods = server.table("pods").objects.values()
            return records.versions == {Key(*stored.key): str(stored.version) for stored in stored_pods}

        return await _until(right), float(records.repeated)


async def _nothing(server: FakeApi, chance: random.Random) -> None:
    pass


async def _cut(server: FakeApi, chance: random.Random) -> None:
    server.cut_watches(mid_line=chance.random() < 0.5)


async def _freeze(server: FakeApi, chance: random.Random) -> None:
    server.freeze_watches()


async def _double(server: FakeApi, chance: random.Random) -> None:
    server.double_events()


async def _forget(server: FakeApi, chance: random.Random) -> None:
    await api_server.forget(server)


async def _restart(server: FakeApi, chance: random.Random) -> None:
    await server.restart(chance.choice((0.0, 1.0, 100.0)))


async def _refuse(server: FakeApi, chance: random.Random) -> None:
    """Let some of the next requests fail."""
    outcomes = ({"status": 429, "retry_after_s": 3}, {"status": 500}, {"dropped": True}, {"hung": True}, {"lost": True})
    server.inject(Fault(times=chance.randrange(1, 4), **chance.choice(outcomes)))


FAULTS: Final[tuple[Callable[[FakeApi, random.Random], Awaitable[None]], ...]] = (
    _nothing,
    _cut,
    _freeze,
    _double,
    _forget,
    _restart,
    _refuse,
)


async def _hour_of_bookmarks() -> tuple[float, float]:
    """Return the number of lists and of watches."""
    async with FakeApi() as server:
        await api_server.change(server, "first")
        async with _followed(server) as (api, records):
            await asyncio.sleep(HOUR_S)
            await api_server.change(server, "last")
            await asyncio.sleep(1)
            assert {key.name for key in records.versions} == {
                f"{verb}-{name}" for verb in ("made", "changed") for name in ("first", "last")
            }
            verbs = [use.verb for use in api.requests.elements()]
            return float(verbs.count("list")), float(verbs.count("watch"))


# -- figures -----------------------------------------------------------------------------------------------------------


def _longest(name: str, samples: list[float] | tuple[float, ...]) -> Figure:
    return Figure(name=name, unit="s", samples=tuple(samples), value=max(samples), op="<=", bar=BAR_S)


def _none(name: str, samples: list[float] | tuple[float, ...]) -> Figure:
    return Figure(name=name, unit="", samples=tuple(samples), value=sum(samples), op="==", bar=0)
