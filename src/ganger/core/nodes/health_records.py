"""The health of the nodes that something has happened to, and the indexes by which a cycle finds those it must act on.

A node without a record is healthy. A cluster without faults has no records, and a cycle asks `is_due` alone.
"""

from bisect import bisect_right, insort
from typing import Final

from ganger.model.node_health.health_record import (
    HealthImage,
    HealthState,
    NodeHealth,
)

NO_HEALTH: Final = HealthImage()


class HealthRecords:
    """The records by node.

    by_node: one for each node that something has happened to.
    leaving: nodes that are to be taken away, with the time.
    cordons: cordons by decisions within the breaker's window, oldest first.
    groups: faults of many nodes that are one event.
    breakers: stops of automatic cordons.
    out: nodes that are out of service because of their health.
    waiting: nodes that await a decision whatever the time is.
    suspicions: nodes that placement holds faults against, with how much.
    slowness_milli: nodes that were measured to be slower than is usual, with how much.
    on_probation: nodes for small jobs only.
    """

    def __init__(self, image: HealthImage = NO_HEALTH) -> None:
        """Restore the records of a snapshot."""
        self.by_node: dict[str, NodeHealth] = {}
        self.leaving = dict(image.leaving)
        self.cordons, self.groups, self.breakers = tuple(image.cordons), tuple(image.groups), tuple(image.breakers)
        self.out: dict[str, None] = {}
        self.waiting: dict[str, None] = {}
        self.suspicions: dict[str, int] = {}
        self.slowness_milli: dict[str, int] = {}
        self.on_probation: dict[str, None] = {}
        self._timers: list[tuple[int, str]] = []
        for record in image.nodes:
            self.put(record)

    def image(self) -> HealthImage:
        """Return what a snapshot keeps."""
        return HealthImage(
            nodes=list(self.by_node.values()),
            cordons=list(self.cordons),
            groups=list(self.groups),
            breakers=list(self.breakers),
            leaving=dict(self.leaving),
        )

    def put(self, record: NodeHealth) -> None:
        """Replace the record of a node."""
        name = record.node
        self._forget_timers(name)
        self.by_node[name] = record
        for is_member, names in (
            (record.is_out, self.out),
            (record.awaits_decision, self.waiting),
            (record.state is HealthState.PROBATION, self.on_probation),
        ):
            if is_member:
                names[name] = None
            else:
                names.pop(name, None)
        for amount, amounts in ((record.suspicion, self.suspicions), (record.slowness_milli, self.slowness_milli)):
            amounts.pop(name, None)
            if amount:
                amounts[name] = amount
        for time_ms in (record.due_ms, record.acts_ms):
            if time_ms is not None:
                insort(self._timers, (time_ms, name))

    def drop(self, name: str) -> None:
        """Forget a node that is gone."""
        if name in self.by_node:
            self._forget_timers(name)
            del self.by_node[name]
            for names in (self.out, self.waiting, self.on_probation, self.suspicions, self.slowness_milli):
                names.pop(name, None)

    def is_due(self, now_ms: int) -> bool:
        """Return whether there is anything to decide, as far as that can be seen at once."""
        return bool(self.waiting) or bool(self._timers and self._timers[0][0] <= now_ms)

    def due(self, now_ms: int) -> list[str]:
        """Return the nodes that await a decision, or whose time has come, in order of their names."""
        expired = (name for _, name in self._timers[: bisect_right(self._timers, (now_ms + 1,))])
        return sorted({**self.waiting, **dict.fromkeys(expired)})

    def next_ms(self, now_ms: int) -> int | None:
        """Return the first time after `now_ms` at which time alone leads to a decision."""
        position = bisect_right(self._timers, (now_ms + 1,))
        first = self._timers[position : position + 1]
        times_ms = [time_ms for time_ms, _ in first] + [breaker.until_ms for breaker in self.breakers]
        return min((time_ms for time_ms in times_ms if time_ms > now_ms), default=None)

    def validate(self, rebuilt: "HealthRecords") -> None:
        """Raise AssertionError naming the difference from records that were restored from the image."""
        assert self._timers == rebuilt._timers, "timers of node health differ"  # noqa: SLF001 - the same class
        for name in ("out", "waiting", "suspicions", "slowness_milli", "on_probation"):
            assert getattr(self, name) == getattr(rebuilt, name), f"{name} of node health differ"

    def _forget_timers(self, name: str) -> None:
        before = self.by_node.get(name)
        for time_ms in (before.due_ms, before.acts_ms) if before else ():
            if time_ms is not None:
                self._timers.remove((time_ms, name))
