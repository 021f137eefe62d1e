"""How jobs behave in virtual time, written down by whoever scripts a `World`; `course` makes facts of it."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from ganger.model import event as e
from ganger.model.decision import Cause, Start
from ganger.model.evidence import PythonError, RankEnd

MILESTONE_MS = 10_000
"""Progress is told no more often than that, after the first step."""

BEFORE_IT_RUNS = (Cause.START_FAILED, Cause.PORT_BUSY)
OF_A_RANK = (Cause.RANK_FAILED, Cause.OUT_OF_MEMORY)
GONE_AT_ONCE = (Cause.LAUNCHER_LOST, None)

Fact = e.Started | e.Progressed | e.Checkpointed | e.Finished | e.Failed | e.Cleared


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How one generation dies, on the `node`-th of its nodes. `after_ms` counts from when all its ranks run; with
    START_FAILED and PORT_BUSY from the start itself. Without a cause it is gone and nothing says how. `error` is the
    exception that its first rank there ended with."""

    generation: int
    cause: Cause | None = Cause.RANK_FAILED
    after_ms: int = 0
    node: int = 0
    exit_code: int | None = 1
    signal: int | None = None
    error: PythonError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How one job behaves in every generation.

    begin_ms: from the decision to its first node running; apart_ms: from each node to the next, whatever they do, and
    with 0 all of them say it at once; steps: how many it makes, None for ever; checkpoint_every: steps, 0 never, and a
    new generation goes on from the newest; write_ms: how long such a checkpoint keeps it from its steps, and the last
    step needs none; save_ms: time it needs for a checkpoint when it is given notice; stop_ms: from a stop to its end,
    None if it never obeys and only the loss of its nodes ends it; ends_ms: how much later than the first of them each
    of its nodes comes to the good end, in their order, where that is not `apart_ms`; quiet: it tells of no step, and of
    its newest checkpoint only when it is stopped or loses a node.
    """

    begin_ms: int = 500
    apart_ms: int = 10
    step_ms: int = 1_000
    steps: int | None = 10
    checkpoint_every: int = 0
    write_ms: int = 0
    save_ms: int = 1_000
    stop_ms: int | None = 200
    ends_ms: tuple[int, ...] = ()
    quiet: bool = False
    deaths: tuple[Death, ...] = ()

    def runs_after_ms(self, start: Start) -> int:
        """From a start to all its ranks running."""
        return self.begin_ms + ((len(start.nodes) - 1) * self.apart_ms if self.apart_ms else 0)

    @property
    def work_ms(self) -> int | None:
        """From all ranks running to the end of the last, where nothing happens and no checkpoint is written."""
        return None if self.steps is None else self.steps * self.step_ms + max(self.ends_ms, default=0)

    def lasts_ms(self, first: int) -> int | None:
        """From all ranks running to the good end of a generation that began at step `first`; None: for ever."""
        return None if self.steps is None else self.reaches_ms(self.steps, first) if self.steps > first else 0

    def reaches_ms(self, step: int, first: int) -> int:
        """From all ranks running to `step`, with the checkpoints before it, for a generation that began at `first`."""
        written = (step - 1) // self.checkpoint_every - first // self.checkpoint_every if self.checkpoint_every else 0
        return (step - first) * self.step_ms + written * self.write_ms

    def step_after(self, ran_ms: int, first: int) -> int:
        """The step that a generation which began at `first` has done after running for `ran_ms`."""
        whole, rest_ms = self._cycles(ran_ms, first)
        done = rest_ms // self.step_ms
        if self.checkpoint_every:
            done = (first // self.checkpoint_every + whole) * self.checkpoint_every + min(done, self.checkpoint_every)
        else:
            done += first
        return done if self.steps is None else min(done, self.steps)

    def kept_after(self, ran_ms: int, first: int) -> int:
        """The step of the newest checkpoint by then: that of `first`, where there is none since."""
        every = self.checkpoint_every
        kept = (first // every + self._cycles(ran_ms, first)[0]) * every if every else 0
        return max(first, kept if self.steps is None else min(kept, self.steps))

    def _cycles(self, ran_ms: int, first: int) -> tuple[int, int]:
        """Checkpoints that are complete, and ms since the last: as if it had begun at the one that is before `first`.
        Without checkpoints all of it is the time since."""
        ran_ms, every = max(0, ran_ms), self.checkpoint_every
        if not every:
            return 0, ran_ms
        return divmod(ran_ms + first % every * self.step_ms, every * self.step_ms + self.write_ms)


def course(start: Start, act: Behaviour, first: int) -> Iterator[tuple[int, tuple[Fact, ...]]]:
    """What a generation that begins at step `first` does if nobody stops it: (ms since its start, facts), in order."""
    death = next((death for death in act.deaths if death.generation == start.generation), None)
    if death and death.cause in BEFORE_IT_RUNS:
        yield death.after_ms, last_words(start, death, None)
        return
    for position, nodes in enumerate(together(start.nodes, act)):
        started = e.Started(gang=start.gang, generation=start.generation, nodes=nodes)
        yield act.begin_ms + position * act.apart_ms, (started,)
    runs_ms, lasts_ms = act.runs_after_ms(start), act.lasts_ms(first)
    if death and lasts_ms is not None and death.after_ms >= lasts_ms:
        death = None  # it is done before
    for after_ms, facts in _life(start, act, first):
        if death and after_ms >= death.after_ms:
            break
        yield runs_ms + after_ms, facts
    if death:
        yield runs_ms + death.after_ms, last_words(start, death, act.step_after(death.after_ms, first))


def _life(start: Start, act: Behaviour, first: int) -> Iterator[tuple[int, tuple[Fact, ...]]]:
    """Steps, checkpoints and a good end, by ms since all ranks run."""
    end_ms = act.lasts_ms(first)
    said = () if act.quiet else (_progress(start, act, first), _checkpoints(start, act, first))
    for after_ms, fact in heapq.merge(*said, key=_after_ms):
        if end_ms is not None and after_ms >= end_ms:
            break
        yield after_ms, (fact,)
    if end_ms is not None:
        for later_ms, nodes in _ends(start.nodes, act):
            finished = e.Finished(gang=start.gang, generation=start.generation, nodes=nodes)
            yield end_ms + later_ms, (finished, _cleared(start, nodes))


def _ends(nodes: tuple[str, ...], act: Behaviour) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(ms after the first of them, nodes that come to the good end then), in order."""
    if not act.ends_ms:
        yield from ((position * act.apart_ms, each) for position, each in enumerate(together(nodes, act)))
        return
    for later_ms in sorted({*act.ends_ms}):
        yield later_ms, tuple(node for node, ms in zip(nodes, act.ends_ms, strict=True) if ms == later_ms)


