"""Promised starts in one round: which stand, which move, who gets one, and what is kept from everybody else.

Made by `core.round`. A promise is a fact of the state (`Reserve`): a moment, and nodes. A round lays them all down on
the profile of what runs, in their order; that fits, as long as everybody ends by their limit. One that does not fit any
more moves back, for a cause that is recorded; the others move to an earlier moment where there is one. A gang starts
beside them only where each of its nodes has what it needs, and its queue and its user may have it, for as long as its
limit says; without a limit for ever. The real start is placed by `core.place` like any other: the promised nodes are
those on which it is sure to be possible. Source of the rule: conservative backfill (Slurm), with as many reservations
as the policy says: one is EASY, all is conservative.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.allowance import Allowance, Charge
from ganger.core.devices import FREE
from ganger.core.fit import Ask, ask, placed
from ganger.core.gang import LEAVING, Gang
from ganger.core.layout import lay_out, rooms
from ganger.core.nodes import Kept
from ganger.core.place import place
from ganger.core.profile import NEVER_MS, Profile, Stay, edges
from ganger.core.runtime import runs_for_ms
from ganger.core.state import Shares, State
from ganger.core.topology import Ints
from ganger.model.decision import Moved, NodeShare, Reserve
from ganger.model.shape import Shape

_DEVICE: Final = Shape(nodes=1, gpus=1)
AT_ONCE_MS: Final = 1
"""When those are gone that should be gone already."""
MOST_MOVED: Final = 8
"""Promises for which one round looks for an earlier moment."""


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


class Promises:
    """standing: promises in force, by gang; decided: what the round changes of them."""

    def __init__(self, state: State, now_ms: int, ending: dict[str, None]) -> None:
        """Lay down what was promised. `ending`: gangs that end with this round."""
        self.state, self.now_ms = state, now_ms
        self.standing: dict[str, Promise] = {}
        self.decided: dict[str, Reserve] = {}
        self._ending = ending
        self._made: tuple[Profile, Allowance | None] | None = None
        self._kept: dict[int, Kept] = {}
        self._shared_until: dict[tuple[str, int], int] = {}
        """Devices that are shared, and until when."""
        if state.promises:
            self._lay()
            self._move_earlier()

    # -- who may start beside them -----------------------------------------------------------------------------------

    @contextmanager
    def _lifted(self, promises: list[Promise]) -> Iterator[None]:
        """Inside it nothing is kept by them."""
        for promise in promises:
            self._drop(promise)
        try:
            yield
        finally:
            for promise in promises:
                self._put(promise)

    def give_way(self, promise: Promise, cause: Moved) -> None:
        """A gang that is stronger has begun: what it took is promised no more."""
        if promise.gang.id not in self.standing:
            return
        self._drop(promise)
        if self._stands(promise):
            self._put(promise)
        else:
            self._renew(promise.gang, promise.told, cause)

    def start(self, gang: Gang, wanted: Ask, weaker: Iterable[Promise] = ()) -> Shares | None:
        """Where it may start without being in the way of any promise; its own is not counted, nor are the weaker ones.
        None: nowhere. Asked of a gang that its queue and its user may start."""
        own = self.standing.get(gang.id)
        with self._lifted([*weaker, *([own] if own else [])]):
            if not self.standing:
                return placed(self.state, wanted)
            end_ms = self.now_ms + runs_for_ms(gang)
            with self.state.nodes.keeping(self._kept_until(end_ms)):
                found = placed(self.state, wanted)
            return None if found and self._delays(self._charge(gang, found, self.now_ms, end_ms)) else found

    def began(self, name: str, gang: Gang, shares: Shares) -> None:
        """The gang starts in this round; `name`: under which it was promised."""
        own = self.standing.pop(name, None)
        self.decided.pop(name, None)
        if self._made is None:
            return
        profile, allowance = self._made
        if own is not None:
            for stay in own.stays:
                profile.add(stay, -1)
            if allowance is not None:
                allowance.promised.pop(name, None)
        end_ms = self.now_ms + runs_for_ms(gang)
        for stay in self._stays(gang, shares, profile.edges[0], end_ms):
            profile.add(stay)
        if allowance is not None:
            allowance.begin(self._charge(gang, shares, self.now_ms, end_ms))
        self._kept.clear()

    def in_the_way_of(self, gang: Gang, shares: Shares) -> tuple[Gang, ...]:
        """Who is promised something that a start on these shares would take, in the order of their promises."""
        end_ms, there = self.now_ms + runs_for_ms(gang), {share.node: None for share in shares}
        soon = [each for each in self._in_order() if each.start_ms < end_ms and each.gang is not gang]
        near = [each for each in soon if any(node in there for node in each.nodes)]
        delayed = {each.gang.id: None for each in self._delays(self._charge(gang, shares, self.now_ms, end_ms))}
        bars = [each for each in soon if each in near or each.gang.id in delayed]
        return tuple(each.gang for each in bars or soon)

    # -- who is promised a start -------------------------------------------------------------------------------------

    def reserve(self, gang: Gang) -> bool:
        """Promise it the first moment at which it can start. False where none can be told, or only those are in its way
        that are leaving: these may come back first."""
        found = self._found(gang, Moved.RESERVED)
        if found is None or found.start_ms <= self.now_ms + AT_ONCE_MS:
            return False
        self._put(found)
        self.decided[gang.id] = found.told
        return True

    def _lay(self) -> None:
        """What was promised, as far as it still can be; the rest for the first moment at which that is possible."""
        gangs, broken = self.state.gangs, []
        for fact in sorted(self.state.promises.values(), key=lambda fact: (fact.start_ms, gangs[fact.gang].number)):
            gang = gangs[fact.gang]
            if gang.id in self._ending or fact.start_ms is None:
                continue
            promise = self._promise(gang, fact.start_ms, fact.nodes, fact.cause)
            if promise is not None and self._stands(promise):
                self._put(promise)
            else:
                broken.append((gang, fact, self._why_broken(fact, promise)))
        for gang, fact, cause in broken:
            self._renew(gang, fact, cause)

    def _renew(self, gang: Gang, fact: Reserve, cause: Moved) -> None:
        found = self._found(gang, cause)
        if found is None:
            self.decided[gang.id] = Reserve(gang=gang.id, start_ms=None, cause=cause)
            return
        start_ms = fact.start_ms or 0
        if start_ms <= self.now_ms and found.start_ms <= self.now_ms + AT_ONCE_MS:
            found = replace(found, start_ms=start_ms)  # late already: it starts as soon as those in its way are gone
        if found.start_ms < start_ms:
            found = replace(found, cause=Moved.EARLIER)
        self._put(found)
        if found.told != fact:
            self.decided[gang.id] = found.told

    def _why_broken(self, fact: Reserve, promise: Promise | None) -> Moved:
        nodes, index = self.state.nodes, self.state.nodes.index
        if promise is None or not all(nodes.ready[index[node]] for node in fact.nodes):
            return Moved.NODE_OUT
        if promise.start_ms <= self.now_ms:
            return Moved.OVERRUN
        return Moved.POLICY_CHANGED if self._fits(promise) else Moved.NODE_OUT

    def _move_earlier(self) -> None:
        """To an earlier moment, each in its order, where there is one; of many each in its turn."""
        order = [each for each in self._in_order() if each.gang.id not in self.decided]
        begin = self.state.seq * MOST_MOVED % max(1, len(order)) if len(order) > MOST_MOVED else 0
        for promise in sorted((order[begin:] + order[:begin])[:MOST_MOVED], key=_order):
            if promise.start_ms <= self.now_ms:
                continue
            self._drop(promise)
            found = self._found(promise.gang, Moved.EARLIER, promise.start_ms)
            self._put(found or promise)
            if found is not None:
                self.decided[promise.gang.id] = found.told

    # -- finding -----------------------------------------------------------------------------------------------------

    def _found(self, gang: Gang, cause: Moved, before_ms: int = NEVER_MS) -> Promise | None:
        """The first moment after now, and before another, at which the gang could start and stay."""
        if any(part.selector.devices for part in gang.shape.parts):
            return None  # which devices are free when is not kept
        profile, allowance = self._basis()
        wanted, for_ms = ask(gang), runs_for_ms(gang)
        for slot in _slots(profile, wanted, for_ms, self._usable(wanted), profile.slot(self.now_ms) + 1):
            start_ms = int(profile.edges[slot])
            if start_ms >= before_ms:
                return None
            usable, end_ms = self._usable(wanted), start_ms + for_ms
            if allowance is not None:
                if allowance.bars(wanted, start_ms):
                    continue
                usable &= self._open_types(allowance, wanted, start_ms)
            shares = _placed(self.state, profile, wanted, (slot, for_ms), usable)
            if shares is None or self._delays(self._charge(gang, shares, start_ms, end_ms)):
                continue
            nodes = tuple(share.node for share in shares)
            stays = tuple(self._stays(gang, shares, start_ms, end_ms))
            if not all(self._suits(stay.part, stay.at).all() for stay in stays if stay.part.has_share):
                continue
            return Promise(gang, start_ms, min(NEVER_MS, end_ms), nodes, cause, stays)
        return None

    def _usable(self, wanted: Ask) -> NDArray[np.bool_]:
        nodes = self.state.nodes
        usable: NDArray[np.bool_] = nodes.ready & ~nodes.held
        usable[[nodes.index[name] for name in wanted.avoids if name in nodes.index]] = False
        return usable

    def _open_types(self, allowance: Allowance, wanted: Ask, at_ms: int) -> NDArray[np.bool_]:
        """(N,) nodes of types that its queue may have as much of, then."""
        closed = allowance.at(wanted.user, at_ms).closed_types(wanted.queue, wanted.shape)
        nodes = self.state.nodes
        found: NDArray[np.bool_] = np.ones(len(nodes.nodes), dtype=bool)
        for kind in closed:
            found &= ~nodes.of_type(kind)
        return found

    def _delays(self, charge: Charge) -> list[Promise]:
        """Promises that what is charged would keep from starting, by quota or a limit of their user."""
        allowance = self._basis()[1]
        if allowance is None:
            return []
        soon = [(max(self.now_ms, each.start_ms), each) for each in self._in_order() if each.gang is not charge.gang]
        return [
            each
            for at_ms, each in soon
            if charge.begin_ms <= at_ms < charge.end_ms and allowance.bars(ask(each.gang), at_ms, each.gang.id, charge)
        ]

    # -- what is laid down -------------------------------------------------------------------------------------------

    def _promise(self, gang: Gang, start_ms: int, nodes: tuple[str, ...], cause: Moved) -> Promise | None:
        """What was promised, with what it takes; None where one of the nodes is not there."""
        if any(node not in self.state.nodes.index for node in nodes):
            return None
        end_ms = max(start_ms, self.now_ms) + runs_for_ms(gang)
        stays = tuple(self._stays(gang, _shares_on(gang.shape, nodes), start_ms, end_ms))
        return Promise(gang, start_ms, min(NEVER_MS, end_ms), nodes, cause, stays)

    def _stands(self, promise: Promise) -> bool:
        """Whether it still can be kept, beside those that are laid down."""
        nodes, allowance = self.state.nodes, self._basis()[1]
        if not all(nodes.ready[nodes.index[node]] for node in promise.nodes) or not self._fits(promise):
            return False
        if allowance is None:
            return True
        start_ms = max(self.now_ms, promise.start_ms)
        charge = self._charge(promise.gang, _shares_on(promise.gang.shape, promise.nodes), start_ms, promise.end_ms)
        return not allowance.bars(ask(promise.gang), start_ms) and not self._delays(charge)

    def _fits(self, promise: Promise) -> bool:
        """Whether its nodes have what it needs, from its moment on."""
        profile, fits = self._basis()[0], True
        for stay in promise.stays:
            profile.add(stay)
        every = np.concatenate([stay.at for stay in promise.stays])
        for stay in promise.stays:
            at = np.unique(stay.at)
            there = profile.window(at, *profile.slots(max(self.now_ms, stay.begin_ms), stay.end_ms))
            mine = (every[:, None] == at).sum(axis=0)
            fits &= all(int(amount.min()) >= 0 for amount in there[:3])
            fits &= bool(((there.alone == 0) | (there.guests <= mine)).all())
            fits &= bool(self._suits(stay.part, at).all())
        for stay in promise.stays:
            profile.add(stay, -1)
        return bool(fits)

    def _suits(self, part: Shape, at: Ints) -> NDArray[np.bool_]:
        nodes = self.state.nodes
        fits = np.logical_or.reduce([nodes.large_enough(choice)[at] for choice in part.choices])
        found: NDArray[np.bool_] = fits
        return found

    def _put(self, promise: Promise) -> None:
        profile, allowance = self._basis()
        self.standing[promise.gang.id] = promise
        for stay in promise.stays:
            profile.add(stay)
        if allowance is not None:
            shares = _shares_on(promise.gang.shape, promise.nodes)
            allowance.promised[promise.gang.id] = self._charge(
                promise.gang, shares, max(self.now_ms, promise.start_ms), promise.end_ms
            )
        self._kept.clear()

    def _drop(self, promise: Promise) -> None:
        profile, allowance = self._basis()
        del self.standing[promise.gang.id]
        for stay in promise.stays:
            profile.add(stay, -1)
        if allowance is not None:
            del allowance.promised[promise.gang.id]
        self._kept.clear()

    def _in_order(self) -> list[Promise]:
        return sorted(self.standing.values(), key=_order)

    def _kept_until(self, end_ms: int) -> Kept:
        """What a gang that ends then must leave."""
        profile, nodes = self._basis()[0], self.state.nodes
        end = profile.upto(end_ms)
        if end not in self._kept:
            at = np.unique(np.concatenate([stay.at for each in self.standing.values() for stay in each.stays]))
            there = profile.window(at, profile.slot(self.now_ms), end)
            has: tuple[Ints, ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
            gpus, cpu_milli, memory_bytes = (
                np.maximum(0, amount[at] - least) for amount, least in zip(has, there[:3], strict=True)
            )
            self._kept[end] = Kept(at, gpus, cpu_milli, memory_bytes, there.guests > 0, there.alone > 0)
        return self._kept[end]

    def _basis(self) -> tuple[Profile, Allowance | None]:
        """The profile of what runs, and what queues may use; made when something is first promised or asked."""
        if self._made is None:
            state, now_ms = self.state, self.now_ms
            held = [(gang, shares, self._end_ms(gang)) for gang, shares in state.holding()]
            moments = [end_ms for *_, end_ms in held]
            for fact in state.promises.values():
                start_ms = max(now_ms, fact.start_ms or 0)
                moments += [start_ms, start_ms + runs_for_ms(state.gangs[fact.gang])]
            slots = edges(now_ms, moments, len(state.nodes.nodes))
            self._shared_until.clear()
            stays = [
                stay
                for gang, shares, end_ms in held
                for stay in self._stays(gang, shares, int(slots[0]), max(end_ms, int(slots[0]) + 1))
            ]
            profile, allowance = Profile(state.nodes, slots, stays), None
            if state.tree.limits_anybody:
                charges = [Charge(gang, state.charged[gang.id], now_ms, end_ms) for gang, _, end_ms in held]
                allowance = Allowance(state.tree, charges)
            self._made = profile, allowance
        return self._made

    def _end_ms(self, gang: Gang) -> int:
        """When a gang that holds something is gone: by its limit, or at the next moment where it should be."""
        if gang.state in LEAVING or gang.id in self._ending:
            return self.now_ms + AT_ONCE_MS
        for_ms = runs_for_ms(gang)
        began_ms = gang.began_ms if gang.start and gang.start.generation == gang.generation else self.now_ms
        return min(NEVER_MS, max(self.now_ms + AT_ONCE_MS, began_ms + for_ms))

    def _stays(self, gang: Gang, shares: Shares, begin_ms: int, end_ms: int) -> Iterator[Stay]:
        """What shares take of the nodes, part by part."""
        index = self.state.nodes.index
        for number, part in enumerate(gang.shape.parts):
            mine = [share for share in shares if share.part == number]
            its = np.array([index[share.node] for share in mine], dtype=np.int64)
            is_real = part.has_share and mine and mine[0].devices
            if is_real:
                yield from self._of_devices(mine, begin_ms, min(NEVER_MS, end_ms))
            rest = replace(part, gpu_milli=0, gpu_memory_bytes=0) if is_real else part
            if mine:
                yield Stay(rest, its, begin_ms, min(NEVER_MS, end_ms))

    def _of_devices(self, shares: list[NodeShare], begin_ms: int, end_ms: int) -> Iterator[Stay]:
        """The devices that shares are on now: each is taken until the last of them leaves."""
        for share in shares:
            device = share.node, share.devices[0]
            until_ms = self._shared_until.get(device, begin_ms)
            if end_ms > until_ms:
                self._shared_until[device] = end_ms
                at = np.array([self.state.nodes.index[share.node]], dtype=np.int64)
                yield Stay(_DEVICE, at, until_ms, end_ms)

    def _charge(self, gang: Gang, shares: Shares, begin_ms: int, end_ms: int) -> Charge:
        """What it is charged for on these shares."""
        nodes, tree = self.state.nodes, self.state.tree
        taken = tree.taken(gang.shape, shares, lambda name: nodes.gpu_types[nodes.index[name]])
        return Charge(gang, taken, begin_ms, end_ms)


def _order(promise: Promise) -> tuple[int, int]:
    return promise.start_ms, promise.gang.number


def _shares_on(shape: Shape, nodes: tuple[str, ...]) -> Shares:
    """Shares of a promise: which part is on which node."""
    parts = [number for number, part in enumerate(shape.parts) for _ in range(part.nodes)]
    return tuple(
        NodeShare(node, (), tuple(range(shape.parts[part].gpus)), part) for node, part in zip(nodes, parts, strict=True)
    )


def _slots(profile: Profile, wanted: Ask, for_ms: int, usable: NDArray[np.bool_], first: int) -> Iterator[int]:
    """Slots, rising, in which each part of it alone could begin."""
    shape = wanted.shape
    if not _is_plain(shape):
        yield from range(first, len(profile.edges))
        return
    found = [list(profile.starts(choice, (shape.nodes, for_ms), usable, first)) for choice in shape.choices]
    if len(found) > 1:
        yield from sorted({slot for slots in found for slot in slots})
    else:
        yield from found[0]


def _is_plain(shape: Shape) -> bool:
    """Whether it has one part, on nodes of its own."""
    return not shape.more and not shape.stacked


def _placed(
    state: State, profile: Profile, wanted: Ask, when: tuple[int, int], usable: NDArray[np.bool_]
) -> Shares | None:
    """Shares on which it could begin with that slot and stay for so long."""
    shape, nodes = wanted.shape, state.nodes
    if not _is_plain(shape):
        return _placed_together(state, profile, wanted, when, usable)
    for choice in shape.choices:
        times = (profile.holding(choice, *when) & usable).astype(np.int64)
        if int(times.sum()) < shape.nodes:
            continue
        found = lay_out(nodes, rooms(nodes.topology, times), shape.nodes, (shape.layout, shape.slices))
        if found is not None:
            names = tuple(nodes.names[at] for at in found[0].tolist())
            return _shares_on(shape, names)
    return None


def _placed_together(
    state: State, profile: Profile, wanted: Ask, when: tuple[int, int], usable: NDArray[np.bool_]
) -> Shares | None:
    """The same for parts that may share nodes: placed on the nodes as they will be at their fullest."""
    nodes, undo = state.nodes, state.undo
    every = np.arange(len(nodes.nodes))
    there = profile.window(every, when[0], int(profile.ends(when[1])[when[0]]))
    free: tuple[NDArray[Any], ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
    arrays = (*free, nodes.guests, nodes.alone, nodes.barred)
    with state.trial():
        undo.put(nodes.owner, slice(None), FREE)
        for array, then in zip(arrays, (*there, ~usable), strict=True):
            undo.put(array, slice(None), then.astype(array.dtype))
        found = place(nodes, replace(_whole(wanted.shape), more=tuple(map(_whole, wanted.shape.more))))
    return None if found is None else _shares_on(wanted.shape, tuple(share.node for share in found))


def _whole(part: Shape) -> Shape:
    """With all of a device where it asks for a share."""
    return replace(part, gpus=part.devices, gpu_milli=0, gpu_memory_bytes=0)
