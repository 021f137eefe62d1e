"""Allocation of a node's devices to claims: which devices satisfy all their requests together, or why none do.

It is pure: devices, requests and what is taken come in, devices or a reason come out. Requests are satisfied in order,
each by the first devices in the order of their slices that leave the rest satisfiable. Of devices that differ in names
alone one is tried, and the search ends after a fixed number of steps. Partitionable devices take amounts of counters
that the devices of a pool share.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ganger.kubeapi.device_objects import DeviceTaint, DeviceToleration

MAX_STEPS: Final = 500
"""Devices that are tried for one pod on a node: the event loop waits for it, some milliseconds. A claim that can be had
takes a step for each of its devices (32 at most), and few more where requests compete for some."""
BLOCKING_EFFECTS: Final = ("NoSchedule", "NoExecute")


class DeviceId(NamedTuple):
    """Identity of a device in a cluster."""

    driver: str
    pool: str
    name: str


class CounterId(NamedTuple):
    """Identity of a counter in a cluster."""

    driver: str
    pool: str
    counters: str
    name: str


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device of a node.

    Attributes:
        attributes: values by qualified name.
        uses: amounts of counters that it takes when it is allocated.
        obstacle: why it cannot be allocated; empty if it can.
    """

    id: DeviceId
    attributes: Mapping[str, object] = field(default_factory=dict)
    uses: Mapping[CounterId, int] = field(default_factory=dict)
    taints: tuple[DeviceTaint, ...] = ()
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of a node, and the amounts of its counters."""

    devices: tuple[NodeDevice, ...] = ()
    counters: Mapping[CounterId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One way to satisfy a request.

    Attributes:
        request: name for the allocation: of the request, or `REQUEST/ALTERNATIVE`.
        what: the class, for reasons.
        count: number of devices; None: all that are selected.
        selected: the devices that its class and selectors select.
        admin_access: the devices are only monitored: others may have them.
    """

    request: str
    what: str
    count: int | None
    selected: frozenset[DeviceId]
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()


@dataclass(frozen=True, slots=True)
class SameOrDistinct:
    """An attribute in which the devices of some requests are equal, or all differ; no requests: of all."""

    requests: frozenset[str]
    attribute: str
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class ClaimNeeds:
    """Needs of a claim on a node: one of the choices of each request, within the constraints."""

    requests: tuple[tuple[DeviceChoice, ...], ...]
    constraints: tuple[SameOrDistinct, ...] = ()


class Granted(NamedTuple):
    """A device that a claim gets."""

    request: str
    device: DeviceId
    admin_access: bool


class NoDevicesError(Exception):
    """A pod whose claims cannot have their devices on a node. The message is the reason."""


@dataclass(slots=True)
class Budget:
    """Steps that are left to several searches together."""

    steps: int


def allocate(
    claims: Sequence[ClaimNeeds], node: NodeDevices, taken: Collection[DeviceId], budget: Budget | None = None
) -> tuple[tuple[Granted, ...], ...]:
    """Return the devices of each claim. Raises NoDevicesError.

    budget: what the searches of several nodes may use together; each has at most `MAX_STEPS`.
    """
    search = _Search(claims, node, taken, MAX_STEPS if budget is None else min(budget.steps, MAX_STEPS))
    for needs in claims:
        for choices in needs.requests:
            search.check_alone(choices)
    search.check_together()
    is_satisfied = search.satisfy(0)
    if budget is not None:
        budget.steps = max(0, budget.steps - search.steps)
    if not is_satisfied:
        raise NoDevicesError(search.reason())
    return search.granted()


def shape_of(claims: Sequence[ClaimNeeds], node: NodeDevices, taken: Collection[DeviceId]) -> Hashable:
    """Return what decides which of a node's devices claims can have: equal for nodes that differ in names alone."""
    counters = {counter: index for index, counter in enumerate(node.counters)}
    attributes = _constrained(claims)
    devices = tuple(
        (
            _values(device, attributes),
            tuple(sorted((counters.get(counter, -1), amount) for counter, amount in device.uses.items())),
            device.taints,
            bool(device.obstacle),
            device.id in taken,
        )
        for device in node.devices
    )
    needs = tuple(
        (
            tuple(
                tuple(
                    (each.request, each.count, each.admin_access, each.tolerations, _places(each, node))
                    for each in choices
                )
                for choices in claim.requests
            ),
            claim.constraints,
        )
        for claim in claims
    )
    return tuple(node.counters.values()), devices, needs


