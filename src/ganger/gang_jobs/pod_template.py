"""Pods of a generation: one for each of its nodes, in rank order.

A pod is bound to its node, so its spec has no node constraints. Its container is a launcher, which the controller sends
its plan once every launcher of the generation is connected (docs/reference/launcher-protocol.md); so the pods of two
generations differ only in their names. Code comes as an archive in a ConfigMap, or, if it is larger, over the
launcher's connection; secrets come by reference. Whatever else the job shares, checkpoints first of all, is on volumes:
a volume NAME of a job is the PersistentVolumeClaim NAME of its namespace."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import API_VERSION, SCHEDULER
from ganger.kubeapi.objects import Key, Object
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job, Resources
from ganger.model.policy import RESTRICTED
from ganger.model.units import EPHEMERAL_STORAGE, GIB_BYTES
from ganger.registry import gpu_resources, no_gpus

CONTAINER: Final = "ranks"
LAUNCHER: Final = "/ganger/launcher/launcher.pyz"
LAUNCHER_COMMAND: Final = ("python3", "-I", "-S", LAUNCHER)
TASK: Final = "/ganger/task"
"""Directory of the launcher's task, on the node's disk, gone with the pod."""
WORK: Final = "/ganger/work"
"""Working directory of ranks, unless their command changes it."""
IDENTITY: Final = "/ganger/identity"
LISTENER_FILE: Final = "launcher-address"
"""File there with HOST:PORT of the listener; kubelets update it in running pods when the controller moves."""
CERTIFICATE_FILE: Final = "ca.crt"
SECRETS: Final = "/ganger/secrets"
"""Values of `secrets:`, one file each, so that the launcher can redact them from the output of ranks."""
CODE: Final = "/ganger/code"
USERS_SECRETS: Final = "ganger-secrets"
"""Secret of a namespace with the keys that `secrets:` of its jobs name; the namespace decides who may read it."""
SHARED_MEMORY_BYTES: Final = 64 * GIB_BYTES
"""Size limit of /dev/shm, through which data loaders pass batches; what is used counts against the pod's memory."""
TASK_BYTES: Final = 10 * GIB_BYTES
WORK_BYTES: Final = 100 * GIB_BYTES
"""Size limits of the task directory and of the working directory: the kubelet evicts a pod that exceeds them."""
USER_ID: Final = 65532
"""User and group of restricted pods, whatever the user of their image, and the group of the files of their volumes."""
PRIORITY_CLASS: Final = "ganger-gang"
"""Without it kube-scheduler would preempt single pods of a gang. `ganger install` prints it."""
UNDISTURBED: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations for autoscalers: to pack one pod of a gang onto another node would end all of them."""

_USER_VARIABLES: Final = tuple(
    {"name": name, "value": value} for name, value in (("HOME", WORK), ("USER", "ganger"), ("LOGNAME", "ganger"))
)
"""Variables that programs need where the user is not one of the image: a home directory that can be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """The controller's settings for pods.

    Attributes:
        launcher: ConfigMap with the launcher.
        identity: Secret with the tokens, and the listener's address and certificate.
        image: default image of jobs.
        security: Pod Security Standard that the pods comply with.
        gpu: resource of the GPUs of a pod's node; empty if it has none.
        receives_code: launchers receive the job's code from the controller, and do not find it in a ConfigMap.
    """

    launcher: str
    identity: str
    image: str
    security: str = RESTRICTED
    gpu: str = ""
    receives_code: bool = False


def build_pods(
    start: Start, job: Job, uid: str, settings: PodSettings, gpu_resources: Mapping[str, str]
) -> list[Object]:
    """Return the pods of a generation, in the order of its nodes.

    `uid` is its GangJob's, which owns them; `gpu_resources` the resource of the GPUs of each node that has some.
    """
    settings_of = (replace(settings, gpu=gpu_resources.get(node, "")) for node in start.nodes)
    return [_pod(start, job, uid, of_node, index) for index, of_node in enumerate(settings_of)]


def exec_arguments(pod: Key) -> list[str]:
    """Return the arguments of `kubectl exec` that run a command beside a rank; GENERATION RANK FLAGS COMMAND follow.

    See `launcher.remote_exec.exec_command`.
    """
    return [pod.name, "--container", CONTAINER, "--", *LAUNCHER_COMMAND, "exec", TASK]


