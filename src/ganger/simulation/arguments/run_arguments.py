"""What `ganger sim` was asked to simulate: cluster, costs and policy, from the arguments of its errand.

Called by the errands `sim run` and `sim compare`, which have these arguments in common (`server.__main__` parses them).
"""

import argparse
from dataclasses import replace
from types import ModuleType
from typing import Final

from ganger import registry
from ganger.core.state.state import State
from ganger.model.policy import ORDER, SCORES, GpuShares, Rules, document_of
from ganger.simulation.arguments.argument_error import Unaskable
from ganger.simulation.arguments.fault_arguments import faults_of
from ganger.simulation.arguments.node_arguments import nodes_of
from ganger.simulation.arguments.price_arguments import prices_of
from ganger.simulation.run import Costs, Run
from ganger.simulation.traces.trace import RecordedJob, Trace

SPARED: Final = 20
"""Preemptions and lost nodes that a limit has room for."""
DRAWS: Final = "random"
"""The placement score that a seed has a meaning for."""


def run_of(arguments: argparse.Namespace, trace: Trace[RecordedJob], policy: str | None, seed: int = 0) -> Run:
    """One run of the trace. `policy`: an order, or one and a placement score, as `easy+fgd`; None: the default order.
    `seed`: of all that is drawn. Unaskable where there is none of that name."""
    order, score = parts_of(policy or ORDER)
    rules = replace(Rules(), order=order, gpu_shares=replace(GpuShares(), score=score, seed=seed))
    nodes = nodes_of(arguments)
    return Run(
        trace=trace,
        nodes=nodes,
        order=registry.order,
        document=document_of(rules, State().queues),
        costs=_costs(arguments, registry.policies()[order]),
        faults=faults_of(arguments, nodes, seed),
        prices=prices_of(arguments.price, nodes),
    )


def parts_of(policy: str) -> tuple[str, str]:
    """Its queue order and its placement score. Unaskable where there is none of that name."""
    orders = registry.policies()
    order, plus, score = policy.partition("+")
    if order not in orders:
        raise Unaskable(f"there is no queue order {order}", f"name one of {', '.join(sorted(orders))}")
    if plus and score not in SCORES:
        raise Unaskable(f"there is no placement score {score}", f"name one of {', '.join(SCORES)}, as {order}+fgd")
    return order, score or GpuShares().score


def _costs(arguments: argparse.Namespace, order: ModuleType) -> Costs:
    """Where jobs are stopped for others, or lose nodes, these costs come again and again; limits have room for some of
    them."""
    start_ms, checkpoint_ms = arguments.start_ms or 0, arguments.checkpoint_ms or 0
    again_ms = start_ms + checkpoint_ms + arguments.write_ms
    if arguments.faults is not None:
        again_ms += arguments.detect_ms or 0
    return Costs(
        start_ms=start_ms,
        checkpoint_ms=checkpoint_ms,
        write_ms=arguments.write_ms,
        spare_ms=SPARED * again_ms if order.ORDERS_RUNNING or arguments.faults is not None else 0,
    )
