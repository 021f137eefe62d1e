"""One run of a trace, from the arguments that `ganger sim run` and `ganger sim compare` have in common."""

import argparse
from dataclasses import replace
from types import ModuleType
from typing import Final

from ganger import registry
from ganger.core.state.state import State
from ganger.model.policy import ORDER, GpuShares, Rules, document_of
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.cluster_arguments import check_cpus, nodes_from, prices_from
from ganger.simulation.arguments.estimate_arguments import estimates_from
from ganger.simulation.arguments.fault_arguments import faults_from
from ganger.simulation.arguments.policy_arguments import order_and_score
from ganger.simulation.arguments.workload_arguments import elastic_from, speeds_for
from ganger.simulation.trace_replay import Overheads, TraceRun
from ganger.simulation.traces.trace import RecordedJob, Trace
from ganger.simulation.workload.scaling import scaling_curves

RESTARTS_IN_LIMIT: Final = 20
"""Preemptions and lost nodes that the time limit of a job has room for."""


def trace_run_from(
    arguments: argparse.Namespace, trace: Trace[RecordedJob], policy: str | None, seed: int = 0
) -> TraceRun:
    """Return one run of the trace. InvalidArgument: the policy is unknown, or jobs would not wait for what they ask.

    policy: `ORDER` or `ORDER+SCORE`; None: the default order
    seed: of all that is drawn
    """
    order, score = order_and_score(policy or ORDER)
    rules = replace(Rules(), order=order, gpu_shares=replace(GpuShares(), score=score, seed=seed))
    nodes = nodes_from(arguments)
    check_cpus(trace, nodes)
    speeds, elastic = speeds_for(arguments, nodes), elastic_from(arguments)
    if elastic is not None:
        trace = elastic.drawn_from(trace, scaling_curves(speeds), seed)
    return TraceRun(
        trace=trace,
        nodes=nodes,
        order=registry.order,
        document=document_of(rules, State().document.queues),
        overheads=_overheads(arguments, trace, registry.policies()[order]),
        faults=faults_from(arguments, nodes, seed),
        prices=prices_from(arguments.price, nodes),
        estimates=estimates_from(arguments.estimates, seed),
        speeds=speeds,
    )


def _overheads(arguments: argparse.Namespace, trace: Trace[RecordedJob], order: ModuleType) -> Overheads:
    """Return what running costs; limits have room for some restarts where jobs are stopped or lose nodes."""
    notice_ms, save_ms = arguments.notice_ms or 0, arguments.save_ms or 0
    if save_ms and not notice_ms:
        raise InvalidArgument(
            "--save is the time of a save in the notice of a stop, of which there is none", "--notice 30s"
        )
    start_ms, checkpoint_ms = arguments.start_ms or 0, arguments.checkpoint_ms or 0
    restart_ms = start_ms + checkpoint_ms + arguments.write_ms + save_ms
    if arguments.faults is not None:
        restart_ms += arguments.detect_ms or 0
    is_elastic = any(job.max_gpus is not None for job in trace.records)
    has_restarts = order.ORDERS_RUNNING or arguments.faults is not None or is_elastic
    return Overheads(
        start_ms=start_ms,
        checkpoint_ms=checkpoint_ms,
        write_ms=arguments.write_ms,
        notice_ms=notice_ms,
        save_ms=save_ms,
        limit_margin_ms=RESTARTS_IN_LIMIT * restart_ms if has_restarts else 0,
    )
