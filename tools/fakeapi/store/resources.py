"""Resources: groups, names and subresources, built in or defined by a CustomResourceDefinition.

A custom resource is served in each of its versions as separate objects: nothing is converted between versions.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource.

    Attributes:
        status: has a status subresource.
        custom: defined by a CustomResourceDefinition, so stored as sent.
        schema: list and map types for server-side apply; nothing is validated.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    custom: bool = False
    short: tuple[str, ...] = field(default=(), compare=False)
    schema: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def _parse_resources(group_version: str, *rows: str) -> list[Resource]:
    """Return resources of rows `plural Kind flags`: c for cluster-scoped, s for a status subresource."""
    group, _, version = group_version.rpartition("/")
    resources = []
    for row in rows:
        plural, kind, *flags = row.split()
        letters = "".join(flags)
        resources.append(Resource(group, version, plural, kind, namespaced="c" not in letters, status="s" in letters))
    return resources


CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, status=True, short=("ns",))
NODES = Resource("", "v1", "nodes", "Node", namespaced=False, status=True, short=("no",))
PODS = Resource("", "v1", "pods", "Pod", status=True, short=("po",))
SECRETS = Resource("", "v1", "secrets", "Secret")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", status=True)

BUILT_IN = (
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    CRDS,
    BUDGETS,
    *_parse_resources(
        "v1",
        "configmaps ConfigMap",
        "events Event",
        "services Service s",
        "serviceaccounts ServiceAccount",
        "persistentvolumeclaims PersistentVolumeClaim s",
        "persistentvolumes PersistentVolume cs",
        "resourcequotas ResourceQuota s",
        "limitranges LimitRange",
        "endpoints Endpoints",
        "podtemplates PodTemplate",
    ),
    *_parse_resources("apps/v1", "deployments Deployment s", "statefulsets StatefulSet s", "daemonsets DaemonSet s"),
    *_parse_resources("batch/v1", "jobs Job s", "cronjobs CronJob s"),
    *_parse_resources("coordination.k8s.io/v1", "leases Lease"),
    *_parse_resources("events.k8s.io/v1", "events Event"),
    *_parse_resources(
        "rbac.authorization.k8s.io/v1",
        "roles Role",
        "rolebindings RoleBinding",
        "clusterroles ClusterRole c",
        "clusterrolebindings ClusterRoleBinding c",
    ),
    *_parse_resources(
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies ValidatingAdmissionPolicy cs",
        "validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding c",
    ),
    *_parse_resources("scheduling.k8s.io/v1", "priorityclasses PriorityClass c"),
    *_parse_resources("storage.k8s.io/v1", "storageclasses StorageClass c"),
    *_parse_resources("scheduling.k8s.io/v1alpha2", "podgroups PodGroup s", "workloads Workload"),
    *_parse_resources(
        "resource.k8s.io/v1",
        "resourceclaims ResourceClaim s",
        "resourceclaimtemplates ResourceClaimTemplate",
        "resourceslices ResourceSlice c",
        "deviceclasses DeviceClass c",
    ),
)


def resources_of(crd: dict[str, Any]) -> list[Resource]:
    """Return the resources of a CustomResourceDefinition: one for each served version."""
    spec = crd["spec"]
    names = spec["names"]
    return [
        Resource(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            namespaced=spec.get("scope", "Namespaced") == "Namespaced",
            status="status" in version.get("subresources", {}),
            custom=True,
            short=tuple(names.get("shortNames", ())),
            schema=version.get("schema", {}).get("openAPIV3Schema", {}),
        )
        for version in spec.get("versions", ())
        if version.get("served", True)
    ]


def established_status(crd: dict[str, Any], now: str) -> dict[str, Any]:
    """Return the status of a CustomResourceDefinition whose resources are served."""
    rows = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "it is served"),
    )
    return {
        "conditions": [
            {"type": type_, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
            for type_, reason, message in rows
        ],
        "acceptedNames": crd["spec"]["names"],
        "storedVersions": [version["name"] for version in crd["spec"]["versions"] if version.get("storage")],
    }