def _pod(start: Start, job: Job, uid: str, settings: PodSettings, index: int) -> Object:
    key, node = object_names.key_of(start.gang), start.nodes[index]
    shares = [share for share in start.shares if share.node == node]
    ranks = [(job.spec.order[share.part], share.ranks) for share in shares]
    container = _container(start, job, shares, settings)
    work_bytes = container["resources"]["requests"].get(EPHEMERAL_STORAGE, str(WORK_BYTES))
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": object_names.pod_name(start.gang, start.generation, index),
            "namespace": key.namespace,
            "labels": job.spec.labels | {object_names.JOB: key.name, object_names.GENERATION: str(start.generation)},
            "annotations": {
                **UNDISTURBED,
                object_names.GANG: start.gang,
                object_names.NODE: node,
                object_names.RANKS: object_names.format_ranks(ranks),
            },
            "ownerReferences": [owner_reference(key, uid)],
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "priorityClassName": PRIORITY_CLASS,
            "securityContext": pod_security_context(settings.security),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": job.spec.eviction_s,
            # Its node was decided: taints must not evict the pod.
            "tolerations": list(tolerations_of(job.spec.placement.tolerations)),
            "containers": [container],
            "volumes": list(_volumes(job, settings, object_names.token_key(start.generation, index), work_bytes)),
        },
    }
    if kinds := _device_kinds(job, shares):
        pod["metadata"]["annotations"][object_names.DEVICE_KIND] = object_names.format_device_kinds(kinds)
    if job.spec.pod is not None:
        from ganger.gang_jobs.pod_section import merge_section  # rarely needed

        merge_section(pod, job.spec, job.spec.pod)
    if claims := list(_claims(job, shares)):
        (container,) = pod["spec"]["containers"]
        pod["spec"]["resourceClaims"] = claims
        container["resources"]["claims"] = [{"name": claim["name"]} for claim in claims]
    for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        if not _may_have_gpus(each["resources"]):
            each["env"] = [*no_gpus(), *each.get("env", ())]
    return pod


def _may_have_gpus(resources: Object) -> bool:
    """Return True if a container asks for GPUs, parts of them, or other devices of their vendors, or by claims."""
    domains = {name.partition("/")[0] for name in resources.get("requests", ())}
    return bool(resources.get("claims") or domains & {name.partition("/")[0] for name in gpu_resources()})


def _claims(job: Job, shares: Iterable[NodeShare]) -> Iterator[Object]:
    """Yield the ResourceClaims of a pod: for each process of a role those of the role, with names of their own."""
    for share in shares:
        role = job.spec.order[share.part]
        suffixes = [f"-{rank}" for rank in share.ranks] if role in job.spec.roles else [""]
        for suffix in suffixes:
            yield from (claim | {"name": f"{claim['name']}{suffix}"} for claim in job.spec.claims_of(role))


