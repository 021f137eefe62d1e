"""Devices that claims hold, and the number of pods of a kind each node has devices for.

The core counts pods whose claims are alike as one extended resource: what a node has of it is the number of such pods
that fit beside everything that is allocated, and the pods of ganger's that it has already.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ganger.backends.kubernetes.devices.allocator import (
    MAX_STEPS,
    Budget,
    ClaimNeeds,
    DeviceId,
    Granted,
    NodeDevices,
    NoDevicesError,
    allocate,
    shape_of,
)
from ganger.backends.kubernetes.devices.claim_needs import PodDevices, check_claim, kind_of, needs_of
from ganger.backends.kubernetes.devices.published_devices import DeviceRequestError, Pool, PublishedDevices
from ganger.kubeapi.device_objects import ClaimSpec, DeviceClass, ResourceClaim, ResourceSlice
from ganger.kubeapi.objects import Key, ObjectMeta

MAX_PODS: Final = 64
"""Pods of one kind that are counted on a node."""
CHECK_STEPS: Final = 10 * MAX_STEPS
"""Steps of all searches for one kind of pods, on all nodes or for all pods on a node."""
MAX_SHAPES: Final = 1000
"""Shapes of nodes for which counts are kept: some for each kind of pods."""
_NO_CLAIM: Final = msgspec.convert({"metadata": {}}, ResourceClaim)


class _Assumed(NamedTuple):
    """Devices that are being written to a claim, by its UID, for a pod."""

    claim: str
    pod: ObjectMeta
    devices: tuple[DeviceId, ...]


class DeviceInventory:
    """Devices of a cluster, and what claims hold of them.

    `slice_changed`, `class_changed` and `claim_changed` receive an object before and after a change, as an `Informer`
    reports it; then `take_changed` returns the nodes to be counted again.

    Attributes:
        published: the devices as drivers publish them.
    """

    def __init__(self) -> None:
        self.published = PublishedDevices()
        self._allocated: dict[Key, tuple[DeviceId, ...]] = {}
        """Devices of allocated claims."""
        self._assumed: dict[Key, _Assumed] = {}
        """Claims whose allocation is being written."""
        self._held: defaultdict[Pool, Counter[DeviceId]] = defaultdict(Counter)
        self._kinds: dict[str, PodDevices] = {}
        self._counts: dict[str, dict[str, int]] = {}
        """Pods of each kind that fit on a node, until its devices or what claims hold of them change."""
        self._of_shape: dict[Hashable, int] = {}
        """Pods that fit on a node of each shape."""
        self._changed: set[str] = set()

    # -- changes -------------------------------------------------------------------------------------------------------

    def slice_changed(self, before: ResourceSlice | None, after: ResourceSlice | None) -> None:
        """Handle a change of a ResourceSlice."""
        self._note(self.published.slice_changed(before, after))

    def class_changed(self, before: DeviceClass | None, after: DeviceClass | None) -> None:
        """Handle a change of a DeviceClass."""
        self.published.class_changed(before, after)
        self._note(self.published.nodes if self._kinds else set())

    def claim_changed(self, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        """Handle a change of a ResourceClaim."""
        key = (after or before or _NO_CLAIM).metadata.key
        devices = () if after is None else devices_of(after)
        assumed = self._assumed.get(key)
        if assumed is not None and (
            after is None or after.status.allocation is not None or assumed.claim != after.metadata.uid
        ):
            self.release(key, assumed.pod.uid)
        if (held := self._allocated.get(key, ())) != devices:
            self._hold(held, -1)
            self._hold(devices, +1)
            self._allocated[key] = devices
        if not devices:
            self._allocated.pop(key, None)

    def take_changed(self) -> set[str]:
        """Return the nodes whose devices may have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def holder(self, claim: ResourceClaim) -> ObjectMeta | None:
        """Return the pod for which a claim is being allocated; None if it is not."""
        assumed = self._assumed.get(claim.metadata.key)
        return assumed.pod if assumed is not None and assumed.claim == claim.metadata.uid else None

    def assume(self, claim: ResourceClaim, granted: Iterable[Granted], pod: ObjectMeta) -> None:
        """Count devices as held by a claim until it is allocated, is deleted, or `release` is called."""
        key = claim.metadata.key
        if (before := self._assumed.get(key)) is not None:
            self.release(key, before.pod.uid)
        devices = tuple(each.device for each in granted if not each.admin_access)
        self._assumed[key] = _Assumed(claim.metadata.uid, pod, devices)
        self._hold(devices, +1)

    def release(self, claim: Key, pod: str) -> None:
        """Count devices as free that were assumed for the pod with this UID."""
        assumed = self._assumed.get(claim)
        if assumed is not None and assumed.pod.uid == pod:
            del self._assumed[claim]
            self._hold(assumed.devices, -1)

    def _hold(self, devices: Iterable[DeviceId], sign: int) -> None:
        for device in devices:
            pool = Pool(device.driver, device.pool)
            held = self._held[pool]
            held[device] += sign
            if not held[device]:
                del held[device]
            if not held:
                del self._held[pool]
            self._note(self.published.nodes_of_pool(pool))

    def _note(self, nodes: set[str]) -> None:
        self._changed |= nodes
        for node in nodes:
            self._counts.pop(node, None)

    # -- queries -------------------------------------------------------------------------------------------------------

    def kind(self, name: str) -> PodDevices | None:
        """Return a kind that is counted, by its name."""
        return self._kinds.get(name)

    def count_kind(self, claims: Sequence[ClaimSpec], indices: tuple[int, ...] = ()) -> PodDevices:
        """Return the kind of pods with these claims, and count it from now on."""
        kind = kind_of(claims, indices)
        if kind.name not in self._kinds:
            self._kinds[kind.name] = kind
            self._changed |= self.published.nodes
        return kind

    def forget_kind(self, name: str) -> None:
        """Count a kind no longer."""
        if self._kinds.pop(name, None) is not None:
            self._changed |= self.published.nodes
            for counts in self._counts.values():
                counts.pop(name, None)

    def check(self, claims: Sequence[ClaimSpec], indices: tuple[int, ...] = ()) -> PodDevices:
        """Return the kind of pods with these claims.

        Raises DeviceRequestError if they are not valid, or if no node could satisfy them even when idle.
        """
        kind = kind_of(claims, indices)
        for spec in kind.claims:
            check_claim(spec, self.published)
        reason, tried, budget = "none publishes any", set[Hashable](), Budget(CHECK_STEPS)
        for node in sorted(self.published.nodes):
            try:
                needs, devices = self._needs(node, kind), self.published.of_node(node)
                if (shape := shape_of(needs, devices, ())) in tried:
                    continue
                tried.add(shape)
                allocate(needs, devices, (), budget)
            except (NoDevicesError, DeviceRequestError) as error:
                reason = f"{node}: {error}"
            else:
                return kind
            if not budget.steps:
                break
        raise DeviceRequestError(f"no node has the devices: {reason}")

    def amounts(self, node: str, own: Mapping[str, int]) -> dict[str, int]:
        """Return the number of pods of each kind that a node has devices for. `own`: pods of ganger's that it has."""
        known = self._counts.setdefault(node, {})
        known.update({name: self._count(node, kind) for name, kind in self._kinds.items() if name not in known})
        counts = {name: count + own.get(name, 0) for name, count in known.items()}
        return {name: count for name, count in counts.items() if count}

    def allocate(
        self, node: str, claims: Sequence[ClaimSpec], kinds: Sequence[PodDevices] = ()
    ) -> tuple[tuple[Granted, ...], ...]:
        """Return free devices of a node for the claims of a pod. Raises NoDevicesError and DeviceRequestError.

        kinds: the kinds of the pod that are known; other claims than those of them may have any device.
        """
        needs = []
        for spec in claims:
            indices = next((kind.indices for kind in kinds if spec in kind.claims), ())
            needs.append(needs_of(node, spec, indices, self.published))
        return allocate(needs, self.published.of_node(node), self._held_on(node))

    def _needs(self, node: str, kind: PodDevices) -> list[ClaimNeeds]:
        return [needs_of(node, spec, kind.indices, self.published) for spec in kind.claims]

    def _held_on(self, node: str) -> set[DeviceId]:
        return {device for pool in self.published.pools_of(node) for device in self._held.get(pool, ())}

    def _count(self, node: str, kind: PodDevices) -> int:
        """Return how many pods of a kind fit; nodes of one shape are counted once."""
        try:
            needs = self._needs(node, kind)
        except DeviceRequestError:
            return 0
        devices, held = self.published.of_node(node), self._held_on(node)
        shape = shape_of(needs, devices, held)
        if (known := self._of_shape.get(shape)) is None:
            if len(self._of_shape) >= MAX_SHAPES:
                self._of_shape.clear()
            known = self._of_shape[shape] = _count_pods(needs, devices, held)
        return known


def _count_pods(needs: Sequence[ClaimNeeds], devices: NodeDevices, held: Iterable[DeviceId]) -> int:
    """Return how many pods fit, one after the other."""
    taken, budget = set(held), Budget(CHECK_STEPS)
    for count in range(MAX_PODS):
        try:
            granted = allocate(needs, devices, taken, budget)
        except NoDevicesError:
            return count
        new = [each.device for claim in granted for each in claim if not each.admin_access]
        if not new:
            return MAX_PODS
        taken.update(new)
    return MAX_PODS


def devices_of(claim: ResourceClaim) -> tuple[DeviceId, ...]:
    """Return the devices that a claim holds, without those that it only monitors."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    return tuple(DeviceId(each.driver, each.pool, each.device) for each in results if not each.admin_access)
