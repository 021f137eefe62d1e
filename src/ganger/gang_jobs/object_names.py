"""Names, labels and annotations of ganger's objects.

A job's id is NAME.NAMESPACE of its GangJob; an element's has its index behind that. Pods carry the whole id in an
annotation, because ids need not fit into a label; labels exist to be selected by.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ganger.gang_jobs.custom_resources import GROUP
from ganger.kubeapi.objects import Key, ObjectMeta, Pod
from ganger.model.job import ELSEWHERE, split_element_id

JOB: Final = f"{GROUP}/job"
"""Label of pods, ConfigMaps and Secrets: the name of the GangJob."""
GANG: Final = f"{GROUP}/gang"
"""Annotation: the gang's id."""
QUEUE: Final = f"{GROUP}/queue"
"""Label of foreign pods or of their PodGroup: the queue in which they wait."""
GENERATION: Final = f"{GROUP}/generation"
"""Label: the number of the generation."""
NODE: Final = f"{GROUP}/node"
"""Annotation: the node that the pod is meant for."""
CODE: Final = f"{GROUP}/code"
"""Annotation of a GangJob whose `code:` is a directory: SHA-256 of its archive, set by its creator."""
CODE_LOCATION: Final = f"{GROUP}/code-location"
"""Annotation beside it: where the archive is, if not in a ConfigMap."""
CODE_LOCATION_FIELD: Final = "codeLocation"
"""Field of the status of a GangJob whose code was fetched from a repository: the same."""
RETRY_OF: Final = f"{GROUP}/retry-of"
"""Annotation of a GangJob that goes on with another one: the name of that."""
IN_STORE: Final = "store"
"""Its value for an archive in the controller's durable store."""
ARCHIVE: Final = "code.tar.gz"
"""Key of an archive in its ConfigMap."""
MANAGED: Final = {"app.kubernetes.io/managed-by": "ganger"}
"""Label of the ConfigMaps that no job owns, by which they are found and deleted after ganger was uninstalled."""
RANKS: Final = f"{GROUP}/ranks"
"""Annotation: the pod's ranks by role, as `chief:0 worker:1,2`."""
DEVICES: Final = f"{GROUP}/devices"
"""Annotation, written with the Binding: indices of the pod's device slots, separated by commas."""
DEVICE_KIND: Final = f"{GROUP}/device-kind"
"""Annotation: the extended resources under which the core counts the devices of the pod's ResourceClaims.

Separated by commas, each with its amount where that is not 1: `NAME=2`."""
DEVICES_DOMAIN: Final = f"devices.{GROUP}"
"""Domain of these resources, which no node lists."""
NODE_REQUEST: Final = f"{GROUP}/node-request"
"""Label of ProvisioningRequests, PodTemplates and placeholder pods: the name of the request."""
PREFETCH: Final = f"{GROUP}/prefetch"
"""Label of pods that pull an image: the name of the GangJob."""
LIGHTHOUSE: Final = f"{GROUP}/lighthouse"
"""Label of the pod and the Service of the lighthouse of a job's replica groups: the name of the GangJob."""
PROTECTED: Final = f"{GROUP}/protected"
"""Annotation of a node: the annotations that ganger has written there to keep autoscalers off, separated by commas."""
HEALTH: Final = f"{GROUP}/health"
"""Annotation of a node: the record of its health, as JSON."""
CORDONED: Final = f"{GROUP}/cordoned"
"""Annotation of a node that ganger has cordoned because of its health: why."""
REPAIR: Final = f"{GROUP}/repair"
"""Label of the Jobs that run hooks on nodes, and of their pods: the repair step."""
CONTROL_FIELDS: Final = ("user", "suspend", "stop", "stopNow", "scale", "rollback")
"""Fields of a GangJob's spec that are not part of the job spec."""
_LIGHTHOUSES: Final = "ganger-lighthouse-"
"""Beginning of their names: ganger deletes a Service by the name of a pod, which may not be anyone's."""
_MAX_DIGITS: Final = 6
"""No pod has an amount of as many digits."""
DEFAULT_USER: Final = "nobody"
"""User of a GangJob whose spec names none."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Identity of a pod of ganger's."""

    gang: str
    generation: int
    node: str


def id_of(key: Key) -> str:
    """Return the id of a GangJob's job."""
    return f"{key.name}.{key.namespace}"


def gang_of(job: str, namespace: str) -> str:
    """Return the id of a job of a namespace by its GangJob's name, or of an element: `sweep[3]`."""
    element = split_element_id(job)
    return f"{element[0]}.{namespace}[{element[1]}]" if element else f"{job}.{namespace}"


