"""Devices that drivers publish as ResourceSlices, by node, and which of them a request selects."""

from collections import defaultdict
from typing import Final, NamedTuple

from ganger.backends.kubernetes.devices.allocator import CounterId, DeviceId, NodeDevice, NodeDevices
from ganger.backends.kubernetes.devices.selectors import SelectorError, Selectors, attribute_value, qualified
from ganger.kubeapi.device_objects import (
    CounterUse,
    DeviceClass,
    DeviceSelector,
    ExactRequest,
    ResourceSlice,
    SliceDevice,
)
from ganger.kubeapi.objects import Key
from ganger.kubeapi.quantity import parse_quantity

_SCALE: Final = 1000
"""Counters are counted in thousandths."""
MAX_SELECTIONS: Final = 1 << 10
"""Requests of which the selected devices are kept for a node."""


class DeviceRequestError(Exception):
    """A claim that no node can satisfy as it is: its message says why, and what to do."""


class Pool(NamedTuple):
    """Identity of a pool of devices."""

    driver: str
    name: str


class PublishedDevices:
    """Devices of a cluster as drivers publish them, and the classes of devices.

    Attributes:
        classes: the device classes by name.
        selectors: evaluates the selectors of classes and requests.
    """

    def __init__(self) -> None:
        self.selectors = Selectors()
        self.classes: dict[str, DeviceClass] = {}
        self._slices: dict[Pool, dict[Key, ResourceSlice]] = {}
        self._pools_of_node: defaultdict[str, set[Pool]] = defaultdict(set)
        self._devices: dict[str, NodeDevices] = {}
        """Devices by node, until its slices change."""
        self._selected: defaultdict[str, dict[tuple[str, tuple[DeviceSelector, ...]], frozenset[DeviceId]]]
        self._selected = defaultdict(dict)
        """Devices that a class and selectors select, by node."""

    @property
    def nodes(self) -> set[str]:
        """Nodes that have devices."""
        return {node for node, pools in self._pools_of_node.items() if pools}

    def slice_changed(self, before: ResourceSlice | None, after: ResourceSlice | None) -> set[str]:
        """Handle a change of a ResourceSlice; return the nodes whose devices may have changed."""
        changed = set[str]()
        for each in (before, after):
            if each is not None:
                changed |= self.nodes_of_pool(_pool(each)) | _nodes_of(each)
        if before is not None:
            slices = self._slices.get(_pool(before), {})
            slices.pop(before.metadata.key, None)
            left = {node for each in slices.values() for node in _nodes_of(each)}
            for node in _nodes_of(before) - left:
                self._pools_of_node[node].discard(_pool(before))
            if not slices:
                self._slices.pop(_pool(before), None)
        if after is not None:
            self._slices.setdefault(_pool(after), {})[after.metadata.key] = after
            for node in _nodes_of(after):
                self._pools_of_node[node].add(_pool(after))
        for node in changed:
            self._devices.pop(node, None)
            self._selected.pop(node, None)
        return changed

    def class_changed(self, before: DeviceClass | None, after: DeviceClass | None) -> None:
        """Handle a change of a DeviceClass, of which requests may select other devices now."""
        if before is not None:
            self.classes.pop(before.metadata.name, None)
        if after is not None:
            self.classes[after.metadata.name] = after
        self._selected.clear()

    def nodes_of_pool(self, pool: Pool) -> set[str]:
        """Return the nodes of a pool's devices."""
        return {node for each in self._slices.get(pool, {}).values() for node in _nodes_of(each)}

    def pools_of(self, node: str) -> set[Pool]:
        """Return the pools that a node has devices of."""
        return self._pools_of_node.get(node, set())

    def of_node(self, node: str) -> NodeDevices:
        """Return the devices of a node."""
        if (known := self._devices.get(node)) is None:
            slices = self._current_slices(node)
            counters = {
                CounterId(*_pool(each), shared.name, name): _amount(amount.value) or 0
                for each in slices
                for shared in each.spec.shared_counters
                for name, amount in shared.counters.items()
            }
            devices = tuple(
                _node_device(each, device)
                for each in slices
                for device in each.spec.devices
                if (device.node_name or each.spec.node_name) == node
            )
            known = self._devices[node] = NodeDevices(devices, counters)
        return known

    def select(self, node: str, exact: ExactRequest) -> frozenset[DeviceId]:
        """Return the devices of a node that a request selects. Raises DeviceRequestError."""
        key = exact.device_class_name, exact.selectors
        known = self._selected[node]
        if key not in known:
            if len(known) >= MAX_SELECTIONS:
                known.clear()
            of_class = self.classes[exact.device_class_name].spec.selectors
            expressions = [selector.cel.expression for selector in (*of_class, *exact.selectors) if selector.cel]
            try:
                known[key] = frozenset(
                    DeviceId(*_pool(each), device.name)
                    for each in self._current_slices(node)
                    for device in each.spec.devices
                    if all(self.selectors.holds(text, each.spec.driver, device) for text in expressions)
                )
            except SelectorError as error:
                raise DeviceRequestError(str(error)) from None
        return known[key]

    def _current_slices(self, node: str) -> list[ResourceSlice]:
        """Return the slices of a node's pools in order, without those of a pool that is not complete."""
        current: list[ResourceSlice] = []
        for pool in sorted(self.pools_of(node)):
            slices = self._slices.get(pool, {}).values()
            newest = max((each.spec.pool.generation for each in slices), default=0)
            of_newest = [each for each in slices if each.spec.pool.generation == newest]
            if of_newest and len(of_newest) == of_newest[0].spec.pool.resource_slice_count:
                current += sorted(of_newest, key=lambda each: each.metadata.name)
        return current


def _pool(each: ResourceSlice) -> Pool:
    return Pool(each.spec.driver, each.spec.pool.name)


def _nodes_of(each: ResourceSlice) -> set[str]:
    names = {each.spec.node_name, *(device.node_name for device in each.spec.devices)}
    return {name for name in names if name}


def _node_device(each: ResourceSlice, device: SliceDevice) -> NodeDevice:
    uses, attributes, obstacle = _uses(_pool(each), device.consumes_counters), dict[str, object](), ""
    if uses is None:
        uses, obstacle = {}, "takes an amount of a counter that is not a quantity"
    elif device.allow_multiple_allocations:
        obstacle = "is shared by capacity, which ganger does not count"
    elif device.binding_conditions:
        obstacle = "has conditions for binding, which ganger does not wait for"
    for name, attribute in device.attributes.items():
        try:
            attributes[qualified(name, each.spec.driver)] = attribute_value(attribute)
        except ValueError as error:
            obstacle = f"has an attribute that is not valid: {error}"
    return NodeDevice(DeviceId(*_pool(each), device.name), attributes, uses, device.taints, obstacle)


def _uses(pool: Pool, consumed: tuple[CounterUse, ...]) -> dict[CounterId, int] | None:
    """Return the amounts of counters that a device takes; None if one of them is not a quantity."""
    uses: dict[CounterId, int] = {}
    for use in consumed:
        for name, amount in use.counters.items():
            if (value := _amount(amount.value)) is None:
                return None
            uses[CounterId(*pool, use.counter_set, name)] = value
    return uses


def _amount(text: str) -> int | None:
    """Return an amount of a counter in thousandths; None if it is not a quantity."""
    try:
        return int(parse_quantity(text) * _SCALE)
    except ValueError:
        return None
