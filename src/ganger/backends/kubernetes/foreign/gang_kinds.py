"""Kinds of gangs of other programs: how the pods of one are recognized, and the fields of its owner that are read.

A row of `KINDS` describes a kind by the keys of labels and the paths of fields; `find_kind` and `read_needs` read
every row. The first row that fits a pod holds: groups that a user names come before the objects that create pods.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import msgspec

from ganger.backends.kubernetes.foreign.places.expected_pods import ExpectedPods, spark_executors
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import ApiStruct, Key, ObjectMeta, Pod
from ganger.kubeapi.resources import Resource


class OwnerReference(ApiStruct, frozen=True):
    """Reference to an owner of an object. controller: it manages the object."""

    kind: str = ""
    name: str = ""
    controller: bool = False


class OwnerMeta(ObjectMeta, frozen=True):
    """Metadata with the owners of the object."""

    owner_references: tuple[OwnerReference, ...] = ()


class Owner(ApiStruct, frozen=True):
    """Object that creates the pods of a gang, or groups them."""

    metadata: OwnerMeta
    spec: Mapping[str, Any] = msgspec.field(default_factory=dict)


class RoleFields(NamedTuple):
    """Fields of a spec with roles of a gang.

    Attributes:
        path: of the list or the map of roles; empty: the spec itself is the one role.
        name: field of a list's item with its name, or, without a path, the name.
        size: fields whose product is the number of pods; an absent one counts as 1.
        minimum: the same for the fewest pods of an elastic gang.
        is_surplus: each pod is placed by itself.
    """

    path: str = ""
    name: str = ""
    size: tuple[str, ...] = ()
    minimum: tuple[str, ...] = ()
    is_surplus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GangKind:
    """One kind of gang.

    Attributes:
        name: kind of the owner.
        resource: its resource; None where annotations of the pods say everything.
        keys: labels or annotations of pods with the owner's name.
        marks: labels or annotations that pods of the kind have too, with their values; an empty one may be any.
        part_key: label with the number of the part where an owner has several gangs.
        role_key: label with the role of a pod; empty: all pods have one role.
        roles: fields with the roles.
        minimum: field, or annotation of the pods, with the fewest pods of the whole gang.
        one_by_one: field with the number of all pods: where it is greater than that of the role, they are no gang.
        elastic: field that says whether the minimum of a role holds.
        in_order: field, and its value with which each role is created when the one before it runs. An empty value is
            any; an empty field: always.
        suspend: field by which the owner is suspended.
        suspend_needs: field without which the owner may not be suspended.
        expected: returns the pods that the first one of the gang creates when it runs, from the spec of the owner.
        queue: field with the queue, after the labels.
        topology: field with the node label of which all pods need one domain.
        refused: fields for which there is no counterpart.
    """

    name: str
    resource: Resource[Owner] | None
    keys: tuple[str, ...] = ()
    marks: tuple[tuple[str, str], ...] = ()
    part_key: str = ""
    role_key: str = ""
    roles: tuple[RoleFields, ...] = ()
    minimum: str = ""
    one_by_one: str = ""
    elastic: str = ""
    in_order: tuple[tuple[str, str], ...] = ()
    suspend: str = ""
    suspend_needs: str = ""
    expected: Callable[[Mapping[str, Any]], ExpectedPods | None] | None = None
    queue: str = ""
    topology: str = ""
    refused: tuple[str, ...] = ()


class RoleNeed(NamedTuple):
    """Number of pods of a role, and the fewest of them that are placed together."""

    size: int
    minimum: int


class GangNeeds(NamedTuple):
    """Requests of an owner for its gang.

    Attributes:
        roles: by name in lower case.
        in_order: each role is a gang by itself.
        queue: empty if none is named.
        topology: node labels of which all pods need one domain.
        expected: pods that the first one creates when it runs.
    """

    roles: Mapping[str, RoleNeed]
    in_order: bool = False
    queue: str = ""
    topology: tuple[str, ...] = ()
    expected: ExpectedPods | None = None

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Roles that are placed together."""
        return tuple((role,) for role in self.roles) if self.in_order else (tuple(self.roles),)

    def minimum_of(self, roles: tuple[str, ...]) -> int:
        """Return the fewest pods of these roles."""
        return sum(self.roles[role].minimum for role in roles)


