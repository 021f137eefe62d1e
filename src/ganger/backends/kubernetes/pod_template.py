"""A generation as pods: one for each of its nodes, in rank order. Pure; called by `supervisor`.

A pod is bound to the node it is meant for, so nothing in it says where it may run. Its container is a launcher, which
is told its plan by the controller once every launcher of the generation is there (docs/reference/launcher-protocol.md);
so the pod of one generation differs from that of the next in its name alone. Its code comes as an archive in a
ConfigMap, its secrets by reference; what the job shares beyond that, checkpoints first of all, is on volumes: a volume
NAME of a job is the PersistentVolumeClaim NAME of its namespace."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.custom_resources import API_VERSION, SCHEDULER
from ganger.kubeapi.objects import Key, Object
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job, Resources
from ganger.model.units import GIB_BYTES

CONTAINER: Final = "ranks"
LAUNCHER: Final = "/ganger/launcher/launcher.pyz"
TASK: Final = "/ganger/task"
"""Directory of the launcher's task, on the node's disk, gone with the pod."""
WORK: Final = "/ganger/work"
"""Where ranks run, unless their command goes elsewhere."""
IDENTITY: Final = "/ganger/identity"
DOOR: Final = "door"
"""Of the files there the one with HOST:PORT. A controller that comes up elsewhere writes another, which the kubelet
brings to pods that are running."""
SECRETS: Final = "/ganger/secrets"
"""The values of `secrets:`, a file each, so that the launcher can keep them out of what ranks print."""
CODE: Final = "/ganger/code"
OF_USERS: Final = "ganger-secrets"
"""The Secret of a namespace that `secrets:` of its jobs are keys of; whoever may read it is the namespace's matter."""
SHARED_MEMORY_BYTES: Final = 64 * GIB_BYTES
"""Loaders of training data hand batches through /dev/shm; what is used there counts against the pod's memory."""
GRACE_S: Final = 30
"""Between SIGTERM and SIGKILL of a pod that somebody else deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What pods need to know of the controller: `launcher`, the ConfigMap with the launcher; `identity`, the Secret
    with the token, the door's address and its certificate; `image` where a job names none; `gpu`, the resource that
    stands for a GPU."""

    launcher: str
    identity: str
    image: str
    gpu: str = "nvidia.com/gpu"


def pods(start: Start, job: Job, uid: str, setting: Setting) -> list[Object]:
    """The pods of a generation, in the order of its nodes. `uid` is that of the GangJob, which owns them."""
    return [_pod(start, job, uid, setting, at) for at in range(len(start.nodes))]


def beside(pod: Key) -> list[str]:
    """The words after `kubectl exec` that run a command beside a rank of a pod; GENERATION RANK FLAGS COMMAND follow
    (`launcher.remote_exec.exec_command`)."""
    return [pod.name, "--container", CONTAINER, "--", "python3", "-I", "-S", LAUNCHER, "exec", TASK]


def _pod(start: Start, job: Job, uid: str, setting: Setting, at: int) -> Object:
    key, node = object_names.key_of(start.gang), start.nodes[at]
    shares = [share for share in start.shares if share.node == node]
    ranks = [(job.spec.order[share.part], share.ranks) for share in shares]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": object_names.pod_name(start.gang, start.generation, at),
            "namespace": key.namespace,
            "labels": job.spec.labels | {object_names.JOB: key.name, object_names.GENERATION: str(start.generation)},
            "annotations": {
                object_names.GANG: start.gang,
                object_names.NODE: node,
                object_names.RANKS: object_names.ranks(ranks),
            },
            "ownerReferences": [owner(key, uid)],
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_S,
            "tolerations": list(_tolerations(job)),
            "containers": [_container(start, job, shares, setting)],
            "volumes": list(_volumes(job, setting)),
        },
    }