def key_of(gang: str) -> Key:
    """Return the key of a gang's GangJob; of an element, its array's. Raises ValueError for other ids."""
    element = split_element_id(gang)
    name, dot, namespace = (element[0] if element else gang).partition(".")
    if not (name and dot and namespace):
        raise ValueError(f"{gang} is not NAME.NAMESPACE")
    return Key(namespace, name)


def named_in(namespace: str, gang: str) -> str:
    """Return a gang's id as readers of a namespace may know it: they may not know the jobs of others."""
    return gang if key_of(gang).namespace == namespace else ELSEWHERE


def job_of(gang: str) -> str:
    """Return the id of a gang's job; empty if the text is not an id, as in another program's annotation."""
    try:
        return id_of(key_of(gang))
    except ValueError:
        return ""


def code_config_map(digest: str) -> str:
    """Return the name of the ConfigMap with the code of this hash."""
    return f"{GROUP.partition('.')[0]}-code-{digest[:16]}"


def pod_name(gang: str, generation: int, index: int) -> str:
    """Return the name of the pod on the node with this index in rank order."""
    element = split_element_id(gang)
    prefix = key_of(gang).name + (f"-e{element[1]}" if element else "")
    return f"{prefix}-{generation}-{index}"


def node_request(gang: str, generation: int) -> str:
    """Return the name of the request for a gang's nodes, and the prefix of its parts.

    No GangJob has a dot in its name, so no pod of a gang has such a name.
    """
    element = split_element_id(gang)
    return f"{key_of(gang).name}.{f'e{element[1]}-' if element else ''}nodes-{generation}"


def prefetch_pod(gang: str, generation: int, index: int) -> str:
    """Return the name of the pod that pulls a gang's image on the node with this index in its reservation."""
    element = split_element_id(gang)
    return f"{key_of(gang).name}.{f'e{element[1]}-' if element else ''}prefetch-{generation}-{index}"


def lighthouse(uid: str) -> str:
    """Return the name of the pod and of the Service of the lighthouse of the GangJob with this UID.

    A later GangJob of the same name has others, while these are still being deleted. No user's Service has such a name,
    and it is a valid one: it begins with a letter, which the name of a GangJob need not.
    """
    return f"{_LIGHTHOUSES}{uid}"


def job_of_lighthouse(pod: Pod) -> Key | None:
    """Return the key of the GangJob whose lighthouse a pod is; None for another pod, whatever its labels are."""
    name = pod.metadata.labels.get(LIGHTHOUSE)
    return Key(pod.metadata.namespace, name) if name and pod.metadata.name.startswith(_LIGHTHOUSES) else None


def identity_secret(gang: str) -> str:
    """Return the name of the Secret from which a gang's launchers have their tokens.

    No GangJob has a dot in its name, so none shares the Secret of another one's element.
    """
    element = split_element_id(gang)
    return f"{key_of(gang).name}{f'.{element[1]}' if element else ''}-ganger"


def token_key(generation: int, index: int) -> str:
    """Return the key of one launcher's token in its gang's Secret."""
    return f"token-{generation}-{index}"


def mark(pod: Pod) -> Mark | None:
    """Return a pod's identity; None if ganger did not create it."""
    annotations, number = pod.metadata.annotations, pod.metadata.labels.get(GENERATION, "")
    if GANG not in annotations or NODE not in annotations or not number.isdecimal():
        return None
    return Mark(annotations[GANG], int(number), annotations[NODE])


def format_ranks(shares: Iterable[tuple[str, Iterable[int]]]) -> str:
    """Return the annotation value for the ranks of each role."""
    return " ".join(f"{role}:{','.join(map(str, ranks))}" for role, ranks in shares)


def format_device_kinds(amounts: Mapping[str, int]) -> str:
    """Return the annotation value for kinds of devices and how many of each a pod has."""
    return ",".join(name if amount == 1 else f"{name}={amount}" for name, amount in amounts.items())


def device_kinds(pod: ObjectMeta) -> dict[str, int]:
    """Return how many of each kind of devices a pod has; what is no amount in a hand-written annotation is 1."""
    kinds: dict[str, int] = {}
    for item in filter(None, pod.annotations.get(DEVICE_KIND, "").split(",")):
        name, _, amount = item.partition("=")
        kinds[name] = int(amount) if amount.isascii() and amount.isdecimal() and len(amount) < _MAX_DIGITS else 1
    return kinds


def roles_by_rank(pod: Pod) -> dict[int, str]:
    """Return the role of each rank of a pod of ganger's."""
    roles: dict[int, str] = {}
    for share in pod.metadata.annotations.get(RANKS, "").split():
        role, _, numbers = share.partition(":")
        roles |= {int(rank): role for rank in numbers.split(",") if rank.isdecimal()}
    return roles
