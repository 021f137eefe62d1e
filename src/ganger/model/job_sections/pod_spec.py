"""Fields of the pods of a job on Kubernetes, as a user writes them."""

from dataclasses import dataclass
from typing import Any

from ganger.model.described import described as _spec


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMetadata:
    """Labels and annotations of the pods of a job on Kubernetes."""

    labels: dict[str, str] = _spec("labels, in addition to the job's", form="labels", factory=dict)
    annotations: dict[str, str] = _spec("annotations", form="annotations", factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSection:
    """Fields of the pods of a job on Kubernetes, in its own keys, merged onto the pods that ganger makes."""

    metadata: PodMetadata = _spec("labels and annotations of the pods", factory=PodMetadata)
    spec: dict[str, Any] = _spec(
        "fields of the PodSpec, with the keys and values of Kubernetes; volumes and initContainers are added",
        form="pod_spec",
        factory=dict,
    )
    container: dict[str, Any] = _spec(
        "fields of the container of the ranks; a mount whose mountPath is that of one of `volumes` changes it",
        form="pod_container",
        factory=dict,
    )
    shm_bytes: int | None = _spec(
        "size limit of /dev/shm, which counts against the memory of the pod; unset: 64Gi",
        form="bytes",
        key="shm",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePod:
    """Fields of the pod of a process of a role; processes of several roles may share it."""

    spec: dict[str, Any] = _spec(
        "resourceClaims of each process, with the keys and values of Kubernetes, instead of those of the job",
        form="role_pod_spec",
        factory=dict,
    )
