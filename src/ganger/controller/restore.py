"""Restoring of a controller's state from the objects of the cluster."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec

from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.jobs.conditions import OVER
from ganger.controller.node_records import restore_health, with_health
from ganger.controller.policy.queue_usage import Usage, current_node_time, current_usage, known_run_times
from ganger.core.fold.fold import new_gang
from ganger.core.state import spares
from ganger.core.state.allocations.allocations import reallocated_nodes
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import GangStep
from ganger.core.state.runtime_estimate import HistoryImage
from ganger.core.state.state import Image
from ganger.engine.eventlog import job_checkpoint
from ganger.gang_jobs.object_names import id_of
from ganger.kubeapi.objects import CustomObject
from ganger.model.cluster import Cluster, Node, NodeState
from ganger.model.policy import PolicyDocument, document_of
from ganger.model.queue import ROOT, Queue

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """State as the objects describe it.

    image: the state.
    unreadable: ids of GangJobs that cannot be read.
    usage: recorded usage by queue.
    """

    image: Image
    unreadable: frozenset[str]
    usage: Mapping[str, Usage]


def restore(backend: KubernetesBackend, policy: PolicyDocument, usage: Mapping[str, Usage]) -> Restored:
    """Restore the state, and have the backend adopt and ignore what it says. Called when the backend has listed all.

    policy: the policy in force; usage: recorded usage by queue.
    """
    backend.set_policy(policy)
    adopted = backend.adopt_bound_pods()
    image, unreadable = restore_image(backend.jobs, backend.cluster, policy, usage, adopted)
    image = with_health(image, restore_health(backend.nodes.values(), policy.node_health))
    backend.ignore_jobs(unreadable)
    return Restored(image=image, unreadable=unreadable, usage=usage)


def restore_image(
    gang_jobs: Iterable[CustomObject],
    cluster: Cluster,
    policy: PolicyDocument,
    usage: Mapping[str, Usage] = MappingProxyType({}),
    adopted: Sequence[AdoptedGang] = (),
) -> tuple[Image, frozenset[str]]:
    """Return the state that the objects describe, and the ids of GangJobs that cannot be read.

    Args:
        gang_jobs: the GangJobs.
        cluster: the nodes.
        policy: the policy in force.
        usage: recorded usage by queue.
        adopted: running gangs of foreign pods.
    """
    checkpoints, seq, unreadable = list[job_checkpoint.JobCheckpoint](), 0, list[str]()
    for gang_job in gang_jobs:
        status: dict[str, Any] = msgspec.json.decode(gang_job.status) or {}
        seq = max(seq, int(status.get("seq") or 0))
        # A phase may have been written by hand: the record decides whether the job is live.
        if (record := status.get("record")) and (
            status.get("phase") not in OVER or job_checkpoint.is_checkpoint(record)
        ):
            try:
                checkpoints.append(job_checkpoint.decode(record, id_of(gang_job.metadata.key)))
            except ValueError as error:
                unreadable.append(id_of(gang_job.metadata.key))
                _log.error("%s: its status.record cannot be read: %s", unreadable[-1], error)
    for gang in adopted:  # as if submitted now, and placed before
        seq += 1
        checkpoints.append(job_checkpoint.JobCheckpoint(gangs=(_running_gang(gang, seq),)))
    gangs = [gang for checkpoint in checkpoints for gang in checkpoint.gangs]
    _give_up_borrowed(gangs)
    _give_up_reallocated(gangs)
    # The core learns from the first listing what is gone or has become smaller.
    nodes = _nodes_of_gangs(cluster.nodes, gangs)
    # A queue whose object was deleted while no controller ran stays for its jobs.
    queues = policy.queues | {gang.queue: Queue(name=gang.queue) for gang in gangs if gang.queue not in policy.queues}
    usage = {name: of_queue for name, of_queue in usage.items() if name in queues}
    at_ms = max((*(gang.since_ms for gang in gangs), *(of_queue.at_ms for of_queue in usage.values())), default=0)
    failures, failure_node_ms = usage[ROOT].failures if ROOT in usage else (0, 0)
    image = Image(
        seq=seq,
        at_ms=at_ms,
        nodes=nodes,
        levels=cluster.levels,
        document=document_of(policy, queues),
        usage=current_usage(usage.values(), policy.half_life_ms, queues),
        node_time=current_node_time(usage.values(), queues),
        history=HistoryImage(
            run_times=known_run_times(usage),
            failures=failures,
            failure_node_ms=failure_node_ms,
            preemptions=tuple((gang.queue, ms) for gang in gangs if (ms := gang.attempt.preempted_ms) is not None),
        ),
        node_states={node.name: NodeState.READY for node in nodes},
    )
    return job_checkpoint.join_checkpoints(checkpoints, image), frozenset(unreadable)


def _nodes_of_gangs(nodes: Sequence[Node], gangs: Iterable[Gang]) -> list[Node]:
    """Return the nodes as the gangs know them: with those that are gone, and at least the GPUs that gangs hold."""
    gpus: dict[str, int] = {}
    attempts = [(gang.attempt, gang.attempt.start) for gang in gangs]
    for share in (share for attempt, start in attempts if start for share in (*start.shares, *attempt.held)):
        gpus[share.node] = max(gpus.get(share.node, 0), 1 + max(share.devices, default=-1))
    gone = [Node(name=name) for name in sorted(gpus.keys() - {node.name for node in nodes})]
    all_nodes = (*nodes, *gone)
    return [replace(node, gpus=gpus[node.name]) if node.gpus < gpus.get(node.name, 0) else node for node in all_nodes]


def _give_up_borrowed(gangs: Sequence[Gang]) -> None:
    """Have gangs leave spares of others that these gave up: they were to, and that was not written."""
    by_id = {gang.id: gang for gang in gangs}
    for gang in (gang for gang in gangs if gang.attempt.lent):
        attempt = gang.attempt
        attempt.lent = spares.still_lent(by_id, gang)
        attempt.recalled_by = attempt.recalled_by or spares.recalling(by_id, gang)


def _give_up_reallocated(gangs: Sequence[Gang]) -> None:
    """Have gangs give up spares, and what a resize adds, where a later gang is: they had, and that was not written.

    A gang whose resize is given up is requeued when nothing of its attempt is left, which is reported once more.
    """
    reallocated = reallocated_nodes(gangs)
    for gang in gangs:
        lost, attempt = reallocated.get(gang.id, ()), gang.attempt
        if not lost or attempt.start is None:
            continue
        kept = tuple(share for share in attempt.start.spares if share.node not in lost)
        attempt.start = replace(attempt.start, spares=kept)
        if any(map(gang.is_bound_for, lost)):
            attempt.target, attempt.left = (), attempt.left or attempt.start.nodes[:1]
            gang.step(GangStep.REQUEUE, gang.since_ms)
        gang.shape = gang.shape_on(attempt.shares)


def _running_gang(adopted: AdoptedGang, seq: int) -> Gang:
    """Return a gang that has its nodes; it is reported as started once the backend is open."""
    gang = new_gang(adopted.job, seq, adopted.submitted_ms)
    gang.attempt = gang.attempt.next(adopted.start, adopted.began_ms)
    gang.step(GangStep.PLACED, adopted.began_ms)
    return gang