def owner(key: Key, uid: str) -> Object:
    """What goes when its GangJob is deleted."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GangJob",
        "name": key.name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _container(start: Start, job: Job, shares: list[NodeShare], setting: Setting) -> Object:
    needs = _needs(job, shares, setting.gpu)
    return {
        "name": CONTAINER,
        "image": job.spec.image or setting.image,
        "command": ["python3", "-I", "-S", LAUNCHER, TASK, f"file:{IDENTITY}/{DOOR}", str(start.generation)],
        "workingDir": WORK,
        # What the launcher said last, should it end before it could tell a controller.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            {"name": "GANGER_GANG", "value": start.gang},
            {"name": "GANGER_NODE", "value": shares[0].node},
            {"name": "GANGER_TOKEN_FILE", "value": f"{IDENTITY}/token"},
            {"name": "GANGER_CA_FILE", "value": f"{IDENTITY}/ca.crt"},
            {"name": "GANGER_LOG_TO_STDOUT", "value": "1"},
            {"name": "GANGER_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *_code(job),
            # A file that is missing would be waited for without a word; of a variable it is said on the pod.
            *({"name": name, "valueFrom": _secret(name)} for name in job.spec.secrets),
        ],
        # No limit of CPU: a rank that may not use an idle one for a moment holds up all the others.
        "resources": {"requests": needs, "limits": {name: needs[name] for name in needs if name != "cpu"}},
        "volumeMounts": [
            {"name": "launcher", "mountPath": LAUNCHER.rpartition("/")[0], "readOnly": True},
            {"name": "identity", "mountPath": IDENTITY, "readOnly": True},
            {"name": "task", "mountPath": TASK},
            {"name": "work", "mountPath": WORK},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
            *([{"name": "code", "mountPath": CODE, "readOnly": True}] if job.origin.code_hash else ()),
            *([{"name": "secrets", "mountPath": SECRETS, "readOnly": True}] if job.spec.secrets else ()),
            *({"name": f"volume-{volume.name}", "mountPath": volume.path} for volume in job.spec.volumes),
        ],
    }


def _code(job: Job) -> Iterator[Object]:
    """Where the launcher finds the code, and how it knows that it is still the one submitted."""
    if job.origin.code_hash:
        yield {"name": "GANGER_CODE_FILE", "value": f"{CODE}/{object_names.ARCHIVE}"}
        yield {"name": "GANGER_CODE_SHA256", "value": job.origin.code_hash}


def _volumes(job: Job, setting: Setting) -> Iterator[Object]:
    yield {"name": "launcher", "configMap": {"name": setting.launcher}}
    yield {"name": "identity", "secret": {"secretName": setting.identity, "defaultMode": 0o400}}
    yield {"name": "task", "emptyDir": {}}
    yield {"name": "work", "emptyDir": {}}
    yield {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": str(SHARED_MEMORY_BYTES)}}
    if job.origin.code_hash:
        yield {"name": "code", "configMap": {"name": object_names.code_name(job.origin.code_hash)}}
    if job.spec.secrets:
        items = [{"key": name, "path": name} for name in job.spec.secrets]
        source = {"secretName": OF_USERS, "items": items, "defaultMode": 0o400, "optional": True}
        yield {"name": "secrets", "secret": source}
    for volume in job.spec.volumes:
        yield {"name": f"volume-{volume.name}", "persistentVolumeClaim": {"claimName": volume.name}}


def _secret(name: str) -> Object:
    return {"secretKeyRef": {"name": OF_USERS, "key": name}}


def _needs(job: Job, shares: list[NodeShare], gpu: str) -> dict[str, str]:
    """What the shares of one node have of it together, as the scheduler counted it."""
    found = {"cpu": 0, "memory": 0, gpu: 0}
    for share in shares:
        asked, counts = _asked(job, share)
        cpu_milli = 1000 * len(share.ranks) if asked.cpu_milli is None else asked.cpu_milli * counts
        found["cpu"] += cpu_milli
        found["memory"] += asked.memory_bytes * counts
        found[gpu] += len(share.devices)
    written = {"cpu": f"{found['cpu']}m", "memory": str(found["memory"]), gpu: str(found[gpu])}
    return {name: amount for name, amount in written.items() if found[name]}


def _asked(job: Job, share: NodeShare) -> tuple[Resources, int]:
    """What a part asks for, and how many times a share has it: once a node, or once a process of a role."""
    role = job.spec.order[share.part]
    return job.spec.role(role).resources, len(share.ranks) if role in job.spec.roles else 1


def _tolerations(job: Job) -> Iterator[Object]:
    """Where it is bound was decided; taints that evict what does not tolerate them must let it be, too."""
    for taint in job.spec.placement.tolerations:
        key, equals, value = taint.partition("=")
        if key == "*":
            yield {"operator": "Exists"}
        elif equals:
            yield {"key": key, "operator": "Equal", "value": value}
        else:
            yield {"key": key, "operator": "Exists"}
