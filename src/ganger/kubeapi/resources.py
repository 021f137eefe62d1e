"""Resources of the API server: their paths, and the types that their objects are read as.

`Api.get(PODS, name, namespace)` returns an `objects.Pod`.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote

from ganger.kubeapi.objects import Bare, ConfigMap, Lease, Node, Page, Pod, ResourceClaim

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One kind of objects: API group (empty for the first one), version, plural name, and what is read of each."""

    group: str
    version: str
    plural: str
    read_as: type[T]

    @property
    def page(self) -> type[Page[T]]:
        """As what a piece of a list of them is read."""
        return Page[self.read_as]  # type: ignore[name-defined]  # a value, where mypy wants a type

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """Where all of them are, those of a namespace, one, or a part of one (`binding`, `status`)."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        which = "".join(f"/{quote(each, safe='')}" for each in (name, part) if each)
        return f"{root}{inside}/{self.plural}{which}"


PODS: Final = Resource("", "v1", "pods", Pod)
NODES: Final = Resource("", "v1", "nodes", Node)
CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", ResourceClaim)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", ConfigMap)
SECRETS: Final = Resource("", "v1", "secrets", Bare)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", Lease)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource: of one namespace or of all, and with selectors as the API has them."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """The selectors, as the query of a request."""
        given = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in given.items() if value}


EVERYTHING: Final = Selection()
