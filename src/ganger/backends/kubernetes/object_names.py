"""How ganger's objects are called, and how a pod says whose it is. Used by every module that makes or finds one.

A job's id is NAME.NAMESPACE, as its GangJob has them; an element's has its index behind that. Pods carry the whole of
it in annotations, because ids need not fit into a label; labels are there to be selected by.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ganger.backends.kubernetes.custom_resources import GROUP
from ganger.kubeapi.objects import Key, Pod
from ganger.model.job import array_of

JOB: Final = f"{GROUP}/job"
"""Label of pods, ConfigMaps and Secrets: the name of the GangJob."""
GANG: Final = f"{GROUP}/gang"
"""Annotation: the gang's id."""
QUEUE: Final = f"{GROUP}/queue"
"""Label of pods that others made, or of their PodGroup: the queue that they wait in."""
GENERATION: Final = f"{GROUP}/generation"
"""Label: which generation of the gang."""
NODE: Final = f"{GROUP}/node"
"""Annotation: the node that the pod is meant for."""
CODE: Final = f"{GROUP}/code"
"""Annotation of a GangJob whose `code:` is a directory: the SHA-256 of its archive, which whoever made it has put there
(`code_name`)."""
ARCHIVE: Final = "code.tar.gz"
"""The key of an archive in its ConfigMap."""
RANKS: Final = f"{GROUP}/ranks"
"""Annotation: the ranks that the pod has, by role, as `chief:0 worker:1,2`."""
DEVICES: Final = f"{GROUP}/devices"
"""Annotation, written with the Binding: the slots of the node that the pod has, by index, with commas between."""
ASKED_BESIDE: Final = ("user", "suspend", "stop")
"""Keys of a GangJob's spec that are none of a job's."""
NOBODY: Final = "nobody"
"""The user of a GangJob whose spec names none."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose a pod is."""

    gang: str
    generation: int
    node: str


def id_of(key: Key) -> str:
    """The id of the job that a GangJob is."""
    return f"{key.name}.{key.namespace}"


def gang_of(job: str, namespace: str) -> str:
    """The id of a job of that namespace by the name of its GangJob, or of an element: `sweep[3]`."""
    element = array_of(job)
    return f"{element[0]}.{namespace}[{element[1]}]" if element else f"{job}.{namespace}"


def key_of(gang: str) -> Key:
    """Where the GangJob of a gang is: an element's is its array's. ValueError: it is no id of a Kubernetes job."""
    element = array_of(gang)
    name, dot, namespace = (element[0] if element else gang).partition(".")
    if not (name and dot and namespace):
        raise ValueError(f"{gang} is not NAME.NAMESPACE")
    return Key(namespace, name)


def job_of(gang: str) -> str:
    """The id of the job that a gang is of; empty when it is the id of none, as a stranger's annotation may be."""
    try:
        return id_of(key_of(gang))
    except ValueError:
        return ""


def code_name(digest: str) -> str:
    """The ConfigMap of a namespace that has the code with this hash."""
    return f"{GROUP.partition('.')[0]}-code-{digest[:16]}"


def pod_name(gang: str, generation: int, at: int) -> str:
    """The name of the pod on the node that comes `at`-th in rank order."""
    element = array_of(gang)
    own = key_of(gang).name + (f"-e{element[1]}" if element else "")
    return f"{own}-{generation}-{at}"


def mark(pod: Pod) -> Mark | None:
    """Whose it is; None when it is not one that ganger made."""
    said, labels = pod.metadata.annotations, pod.metadata.labels
    number = labels.get(GENERATION, "")
    if GANG not in said or NODE not in said or not number.isdecimal():
        return None
    return Mark(said[GANG], int(number), said[NODE])


def ranks(shares: Iterable[tuple[str, Iterable[int]]]) -> str:
    """The ranks of each role, as the annotation has them."""
    return " ".join(f"{role}:{','.join(map(str, found))}" for role, found in shares)


def roles(pod: Pod) -> dict[int, str]:
    """The role of each rank that a pod of ours has."""
    found: dict[int, str] = {}
    for share in pod.metadata.annotations.get(RANKS, "").split():
        role, _, numbers = share.partition(":")
        found |= {int(rank): role for rank in numbers.split(",") if rank.isdecimal()}
    return found
