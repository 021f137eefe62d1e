"""What would start a waiting gang now: other forms of the same job, each tried as a round that was held leaves it.

Called by `core.explain.explain`. A change is one word more to type: fewer nodes, less on each, another type, a shorter
time, another queue, a higher priority. Of every kind the nearest to what was asked for; amounts are found by halving,
since who asks for less is never refused more. Where no one change helps two are tried together; where nothing does, the
smallest form of the job that is refused is the proof."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ganger.core.cycle.cycle import Cycle
from ganger.core.cycle.plan import simulated_cycle
from ganger.core.explain.hypothetical import supposed
from ganger.core.placement.start_check import ask, placed
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.job import PRIORITIES
from ganger.model.pending_reason import PendingReason, sentence
from ganger.model.queue import ROOT
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI, GIB_BYTES, MINUTE_MS, format_bytes, format_cpu, format_duration
from ganger.model.views.service_views import Change

QUEUES_TRIED: Final = 64
"""How many other queues, those first in which the user has jobs."""
LONGEST_MS: Final = 30 * 24 * 60 * MINUTE_MS
"""Of the times that a job without a limit might be given."""
CPU_STEP: Final = 1000
HIGHEST: Final = 1000
"""Of all priorities."""

Form = Callable[[int], Gang]
"""The gang with another amount of something."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What would start now; or, if nothing would, the smallest form of it that would not, and why."""

    changes: tuple[Change, ...]
    proof: str


def changes(now: Cycle, gang: Gang) -> Tried:
    """Every change that would start it now if it were submitted so, tried on what a round leaves over in which it does
    not start, and nothing is kept for it."""
    trial = _Trial(now, gang)
    found = tuple(trial.single()) or tuple(trial.double())
    return Tried(found, "" if found else trial.proof())


def ahead(state: State, gang: Gang, now_ms: int, policy: Policy) -> Iterator[Change]:
    """With a priority that puts it before those whom room is kept for: they wait longer then."""
    for priority in _higher(gang.job.spec.priority):
        job = replace(gang.job, id=f"{gang.id}+", spec=replace(gang.job.spec, priority=priority), awaits=())
        with supposed(state, job, now_ms) as again, simulated_cycle(state, now_ms, policy, without=gang.id) as (now, _):
            starts = again.id in now.started_gangs or again.id in now.started_elements
        if starts:
            yield Change(say="it would go first and start now; others wait longer", flags=f"--priority {priority}")
            return


