"""Claims, volumes and storage classes, with the fields that decide on which nodes a claim can be used.

Terms of nodes are those of the model; a claim's binding follows the rules of kube-scheduler's volume binding.
"""

from typing import Final

from ganger.backends.kubernetes.foreign.node_affinity import LabelRequirement, NodeTerms
from ganger.kubeapi.objects import ApiStruct, ObjectMeta
from ganger.kubeapi.resources import Resource

WAITS: Final = "WaitForFirstConsumer"
"""Binding mode of a class whose claims are bound once the node of their first pod is known."""
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: provisioners create its volume for that node."""
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
"""Annotation of a volume whose claim was chosen for it: it becomes available again when the claim is deleted early."""
ONE_POD: Final = "ReadWriteOncePod"
_SHARED_MODES: Final = ("ReadWriteMany", "ReadOnlyMany")


class _Resources(ApiStruct, frozen=True):
    requests: dict[str, str] = {}  # noqa: RUF012  # msgspec copies it


class LabelSelector(ApiStruct, frozen=True):
    """Labels that a volume must have for a claim."""

    match_labels: dict[str, str] = {}  # noqa: RUF012
    match_expressions: tuple[LabelRequirement, ...] = ()


class ClaimSpec(ApiStruct, frozen=True):
    """Spec of a claim. volume_name: its volume, empty until one is bound."""

    access_modes: tuple[str, ...] = ()
    resources: _Resources = _Resources()
    storage_class_name: str | None = None
    volume_name: str = ""
    volume_mode: str = "Filesystem"
    selector: LabelSelector | None = None


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """One claim."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()

    @property
    def is_of_one_node(self) -> bool:
        """True if all pods that use it have to be on one node."""
        return not any(mode in _SHARED_MODES for mode in self.spec.access_modes)

    @property
    def is_of_one_pod(self) -> bool:
        """True if one pod at a time may use it."""
        return self.spec.access_modes == (ONE_POD,)

    @property
    def class_name(self) -> str:
        """Its storage class, empty for none."""
        return self.spec.storage_class_name or ""


class ClaimReference(ApiStruct, frozen=True):
    """Claim of a volume."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class _VolumeAffinity(ApiStruct, frozen=True):
    required: NodeTerms | None = None


class VolumeSpec(ApiStruct, frozen=True):
    """Spec of a volume. claim_ref: its claim, None while it is available."""

    capacity: dict[str, str] = {}  # noqa: RUF012
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    claim_ref: ClaimReference | None = None
    node_affinity: _VolumeAffinity | None = None
    volume_mode: str = "Filesystem"


class PersistentVolume(ApiStruct, frozen=True):
    """One volume."""

    metadata: ObjectMeta
    spec: VolumeSpec = VolumeSpec()


class _Topology(ApiStruct, frozen=True):
    match_label_expressions: tuple[LabelRequirement, ...] = ()


class StorageClass(ApiStruct, frozen=True):
    """One storage class."""

    metadata: ObjectMeta
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[_Topology, ...] = ()

    @property
    def provisions(self) -> bool:
        """True if it creates volumes."""
        return self.provisioner != NO_PROVISIONER


CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", PersistentVolumeClaim)
VOLUMES: Final = Resource("", "v1", "persistentvolumes", PersistentVolume)
CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", StorageClass)
