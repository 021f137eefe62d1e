"""Ten minutes of chaos with everything at once, 60 gangs of three kinds: half-bound, doubled or lost ones.

On a real API server with KWOK nodes: two controllers, which reach it through a proxy that cuts and fails their
requests. Rounds alternate between disruptions of every kind at once (`disruptions`) and a calm that is long enough for
every gang to be bound whole or not at all; `findings` recomputes from the raw objects every second what was broken.

GANGER_BENCH_SEED is the seed (1), GANGER_BENCH_CHAOS_S the length. Rounds are recorded in the file that
GANGER_BENCH_KEPT names, if set: a run continues after them, and ends early after GANGER_BENCH_PART_S.
"""

import asyncio
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.chaos.controllers import Controllers
from bench.chaos.disruptions import World, disrupt
from bench.chaos.findings import POLL_S, SETTLES_S, SORTS, Observer
from bench.chaos.gangs import KINDS, Users
from bench.chaos.raw_objects import RawObjects
from bench.kubernetes.kwok import kwok, until
from bench.measure import Figure
from tools.fakeapi import FaultProxy
from tools.testcluster import Cluster
from tools.testcluster.control_plane.admin_client import tls

SEED: Final = int(os.environ.get("GANGER_BENCH_SEED", "1"))
CHAOS_S: Final = float(os.environ.get("GANGER_BENCH_CHAOS_S", "600"))
PART_S: Final = float(os.environ.get("GANGER_BENCH_PART_S", "inf"))
KEPT: Final = Path(os.environ.get("GANGER_BENCH_KEPT", os.devnull))
GANGS: Final = int(os.environ.get("GANGER_BENCH_GANGS", "60"))
NODES: Final = GANGS * 10 // 3
"""Enough for all gangs, also while some are away."""
LOST_S: Final = 60.0
"""Longest time until all gangs are bound in the end."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Attributes:
        took_s: its length, with its calm.
        struck: number of disruptions by kind.
        found: findings, as (sort, text).
    """

    seed: int
    number: int
    took_s: float
    struck: dict[str, int]
    found: list[tuple[str, str]]


def run() -> list[Figure]:
    print(f"chaos: seed {SEED} (GANGER_BENCH_SEED), {GANGS} gangs on {NODES} nodes", flush=True)
    rounds = _recorded()
    if sum(row.took_s for row in rounds) < CHAOS_S:
        with kwok(NODES) as cluster:
            asyncio.run(_run_rounds(cluster, rounds))
    struck = sum((Counter(row.struck) for row in rounds), Counter[str]())
    minutes = sum(row.took_s for row in rounds) / 60
    print(f"chaos: {len(rounds)} rounds, {minutes:.1f} minutes: {struck}")
    counts = {
        sort: [float(sum(row.found.count(f) for f in row.found if f[0] == sort)) for row in rounds] for sort in SORTS
    }
    return [
        *(
            Figure(name=f"chaos_{sort}", unit="", samples=tuple(samples), value=sum(samples), op="==", bar=0)
            for sort, samples in counts.items()
        ),
        Figure(name="chaos_minutes", unit="min", samples=(minutes,), value=minutes),
    ]


def _recorded() -> list[Round]:
    """Return the rounds of this seed that are recorded."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return [row for line in lines if (row := Round(**json.loads(line))).seed == SEED]


def _record(row: Round) -> None:
    with KEPT.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


async def _run_rounds(cluster: Cluster, rounds: list[Round]) -> None:
    """Run rounds until they are long enough, and add them."""
    until_s = time.monotonic() + PART_S
    async with _world(cluster, f"p{len(rounds)}") as (world, observer):
        while sum(row.took_s for row in rounds) < CHAOS_S and time.monotonic() < until_s:
            rounds.append(await _round(world, observer, len(rounds)))
            _record(rounds[-1])
        began_s, found = time.monotonic(), len(observer.findings)
        await observer.check_lost(LOST_S)
        row = Round(SEED, len(rounds), time.monotonic() - began_s, {}, _found(observer, found))
        rounds.append(row)
        _record(row)
        users, controllers = world.users, world.controllers
        print(
            f"{users.submitted} gangs, {users.ended} ended, {users.recreated} pods created again, "
            f"{controllers.started} controllers, {observer.polls} polls; exits: {dict(controllers.exits)}"
        )


@asynccontextmanager
async def _world(cluster: Cluster, prefix: str) -> AsyncIterator[tuple[World, Observer]]:
    """Run the gangs, the controllers and the observer for the duration of the context."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="ganger-bench-"))
        proxy = await stack.enter_async_context(FaultProxy(cluster.shape.url, tls(cluster.shape), seed=SEED))
        objects = await stack.enter_async_context(RawObjects(cluster))
        controllers = Controllers(proxy.kubeconfig(Path(folder) / "config"))
        users = Users(objects, prefix)
        observer = Observer(objects, users, lambda: controllers.led_s)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(work) for work in (controllers.keep(), observer.run())]
        await until(lambda: controllers.led_s < math.inf, "a leader")
        rng = random.Random(SEED)
        await asyncio.gather(*(users.submit(KINDS[number % 3], rng) for number in range(GANGS)))
        yield World(cluster, proxy, objects, controllers, users, lambda: observer.pods), observer
        for task in tasks:
            task.cancel()


async def _round(world: World, observer: Observer, number: int) -> Round:
    """Disrupt everything, then wait until every gang should be whole."""
    began_s, found = time.monotonic(), len(observer.findings)
    observer.calm_s = math.inf
    struck = await disrupt(world, random.Random(f"{SEED}/{number}"))
    observer.calm_s = time.monotonic()

    def is_calm() -> bool:
        since_s = max(observer.calm_s, world.controllers.led_s)
        return time.monotonic() - since_s > SETTLES_S + 3 * POLL_S

    await until(is_calm, "a leader and a calm")
    row = Round(SEED, number, time.monotonic() - began_s, dict(struck), _found(observer, found))
    print(f"round {number}: {row.took_s:.0f} s, {', '.join(row.struck)}: {row.found or 'nothing found'}", flush=True)
    return row


def _found(observer: Observer, since: int) -> list[tuple[str, str]]:
    return [(finding.sort, finding.text) for finding in observer.findings[since:]]