def _places(choice: DeviceChoice, node: NodeDevices) -> tuple[int, ...]:
    return tuple(place for place, device in enumerate(node.devices) if device.id in choice.selected)


def _constrained(claims: Sequence[ClaimNeeds]) -> tuple[str, ...]:
    """Return the attributes that constraints are on."""
    return tuple(dict.fromkeys(each.attribute for needs in claims for each in needs.constraints))


def _values(device: NodeDevice, attributes: Sequence[str]) -> tuple[str, ...]:
    """Return a device's values of attributes, which may be lists, as text."""
    return tuple(repr(device.attributes.get(name)) for name in attributes)


class _Search:
    """Depth-first search over the requests of all claims of a pod."""

    def __init__(
        self, claims: Sequence[ClaimNeeds], node: NodeDevices, taken: Collection[DeviceId], max_steps: int
    ) -> None:
        self._claims, self._node, self._taken, self._max_steps = claims, node, set(taken), max_steps
        self._requests = [(index, choices) for index, needs in enumerate(claims) for choices in needs.requests]
        self._left = dict(node.counters)
        for device in node.devices:
            if device.id in self._taken:
                self._use(device, -1)
        self._granted: list[tuple[int, Granted, NodeDevice]] = []
        self._kinds: dict[DeviceId, Hashable] = {}
        """Devices of one kind differ in names alone."""
        self.steps = 0

    def check_alone(self, choices: tuple[DeviceChoice, ...]) -> None:
        """Raise NoDevicesError if a request cannot be satisfied even without the others."""
        reasons = [self._shortage(choice) for choice in choices]
        if all(reasons):
            raise NoDevicesError("; ".join(reasons))

    def check_together(self) -> None:
        """Raise NoDevicesError if requests for the same devices need more of them together than can be had."""
        needs = [(_union(choices), self._fewest(choices), choices) for _, choices in self._requests]
        for among in dict.fromkeys(devices for devices, _, _ in needs):
            sharing = [(count, choices) for devices, count, choices in needs if devices <= among]
            total = sum(count for count, _ in sharing)
            usable = [each for each in self._node.devices if each.id in among and not each.obstacle]
            free = sum(device.id not in self._taken for device in usable)
            if total > free:
                names = ", ".join(choices[0].request for _, choices in sharing)
                what = sharing[0][1][0].what
                raise NoDevicesError(f"requests {names}: {what}: {total} devices are needed together, {free} are free")

    def _fewest(self, choices: tuple[DeviceChoice, ...]) -> int:
        """Return the fewest devices that a request takes for itself."""
        counts = [0 if each.admin_access else each.count for each in choices]
        sizes = [len(_places(each, self._node)) if n is None else n for each, n in zip(choices, counts, strict=True)]
        return min(sizes, default=0)

    def satisfy(self, index: int) -> bool:
        """Satisfy the requests from one on; leave everything as it was if they cannot be."""
        if index == len(self._requests):
            return True
        claim, choices = self._requests[index]
        return any(self._choose(index, claim, choice) for choice in choices)

    def granted(self) -> tuple[tuple[Granted, ...], ...]:
        """Return the devices of each claim."""
        return tuple(
            tuple(granted for owner, granted, _ in self._granted if owner == claim)
            for claim in range(len(self._claims))
        )

    def reason(self) -> str:
        """Return why the requests cannot be satisfied together."""
        if self.steps >= self._max_steps:
            attempts = f"no devices were found for its claims in {self.steps} attempts"
            return f"too many combinations: {attempts}; simplify the requests and constraints"
        constraints = [each for needs in self._claims for each in needs.constraints]
        if constraints:
            names = ", ".join(dict.fromkeys(each.attribute for each in constraints))
            return f"no free devices satisfy its requests and their constraints on {names} together"
        return "its requests need the same devices or counters: not all of them can be satisfied together"

    def _shortage(self, choice: DeviceChoice) -> str:
        """Return why a choice cannot be satisfied even by itself; empty if it may be."""
        selected = [device for device in self._node.devices if device.id in choice.selected]
        usable = [device for device in selected if self._may_have(device, choice)]
        what = f"request {choice.request}: {choice.what}"
        if not selected:
            return f"{what}: the node has no such device"
        need = len(selected) if choice.count is None else choice.count
        if len(usable) >= need:
            return ""
        obstacles = dict.fromkeys(self._obstacle(device, choice) for device in selected if device not in usable)
        return f"{what}: {len(usable)} of {need} devices are free: {', '.join(obstacles)}"

    def _obstacle(self, device: NodeDevice, choice: DeviceChoice) -> str:
        if device.obstacle or not _tolerates(device, choice):
            return f"{device.id.name} {device.obstacle or 'has a taint'}"
        return f"{device.id.name} is in use" if device.id in self._taken else f"{device.id.name} has no counters left"

    def _choose(self, index: int, claim: int, choice: DeviceChoice) -> bool:
        candidates = [device for device in self._node.devices if device.id in choice.selected]
        count = len(candidates) if choice.count is None else choice.count
        return bool(candidates) and self._pick(index, claim, choice, candidates, count)

    def _pick(self, index: int, claim: int, choice: DeviceChoice, candidates: list[NodeDevice], count: int) -> bool:
        """Take `count` of the candidates in their order, then satisfy the next requests."""
        if not count:
            return self.satisfy(index + 1)
        failed = set[Hashable]()
        for place, device in enumerate(candidates):
            if len(candidates) - place < count or self.steps >= self._max_steps:
                return False
            if (kind := self._kind_of(device)) in failed or not self._may_have(device, choice):
                continue
            failed.add(kind)
            self.steps += 1
            if not self._is_consistent(claim, choice, device):
                continue
            self._granted.append((claim, Granted(choice.request, device.id, choice.admin_access), device))
            self._hold(device, choice, -1)
            if self._pick(index, claim, choice, candidates[place + 1 :], count - 1):
                return True
            self._hold(device, choice, +1)
            self._granted.pop()
        return False

    def _kind_of(self, device: NodeDevice) -> Hashable:
        """Return what decides whether a device is as good as another."""
        if (known := self._kinds.get(device.id)) is None:
            selecting = tuple(device.id in each.selected for _, choices in self._requests for each in choices)
            values = _values(device, _constrained(self._claims))
            uses = frozenset(device.uses.items())
            known = self._kinds[device.id] = (values, uses, device.taints, bool(device.obstacle), selecting)
        return known

    def _hold(self, device: NodeDevice, choice: DeviceChoice, sign: int) -> None:
        if not choice.admin_access:
            self._use(device, sign)
            (self._taken.add if sign < 0 else self._taken.discard)(device.id)

    def _use(self, device: NodeDevice, sign: int) -> None:
        for counter, amount in device.uses.items():
            self._left[counter] = self._left.get(counter, 0) + sign * amount

    def _may_have(self, device: NodeDevice, choice: DeviceChoice) -> bool:
        if device.obstacle or not _tolerates(device, choice):
            return False
        if choice.admin_access:
            return True
        has_counters = all(not n or self._left.get(counter, 0) >= n for counter, n in device.uses.items())
        return has_counters and device.id not in self._taken

    def _is_consistent(self, claim: int, choice: DeviceChoice, device: NodeDevice) -> bool:
        """Return whether a device satisfies the constraints of its claim with those that the claim has already."""
        for constraint in self._claims[claim].constraints:
            if not _concerns(constraint, choice.request):
                continue
            value = device.attributes.get(constraint.attribute)
            if value is None:
                return False
            others = [
                other.attributes.get(constraint.attribute)
                for owner, granted, other in self._granted
                if owner == claim and _concerns(constraint, granted.request)
            ]
            if value in others if constraint.distinct else any(other != value for other in others):
                return False
        return True


def _union(choices: tuple[DeviceChoice, ...]) -> frozenset[DeviceId]:
    return frozenset[DeviceId]().union(*(choice.selected for choice in choices))


def _concerns(constraint: SameOrDistinct, request: str) -> bool:
    """Return whether a constraint is on a request; one on a request with alternatives is on all of these."""
    return not constraint.requests or not constraint.requests.isdisjoint((request, request.partition("/")[0]))


def _tolerates(device: NodeDevice, choice: DeviceChoice) -> bool:
    return all(
        any(_matches(toleration, taint) for toleration in choice.tolerations)
        for taint in device.taints
        if taint.effect in BLOCKING_EFFECTS
    )


def _matches(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    is_of_key = not toleration.key or toleration.key == taint.key
    is_of_value = toleration.operator == "Exists" or toleration.value == taint.value
    return is_of_key and is_of_value and toleration.effect in ("", taint.effect)
