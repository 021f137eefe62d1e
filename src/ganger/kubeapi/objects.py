"""Kubernetes objects, with the fields that are read: everything else is skipped while they are parsed.

Whole objects are not kept: of a pod about a tenth is read here, which is what
makes a list of 50,000 of them cheap. Names are the API's own, in snake case; fields that an object may lack have the
value that their absence stands for. Times stay the API's text (RFC 3339).
"""

from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr

DEFAULT_SCHEDULER: Final = "default-scheduler"

T = TypeVar("T")


class Key(NamedTuple):
    """By what an object of one resource is told from the others; the namespace of a cluster's own objects is empty."""

    namespace: str
    name: str


class Fields(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Of which no field can be part of a cycle, so that the collector never looks at it."""


class Meta(Fields, frozen=True):
    """What every object has. `generation` counts changes of its spec."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def key(self) -> Key:
        """Which object this is."""
        return Key(self.namespace, self.name)


class Condition(Fields, frozen=True):
    """One line of an object's status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


# -- nodes ------------------------------------------------------------------------------------------------------------


class Taint(Fields, frozen=True):
    """What keeps pods away that do not tolerate it. effect: NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Address(Fields, frozen=True):
    """type: InternalIP, Hostname ..."""

    type: str
    address: str


class NodeSpec(Fields, frozen=True):
    """unschedulable: somebody cordoned it."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Fields, frozen=True):
    """allocatable: what pods may have of it, by resource, as quantities (`8`, `7910m`, `64Gi`); capacity: all that it
    has, also devices that are out of order."""

    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[Address, ...] = ()


class Node(Fields, frozen=True):
    """A machine, as the cluster knows it."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# -- pods -------------------------------------------------------------------------------------------------------------


class Needs(Fields, frozen=True):
    """What a container asks for, and may have at most."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Container(Fields, frozen=True):
    """restart_policy: `Always` on an init container makes it one that runs beside the others."""

    name: str = ""
    resources: Needs = Needs()
    restart_policy: str | None = None


class TokenGate(Fields, frozen=True):
    """What holds a pod back until somebody takes it away."""

    name: str


class Toleration(Fields, frozen=True):
    """operator: Equal or Exists; an empty key with Exists tolerates everything, an empty effect all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class SchedulingGroup(Fields, frozen=True):
    """The upstream PodGroup that a pod is of."""

    pod_group_name: str = ""


class ClaimReference(Fields, frozen=True):
    """A claim that a pod uses, by its name in the pod."""

    name: str


class PodSpec(Fields, frozen=True):
    """affinity: kept as it stands for another scheduler than the default one, which alone reads it; resources: the
    needs of the pod as a whole."""

    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_gates: tuple[TokenGate, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str] = {}
    resources: Needs | None = None
    priority: int = 0
    node_selector: dict[str, str] = {}
    affinity: msgspec.Raw = msgspec.Raw()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    resource_claims: tuple[ClaimReference, ...] = ()

    def __post_init__(self) -> None:
        """A raw field is a view of the whole page that it was read from: it is copied, or else dropped."""
        if self.affinity:
            is_read = self.scheduler_name != DEFAULT_SCHEDULER
            force_setattr(self, "affinity", self.affinity.copy() if is_read else msgspec.Raw())


class Terminated(Fields, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""


class Waiting(Fields, frozen=True):
    """Why a container does not run yet: ImagePullBackOff, CreateContainerConfigError ..."""

    reason: str = ""
    message: str = ""


class ContainerState(Fields, frozen=True):
    """One of the two, or neither while it runs."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Fields, frozen=True):
    """ready: its probes are content."""

    name: str = ""
    state: ContainerState = ContainerState()
    ready: bool = False


class PodStatus(Fields, frozen=True):
    """phase: Pending, Running, Succeeded, Failed or Unknown; reason and message say why a pod failed as a whole
    (Evicted, NodeLost ...)."""

    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Fields, frozen=True):
    """One pod, ours or somebody else's."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# -- devices by claims (resource.k8s.io) ------------------------------------------------------------------------------


class ClaimedDevice(Fields, frozen=True):
    """A device that a claim was given. admin_access: it is only looked at, and others may use it."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class ClaimedDevices(Fields, frozen=True):
    """All that a claim was given."""

    results: tuple[ClaimedDevice, ...] = ()


class FieldRequirement(Fields, frozen=True):
    """What a field of a node must be: `metadata.name` one of `values`."""

    key: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(Fields, frozen=True):
    """Nodes whose fields are all like that."""

    match_fields: tuple[FieldRequirement, ...] = ()


class NodeSelector(Fields, frozen=True):
    """Nodes that one of the terms fits."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class Allocation(Fields, frozen=True):
    """Which devices, and on which nodes they are."""

    devices: ClaimedDevices = ClaimedDevices()
    node_selector: NodeSelector = NodeSelector()


class Consumer(Fields, frozen=True):
    """Who may use a claim: a pod, by name and UID."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(Fields, frozen=True):
    """allocation: None until the claim has its devices."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(Fields, frozen=True):
    """Devices that are asked for one by one (Dynamic Resource Allocation)."""

    metadata: Meta
    status: ClaimStatus = ClaimStatus()


# -- leases and custom resources --------------------------------------------------------------------------------------


class LeaseSpec(Fields, frozen=True):
    """Who leads, since when, and until when that holds without being said again."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Fields, frozen=True):
    """What a leader holds."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class Bare(Fields, frozen=True):
    """An object of which nothing is read but which it is."""

    metadata: Meta


class ConfigMap(Fields, frozen=True):
    """Text, and bytes as base64, by key."""

    metadata: Meta
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class Custom(Fields, frozen=True):
    """A custom resource: spec and status as they stand, to be parsed by the program that defines them."""

    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        """A raw field is a view of the whole page that it was read from: what is kept of it is a copy."""
        force_setattr(self, "spec", self.spec.copy())
        force_setattr(self, "status", self.status.copy())


# -- what lists, watches and refusals come as --------------------------------------------------------------------------


class ListMeta(Fields, frozen=True):
    """Where a list was, and how it goes on when it is not whole."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Fields, Generic[T], frozen=True):
    """A piece of a list. Of nothing, the server may say that the items are null."""

    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = ()


class Cause(Fields, frozen=True):
    """One field that was refused, and why."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Fields, frozen=True):
    """retry_after_seconds: how long the server asks to be left alone."""

    name: str = ""
    kind: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(Fields, frozen=True):
    """How the server says that something went wrong; reason: Conflict, NotFound, AlreadyExists, Expired ..."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = StatusDetails()


class Added(Fields, Generic[T], frozen=True, tag_field="type", tag="ADDED"):
    """A watch's news: there is an object that was not there, or that did not fit what is watched."""

    object: T


class Modified(Fields, Generic[T], frozen=True, tag_field="type", tag="MODIFIED"):
    """An object is not as it was."""

    object: T


class Deleted(Fields, Generic[T], frozen=True, tag_field="type", tag="DELETED"):
    """An object is gone, or does not fit any more what is watched; as it was last, with a new resource version."""

    object: T


class Seen(Fields, frozen=True):
    """Up to where everything was told. Of its object, this is all that means anything."""

    resource_version: str


class SeenObject(Fields, frozen=True):
    """A bookmark's object."""

    metadata: Seen


class Bookmark(Fields, frozen=True, tag_field="type", tag="BOOKMARK"):
    """Nothing new, up to here."""

    object: SeenObject


class Ended(Fields, frozen=True, tag_field="type", tag="ERROR"):
    """Why the server tells no more."""

    object: Status


Object = dict[str, Any]
"""A whole object to be written, as JSON has it."""