class _Trial:
    """Forms of one gang, tried one after the other in a round that is over."""

    def __init__(self, now: Cycle, gang: Gang) -> None:
        """As if it were a new one."""
        self._now, self._gang = now, replace(gang, generation=0, ran_ms=0, failed_on=("", 0))
        self._shape = gang.shape

    def single(self) -> Iterator[Change]:
        """The nearest form of each kind."""
        shape = self._shape
        if shape.layout.required:
            beyond = self._formed(replace(shape, layout=replace(shape.layout, required=False)))
            if self._starts(beyond):
                yield Change(say=f"beyond one {shape.layout.level} it would start now", flags="--mode preferred")
        if shape.more or shape.stacked:
            yield from self._fewer_processes()
        else:
            yield from self._smaller()
        yield from self._shorter()
        yield from self._elsewhere()

    def _smaller(self) -> Iterator[Change]:
        shape, slices = self._shape, self._shape.slices.nodes
        n = self._most(shape.nodes // slices - 1, lambda n: self._formed(replace(shape, nodes=n * slices))) * slices
        if n:
            yield Change(say=f"{n} of the {shape.nodes} nodes would start now", flags=f"--nodes {n}")
        g = self._most(shape.gpus - 1, lambda g: self._formed(replace(shape, gpus=g)))
        if g:
            yield Change(
                say=f"{g} of the {shape.gpus} GPUs per node would start now", flags=_gpus(replace(shape, gpus=g))
            )
        yield from self._leaner()
        milli = self._most(shape.gpu_milli - 1, lambda milli: self._formed(replace(shape, gpu_milli=milli)))
        if milli:
            less = f"{milli / DEVICE_MILLI:g} instead of {shape.gpu_milli / DEVICE_MILLI:g} of one GPU"
            yield Change(say=f"{less} would start now", flags=f"--gpu-milli {milli}")
        if shape.gpus and shape.gpu_type and self._starts(self._formed(replace(shape, gpu_type=None, other_types=()))):
            yield Change(say="GPUs of another type would start now", flags=f"--gpu {shape.gpus}")

    def _leaner(self) -> Iterator[Change]:
        """With less of what is no GPU."""
        shape = self._shape
        most = (shape.cpu_milli - 1) // CPU_STEP
        c = self._most(most, lambda c: self._formed(replace(shape, cpu_milli=c * CPU_STEP))) * CPU_STEP
        if c:
            asked = f"{format_cpu(c)} of the {format_cpu(shape.cpu_milli)} CPUs per node"
            yield Change(say=f"{asked} would start now", flags=f"--cpu {format_cpu(c)}")
        step = GIB_BYTES if shape.memory_bytes > GIB_BYTES else 1 << 20
        most = (shape.memory_bytes - 1) // step
        m = self._most(most, lambda m: self._formed(replace(shape, memory_bytes=m * step))) * step
        if m:
            asked = f"{format_bytes(m)} of the {format_bytes(shape.memory_bytes)} memory per node"
            yield Change(say=f"{asked} would start now", flags=f"--memory {format_bytes(m)}")

    def _fewer_processes(self) -> Iterator[Change]:
        """Of one role each: a line of the job file, since no flag says it."""
        spec, shape = self._gang.job.spec, self._shape
        for at, role in enumerate(spec.order):
            part = shape.parts[at]
            n = self._most(part.nodes - 1, lambda n, at=at: self._formed(_with_part(shape, at, n)))  # type: ignore[misc]
            if n and role in spec.roles:
                yield Change(say=f"{n} of the {part.nodes} {role} would start now", flags=f"roles.{role}.count={n}")
            elif n:
                yield Change(say=f"{n} of the {part.nodes} nodes would start now", flags=f"--nodes {n}")

    def _shorter(self) -> Iterator[Change]:
        """With less time: where it is the time that binds, or what is promised to others."""
        limit_ms = self._gang.job.spec.limits.time_ms
        most = ((limit_ms or LONGEST_MS + MINUTE_MS) - 1) // MINUTE_MS
        minutes = self._most(most, lambda minutes: self._timed(minutes * MINUTE_MS))
        if minutes:
            time = format_duration(minutes * MINUTE_MS).removesuffix(" 00s")
            yield Change(say=f"with at most {time} of time it would start now", flags=f"--time {minutes}m")

    def _elsewhere(self) -> Iterator[Change]:
        """In another queue; the first that has quota for it, of those that the user has jobs in, then of all. Nowhere,
        if the nodes have no room for it whatever its queue may have."""
        state, user = self._now.state, self._gang.job.user
        if not state.tree.types and placed(state, ask(self._gang)) is None:
            return
        own = dict.fromkeys(gang.queue for gang in state.shares.oldest(user=user))
        names = [name for name in (own | dict.fromkeys(state.tree.index)) if name not in (self._gang.queue, ROOT)]
        for name in names[:QUEUES_TRIED]:
            if self._starts(self._queued(name)):
                yield Change(say=f"in queue {name} it would start now", flags=f"--queue {name}")
                return

    def double(self) -> Iterator[Change]:
        """Fewer nodes with less on each: of these the form with the most GPUs, or CPUs."""
        shape = self._shape
        if shape.more or shape.stacked or shape.slices.nodes > 1:
            return
        cpu_of_gpu = shape.cpu_milli // max(1, shape.gpus)
        best: tuple[int, Shape] | None = None
        halves = sorted({max(1, shape.gpus >> by) for by in range(1, 8)}, reverse=True) if shape.gpus else [0]
        for gpus in halves:
            cpus = max(CPU_STEP, gpus * cpu_of_gpu) if gpus else CPU_STEP
            each = replace(shape, gpus=gpus, cpu_milli=min(cpus, shape.cpu_milli))
            n = self._most(shape.nodes, lambda n, each=each: self._formed(replace(each, nodes=n)))  # type: ignore[misc]
            if n and (best is None or n * max(1, gpus) > best[0]):
                best = n * max(1, gpus), replace(each, nodes=n)
        if best is not None:
            yield _both(best[1])

    def proof(self) -> str:
        """Why not even the smallest form starts."""
        shape = self._shape
        least = replace(
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
        found = self._now.fit(self._formed(least))
        each = "1 GPU" if least.gpus else f"{least.share} of one GPU" if least.has_share else "1 CPU"
        size = f"{least.nodes} node{'s' * (least.nodes > 1)} with {each}"
        why = sentence(found) if isinstance(found, PendingReason) else "what is free is kept for others, who go first"
        return f"no smaller form of it would start now, not even {size}: {why}"

    def _most(self, high: int, form: Form) -> int:
        """The largest amount up to `high` with which it starts, 0 for none: less is never refused more."""
        low = 0
        if high < 1 or not self._starts(form(1)):
            return 0
        low = 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._starts(form(middle)) else (low, middle - 1)
        return low

    def _starts(self, gang: Gang) -> bool:
        # What is expected of one without a limit depends on its form.
        expected = self._now.state.history.expects(gang.job, gang.shape, 0)
        return isinstance(self._now.find_start(replace(gang, expected=expected)), tuple)

    def _formed(self, shape: Shape) -> Gang:
        return replace(self._gang, shape=shape)

    def _timed(self, time_ms: int) -> Gang:
        spec = self._gang.job.spec
        limits = replace(spec.limits, time_ms=time_ms)
        return replace(self._gang, job=replace(self._gang.job, spec=replace(spec, limits=limits)))

    def _queued(self, queue: str) -> Gang:
        job = self._gang.job
        return replace(self._gang, job=replace(job, spec=replace(job.spec, queue=queue)))


def _with_part(shape: Shape, at: int, nodes: int) -> Shape:
    if at == 0:
        return replace(shape, nodes=nodes)
    more = tuple(replace(part, nodes=nodes) if at == each else part for each, part in enumerate(shape.more, start=1))
    return replace(shape, more=more)


def _both(shape: Shape) -> Change:
    what = f"{shape.gpus} GPU{'s' * (shape.gpus > 1)}" if shape.gpus else f"{format_cpu(shape.cpu_milli)} CPU"
    flags = (f"--nodes {shape.nodes}", _gpus(shape) * bool(shape.gpus), f"--cpu {format_cpu(shape.cpu_milli)}")
    nodes = f"{shape.nodes} node{'s' * (shape.nodes > 1)}"
    return Change(say=f"{nodes} with {what} each would start now", flags=" ".join(filter(None, flags)))


def _gpus(shape: Shape) -> str:
    kinds = ",".join(filter(None, (shape.gpu_type, *shape.other_types)))
    return f"--gpu {kinds}:{shape.gpus}" if kinds else f"--gpu {shape.gpus}"


def _higher(now: int) -> list[int]:
    return [each for each in (*sorted(PRIORITIES.values()), HIGHEST) if each > now]
