"""Changes to a pending job (what-if) with which it would start now, tried on what a scheduling cycle leaves over.

A change is one more option to type, or a key of the job file: one restriction to certain nodes less, fewer nodes, less
on each, another type, a shorter time, another queue, a higher priority. Of every kind the change nearest to the request
is found, amounts by bisection, since smaller requests are never harder to place. Where no single change helps, two are
tried together; where nothing helps, the smallest form of the job that is refused is the proof.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ganger.core.cycle.attempt import PossibleStart, find_start, request_in_cycle
from ganger.core.cycle.cycle import simulated_cycle
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.explain.hypothetical import hypothetical_gang
from ganger.core.placement.restrictions import name_list, restrictions, with_selector
from ganger.core.placement.start_check import place_request, start_request
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import Attempt
from ganger.core.state.state import Shares, State
from ganger.model.job import MAX_PRIORITY, PRIORITIES
from ganger.model.pending_reason import PendingReason, sentence
from ganger.model.queue import ROOT
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI, GIB_BYTES, MINUTE_MS, format_bytes, format_cpu, format_duration
from ganger.model.views.service_views import Change

MAX_QUEUES_TRIED: Final = 64
"""The maximum number of other queues, those with jobs of the user first."""
MAX_TIME_MS: Final = 30 * 24 * 60 * MINUTE_MS
"""The longest time tried for a job without a limit."""
CPU_STEP: Final = 1000

Variant = Callable[[int], Gang]
"""Returns the gang with another amount of something."""


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """The changes that would start the job now; or, if there are none, the smallest form that would not, and why."""

    changes: tuple[Change, ...]
    smallest_tried: str


def find_changes(cycle: Cycle, gang: Gang, *, is_administrator: bool = True) -> WhatIfResult:
    """Return every change with which the gang would start now if the reader submitted it so.

    The cycle is one in which the gang does not start and nothing is reserved for it.
    """
    if gang.job.spec.replica_groups and not gang.is_head:
        return WhatIfResult((), "")  # one group cannot be submitted anew
    trial = _Trial(cycle, gang, is_administrator=is_administrator)
    changes = tuple(trial.single()) or tuple(trial.double())
    return WhatIfResult(changes, "" if changes else trial.smallest_tried())


def priority_changes(
    state: State, gang: Gang, now_ms: int, policy: Policy, *, is_administrator: bool = True
) -> Iterator[Change]:
    """Yield the lowest priority that would put the gang before those that capacity is reserved for.

    It is one that the reader may ask for.
    """
    maximum = None if is_administrator else state.tree.max_priority(gang.queue)
    for priority in _higher_priorities(gang.job.spec.priority, MAX_PRIORITY if maximum is None else maximum):
        job = replace(gang.job, id=f"{gang.id}+", spec=replace(gang.job.spec, priority=priority), awaits=())
        with (
            hypothetical_gang(state, job, now_ms) as gang_copy,
            simulated_cycle(state, now_ms, policy, without=gang.id) as (cycle, _),
        ):
            starts = gang_copy.id in cycle.started_gangs or gang_copy.id in cycle.started_elements
        if starts:
            yield Change(
                description="it would go first and start now; others wait longer", flags=f"--priority {priority}"
            )
            return


class _Trial:
    """Variants of one gang, tried one after the other on what a finished cycle leaves over."""

    def __init__(self, cycle: Cycle, gang: Gang, *, is_administrator: bool) -> None:
        """Treat the gang like a new one."""
        self._is_administrator = is_administrator
        retries = replace(gang.retries, failed_on=("", 0))
        self._cycle, self._gang = cycle, replace(gang, attempt=Attempt(), retries=retries, ran_ms=0)
        self._shape = gang.shape

    def single(self) -> Iterator[Change]:
        """Iterate over the nearest change of each kind."""
        shape = self._shape
        if shape.layout.required:
            beyond = self._with_shape(replace(shape, layout=replace(shape.layout, required=False)))
            if self._starts(beyond):
                yield Change(
                    description=f"beyond one {shape.layout.level} it would start now", flags="--mode preferred"
                )
        yield from self._without_restriction()
        if shape.more or shape.stacked:
            yield from self._fewer_role_processes()
        else:
            yield from self._fewer_nodes_or_gpus()
        yield from self._shorter()
        yield from self._other_queue()

    def _without_restriction(self) -> Iterator[Change]:
        """Iterate over changes that drop one restriction to certain nodes each, as keys of the job file."""
        nodes, selector = self._cycle.state.nodes, self._shape.selector
        of_parts = (restriction for part in self._shape.parts for restriction in restrictions(part, nodes))
        for restriction in {restriction.flags: restriction for restriction in of_parts}.values():
            without = restriction.without
            if selector.nodes and not without.nodes:
                without = replace(without, devices=())  # devices may be named only together with nodes
            if shares := self._place(self._with_shape(with_selector(self._shape, without))):
                names = name_list([*dict.fromkeys(share.node for share in shares)])
                description = f"{restriction.condition} it would start now on {names}"
                yield Change(description=description, flags=restriction.flags)

    def _fewer_nodes_or_gpus(self) -> Iterator[Change]:
        yield from self._fewer_groups()
        shape, slices = self._shape, self._shape.slices.nodes
        most = 0 if self._gang.groups > 1 else shape.nodes // slices - 1
        nodes = slices * self._largest(most, lambda count: self._with_shape(replace(shape, nodes=count * slices)))
        if nodes:
            yield Change(description=f"{nodes} of the {shape.nodes} nodes would start now", flags=f"--nodes {nodes}")
        gpus = self._largest(shape.gpus - 1, lambda gpus: self._with_shape(replace(shape, gpus=gpus)))
        if gpus:
            yield Change(
                description=f"{gpus} of the {shape.gpus} GPUs per node would start now",
                flags=_gpu_option(replace(shape, gpus=gpus)),
            )
        yield from self._less_cpu_or_memory()
        milli = self._largest(shape.gpu_milli - 1, lambda milli: self._with_shape(replace(shape, gpu_milli=milli)))
        if milli:
            amounts = f"{milli / DEVICE_MILLI:g} instead of {shape.gpu_milli / DEVICE_MILLI:g} of one GPU"
            yield Change(description=f"{amounts} would start now", flags=f"--gpu-milli {milli}")
        if (
            shape.gpus
            and shape.gpu_type
            and self._starts(self._with_shape(replace(shape, gpu_type=None, other_types=())))
        ):
            yield Change(description="GPUs of another type would start now", flags=f"--gpu {shape.gpus}")

    def _fewer_groups(self) -> Iterator[Change]:
        """Yield the most replica groups that would start now, of a job of which not even the least number does."""
        spec, groups = self._gang.job.spec, self._gang.groups
        count = self._largest(groups - 1, lambda count: self._with_shape(spec.together(count)))
        if count:
            most = spec.max_replica_groups or groups
            description = f"{count} of the {groups} replica groups would start now, the others as they fit"
            yield Change(description=description, flags=f"--replica-groups {count}..{most}")

    def _less_cpu_or_memory(self) -> Iterator[Change]:
        """Iterate over changes with less CPU or memory."""
        shape = self._shape
        max_steps = (shape.cpu_milli - 1) // CPU_STEP
        cpu_milli = (
            self._largest(max_steps, lambda cpu_milli: self._with_shape(replace(shape, cpu_milli=cpu_milli * CPU_STEP)))
            * CPU_STEP
        )
        if cpu_milli:
            amounts = f"{format_cpu(cpu_milli)} of the {format_cpu(shape.cpu_milli)} CPUs per node"
            yield Change(description=f"{amounts} would start now", flags=f"--cpu {format_cpu(cpu_milli)}")
        step = GIB_BYTES if shape.memory_bytes > GIB_BYTES else 1 << 20
        max_steps = (shape.memory_bytes - 1) // step
        memory_bytes = (
            self._largest(
                max_steps, lambda memory_bytes: self._with_shape(replace(shape, memory_bytes=memory_bytes * step))
            )
            * step
        )
        if memory_bytes:
            amounts = f"{format_bytes(memory_bytes)} of the {format_bytes(shape.memory_bytes)} memory per node"
            yield Change(description=f"{amounts} would start now", flags=f"--memory {format_bytes(memory_bytes)}")

    def _fewer_role_processes(self) -> Iterator[Change]:
        """Iterate over changes of one role each, as the key of the job file: no option sets it."""
        spec, shape = self._gang.job.spec, self._shape
        for index, role in enumerate(spec.order):
            part = shape.parts[index]
            count = self._largest(part.nodes - 1, self._with_part_nodes(index))
            if count and role in spec.roles:
                yield Change(
                    description=f"{count} of the {part.nodes} {role} would start now",
                    flags=f"roles.{role}.count={count}",
                )
            elif count:
                yield Change(description=f"{count} of the {part.nodes} nodes would start now", flags=f"--nodes {count}")

    def _shorter(self) -> Iterator[Change]:
        """Yield a shorter time, which helps against time limits and before reservations."""
        limit_ms = self._gang.job.spec.limits.time_ms
        max_minutes = ((limit_ms or MAX_TIME_MS + MINUTE_MS) - 1) // MINUTE_MS
        minutes = self._largest(max_minutes, lambda minutes: self._with_time(minutes * MINUTE_MS))
        if minutes:
            time = format_duration(minutes * MINUTE_MS).removesuffix(" 00s")
            yield Change(description=f"with at most {time} of time it would start now", flags=f"--time {minutes}m")

    def _other_queue(self) -> Iterator[Change]:
        """Yield the first other queue with quota for the gang; queues with jobs of the user come first.

        None is tried if the nodes have no room for the gang in any queue.
        """
        state, user = self._cycle.state, self._gang.job.user
        if not state.tree.types and place_request(state, start_request(self._gang)) is None:
            return
        own_queues = dict.fromkeys(gang.queue for gang in state.allocations.oldest(user=user))
        names = [
            name for name in (own_queues | dict.fromkeys(state.tree.index)) if name not in (self._gang.queue, ROOT)
        ]
        for name in names[:MAX_QUEUES_TRIED]:
            if self._may_submit_to(name) and self._starts(self._in_queue(name)):
                yield Change(description=f"in queue {name} it would start now", flags=f"--queue {name}")
                return

    def _may_submit_to(self, queue: str) -> bool:
        """Return whether the reader may ask for the gang's priority in a queue."""
        maximum = self._cycle.state.tree.max_priority(queue)
        return self._is_administrator or maximum is None or self._gang.job.spec.priority <= maximum

    def double(self) -> Iterator[Change]:
        """Yield fewer nodes together with less on each: the form with the most GPUs, or CPUs, in all."""
        shape = self._shape
        if shape.more or shape.stacked or shape.slices.nodes > 1 or self._gang.groups > 1:
            return
        cpu_of_gpu = shape.cpu_milli // max(1, shape.gpus)
        best: tuple[int, Shape] | None = None
        gpu_counts = (
            sorted({max(1, shape.gpus >> exponent) for exponent in range(1, 8)}, reverse=True) if shape.gpus else [0]
        )
        for gpus in gpu_counts:
            cpus = max(CPU_STEP, gpus * cpu_of_gpu) if gpus else CPU_STEP
            smaller = replace(shape, gpus=gpus, cpu_milli=min(cpus, shape.cpu_milli))
            nodes = self._largest(shape.nodes, self._with_nodes(smaller))
            if nodes and (best is None or nodes * max(1, gpus) > best[0]):
                best = nodes * max(1, gpus), replace(smaller, nodes=nodes)
        if best is not None:
            yield _combined_change(best[1])

    def smallest_tried(self) -> str:
        """Return why not even the smallest form starts; empty for a request that is the smallest."""
        shape = self._shape
        smallest = replace(
            shape,
            nodes=shape.slices.nodes,
            gpus=min(1, shape.gpus),
            cpu_milli=min(CPU_STEP, shape.cpu_milli),
            memory_bytes=0,
            gpu_type=None,
            other_types=(),
            more=(),
            layout=replace(shape.layout, required=False),
        )
        if smallest == replace(shape, layout=smallest.layout):
            return ""
        result = self._cycle.fit(self._with_shape(smallest))
        amount = "1 GPU" if smallest.gpus else f"{smallest.share} of one GPU" if smallest.has_share else "1 CPU"
        size = f"{smallest.nodes} node{'s' * (smallest.nodes > 1)} with {amount}"
        cause = (
            sentence(result) if isinstance(result, PendingReason) else "what is free is kept for others, who go first"
        )
        return f"no smaller form of it would start now, not even {size}: {cause}"

    def _largest(self, high: int, form: Variant) -> int:
        """Return the largest amount up to `high` with which it starts, 0 for none, by bisection."""
        low = 0
        if high < 1 or not self._starts(form(1)):
            return 0
        low = 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._starts(form(middle)) else (low, middle - 1)
        return low

    def _starts(self, gang: Gang) -> bool:
        return bool(self._place(gang))

    def _place(self, gang: Gang) -> Shares:
        """Return the shares that the gang would start on now, or none."""
        # The run time estimate depends on the shape.
        expected = self._cycle.state.history.estimate(gang.job, gang.shape, 0)
        gang = replace(gang, expected=expected)
        result = find_start(self._cycle, gang, request_in_cycle(self._cycle, gang))
        return result.shares if isinstance(result, PossibleStart) else ()

    def _with_shape(self, shape: Shape) -> Gang:
        return replace(self._gang, shape=shape)

    def _with_nodes(self, shape: Shape) -> Variant:
        return lambda nodes: self._with_shape(replace(shape, nodes=nodes))

    def _with_part_nodes(self, index: int) -> Variant:
        return lambda nodes: self._with_shape(_with_part(self._shape, index, nodes))

    def _with_time(self, time_ms: int) -> Gang:
        spec = self._gang.job.spec
        limits = replace(spec.limits, time_ms=time_ms)
        return replace(self._gang, job=replace(self._gang.job, spec=replace(spec, limits=limits)))

    def _in_queue(self, queue: str) -> Gang:
        job = self._gang.job
        return replace(self._gang, job=replace(job, spec=replace(job.spec, queue=queue)))