def _progress(start: Start, act: Behaviour, first: int) -> Iterator[tuple[int, Fact]]:
    for ran_ms in count(act.step_ms, max(MILESTONE_MS, act.step_ms)):
        step = act.step_after(ran_ms, first)
        yield ran_ms, e.Progressed(gang=start.gang, generation=start.generation, step=step)


def _checkpoints(start: Start, act: Behaviour, first: int) -> Iterator[tuple[int, Fact]]:
    every = act.checkpoint_every
    if every:
        for step in count((first // every + 1) * every, every):
            fact = e.Checkpointed(gang=start.gang, generation=start.generation, step=step)
            yield act.reaches_ms(step, first) + act.write_ms, fact


def last_words(start: Start, death: Death, step: int | None) -> tuple[Fact, ...]:
    """What is said of a generation that dies, with what was the newest step that its ranks had reported."""
    share = start.shares[death.node % len(start.shares)]
    gone = (_cleared(start, (share.node,)),) if death.cause in GONE_AT_ONCE else ()
    if death.cause is None:
        return gone
    failed = e.Failed(gang=start.gang, generation=start.generation, node=share.node, cause=death.cause)
    if death.cause in OF_A_RANK:
        code, rank = death.exit_code if death.signal is None else None, share.ranks[0]
        failed = replace(failed, rank=rank, exit_code=code, signal=death.signal)
        if death.error is not None:
            end = RankEnd(rank=rank, node=share.node, at_ms=0, exit_code=code, step=step, error=death.error)
            failed = replace(failed, ends=(end,))
    return (failed, *gone)


def together(nodes: Iterable[str], act: Behaviour) -> tuple[tuple[str, ...], ...]:
    """Nodes that say something at the same time: each alone, or all of them."""
    return tuple((node,) for node in nodes) if act.apart_ms else (tuple(nodes),)


def _cleared(start: Start, nodes: tuple[str, ...]) -> e.Cleared:
    return e.Cleared(gang=start.gang, generation=start.generation, nodes=nodes)


def _after_ms(item: tuple[int, Fact]) -> int:
    return item[0]
