"""Trial run of another policy document: jobs it would strand, and what the next cycle would do differently.

Runs on a copy of the state, with the cycle of `core.cycle.cycle` itself, so that the prediction is what would happen.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.start_check import start_request
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import QueueTree
from ganger.core.state.gang import ClassKey, Gang
from ganger.core.state.state import State
from ganger.engine.submit.feasibility import impossible_on
from ganger.engine.submit.quota_check import over_quota, refused_for
from ganger.model.decision import Start
from ganger.model.event import PolicySet, Stamped
from ganger.model.policy import PolicyDocument
from ganger.model.views.policy_views import PolicyTrial, QueuePosition, StrandedJob

MAX_PLACES: Final = 100


def find_stranded(state: State, document: PolicyDocument) -> tuple[StrandedJob, ...]:
    """Return live jobs whose queue the document lacks, or that only under it could never start again; oldest first."""
    tree = state.tree_with(document.queues.values())
    changes_topology = bool(state.nodes.nodes) and document.topology != state.document.topology
    nodes = state.nodes.with_rules(document) if changes_topology else None
    return tuple(_stranded_jobs(state, document, tree, nodes))


def _stranded_jobs(
    state: State, document: PolicyDocument, tree: QueueTree, nodes: NodeTable | None
) -> Iterator[StrandedJob]:
    """Yield each stranded job with the reason. Quota and topology are checked once per job class."""
    class_reasons: dict[ClassKey, str | None] = {}
    for gang in state.gangs.values():
        if gang.queue not in document.queues:
            reason: str | None = f"queue {gang.queue} is gone"
        else:
            if gang.class_key not in class_reasons:
                class_reasons[gang.class_key] = _quota_reason(state, gang, tree) or _topology_reason(state, gang, nodes)
            reason = class_reasons[gang.class_key] or _allocation_reason(state, gang, tree)
        if reason is not None:
            yield StrandedJob(job=gang.id, state=gang.state, queue=gang.queue, reason=reason)


def _quota_reason(state: State, gang: Gang, tree: QueueTree) -> str | None:
    """Return why the new tree of queues could never hold a gang that the present one can."""
    request = start_request(gang)
    reason = refused_for(tree, request)
    return None if reason is None or refused_for(state.tree, request) is not None else reason


def _topology_reason(state: State, gang: Gang, nodes: NodeTable | None) -> str | None:
    """Return why no nodes of the new topology could hold a gang that the present ones can."""
    reason = None if nodes is None else impossible_on(nodes, gang.shape)
    return None if reason is None or impossible_on(state.nodes, gang.shape) is not None else reason


def _allocation_reason(state: State, gang: Gang, tree: QueueTree) -> str | None:
    """Return why a gang holds more than its queue may use, such as GPUs of a type that it did not name."""
    if gang.id not in state.allocations or gang.attempt.start is None:
        return None
    amounts = tree.taken(gang.shape, gang.attempt.shares, state.type_of)
    return over_quota(tree, gang.queue, amounts, "holds")


def run_trial(state: State, document: PolicyDocument, order: Callable[[str], Policy], now_ms: int) -> PolicyTrial:
    """Return what the next cycle would do differently if the document came into force before it.

    `state` is a copy, and is changed.
    """
    stranded_jobs = find_stranded(state, document)
    starts, old_places = _next_cycle(state, order(state.document.order), now_ms)
    event = PolicySet(document=document, version=state.policy_version + 1, forced=True)
    fold(state, Stamped(state.seq + 1, max(now_ms, state.at_ms), event))
    new_starts, new_places = _next_cycle(state, order(document.order), now_ms)
    moved = [
        QueuePosition(job=name, queue=queue, before=old_place, after=new_places[name][1])
        for name, (queue, old_place) in old_places.items()
        if name in new_places and new_places[name] != (queue, old_place)
    ]
    return PolicyTrial(
        against=state.policy_version - 1,
        changes=(),
        stranded=stranded_jobs,
        starts=tuple(name for name in new_starts if name not in starts),
        stays_pending=tuple(name for name in starts if name not in new_starts),
        moved=len(moved),
        positions=tuple(moved[:MAX_PLACES]),
    )


def _next_cycle(state: State, policy: Policy, now_ms: int) -> tuple[dict[str, None], dict[str, tuple[str, int]]]:
    """Return the gangs that would start, and the place of each pending gang in its queue."""
    starts = {decision.gang: None for decision in plan(state, now_ms, policy).decisions if isinstance(decision, Start)}
    counts, places = Counter[str](), dict[str, tuple[str, int]]()
    pending = (gang for members in state.pending.classes.values() for gang in members)
    for gang in sorted(pending, key=lambda gang: policy.key(gang, state, now_ms)):
        counts[gang.queue] += 1
        places[gang.id] = gang.queue, counts[gang.queue]
    return starts, places
