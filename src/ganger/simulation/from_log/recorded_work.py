"""The recorded work of each job of ganger's own log: how long it took to start, to work and to stop.

The work of a job is the time in which its ranks ran and made progress that was kept. An attempt that was stopped or
failed counts up to its newest checkpoint, from which the next one resumed, and the last attempt up to its end. The
simulated interval between checkpoints is the mean of the recorded ones.
"""

from dataclasses import dataclass, field

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.model import event as e
from ganger.model.decision import Start, Stop


@dataclass(slots=True)
class RecordedWork:
    """The work of one job, in ms.

    base_ms: work that the current attempt began with
    kept_ms: work in the newest checkpoint
    done_ms: work at the end; None if that is unknown
    checkpoints: number of checkpoints
    start_durations_ms, stop_durations_ms: one for each complete start and stop
    """

    base_ms: int = 0
    kept_ms: int = 0
    done_ms: int | None = None
    checkpoints: int = 0
    start_durations_ms: list[int] = field(default_factory=list)
    stop_durations_ms: list[int] = field(default_factory=list)
    has_failed: bool = False
    _work_at_step: dict[int, int] = field(default_factory=dict)
    _decided_ms: int = 0
    _ranks_up_ms: int | None = None
    _stop_decided_ms: int | None = None
    _nodes: tuple[str, ...] = ()
    _finished_ms: dict[str, int] = field(default_factory=dict)
    _occupied: dict[str, None] = field(default_factory=dict)
    _starting: dict[str, None] = field(default_factory=dict)

    def fold(self, event: object, at_ms: int) -> None:
        """Fold the next decision or event of the job."""
        match event:
            case Start(nodes=nodes):
                self.base_ms, self._decided_ms = self.kept_ms, at_ms
                self._ranks_up_ms = self._stop_decided_ms = None
                self._occupied, self._starting = dict.fromkeys(nodes), dict.fromkeys(nodes)
                self._nodes, self._finished_ms = nodes, {}
            case Stop():
                self._stop_decided_ms = at_ms if self._stop_decided_ms is None else self._stop_decided_ms
            case e.Started(nodes=nodes):
                self._started(nodes, at_ms)
            case e.Resumed(step=step):
                self.base_ms = self.kept_ms = 0 if step is None else self._work_at_step.get(step, 0)
            case e.Checkpointed(step=step):
                self.kept_ms = self._work_at_step[step] = self._work_ms(at_ms)
                self.checkpoints += 1
            case e.Failed():
                self.done_ms, self.has_failed, self._finished_ms = self._work_ms(at_ms), True, {}
            case e.Finished(nodes=nodes):
                self.done_ms = self._work_ms(at_ms)
                self._finished_ms |= dict.fromkeys(nodes, at_ms)
            case e.Done():
                self.done_ms = self._work_ms(at_ms)
            case e.Cleared(nodes=nodes):
                self._cleared(nodes, at_ms)
            case _:
                pass

    @property
    def has_finished(self) -> bool:
        """True if the newest attempt finished on all its nodes."""
        return bool(self._nodes) and {*self._finished_ms} == {*self._nodes}

    def behaviour(self, default_start_ms: int, default_stop_ms: int, *, ends: bool) -> Behaviour:
        """Return the behaviour in virtual time, in steps of 1 ms.

        default_start_ms, default_stop_ms: for a job that never started or stopped
        ends: the job ends by itself after its work, each of its nodes when it did; otherwise only the nodes do that
            finished before the rest was stopped
        """
        offsets_ms = self._finish_offsets_ms() if self.has_finished or not ends else ()
        done_ms = self.done_ms if ends or self._finished_ms else None
        steps = None if done_ms is None else done_ms - max((ms for ms in offsets_ms if ms is not None), default=0)
        interval_ms = max(1, max(self._work_at_step.values()) // self.checkpoints) if self.checkpoints else 0
        return Behaviour(
            startup_ms=self.start_durations_ms[0] if self.start_durations_ms else default_start_ms,
            stagger_ms=0,
            step_ms=1,
            steps=steps,
            finish_offsets_ms=offsets_ms if steps is not None else (),
            checkpoint_every=interval_ms,
            save_ms=0,
            stop_ms=self.stop_durations_ms[0] if self.stop_durations_ms else default_stop_ms,
            quiet=True,
        )

    def _finish_offsets_ms(self) -> tuple[int | None, ...]:
        """Return how long after the first each node finished, None if it did not; empty if all did at once, or none."""
        first_ms = min(self._finished_ms.values(), default=0)
        offsets_ms = tuple(
            self._finished_ms[node] - first_ms if node in self._finished_ms else None for node in self._nodes
        )
        return offsets_ms if self._finished_ms and any(ms != 0 for ms in offsets_ms) else ()

    def _started(self, nodes: tuple[str, ...], at_ms: int) -> None:
        for node in nodes:
            self._starting.pop(node, None)
        if not self._starting and self._ranks_up_ms is None:
            self._ranks_up_ms = at_ms
            self.start_durations_ms.append(at_ms - self._decided_ms)

    def _cleared(self, nodes: tuple[str, ...], at_ms: int) -> None:
        for node in nodes:
            self._occupied.pop(node, None)
        if not self._occupied and self._stop_decided_ms is not None:
            # A stop that did not end the attempt before it finished would have taken longer.
            self.stop_durations_ms.append(at_ms - self._stop_decided_ms + self.has_finished)

    def _work_ms(self, at_ms: int) -> int:
        """Return the work by a time; of an attempt that never ran on all its nodes it counts from the start."""
        since_ms = self._decided_ms if self._ranks_up_ms is None else self._ranks_up_ms
        return self.base_ms + max(0, at_ms - since_ms)
