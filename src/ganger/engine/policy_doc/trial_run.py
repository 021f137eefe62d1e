"""What another policy document would change: whom it would strand, and what the next round would do differently.

Called by `engine.policy_doc.policy_service`, on a copy of the state. The round is `core.cycle.plan`'s own, so that what
is said is what would happen."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.start_check import ask
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import QueueTree
from ganger.core.state.gang import ClassKey, Gang
from ganger.core.state.state import State
from ganger.engine.submit.feasibility import impossible_on
from ganger.engine.submit.quota_check import over_quota, refused_for
from ganger.model.decision import Start
from ganger.model.event import PolicySet, Stamped
from ganger.model.policy import PolicyDocument
from ganger.model.views.service_views import Place, PolicyTrial, StrandedJob

SHOWN_PLACES: Final = 100


def stranded(state: State, document: PolicyDocument) -> tuple[StrandedJob, ...]:
    """Live jobs whose queue the document does not have, and those that could not start again under it, whoever else
    ended, and now could; oldest first."""
    tree = state.tree_with(document.queues.values())
    is_laid_out_anew = bool(state.nodes.nodes) and document.topology != state.rules.topology
    nodes = state.nodes.with_rules(document.rules) if is_laid_out_anew else None
    return tuple(_stranded(state, document, tree, nodes))


def _stranded(
    state: State, document: PolicyDocument, tree: QueueTree, nodes: NodeTable | None
) -> Iterator[StrandedJob]:
    known: dict[ClassKey, str | None] = {}
    for gang in state.gangs.values():
        if gang.queue not in document.queues:
            why: str | None = f"queue {gang.queue} is gone"
        else:
            if gang.class_key not in known:
                known[gang.class_key] = _never_again(state, gang, tree) or _nowhere(state, gang, nodes)
            why = known[gang.class_key] or _holds_too_much(state, gang, tree)
        if why is not None:
            yield StrandedJob(job=gang.id, state=gang.state, queue=gang.queue, why=why)


def _never_again(state: State, gang: Gang, tree: QueueTree) -> str | None:
    wanted = ask(gang)
    why = refused_for(tree, wanted)
    return None if why is None or refused_for(state.tree, wanted) is not None else why


def _nowhere(state: State, gang: Gang, nodes: NodeTable | None) -> str | None:
    """Because of where nodes are on the network then, if that changes."""
    why = None if nodes is None else impossible_on(nodes, gang.shape)
    return None if why is None or impossible_on(state.nodes, gang.shape) is not None else why


def _holds_too_much(state: State, gang: Gang, tree: QueueTree) -> str | None:
    """Of a type of GPU that it did not name, say, and has."""
    if gang.id not in state.shares or gang.start is None:
        return None
    taken = tree.taken(gang.shape, gang.start.shares, state.type_of)
    return over_quota(tree, gang.queue, taken, "holds")


def trial(state: State, document: PolicyDocument, order: Callable[[str], Policy], now_ms: int) -> PolicyTrial:
    """What the next round would do otherwise if the document came into force before it. `state` is a copy, and is
    changed."""
    lost = stranded(state, document)
    starts, places = _next(state, order(state.rules.order), now_ms)
    event = PolicySet(document=document, version=state.policy_version + 1, forced=True)
    fold(state, Stamped(state.seq + 1, max(now_ms, state.at_ms), event))
    would_start, would_be = _next(state, order(document.order), now_ms)
    moved = [
        Place(job=name, queue=queue, before=at, after=would_be[name][1])
        for name, (queue, at) in places.items()
        if name in would_be and would_be[name] != (queue, at)
    ]
    return PolicyTrial(
        against=state.policy_version - 1,
        changes=(),
        stranded=lost,
        starts=tuple(name for name in would_start if name not in starts),
        waits=tuple(name for name in starts if name not in would_start),
        moved=len(moved),
        places=tuple(moved[:SHOWN_PLACES]),
    )


def _next(state: State, policy: Policy, now_ms: int) -> tuple[dict[str, None], dict[str, tuple[str, int]]]:
    """Who would start, and everybody's place in the order of their queue."""
    starts = {each.gang: None for each in plan(state, now_ms, policy).decisions if isinstance(each, Start)}
    ahead, places = Counter[str](), dict[str, tuple[str, int]]()
    waiting = (gang for members in state.classes.values() for gang in members)
    for gang in sorted(waiting, key=lambda gang: policy.key(gang, state, now_ms)):
        ahead[gang.queue] += 1
        places[gang.id] = gang.queue, ahead[gang.queue]
    return starts, places
