"""Live usage of the nodes: resources of each rank, and how to run a command beside it.

None of it is an event, and nothing is measured until it is queried.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.errors import RequestError
from ganger.model.decision import NodeShare
from ganger.model.job import GangState, shell_quoted_id, split_element_id
from ganger.model.views.overview import GpuSample, RankSample, Samples
from ganger.model.views.service_views import ExecCommand
from ganger.ports import Backend, RankUsage

RUNS: Final = (GangState.STARTING, GangState.RUNNING, GangState.FINISHING)


class LiveUsage:
    """Live usage, over the state published by `view` and its backend.

    live_id: returns the id of a live job, by id or name.
    """

    def __init__(
        self, view: Callable[[], AbstractContextManager[State]], backend: Backend, live_id: Callable[[str], str]
    ) -> None:
        self._view, self._backend, self._live_id = view, backend, live_id

    def exec_command(self, text: str, *, rank: int | None, node: str | None) -> ExecCommand:
        """Return how to run a command beside a rank of a job: that rank, the first one on `node`, or rank 0.

        Raise RequestError (no_such_rank, no_such_node; 404) and (already_ended, not_running; 409).
        """
        name = self._live_id(text)
        with self._view() as state:
            gang = state.gangs.get(name)
            if gang.is_head if gang else split_element_id(name) is None:
                message = f"{name} is an array: a command runs beside a rank of one element"
                raise RequestError("is_array", message, f"see which run: ganger ls {name}", 409)
            if gang is None or gang.attempt.start is None or gang.state not in RUNS:
                message = (
                    f"{name} is {gang.state if gang else GangState.PENDING}: a command runs beside a rank that runs"
                )
                raise RequestError("not_running", message, f"ganger explain {shell_quoted_id(name)}", 409)
            share = _share(gang, rank, node)
            return ExecCommand(
                job=name,
                generation=gang.attempt.generation,
                rank=share.ranks[0] if rank is None else rank,
                node=share.node,
                argv=self._backend.exec_command(name, share.node),
            )

    def samples(self) -> Samples:
        """Return the usage of every running rank now, and of every GPU that can be queried. May take a moment."""
        usage = self._backend.measure_usage()
        with self._view() as state:
            ranks = [sample for item in usage.ranks if (sample := _sample(state, item)) is not None]
            job_order = {name: number for number, name in enumerate(state.gangs)}
        ranks.sort(key=lambda item: (job_order[item.job], -1 if item.rank is None else item.rank, item.node))
        return Samples(
            at_ms=usage.at_ms, ranks=tuple(ranks), gpus=tuple(GpuSample(**item._asdict()) for item in usage.gpus)
        )


def _share(gang: Gang, rank: int | None, node: str | None) -> NodeShare:
    shares = gang.attempt.start.shares if gang.attempt.start else ()
    if node is not None and all(share.node != node for share in shares):
        nodes = ", ".join(gang.nodes)
        raise RequestError("no_such_node", f"{gang.id} does not run on {node}; it runs on {nodes}", "ganger node", 404)
    if rank is None and node is None:
        rank = 0
    for share in shares:
        if (share.node == node or node is None) and (rank is None or rank in share.ranks):
            return share
    last_rank = max(rank for share in shares for rank in share.ranks)
    detail = f" on {node}" if node else f"; its last is {last_rank}"
    raise RequestError(
        "no_such_rank", f"{gang.id} has no rank {rank}{detail}", f"ganger get {shell_quoted_id(gang.id)}", 404
    )


def _sample(state: State, usage: RankUsage) -> RankSample | None:
    """Return the sample of a rank; None for what is left of an older generation."""
    gang = state.gangs.get(usage.gang)
    if gang is None or gang.attempt.start is None or gang.attempt.generation != usage.generation:
        return None
    share = next(
        (share for share in gang.attempt.start.shares if share.node == usage.node and usage.rank in share.ranks), None
    )
    return RankSample(
        job=gang.id,
        queue=gang.queue,
        rank=usage.rank,
        node=usage.node,
        devices=_devices(share, usage.rank),
        cpu_milli=usage.cpu_milli,
        memory_bytes=usage.memory_bytes,
        processes=usage.processes,
    )


def _devices(share: NodeShare | None, rank: int | None) -> tuple[int, ...]:
    """Return one device for each rank where there are as many; else all, which the ranks share."""
    if share is None or rank is None:
        return ()
    is_one_each = len(share.devices) == len(share.ranks)
    return (share.devices[share.ranks.index(rank)],) if is_one_each else share.devices