def _with_part(shape: Shape, index: int, nodes: int) -> Shape:
    if index == 0:
        return replace(shape, nodes=nodes)
    more = tuple(
        replace(part, nodes=nodes) if index == position else part for position, part in enumerate(shape.more, start=1)
    )
    return replace(shape, more=more)


def _combined_change(shape: Shape) -> Change:
    amount = f"{shape.gpus} GPU{'s' * (shape.gpus > 1)}" if shape.gpus else f"{format_cpu(shape.cpu_milli)} CPU"
    flags = (f"--nodes {shape.nodes}", _gpu_option(shape) * bool(shape.gpus), f"--cpu {format_cpu(shape.cpu_milli)}")
    nodes = f"{shape.nodes} node{'s' * (shape.nodes > 1)}"
    return Change(description=f"{nodes} with {amount} each would start now", flags=" ".join(filter(None, flags)))


def _gpu_option(shape: Shape) -> str:
    kinds = ",".join(filter(None, shape.gpu_types))
    return f"--gpu {kinds}:{shape.gpus}" if kinds else f"--gpu {shape.gpus}"


def _higher_priorities(priority: int, maximum: int) -> list[int]:
    """Return the named priorities between two, and the maximum."""
    higher = (*(named for named in sorted(PRIORITIES.values()) if named < maximum), maximum)
    return [named for named in higher if named > priority]