SINGLE: Final = GangNeeds({"": RoleNeed(1, 1)})
"""Needs of a pod by itself."""


class GangSpecError(Exception):
    """An owner contradicts itself. The message says how, and what to do."""


_TRAINING: Final = "training.kubeflow.org"
_KUEUE_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
KUEUE_ADMITTED: Final = "kueue.x-k8s.io/podset"
"""Label of pods that Kueue has admitted: it has chosen their domain, and writes that into their nodeSelector."""
_KOORDINATOR: Final = "gang.scheduling.koordinator.sh"


def _kubeflow(kind: str, roles: str, elastic: str = "", version: str = "v1", operator: str = "") -> GangKind:
    """Return a kind of Kubeflow's training operators, whose replicas are a map of roles."""
    return GangKind(
        name=kind,
        resource=Resource("kubeflow.org", version, f"{kind.lower()}s", Owner),
        keys=(f"{_TRAINING}/job-name",),
        marks=((f"{_TRAINING}/operator-name", operator or f"{kind.lower()}-controller"),),
        role_key=f"{_TRAINING}/{'job-role' if operator else 'replica-type'}",
        roles=(RoleFields(roles, size=("replicas",)),),
        minimum=elastic or "runPolicy.schedulingPolicy.minAvailable",
        in_order=(("launcherCreationPolicy", "WaitForWorkersReady"),) if operator else (),
        suspend="runPolicy.suspend",
        queue="runPolicy.schedulingPolicy.queue",
    )


def _pod_group(name: str, group: str, version: str, *keys: str, **more: Any) -> GangKind:
    """Return a kind whose object only groups pods."""
    resource = Resource(group, version, "podgroups", Owner)
    return GangKind(name=name, resource=resource, keys=keys, minimum="minMember", queue="queue", **more)


