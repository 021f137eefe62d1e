"""Live usage of the nodes: resources of each rank, and how to run a command beside it.

None of it is an event, and nothing is measured until it is queried.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from ganger.core.queues.idle_jobs import IdleJob, rules_of_queue
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.errors import RequestError
from ganger.model.decision import NodeShare
from ganger.model.idle.idle_event import Idle, IdleStep
from ganger.model.job import GangState, shell_quoted_id, split_element_id
from ganger.model.views.overview import GpuSample, RankSample, Samples
from ganger.model.views.queue_views import IdleNow, QueueRow
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
        self._sessions: dict[str, int] = {}
        self._idle_job: Callable[[str, str], IdleJob | None] = lambda *_: None

    def sessions(self, job: str) -> int:
        """Return how many commands were to run beside ranks of a job since the server started."""
        return self._sessions.get(job, 0)

    def of_ranks(self, gang: str, node: str, generation: int) -> list[RankUsage]:
        """Return the usage of the ranks of a gang on a node. May take a moment."""
        ranks = self._backend.measure_usage().ranks
        return [use for use in ranks if (use.gang, use.node, use.generation) == (gang, node, generation)]

    def attach(self, idle_job: Callable[[str, str], IdleJob | None]) -> None:
        """Answer from this measurement of idle jobs from now on: of a job, by the node of its first rank."""
        self._idle_job = idle_job

    def idle_now(self, gang: Gang, state: State) -> IdleNow | None:
        """Return since when a running job is idle, None if it is not or has not been warned."""
        if gang.state is not GangState.RUNNING or not gang.nodes:
            return None
        job, rules = self._idle_job(gang.nodes[0], gang.id), rules_of_queue(state.tree, gang.queue)
        if job is None or rules is None or not job.warnings or job.generation != gang.attempt.generation:
            return None
        return IdleNow(job=gang.id, since_ms=job.since_ms, until_ms=job.until_ms, action=rules.action)

    def idle_event(self, gang: Gang, state: State, now_ms: int) -> Idle | None:
        """Return the warning that an idle job would get now, None if it is not or has not been warned."""
        idle = self.idle_now(gang, state)
        if idle is None:
            return None
        return Idle(
            gang=gang.id,
            generation=gang.attempt.generation,
            step=IdleStep.WARNED,
            idle_ms=max(0, now_ms - idle.since_ms),
            left_ms=max(0, idle.until_ms - now_ms),
            action=idle.action,
        )

    def with_idle_jobs(self, rows: Iterable[QueueRow], state: State) -> list[QueueRow]:
        """Return rows of queues with the idle jobs of each."""
        idle: dict[str, list[IdleNow]] = {}
        for gang in state.gangs.values() if any(queue.idle for queue in state.tree.queues) else ():
            if (now := self.idle_now(gang, state)) is not None:
                idle.setdefault(gang.queue, []).append(now)
        return [replace(row, idle=tuple(idle.get(row.name, ()))) for row in rows]

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
            self._sessions[name] = self._sessions.get(name, 0) + 1
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
        devices=rank_devices(share, usage.rank),
        cpu_milli=usage.cpu_milli,
        memory_bytes=usage.memory_bytes,
        processes=usage.processes,
    )


def rank_devices(share: NodeShare | None, rank: int | None) -> tuple[int, ...]:
    """Return one device for each rank where there are as many; else all, which the ranks share."""
    if share is None or rank is None:
        return ()
    is_one_each = len(share.devices) == len(share.ranks)
    return (share.devices[share.ranks.index(rank)],) if is_one_each else share.devices
