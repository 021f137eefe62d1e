"""Kubernetes objects with the fields that are read; everything else is skipped while parsing.

Of a pod about a tenth is read, which makes a list of 50,000 of them cheap. Names are the API's own, in snake case; an
absent field has the value that its absence stands for. Times stay the API's text (RFC 3339); one that is not set is
null.
"""

from sys import intern
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr

DEFAULT_SCHEDULER: Final = "default-scheduler"

T = TypeVar("T")


class Key(NamedTuple):
    """Identity of an object within its resource; the namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str


class ApiStruct(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of API objects. No field can be part of a cycle, so the garbage collector skips them."""


class ObjectMeta(ApiStruct, frozen=True):
    """Metadata of every object. `generation` counts changes of its spec."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return Key(self.namespace, self.name)


class Condition(ApiStruct, frozen=True):
    """One condition of an object's status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


# -- nodes ------------------------------------------------------------------------------------------------------------


class Taint(ApiStruct, frozen=True):
    """Node taint. effect: NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Address(ApiStruct, frozen=True):
    """Node address. type: InternalIP, Hostname ..."""

    type: str
    address: str


class NodeSpec(ApiStruct, frozen=True):
    """Spec of a node. unschedulable: it is cordoned."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(ApiStruct, frozen=True):
    """Status of a node.

    Attributes:
        allocatable: what pods may use, by resource, as quantities (`8`, `7910m`, `64Gi`).
        capacity: all that the node has, also devices that are out of order.
        images: names of the images that need not be pulled. Nodes share the texts: they have the same images.
    """

    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[Address, ...] = ()
    images: Any = ()

    def __post_init__(self) -> None:
        """Keep the names alone of the listed images; anything but a name is left out."""
        if isinstance(self.images, tuple):
            return
        listed = self.images if isinstance(self.images, list) else ()
        names = (image.get("names") or () for image in listed if isinstance(image, dict))
        force_setattr(self, "images", tuple(intern(name) for each in names for name in each if isinstance(name, str)))


class Node(ApiStruct, frozen=True):
    """One node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# -- pods -------------------------------------------------------------------------------------------------------------


class ResourceRequirements(ApiStruct, frozen=True):
    """Requests and limits of a container."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Container(ApiStruct, frozen=True):
    """Container of a pod. restart_policy: `Always` makes an init container a sidecar."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class SchedulingGate(ApiStruct, frozen=True):
    """Gate that holds a pod back until it is removed."""

    name: str


class Toleration(ApiStruct, frozen=True):
    """Toleration of a pod. An empty key with Exists tolerates every taint, an empty effect all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class SchedulingGroup(ApiStruct, frozen=True):
    """Upstream PodGroup of a pod."""

    pod_group_name: str = ""


class PodResourceClaim(ApiStruct, frozen=True):
    """Claim that a pod uses, by its name in the pod: one that exists, or one to be made for it from a template."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodClaimStatus(ApiStruct, frozen=True):
    """Claim that was made for a pod; without a name none is needed."""

    name: str
    resource_claim_name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """Spec of a pod.

    Attributes:
        affinity: kept raw, and only for schedulers other than the default one.
        resources: requirements of the pod as a whole.
    """

    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str] = {}
    resources: ResourceRequirements | None = None
    priority: int = 0
    node_selector: dict[str, str] = {}
    affinity: msgspec.Raw = msgspec.Raw()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()

    def __post_init__(self) -> None:
        """Copy or drop the raw field, which is a view of the whole page that it was read from."""
        if self.affinity:
            is_read = self.scheduler_name != DEFAULT_SCHEDULER
            force_setattr(self, "affinity", self.affinity.copy() if is_read else msgspec.Raw())


class Running(ApiStruct, frozen=True):
    """Start of a container."""

    started_at: str | None = None


class Terminated(ApiStruct, frozen=True):
    """End of a container."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class Waiting(ApiStruct, frozen=True):
    """Reason for which a container does not run yet: ImagePullBackOff, CreateContainerConfigError ..."""

    reason: str = ""
    message: str = ""


class ContainerState(ApiStruct, frozen=True):
    """At most one of the three."""

    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """Status of a container. ready: its probes succeed; last_state: how it ended before it was started again."""

    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False


class PodStatus(ApiStruct, frozen=True):
    """Status of a pod.

    Attributes:
        phase: Pending, Running, Succeeded, Failed or Unknown.
        reason: why a pod failed as a whole (Evicted, NodeLost ...), with `message`.
    """

    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    """One pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# -- leases and custom resources --------------------------------------------------------------------------------------


class LeaseSpec(ApiStruct, frozen=True):
    """Holder of a lease, and its times."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(ApiStruct, frozen=True):
    """One lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class PartialObjectMetadata(ApiStruct, frozen=True):
    """An object of which only the metadata are read."""

    metadata: ObjectMeta


class ConfigMap(ApiStruct, frozen=True):
    """Text, and bytes as base64, by key."""

    metadata: ObjectMeta
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class CustomObject(ApiStruct, frozen=True):
    """A custom resource with raw spec and status, to be parsed by the program that defines it."""

    metadata: ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        """Copy the raw fields, which are views of the whole page that they were read from."""
        force_setattr(self, "spec", self.spec.copy())
        force_setattr(self, "status", self.status.copy())


# -- lists, watch events and errors ------------------------------------------------------------------------------------


class ListMeta(ApiStruct, frozen=True):
    """Metadata of a list: its version, and the token of the next chunk."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(ApiStruct, Generic[T], frozen=True):
    """Chunk of a list. The server may send null for no items."""

    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = ()


class StatusCause(ApiStruct, frozen=True):
    """One invalid field."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(ApiStruct, frozen=True):
    """Details of an error. retry_after_seconds: how long the server asks clients to wait."""

    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(ApiStruct, frozen=True):
    """Result of a request or a command: Success or Failure. reason: Conflict, NotFound, AlreadyExists, Expired ..."""

    status: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = StatusDetails()


class Added(ApiStruct, Generic[T], frozen=True, tag_field="type", tag="ADDED"):
    """An object was created, or matches the watch now."""

    object: T


class Modified(ApiStruct, Generic[T], frozen=True, tag_field="type", tag="MODIFIED"):
    """An object changed."""

    object: T


class Deleted(ApiStruct, Generic[T], frozen=True, tag_field="type", tag="DELETED"):
    """An object was deleted, or does not match the watch any more; with its last state and a new resource version."""

    object: T


class BookmarkMeta(ApiStruct, frozen=True):
    """Resource version up to which everything was reported."""

    resource_version: str


class BookmarkObject(ApiStruct, frozen=True):
    """Object of a bookmark: only its version is valid."""

    metadata: BookmarkMeta


class Bookmark(ApiStruct, frozen=True, tag_field="type", tag="BOOKMARK"):
    """No change up to this version."""

    object: BookmarkObject


class WatchError(ApiStruct, frozen=True, tag_field="type", tag="ERROR"):
    """End of a watch by an error."""

    object: Status


class AccessStatus(ApiStruct, frozen=True):
    """Answer of the API server about a permission."""

    allowed: bool = False


class AccessReview(ApiStruct, frozen=True):
    """Review of a permission: of the caller's, or of another user's."""

    status: AccessStatus


Object = dict[str, Any]
"""Whole object to be written, as JSON."""
