"""What goes on on the nodes right now: what each rank uses, and the way in for a command beside it.

Part of `engine.service`. Nothing of it is an event, and nothing is measured while nobody asks.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.errors import RequestError
from ganger.model.decision import NodeShare
from ganger.model.job import GangState, array_of, typed
from ganger.model.views.service_views import Entrance, GpuSample, RankSample, Samples
from ganger.ports import Backend, RankUse

RUNS: Final = (GangState.STARTING, GangState.RUNNING, GangState.FINISHING)


class LiveUsage:
    """Over the state that `view` publishes and the world behind it. `alive` gives the id of a job that lives."""

    def __init__(
        self, view: Callable[[], AbstractContextManager[State]], backend: Backend, alive: Callable[[str], str]
    ) -> None:
        self._view, self._backend, self._alive = view, backend, alive

    def entrance(self, text: str, *, rank: int | None, node: str | None) -> Entrance:
        """How to run a command beside a rank of a job, by id or name: that rank, the first one on `node`, or rank 0.
        Refused (no_such_rank, no_such_node; 404) and (already_ended, not_running; 409)."""
        name = self._alive(text)
        with self._view() as state:
            gang = state.gangs.get(name)
            if gang.is_head if gang else array_of(name) is None:
                why = f"{name} is an array: a command runs beside a rank of one element"
                raise RequestError("is_array", why, f"see which run: ganger ls {name}", 409)
            if gang is None or gang.start is None or gang.state not in RUNS:
                why = f"{name} is {gang.state if gang else GangState.PENDING}: a command runs beside a rank that runs"
                raise RequestError("not_running", why, f"ganger explain {typed(name)}", 409)
            share = _share(gang, rank, node)
            return Entrance(
                job=name,
                generation=gang.generation,
                rank=share.ranks[0] if rank is None else rank,
                node=share.node,
                argv=self._backend.entrance(name, share.node),
            )

    def samples(self) -> Samples:
        """What every rank that runs uses now, and every GPU that can be asked. May take a moment."""
        use = self._backend.use()
        with self._view() as state:
            ranks = [sample for each in use.ranks if (sample := _sample(state, each)) is not None]
            order = {name: number for number, name in enumerate(state.gangs)}
        ranks.sort(key=lambda each: (order[each.job], -1 if each.rank is None else each.rank, each.node))
        return Samples(
            at_ms=use.at_ms, ranks=tuple(ranks), gpus=tuple(GpuSample(**each._asdict()) for each in use.gpus)
        )


def _share(gang: Gang, rank: int | None, node: str | None) -> NodeShare:
    shares = gang.start.shares if gang.start else ()
    if node is not None and all(share.node != node for share in shares):
        there = ", ".join(gang.nodes)
        raise RequestError("no_such_node", f"{gang.id} does not run on {node}; it runs on {there}", "ganger node", 404)
    if rank is None and node is None:
        rank = 0
    for share in shares:
        if (share.node == node or node is None) and (rank is None or rank in share.ranks):
            return share
    last = max(rank for share in shares for rank in share.ranks)
    where = f" on {node}" if node else f"; its last is {last}"
    raise RequestError("no_such_rank", f"{gang.id} has no rank {rank}{where}", f"ganger get {typed(gang.id)}", 404)


def _sample(state: State, use: RankUse) -> RankSample | None:
    """None for what is left of an older generation."""
    gang = state.gangs.get(use.gang)
    if gang is None or gang.start is None or gang.generation != use.generation:
        return None
    share = next((share for share in gang.start.shares if share.node == use.node and use.rank in share.ranks), None)
    return RankSample(
        job=gang.id,
        queue=gang.queue,
        rank=use.rank,
        node=use.node,
        devices=_devices(share, use.rank),
        cpu_milli=use.cpu_milli,
        memory_bytes=use.memory_bytes,
        processes=use.processes,
    )


def _devices(share: NodeShare | None, rank: int | None) -> tuple[int, ...]:
    """One for each rank where there are as many; else they have all of them together."""
    if share is None or rank is None:
        return ()
    alike = len(share.devices) == len(share.ranks)
    return (share.devices[share.ranks.index(rank)],) if alike else share.devices
