"""Objects of Dynamic Resource Allocation (resource.k8s.io/v1), with the fields that are read.

Drivers publish their devices as ResourceSlices; a ResourceClaim requests some of them, and a scheduler writes which.
"""

from typing import Any

import msgspec

from ganger.kubeapi.objects import ApiStruct, ObjectMeta

# -- devices ----------------------------------------------------------------------------------------------------------


class Attribute(ApiStruct, frozen=True):
    """Attribute of a device: one of the values is set."""

    integer: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class Amount(ApiStruct, frozen=True):
    """Capacity of a device, or value of a counter."""

    value: str = "0"


class CounterSet(ApiStruct, frozen=True):
    """Counters that devices of a pool share."""

    name: str = ""
    counters: dict[str, Amount] = {}  # noqa: RUF012  # msgspec copies it


class CounterUse(ApiStruct, frozen=True):
    """Part of a counter set that a device uses."""

    counter_set: str = ""
    counters: dict[str, Amount] = {}  # noqa: RUF012  # msgspec copies it


class DeviceTaint(ApiStruct, frozen=True):
    """Taint of a device: only requests that tolerate it get the device."""

    key: str = ""
    value: str = ""
    effect: str = ""


class SliceDevice(ApiStruct, frozen=True):
    """One device.

    Attributes:
        node_name: its node, where the slice has devices of several.
        allow_multiple_allocations: several claims may have a part of it.
        binding_conditions: what has to become true of it before its pod is bound.
    """

    name: str
    attributes: dict[str, Attribute] = {}  # noqa: RUF012  # msgspec copies it
    capacity: dict[str, Amount] = {}  # noqa: RUF012  # msgspec copies it
    consumes_counters: tuple[CounterUse, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    node_name: str = ""
    allow_multiple_allocations: bool = False
    binding_conditions: tuple[str, ...] = ()


class DevicePool(ApiStruct, frozen=True):
    """Pool of a slice; slices of an older generation are void."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(ApiStruct, frozen=True):
    """Spec of a slice. node_name: the node of its devices; empty where they are not of one node."""

    driver: str = ""
    pool: DevicePool = DevicePool()
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(ApiStruct, frozen=True):
    """Some devices of a pool."""

    metadata: ObjectMeta
    spec: SliceSpec = SliceSpec()


class CelSelector(ApiStruct, frozen=True):
    """Expression of the Common Expression Language, which is true of the devices that are selected."""

    expression: str = ""


class DeviceSelector(ApiStruct, frozen=True):
    """Selector of devices; None: a kind of selector that is not known here."""

    cel: CelSelector | None = None


class ClassSpec(ApiStruct, frozen=True):
    """Spec of a device class. config: for the drivers, copied to allocations."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[dict[str, Any], ...] = ()


class DeviceClass(ApiStruct, frozen=True):
    """Class of devices that requests name."""

    metadata: ObjectMeta
    spec: ClassSpec = ClassSpec()


# -- claims -----------------------------------------------------------------------------------------------------------


class DeviceToleration(ApiStruct, frozen=True):
    """Toleration of taints of devices; an empty key tolerates all, an empty effect all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class ExactRequest(ApiStruct, frozen=True):
    """Request for devices of one class.

    Attributes:
        name: of an alternative in `first_available`.
        allocation_mode: ExactCount, or All: every device that is selected.
        capacity: parts of devices that can be shared.
    """

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: dict[str, Any] | None = None


class DeviceRequest(ApiStruct, frozen=True):
    """Request of a claim: exactly this, or the first of these that can be had."""

    name: str
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()


class DeviceConstraint(ApiStruct, frozen=True):
    """Attribute in which the devices of these requests, or of all, are equal or all differ."""

    requests: tuple[str, ...] = ()
    match_attribute: str = ""
    distinct_attribute: str = ""


class ClaimDevices(ApiStruct, frozen=True):
    """Devices that a claim requests. config: for the drivers, copied to the allocation."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[dict[str, Any], ...] = ()


class ClaimSpec(ApiStruct, frozen=True):
    """Spec of a claim."""

    devices: ClaimDevices = ClaimDevices()


class ClaimedDevice(ApiStruct, frozen=True):
    """Device allocated to a claim. admin_access: it is only monitored, and others may use it."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class ClaimedDevices(ApiStruct, frozen=True):
    """All devices allocated to a claim."""

    results: tuple[ClaimedDevice, ...] = ()


class FieldRequirement(ApiStruct, frozen=True):
    """Requirement on a field of a node: `metadata.name` is one of `values`."""

    key: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(ApiStruct, frozen=True):
    """Nodes that meet all requirements."""

    match_fields: tuple[FieldRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Nodes that match one of the terms."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class Allocation(ApiStruct, frozen=True):
    """Allocated devices, and the nodes that have them."""

    devices: ClaimedDevices = ClaimedDevices()
    node_selector: NodeSelector = NodeSelector()


class Consumer(ApiStruct, frozen=True):
    """User of a claim: a pod, by name and UID."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(ApiStruct, frozen=True):
    """Status of a claim. allocation: None until it has its devices."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ClaimMeta(ObjectMeta, frozen=True):
    """Metadata of a claim."""

    finalizers: tuple[str, ...] = ()


class ResourceClaim(ApiStruct, frozen=True):
    """Claim of individual devices."""

    metadata: ClaimMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class TemplateSpec(ApiStruct, frozen=True):
    """Claim that is made from a template."""

    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(ApiStruct, frozen=True):
    """Template of the claims of pods."""

    metadata: ObjectMeta
    spec: TemplateSpec = TemplateSpec()