def owner_reference(key: Key, uid: str) -> Object:
    """Return the owner reference of objects that are deleted with their GangJob."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GangJob",
        "name": key.name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def pod_security_context(security: str) -> Object:
    """Return the security context of a pod that complies with a Pod Security Standard.

    The user is set, so that images whose user is root comply too. Large volumes whose root has the group already are
    not changed file by file.
    """
    context = {
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if security != RESTRICTED:
        return context
    return {"runAsNonRoot": True, "runAsUser": USER_ID, "runAsGroup": USER_ID, **context}


def container_security_context(security: str) -> Object:
    """Return the security context of a container that complies with a Pod Security Standard."""
    if security != RESTRICTED:
        return {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _container(start: Start, job: Job, shares: list[NodeShare], settings: PodSettings) -> Object:
    requests = _requests(job, shares, settings.gpu)
    return {
        "name": CONTAINER,
        "image": job.spec.image or settings.image,
        "command": [*LAUNCHER_COMMAND, TASK, f"file:{IDENTITY}/{LISTENER_FILE}", str(start.generation)],
        "workingDir": WORK,
        # The launcher's last output, in case it ends before it could report to a controller.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            {"name": "GANGER_GANG", "value": start.gang},
            {"name": "GANGER_NODE", "value": shares[0].node},
            {"name": "GANGER_TOKEN_FILE", "value": f"{IDENTITY}/token"},
            {"name": "GANGER_CA_FILE", "value": f"{IDENTITY}/{CERTIFICATE_FILE}"},
            {"name": "GANGER_GRACE_PERIOD_S", "value": str(job.spec.eviction_s)},
            {"name": "GANGER_LOG_TO_STDOUT", "value": "1"},
            {"name": "GANGER_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *(_USER_VARIABLES if settings.security == RESTRICTED else ()),
            *_code(job, settings),
            # A missing file would be waited for silently; a missing variable is reported on the pod.
            *({"name": name, "valueFrom": _secret(name)} for name in job.spec.secrets),
        ],
        "securityContext": container_security_context(settings.security),
        # No CPU limit: a rank that may not use an idle CPU for a moment delays all the others.
        "resources": {"requests": requests, "limits": {name: requests[name] for name in requests if name != "cpu"}},
        "volumeMounts": [
            {"name": "launcher", "mountPath": LAUNCHER.rpartition("/")[0], "readOnly": True},
            {"name": "identity", "mountPath": IDENTITY, "readOnly": True},
            {"name": "task", "mountPath": TASK},
            {"name": "work", "mountPath": WORK},
            *({"name": name, "mountPath": "/dev/shm"} for name in _shared_memory(job)),  # noqa: S108 - the pod's own
            *([{"name": "code", "mountPath": CODE, "readOnly": True}] if _mounts_code(job, settings) else ()),
            *([{"name": "secrets", "mountPath": SECRETS, "readOnly": True}] if job.spec.secrets else ()),
            *({"name": f"volume-{volume.name}", "mountPath": volume.path} for volume in job.spec.volumes),
        ],
    }


def _mounts_code(job: Job, settings: PodSettings) -> bool:
    return bool(job.origin.code_hash) and not settings.receives_code


def _code(job: Job, settings: PodSettings) -> Iterator[Object]:
    """Yield where the launcher finds the code, if it does not receive it, and the hash that it verifies."""
    if _mounts_code(job, settings):
        yield {"name": "GANGER_CODE_FILE", "value": f"{CODE}/{object_names.ARCHIVE}"}
    if job.origin.code_hash:
        yield {"name": "GANGER_CODE_SHA256", "value": job.origin.code_hash}


def _volumes(job: Job, settings: PodSettings, token: str, work_bytes: str) -> Iterator[Object]:
    yield {"name": "launcher", "configMap": {"name": settings.launcher}}
    # The tokens of other nodes and attempts stay outside.
    identity = [{"key": name, "path": name} for name in (LISTENER_FILE, CERTIFICATE_FILE)]
    identity.append({"key": token, "path": "token"})
    yield {"name": "identity", "secret": {"secretName": settings.identity, "items": identity, "defaultMode": 0o400}}
    yield {"name": "task", "emptyDir": {"sizeLimit": str(TASK_BYTES)}}
    yield {"name": "work", "emptyDir": {"sizeLimit": work_bytes}}
    for name, size_bytes in _shared_memory(job).items():
        yield {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size_bytes)}}
    if job.origin.code_hash and _mounts_code(job, settings):
        yield {"name": "code", "configMap": {"name": object_names.code_config_map(job.origin.code_hash)}}
    if job.spec.secrets:
        items = [{"key": name, "path": name} for name in job.spec.secrets]
        source = {"secretName": USERS_SECRETS, "items": items, "defaultMode": 0o400, "optional": True}
        yield {"name": "secrets", "secret": source}
    for volume in job.spec.volumes:
        yield {"name": f"volume-{volume.name}", "persistentVolumeClaim": {"claimName": volume.name}}


def _shared_memory(job: Job) -> dict[str, int]:
    """Return the volume for /dev/shm and its size; none for a pod that has that of its node."""
    pod = job.spec.pod
    if pod is not None and pod.spec.get("hostIPC"):
        return {}
    return {"shared-memory": SHARED_MEMORY_BYTES if pod is None or pod.shm_bytes is None else pod.shm_bytes}


def _secret(name: str) -> Object:
    return {"secretKeyRef": {"name": USERS_SECRETS, "key": name}}


def _requests(job: Job, shares: list[NodeShare], gpu: str) -> dict[str, str]:
    """Return the resources of one node's shares together, as the scheduler counted them."""
    amounts, extended = {"cpu": 0, "memory": 0, gpu: 0}, Counter[str]()
    for share in shares:
        resources, count = _resources_of(job, share)
        cpu_milli = 1000 * len(share.ranks) if resources.cpu_milli is None else resources.cpu_milli * count
        amounts["cpu"] += cpu_milli
        amounts["memory"] += resources.memory_bytes * count
        amounts[gpu] += len(share.devices)
        extended.update({name: amount * count for name, amount in resources.extended.items()})
    quantities = {"cpu": f"{amounts['cpu']}m", "memory": str(amounts["memory"]), gpu: str(amounts[gpu])}
    requests = {name: quantity for name, quantity in quantities.items() if amounts[name]}
    return requests | {name: str(amount) for name, amount in extended.items() if not is_device_kind(name)}


def _device_kinds(job: Job, shares: Iterable[NodeShare]) -> Counter[str]:
    """Return how many of each kind of devices the scheduler counted for these shares."""
    kinds = Counter[str]()
    for share in shares:
        resources, count = _resources_of(job, share)
        kinds.update({name: amount * count for name, amount in resources.extended.items() if is_device_kind(name)})
    return kinds


def is_device_kind(resource: str) -> bool:
    """Return whether a resource stands for the devices of claims, which pods do not request as resources."""
    return resource.startswith(f"{object_names.DEVICES_DOMAIN}/")


def _resources_of(job: Job, share: NodeShare) -> tuple[Resources, int]:
    """Return the resources of a part, and how often a share has them: once per node, or once per process of a role."""
    role = job.spec.order[share.part]
    return job.spec.role(role).resources, len(share.ranks) if role in job.spec.roles else 1


def tolerations_of(taints: Iterable[str]) -> Iterator[Object]:
    """Yield the tolerations of these taints: each `key`, `key=value`, or `*` for all."""
    for taint in taints:
        key, equals, value = taint.partition("=")
        if key == "*":
            yield {"operator": "Exists"}
        elif equals:
            yield {"key": key, "operator": "Equal", "value": value}
        else:
            yield {"key": key, "operator": "Exists"}
