"""Hand-over between two controllers: from the signal to the leader until the other one has bound a job.

On a real API server with KWOK nodes, and gangs that run meanwhile. SIGTERM is the end of a pod, a drain or an upgrade;
SIGKILL the loss of its node, after which the lease has to expire.
"""

import asyncio
import signal
import time
from contextlib import ExitStack

from bench.kubernetes.kwok import ClusterView, Controller, cluster_view, controller, job, kwok, until
from bench.measure import Figure
from ganger.gang_jobs.custom_resources import GANG_JOBS
from tools.testcluster import Cluster

NODES = 120
GANGS = 50
ROUNDS = {signal.SIGTERM: 7, signal.SIGKILL: 3}
BARS_S = {signal.SIGTERM: 2.0, signal.SIGKILL: 17.0}


def run() -> list[Figure]:
    with kwok(NODES) as cluster:
        samples_s = asyncio.run(_hand_over(cluster))
    return [
        Figure(
            name=f"hand_over_{number.name.lower()}",
            unit="s",
            samples=tuple(values),
            value=max(values),
            op="<=",
            bar=BARS_S[number],
        )
        for number, values in samples_s.items()
    ]


async def _hand_over(cluster: Cluster) -> dict[signal.Signals, list[float]]:
    samples_s: dict[signal.Signals, list[float]] = {number: [] for number in ROUNDS}
    async with cluster_view(cluster) as view:
        with ExitStack() as stack:
            leader = stack.enter_context(controller(cluster.kubeconfig, quiet=True))
            await leader.wait_leading()
            await view.make(GANG_JOBS, (job(f"g{index}", nodes=2) for index in range(GANGS)))
            await until(lambda: view.bound == 2 * GANGS, "all gangs to be bound")
            for number, rounds in ROUNDS.items():
                for index in range(rounds):
                    standby = stack.enter_context(controller(cluster.kubeconfig, quiet=True))
                    await until(lambda standby=standby: standby.stands_by, "a standby")
                    samples_s[number].append(await _one(view, leader, number, f"late-{number.value}-{index}"))
                    leader = standby
    return samples_s


async def _one(view: ClusterView, leader: Controller, number: signal.Signals, name: str) -> float:
    bound, began_s = view.bound, time.monotonic()
    leader.process.send_signal(number)
    await until(lambda: not leader.runs, "the end of the leader")
    await view.make(GANG_JOBS, [job(name, nodes=1)])
    await until(lambda: view.bound > bound, f"{name} to be bound")
    return time.monotonic() - began_s