_VOLCANO: Final = _pod_group(
    "Volcano PodGroup",
    "scheduling.volcano.sh",
    "v1beta1",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name",
    refused=("minTaskMember", "networkTopology.highestTierAllowed", "subGroupPolicy"),
)
_KAI: Final = _pod_group(
    "KAI PodGroup",
    "scheduling.run.ai",
    "v2alpha2",
    "pod-group-name",
    topology="topologyConstraint.requiredTopologyLevel",
    refused=("subGroups",),
)
_COSCHEDULING: Final = _pod_group(
    "coscheduling PodGroup", "scheduling.x-k8s.io", "v1alpha1", "scheduling.x-k8s.io/pod-group"
)
_KOORDINATOR_GANG: Final = GangKind(
    name="Koordinator gang",
    resource=None,
    keys=(f"{_KOORDINATOR}/name",),
    minimum=f"{_KOORDINATOR}/min-available",
    refused=(f"{_KOORDINATOR}/groups",),
)
_JOB_SET: Final = GangKind(
    name="JobSet",
    resource=Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", Owner),
    keys=("jobset.sigs.k8s.io/jobset-name",),
    role_key="jobset.sigs.k8s.io/replicatedjob-name",
    roles=(RoleFields("replicatedJobs", "name", ("replicas", "template.spec.parallelism")),),
    in_order=(("startupPolicy.startupPolicyOrder", "InOrder"), ("replicatedJobs.dependsOn", "")),
    suspend="suspend",
)
_RAY_CLUSTER: Final = GangKind(
    name="RayCluster",
    resource=Resource("ray.io", "v1", "rayclusters", Owner),
    keys=("ray.io/cluster",),
    marks=(("ray.io/node-type", ""),),
    role_key="ray.io/group",
    roles=(
        RoleFields(name="headgroup"),
        RoleFields("workerGroupSpecs", "groupName", ("replicas", "numOfHosts"), ("minReplicas", "numOfHosts")),
    ),
    elastic="enableInTreeAutoscaling",
    suspend="suspend",
)
_LEADER_WORKER_SET: Final = GangKind(
    name="LeaderWorkerSet",
    resource=Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", Owner),
    keys=("leaderworkerset.sigs.k8s.io/name",),
    part_key="leaderworkerset.sigs.k8s.io/group-index",
    roles=(RoleFields(size=("leaderWorkerTemplate.size",)),),
)
_SPARK: Final = GangKind(
    name="SparkApplication",
    resource=Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", Owner),
    keys=("sparkoperator.k8s.io/app-name",),
    role_key="spark-role",
    # The driver creates its executors when it runs, a few at a time: their nodes are kept from its start on.
    expected=spark_executors,
    roles=(RoleFields(name="driver"), RoleFields(name="executor", size=("executor.instances",), is_surplus=True)),
    in_order=(("", ""),),
    suspend="suspend",
    queue="batchSchedulerOptions.queue",
)
_JOB: Final = GangKind(
    name="Job",
    resource=Resource("batch", "v1", "jobs", Owner),
    keys=("batch.kubernetes.io/job-name",),
    marks=(("batch.kubernetes.io/job-completion-index", ""),),
    roles=(RoleFields(size=("parallelism",)),),
    one_by_one="completions",
    suspend="suspend",
)
KINDS: Final = (
    _VOLCANO,
    _KAI,
    _COSCHEDULING,
    _KOORDINATOR_GANG,
    _JOB_SET,
    _kubeflow("PyTorchJob", "pytorchReplicaSpecs", "elasticPolicy.minReplicas"),
    _kubeflow("TFJob", "tfReplicaSpecs"),
    _kubeflow("XGBoostJob", "xgbReplicaSpecs"),
    _kubeflow("MPIJob", "mpiReplicaSpecs"),
    _kubeflow("MPIJob", "mpiReplicaSpecs", version="v2beta1", operator="mpi-operator"),
    _RAY_CLUSTER,
    _LEADER_WORKER_SET,
    _SPARK,
    _JOB,
)
PARENTS: Final = {
    "TrainJob": GangKind(
        name="TrainJob",
        resource=Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", Owner),
        suspend="suspend",
    ),
    "RayJob": GangKind(
        name="RayJob",
        resource=Resource("ray.io", "v1", "rayjobs", Owner),
        suspend="suspend",
        # Its operator fails a RayJob that is suspended without this.
        suspend_needs="shutdownAfterJobFinishes",
    ),
}
"""Kinds that own an object of `KINDS`, and are suspended instead of it."""


def find_kind(pod: Pod) -> GangKind | None:
    """Return the kind of the gang of a pod; None for a pod by itself."""
    labels = pod.metadata.labels | pod.metadata.annotations if pod.metadata.annotations else pod.metadata.labels
    for kind in KINDS:
        if any(map(labels.get, kind.keys)) and all(
            mark in labels and value in ("", labels[mark]) for mark, value in kind.marks
        ):
            return kind
    return None


def owner_key(kind: GangKind, pod: Pod) -> Key:
    """Return the key of the owner of a pod of this kind."""
    labels = pod.metadata.labels | pod.metadata.annotations
    return Key(pod.metadata.namespace, next(filter(None, map(labels.get, kind.keys))))


def role_of(pod: Pod) -> str:
    """Return the role of a pod within its gang."""
    kind = None if pod.spec.scheduling_group is not None else find_kind(pod)
    return pod.metadata.labels.get(kind.role_key, "").lower() if kind is not None else ""


