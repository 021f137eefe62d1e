"""Work that victims lose: the cheapest nodes first, against victims taken in the order of the queue and given back.

Twenty random clusters of 2,000 nodes x 8 GPUs, full of jobs of one to eight nodes that saved at random times; a gang of
128 x 8 of a queue within its guarantee needs room, and 60 % of the jobs may be preempted for it. Both choices run the
same search and give back all that need not stop; they differ in the order alone.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bench.measure import Figure
from bench.scheduler.reclaim import AT_MS, DAY, GPUS, gpus_of, node_of, start, step
from ganger.core.preemption.legality import Legality
from ganger.core.preemption.victim_order import VictimOrder, cheapest_first, cost
from ganger.core.preemption.victim_search import Leaving, choose
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import NodeShare
from ganger.model.job import Job, JobSpec, Origin
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.policy import GUARANTEE, Preemption
from ganger.model.queue import Amount, Queue
from ganger.model.units import DAY_MS, HOUR_MS

NODES: Final = 2_000
CLUSTERS: Final = 20
SIZES: Final = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8))
NOW_MS: Final = AT_MS + DAY_MS // 2


def run() -> list[Figure]:
    """Measure the ratio of the work that both choices lose, over all clusters."""
    lost = [_lost(seed) for seed in range(CLUSTERS)]
    cheapest, in_order = (sum(one[index] for one in lost) for index in (0, 1))
    ratios = tuple(mine / theirs for mine, theirs in lost)
    return [
        Figure(name="victims", unit="of the work", samples=ratios, value=cheapest / in_order, op="<=", bar=1 / 3),
    ]


def _lost(seed: int) -> tuple[int, int]:
    """Return the GPU-milliseconds that are lost with the cheapest nodes first, and with victims in the queue order."""
    state = _full(random.Random(seed))
    spec = JobSpec(run="train", queue="owner", nodes=128, resources=gpus_of(GPUS), limits=DAY)
    step(state, e.Submitted(job=Job(id="gang", user="ada", spec=spec, origin=Origin(directory="/"))), NOW_MS)
    gang = state.gangs["gang"]
    legality = Legality(state, NOW_MS, state.document.preemption)
    legal = [state.gangs[name] for name in legality.victims(gang)]
    orders = cheapest_first(state, gang, legal, NOW_MS), VictimOrder(sorted(legal, key=lambda other: -other.number))
    mine, theirs = (_cost(state, gang, order) for order in orders)
    return mine, theirs


def _cost(state: State, gang: Gang, order: VictimOrder) -> int:
    choice = choose(state, gang, Leaving(), lambda: order)
    if choice is None:
        raise AssertionError("the gang fits once all victims are gone")
    return sum(cost(victim, NOW_MS) for victim in choice.victims)


def _full(chance: random.Random) -> State:
    """Return a full cluster: 60 % of the jobs are of a queue without a guarantee, the others within that of theirs."""
    state = State()
    for name, amount in (("owner", 128 * GPUS), ("kept", NODES * GPUS), ("borrower", 0)):
        step(state, e.QueueSet(queue=Queue(name=name, nominal=Amount(gpus=amount))))
    step(state, e.NodesListed(nodes=tuple(map(node_of, range(NODES))), levels=("rack",)))
    document = replace(state.document, preemption=Preemption(reclaim=GUARANTEE))
    step(state, e.PolicySet(document=document, version=state.policy_version + 1))
    names = []
    for number, shares in enumerate(_filling(chance)):
        queue, gpus = "borrower" if chance.random() < 0.6 else "kept", len(shares[0].devices)
        spec = JobSpec(run="train", queue=queue, nodes=len(shares), resources=gpus_of(gpus), limits=DAY)
        names.append(f"j{number}")
        start(state, names[-1], replace(spec, checkpoint=Checkpoint()), *shares)
        step(state, e.Started(gang=names[-1], generation=1, nodes=tuple(share.node for share in shares)))
    for saved_ms, name in sorted((NOW_MS - chance.randrange(8 * HOUR_MS), name) for name in names):
        step(state, e.Checkpointed(gang=name, generation=1, step=1), saved_ms)
    return state


def _filling(chance: random.Random) -> Iterator[tuple[NodeShare, ...]]:
    """Yield the shares of jobs that fill all nodes."""
    number = 0
    while number < NODES:
        nodes, gpus = chance.choice(SIZES)
        nodes = min(nodes, NODES - number)
        if gpus == GPUS:
            whole = tuple(range(GPUS))
            yield tuple(NodeShare(f"n{number + rank}", (rank,), whole) for rank in range(nodes))
        else:
            for first in range(0, GPUS, gpus):
                yield (NodeShare(f"n{number}", (0,), tuple(range(first, first + gpus))),)
        number += nodes
