"""Resources of the API server: their paths, and the types that their objects are decoded as.

`ApiClient.get(PODS, name, namespace)` returns an `objects.Pod`.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote

from ganger.kubeapi.device_objects import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from ganger.kubeapi.objects import ConfigMap, Lease, Node, Page, PartialObjectMetadata, Pod

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One resource.

    Attributes:
        group: the API group, empty for the core group.
        version: the API version.
        plural: the plural name.
        object_type: the type that its objects are decoded as.
    """

    group: str
    version: str
    plural: str
    object_type: type[T]

    @property
    def page_type(self) -> type[Page[T]]:
        """Type that a chunk of a list is decoded as."""
        return Page[self.object_type]  # type: ignore[name-defined]  # a value, where mypy wants a type

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of a namespace's part of it, of one object, or of a subresource of it."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        suffix = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
        return f"{root}{inside}/{self.plural}{suffix}"


PODS: Final = Resource("", "v1", "pods", Pod)
NODES: Final = Resource("", "v1", "nodes", Node)
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", ResourceClaim)
CLAIM_TEMPLATES: Final = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", ResourceClaimTemplate)
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", ResourceSlice)
DEVICE_CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", DeviceClass)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", ConfigMap)
EVENTS: Final = Resource("", "v1", "events", PartialObjectMetadata)
SECRETS: Final = Resource("", "v1", "secrets", PartialObjectMetadata)
SERVICES: Final = Resource("", "v1", "services", PartialObjectMetadata)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", Lease)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Objects of a resource to list or watch: of one namespace or all, with label and field selectors."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """Return the selectors as query parameters."""
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in selectors.items() if value}


EVERYTHING: Final = ListOptions()
