"""What each job of ganger's own log did: how long it took to begin, to work, to stop. Called by
`simulation.from_log.recorded_days`.

Its work is the time that its ranks ran and that was of use in the end: an attempt that was stopped or failed counts up
to its newest checkpoint, from which the next one went on, and the last attempt up to its end. Between checkpoints is
the work that there was in mean.
"""

from dataclasses import dataclass, field

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.model import event as e
from ganger.model.decision import Start, Stop


@dataclass(slots=True)
class Work:
    """Of one job, in ms. base_ms: the work that the running attempt began with; kept_ms: that of the newest checkpoint;
    done_ms: how much it came to, None where that is not known; begins_ms, stops_ms: what its starts and stops took."""

    base_ms: int = 0
    kept_ms: int = 0
    done_ms: int | None = None
    saves: int = 0
    begins_ms: list[int] = field(default_factory=list)
    stops_ms: list[int] = field(default_factory=list)
    has_failed: bool = False
    _saved: dict[int, int] = field(default_factory=dict)
    _decided_ms: int = 0
    _runs_ms: int | None = None
    _stops_ms: int | None = None
    _nodes: tuple[str, ...] = ()
    _ends_ms: dict[str, int] = field(default_factory=dict)
    _here: dict[str, None] = field(default_factory=dict)
    _unheard: dict[str, None] = field(default_factory=dict)

    def take(self, event: object, at_ms: int) -> None:
        """What happened to it."""
        match event:
            case Start(nodes=nodes):
                self.base_ms, self._decided_ms, self._runs_ms, self._stops_ms = self.kept_ms, at_ms, None, None
                self._here, self._unheard = dict.fromkeys(nodes), dict.fromkeys(nodes)
                self._nodes, self._ends_ms = nodes, {}
            case Stop():
                self._stops_ms = at_ms
            case e.Started(nodes=nodes):
                self._begun(nodes, at_ms)
            case e.Resumed(step=step):
                self.base_ms = self.kept_ms = 0 if step is None else self._saved.get(step, 0)
            case e.Checkpointed(step=step):
                self.kept_ms = self._saved[step] = self._work_ms(at_ms)
                self.saves += 1
            case e.Failed():
                self.done_ms, self.has_failed = self._work_ms(at_ms), True
            case e.Finished(nodes=nodes):
                self.done_ms = self._work_ms(at_ms)
                self._ends_ms |= dict.fromkeys(nodes, at_ms)
            case e.Done():
                self.done_ms = self._work_ms(at_ms)
            case e.Cleared(nodes=nodes):
                self._cleared(nodes, at_ms)
            case _:
                pass

    def behaviour(self, begin_ms: int, stop_ms: int, *, ends: bool) -> Behaviour:
        """The same in virtual time, where a step is a ms. begin_ms, stop_ms: of one that never began or stopped; ends:
        by itself, after its work, each node when it did."""
        later_ms = self._later_ms()
        steps = None if self.done_ms is None or not ends else self.done_ms - max(later_ms, default=0)
        return Behaviour(
            begin_ms=self.begins_ms[0] if self.begins_ms else begin_ms,
            apart_ms=0,
            step_ms=1,
            steps=steps,
            ends_ms=later_ms if steps is not None else (),
            checkpoint_every=max(1, max(self._saved.values()) // self.saves) if self.saves else 0,
            save_ms=0,
            stop_ms=self.stops_ms[0] if self.stops_ms else stop_ms,
            quiet=True,
        )

    def _later_ms(self) -> tuple[int, ...]:
        """How much later than the first each node came to the good end; nothing where all did at once, or not all."""
        if {*self._ends_ms} != {*self._nodes}:
            return ()
        first_ms = min(self._ends_ms.values(), default=0)
        later_ms = tuple(self._ends_ms[node] - first_ms for node in self._nodes)
        return later_ms if any(later_ms) else ()

    def _begun(self, nodes: tuple[str, ...], at_ms: int) -> None:
        for node in nodes:
            self._unheard.pop(node, None)
        if not self._unheard and self._runs_ms is None:
            self._runs_ms = at_ms
            self.begins_ms.append(at_ms - self._decided_ms)

    def _cleared(self, nodes: tuple[str, ...], at_ms: int) -> None:
        for node in nodes:
            self._here.pop(node, None)
        if not self._here and self._stops_ms is not None:
            self.stops_ms.append(at_ms - self._stops_ms)

    def _work_ms(self, at_ms: int) -> int:
        """By then; of an attempt that never ran on all its nodes, since its start."""
        since_ms = self._decided_ms if self._runs_ms is None else self._runs_ms
        return self.base_ms + max(0, at_ms - since_ms)
