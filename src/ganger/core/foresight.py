"""What a round knows of the time after it: who holds what until when, on nodes and in queues.

Used by `core.promises`. Two profiles of the same: of all nodes, to find a moment and a place, made only when somebody
asks for one; and of the nodes that are promised to somebody, at the moments of the promises alone: all that a start
has to be held against. Between these what is free only grows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ganger.core.allowance import Allowance, Charge
from ganger.core.gang import LEAVING, Gang
from ganger.core.holding import rows
from ganger.core.pooled import Pooled
from ganger.core.profile import Profile, Stay, edges
from ganger.core.runtime import NEVER_MS
from ganger.core.state import Shares, State
from ganger.core.topology import Ints
from ganger.model.decision import Moved, NodeShare, Reserve
from ganger.model.shape import Shape
from ganger.model.units import MINUTE_MS

Device = tuple[str, int]
_DEVICE: Final = Shape(nodes=1, gpus=1)
AT_ONCE_MS: Final = 1
"""When those are gone that should be gone already: what is promised counts on it."""
LINGER_MS: Final = 10 * MINUTE_MS
"""When it is promised that they are."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A gang, when it starts and when it ends at the latest, and on which nodes."""

    gang: Gang
    start_ms: int
    end_ms: int
    nodes: tuple[str, ...]
    cause: Moved
    stays: tuple[Stay, ...]

    @property
    def told(self) -> Reserve:
        """The decision that makes it."""
        return Reserve(gang=self.gang.id, start_ms=self.start_ms, nodes=self.nodes, cause=self.cause)


class Foresight:
    """Of one state and moment. `ending`: gangs that end with this round."""

    def __init__(self, state: State, now_ms: int, ending: dict[str, None]) -> None:
        """Nothing is made before it is asked for."""
        self.state, self.now_ms, self._ending = state, now_ms, ending

    def whole(self, promises: Iterable[Promise]) -> Profile:
        """Of all nodes, with promises laid down."""
        every, held = list(promises), self._held(self.state.shares, LINGER_MS)
        moments = [end_ms for *_, end_ms in held]
        moments += [ms for each in every for ms in (max(self.now_ms, each.start_ms), each.end_ms)]
        moments += [ms for window in self.state.windows.values() for ms in (window.from_ms, window.until_ms)]
        slots = edges(self.now_ms, moments, len(self.state.nodes.nodes))
        shared: dict[Device, int] = {}
        stays = [stay for gang, its, end_ms in held for stay in self.stays(gang, its, (int(slots[0]), end_ms), shared)]
        found = Profile(self.state.nodes, slots, [*stays, *(stay for each in every for stay in each.stays)])
        for window in self.state.windows.values():
            found.close(self.state.windows.at(self.state.nodes, window), window.from_ms, window.until_ms)
        return found

    def near(self, promises: Iterable[Promise]) -> Profile:
        """Of the nodes that are promised to somebody, with nothing promised; slots begin with promises."""
        every, state = list(promises), self.state
        slots = np.unique([self.now_ms, *(max(self.now_ms, each.start_ms) for each in every)])
        among = np.unique(np.concatenate([stay.at for each in every for stay in each.stays]))
        names = (state.nodes.names[at] for at in among.tolist())
        there = {gang: None for name in names for gang in state.shares.residents.get(name, ())}
        held = self._held(there)
        shared: dict[Device, int] = {}
        stays = [stay for gang, its, end_ms in held for stay in self.stays(gang, its, (self.now_ms, end_ms), shared)]
        return Profile(state.nodes, slots, [_cut_to(stay, among) for stay in stays], among)

    def allowance(self) -> Allowance | Pooled | None:
        """What queues may use; None where no figure binds anybody."""
        state = self.state
        if not state.tree.limits_anybody:
            return None
        late_ms = self.now_ms + AT_ONCE_MS
        ends = {name: late_ms if at is None else at for name, at in self._ends().items()}
        held = [(state.gangs[name], state.charged[name], at) for name, at in ends.items()]
        return Pooled(state.tree, held) if state.tree.is_pooled else Allowance(state.tree, held)

    def stays(
        self, gang: Gang, shares: Shares, when: tuple[int, int], shared: dict[Device, int] | None = None
    ) -> Iterator[Stay]:
        """What shares take of the nodes, part by part. `shared`: devices that are shared, and until when."""
        holding, index, end_ms = self.state.shares, self.state.nodes.index, min(NEVER_MS, when[1])
        is_held = holding.get(gang.id) is shares
        for part, mine, at in holding.rows(gang.id, index) if is_held else rows(gang.shape, shares, index):
            is_real = part.has_share and bool(mine[0].devices)
            if is_real:
                yield from self._of_devices(mine, (when[0], end_ms), {} if shared is None else shared)
            yield Stay(replace(part, gpu_milli=0, gpu_memory_bytes=0) if is_real else part, at, when[0], end_ms)

    def _of_devices(
        self, shares: Iterable[NodeShare], when: tuple[int, int], shared: dict[Device, int]
    ) -> Iterator[Stay]:
        """The devices that shares are on now: each is taken until the last of them leaves."""
        for share in shares:
            device = share.node, share.devices[0]
            until_ms = shared.get(device, when[0])
            if when[1] > until_ms:
                shared[device] = when[1]
                yield Stay(_DEVICE, np.array([self.state.nodes.index[share.node]], dtype=np.int64), until_ms, when[1])

    def charge(self, gang: Gang, shares: Shares, when: tuple[int, int]) -> Charge:
        """What it is charged for on these shares."""
        nodes, tree = self.state.nodes, self.state.tree
        taken = tree.taken(gang.shape, shares, lambda name: nodes.gpu_types[nodes.index[name]])
        return Charge(gang, taken, when[0], min(NEVER_MS, when[1]))

    def _held(self, names: Iterable[str], linger_ms: int = AT_ONCE_MS) -> list[tuple[Gang, Shares, int]]:
        """Those that hold something, and when they are gone: by their limits, or in a while where they should be."""
        state, ends = self.state, self._ends()
        late_ms = self.now_ms + linger_ms
        every = ((name, ends[name]) for name in names)
        return [(state.gangs[name], state.shares[name], late_ms if at is None else at) for name, at in every]

    def _ends(self) -> dict[str, int | None]:
        """When each that holds something ends by its limit; None for those that are leaving, or should have left."""
        state = self.state
        ends = {name: NEVER_MS if at is None else at for name, at in state.shares.ends().items()}
        found: dict[str, int | None] = dict(ends)
        leaving = (gang.id for gang in state.due.restless.values() if gang.state in LEAVING)
        for name in (*leaving, *self._ending, *state.shares.past(self.now_ms)):
            if name in found:
                found[name] = None
        self._end_early(found)
        return found

    def _end_early(self, ends: dict[str, int | None]) -> None:
        """Those on nodes that are to be maintained leave when that begins."""
        for window in self.state.windows.values():
            for gang in self.state.on_nodes(window.nodes) if window.from_ms > self.now_ms else ():
                end_ms = ends[gang.id]
                ends[gang.id] = None if end_ms is None else min(end_ms, window.from_ms)


def _cut_to(stay: Stay, among: Ints) -> Stay:
    """The part of it that is on these nodes."""
    return Stay(stay.part, stay.at[np.isin(stay.at, among)], stay.begin_ms, stay.end_ms)