def read_needs(kind: GangKind, owner: Owner | None, pod: Pod) -> GangNeeds:
    """Return what an owner asks for; without an owner, what a pod does. Raises GangSpecError."""
    if owner is None:
        spec: Mapping[str, Any] = pod.metadata.annotations
        labels = pod.metadata.labels
    else:
        spec, labels = owner.spec, owner.metadata.labels
    name = owner.metadata.name if owner else ""
    for refused in kind.refused:
        if any(_values(spec, refused)):
            raise GangSpecError(f"ganger does not read {refused} of {kind.name} {name}; leave it out")
    minimum, roles = _minimum(kind, spec), _roles(kind, spec)
    if not roles:
        roles = {"": RoleNeed(minimum or 1, minimum or 1)}
    total = sum(role.size for role in roles.values())
    if minimum > total:
        why = f"{kind.minimum} of {kind.name} {name} is {minimum}, and it has {total} pods"
        raise GangSpecError(f"{why}: it could never start; lower the minimum, or raise the replicas")
    if minimum:
        roles = _with_minimum(roles, total - minimum)
    order = any(
        not path or any(actual == value if value else bool(actual) for actual in _values(spec, path))
        for path, value in kind.in_order
    )
    queue = labels.get(object_names.QUEUE, "") or next(iter(_values(spec, kind.queue)), "")
    of_pod = pod.metadata.annotations.get(_KUEUE_TOPOLOGY) if KUEUE_ADMITTED not in pod.metadata.labels else None
    keys = [of_pod, *_values(spec, kind.topology)]
    expected = kind.expected(spec) if kind.expected else None
    return GangNeeds(roles, order, str(queue), tuple(str(key) for key in keys if key), expected)


def with_parent(needs: GangNeeds, parent: Owner) -> GangNeeds:
    """Return the needs with the queue that the owner of the owner names."""
    return needs._replace(queue=needs.queue or parent.metadata.labels.get(object_names.QUEUE, ""))


def field_of(spec: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of a spec, or None."""
    return next(iter(_values(spec, path)), None)


def merge_patch(path: str, value: object) -> dict[str, Any]:
    """Return the merge patch of a spec that sets the field at a path."""
    head, _, rest = path.partition(".")
    return {head: merge_patch(rest, value) if rest else value}


def _minimum(kind: GangKind, spec: Mapping[str, Any]) -> int:
    if kind.resource is None:  # an annotation, whose key has dots
        text = str(spec.get(kind.minimum, ""))
        if text and not text.isdecimal():
            raise GangSpecError(f"the annotation {kind.minimum} is {text}, which is no number of pods")
        return int(text or 0)
    return _number(kind, kind.minimum, field_of(spec, kind.minimum), 0)


def _roles(kind: GangKind, spec: Mapping[str, Any]) -> dict[str, RoleNeed]:
    is_elastic = not kind.elastic or bool(field_of(spec, kind.elastic))
    roles = {}
    for fields in kind.roles:
        for name, role in _role_specs(fields, spec):
            count = _product(kind, role, fields.size)
            minimum = count
            if fields.minimum and is_elastic:
                minimum = min(count, _product(kind, role, fields.minimum))
            if fields.is_surplus or any(total > count for total in _values(role, kind.one_by_one)):
                minimum = 0
            roles[name.lower()] = RoleNeed(count, minimum)
    return roles


def _role_specs(fields: RoleFields, spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names and specs of roles."""
    if not fields.path:
        yield fields.name, spec
        return
    roles = spec.get(fields.path)
    if isinstance(roles, dict):
        yield from ((name, role if isinstance(role, dict) else {}) for name, role in roles.items())
    elif isinstance(roles, list):
        yield from ((str(role.get(fields.name, "")), role) for role in roles if isinstance(role, dict))


def _with_minimum(roles: Mapping[str, RoleNeed], surplus: int) -> dict[str, RoleNeed]:
    """Return the roles with this many pods of the largest one being surplus."""
    largest = max(roles, key=lambda role: roles[role].size)
    need = roles[largest]
    return {**roles, largest: RoleNeed(need.size, max(0, need.size - surplus))}


def _product(kind: GangKind, role: Mapping[str, Any], paths: tuple[str, ...]) -> int:
    return prod(_number(kind, path, field_of(role, path), 1) for path in paths)


def _number(kind: GangKind, path: str, value: object, default: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise GangSpecError(f"{path} of {kind.name} is {value}, which is no number of pods")
    return value


def _values(spec: object, path: str) -> Iterator[Any]:
    """Yield the values at a path; a list on it stands for each of its items."""
    if isinstance(spec, list):
        for item in spec:
            yield from _values(item, path)
    elif isinstance(spec, Mapping) and path:
        head, _, rest = path.partition(".")
        if path in spec:
            head, rest = path, ""
        if (value := spec.get(head)) is not None:
            yield from _values(value, rest) if rest else (value,)
