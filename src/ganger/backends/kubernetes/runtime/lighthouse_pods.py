"""The lighthouses of jobs with replica groups: the program of torchft through which the groups find each other.

There is one for each job, from the first start of a group to the end of the last: a pod with the image of the job, and
a Service, whose name in the cluster's DNS is the address that the ranks get. The name is known before anything is
created and stays when the pod is replaced, so a running group need not be told anything. Both objects have the one name
that follows from the GangJob's UID, so whoever creates them, an earlier controller or two groups that start together,
there are never two; the GangJob owns them, so they end with it even if no controller is there.

The kubelet starts the program again when it ends. A pod that is over, deleted or on a lost node is replaced here.
Running groups take a lighthouse for away meanwhile, and go on. The default scheduler of the cluster places the pod: it
is no pod of an attempt, and counts on its node like any other program's.

Everything runs on the event loop.
"""

import asyncio
import logging
import shlex
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_startup import PodStartup, lighthouse_message
from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import (
    container_security_context,
    owner_reference,
    pod_security_context,
    tolerations_of,
)
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.objects import Key, Object, ObjectMeta, Pod
from ganger.kubeapi.resources import PODS, SERVICES, Resource
from ganger.model.job import Job, JobSpec
from ganger.model.job_sections.pod_spec import PodMetadata, PodSection
from ganger.model.policy import RESTRICTED
from ganger.registry import no_gpus

PORT: Final = 29510
"""The port at which torchft's own program listens unless told otherwise."""
CONTAINER: Final = "lighthouse"
REQUESTS: Final = {"cpu": "100m", "memory": "1Gi"}
"""The program needs little, but its command imports torch, about 0.6 GB with CUDA's libraries."""
INITIAL_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
"""Pauses between pods of one lighthouse that are over soon, and between tries to create one."""
_OF_SECTION: Final = (
    *("imagePullSecrets", "serviceAccountName", "runtimeClassName", "securityContext", "tolerations"),
    *("dnsConfig", "dnsPolicy"),
)
"""Fields of `pod.spec` of a job without which its image may not be pulled or started, or find a node."""
_PLATFORM: Final = ("kubernetes.io/arch", "kubernetes.io/os")
"""Labels of a job's `node_selector` that its image needs; any other node may have the lighthouse."""
_UNREACHABLE: Final = tuple(
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for taint in ("not-ready", "unreachable")
)
"""The default of Kubernetes is 300 s, longer than groups ask for a lighthouse."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lighthouse:
    """A lighthouse that is wanted.

    Attributes:
        name: of the pod and of the Service, in the namespace of the GangJob.
        job: key of the GangJob.
        uid: the GangJob's.
        body: the pod.
        groups: those of the job's groups that have started and are not over.
        lock: held while its objects are created or deleted.
        has_service: this controller has created the Service, or found it.
        failures: creations of a pod, done or failed, since the program last ran.
        is_due: something is missing, and is to be created in the background.
        has_task: a task does that.
    """

    name: Key
    job: Key
    uid: str
    body: Object
    groups: set[str]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    has_service: bool = False
    failures: int = 0
    is_due: bool = False
    has_task: bool = False


class LighthousePods:
    """Lighthouses of a cluster. The caller keeps `cache` up to date.

    `bootstrap` has the default image of jobs, and `startup` shows what keeps a lighthouse from being there.
    """

    def __init__(self, api: ApiClient, cache: ClusterCache, bootstrap: PodBootstrap, startup: PodStartup) -> None:
        self._api, self._cache, self._bootstrap, self._startup = api, cache, bootstrap, startup
        self._lighthouses: dict[Key, _Lighthouse] = {}
        """By GangJob: added with its first group, dropped with its last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    def open(self, running: Collection[Key]) -> None:
        """Delete what an earlier controller has left of other jobs than those that run, by key."""
        self._is_open = True
        for pod in self._cache.pods.values():
            if object_names.job_of_lighthouse(pod) not in running:
                self._delete_if_unwanted(pod)

    def add(self, group: Job, command: tuple[str, ...], address: str) -> None:
        """Note that a replica group starts or runs, whose job's lighthouse has this command.

        `address` is one of the cluster's: the program listens on the addresses of its family.
        """
        key = object_names.key_of(group.id)
        gang_job, known = self._cache.jobs.get(key), self._lighthouses.get(key)
        if gang_job is None:
            return
        uid = gang_job.metadata.uid
        if known is not None and known.uid == uid:
            known.groups.add(group.id)
            return
        name = Key(key.namespace, object_names.lighthouse(uid))
        host = "[::]" if ":" in address else "0.0.0.0"  # noqa: S104 - the pod's own
        arguments = (*command, "--bind", f"{host}:{PORT}")
        self._lighthouses[key] = _Lighthouse(
            name=name,
            job=key,
            uid=uid,
            body=lighthouse_pod(group, uid, arguments, self._bootstrap.image, self._bootstrap.security),
            groups={group.id},
        )

    def url(self, gang: str) -> str | None:
        """Return the address of the lighthouse of a gang's job; None if it has none."""
        lighthouse = self._lighthouses.get(object_names.key_of(gang))
        return None if lighthouse is None else f"http://{lighthouse.name.name}.{lighthouse.name.namespace}.svc:{PORT}"

    async def ensure(self, gang: str) -> None:
        """Create what is missing of the lighthouse of a gang's job, if it has one. Raises ApiError."""
        lighthouse = self._lighthouses.get(object_names.key_of(gang))
        if lighthouse is not None:
            lighthouse.has_service = False  # somebody may have deleted it
            await self._create(lighthouse)

    def keep(self, gang: str) -> None:
        """Create, in the background, what is missing of the lighthouse of a gang that runs already."""
        lighthouse = self._lighthouses.get(object_names.key_of(gang))
        if lighthouse is not None:
            self._replace(lighthouse)

    def remove(self, gang: str) -> None:
        """Note that a gang is over, and with the last group of its job delete the lighthouse."""
        key = object_names.key_of(gang)
        lighthouse = self._lighthouses.get(key)
        if lighthouse is None:
            return
        lighthouse.groups.discard(gang)
        if not lighthouse.groups:
            del self._lighthouses[key]
            self._run(self._delete(lighthouse))

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Replace the pod of a lighthouse that is over, or was deleted."""
        pod = after or before
        if pod is None or object_names.job_of_lighthouse(pod) is None or not self._is_open:
            return
        lighthouse = self._of(pod)
        if lighthouse is None:
            if before is None:
                self._delete_if_unwanted(pod)  # created by a request that was in flight for long
        elif after is None or is_over(after):
            self._replace(lighthouse)
        elif any(status.state.running is not None for status in after.status.container_statuses):
            lighthouse.failures = 0

    def close(self) -> None:
        """Cancel what is in progress; what there is stays."""
        self._is_open = False
        for task in self._tasks:
            task.cancel()

    def _of(self, pod: Pod) -> _Lighthouse | None:
        key = object_names.job_of_lighthouse(pod)
        lighthouse = None if key is None else self._lighthouses.get(key)
        return lighthouse if lighthouse is not None and lighthouse.name == pod.metadata.key else None

    def _delete_if_unwanted(self, pod: Pod) -> None:
        key = object_names.job_of_lighthouse(pod)
        if key is not None and self._of(pod) is None and not self._cache.is_ignored(object_names.id_of(key)):
            self._run(self._delete(_Lighthouse(name=pod.metadata.key, job=key, uid="", body={}, groups=set())))

    def _replace(self, lighthouse: _Lighthouse) -> None:
        lighthouse.is_due = True
        if not lighthouse.has_task:
            lighthouse.has_task = True
            self._run(self._create_until_done(lighthouse))

    async def _create_until_done(self, lighthouse: _Lighthouse) -> None:
        # A pod that goes while this one creates the next sets `is_due` again: the creation may have met the old one.
        while lighthouse.is_due and self._lighthouses.get(lighthouse.job) is lighthouse:
            if lighthouse.failures:
                await asyncio.sleep(backoff_s(lighthouse.failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))
            lighthouse.failures += 1
            lighthouse.is_due = False
            try:
                await self._create(lighthouse)
                pod = self._cache.pods.get(lighthouse.name)
                if pod is not None and not is_over(pod):
                    self._startup.lighthouse_changed(lighthouse.job, lighthouse_message(pod))
            except ApiError as error:
                lighthouse.is_due = True
                _log.debug("the lighthouse of %s cannot be created: %s", lighthouse.job.name, error)
                message = f"the lighthouse of the replica groups is gone, and cannot be created again: {error}"
                self._startup.lighthouse_changed(lighthouse.job, message)
        lighthouse.has_task = False

    async def _create(self, lighthouse: _Lighthouse) -> None:
        """Create the objects that are missing. Raises ApiError.

        Does nothing once the last group is over, and for a GangJob that is being deleted: the garbage collector deletes
        what it owns.
        """
        async with lighthouse.lock:
            gang_job = self._cache.jobs.get(lighthouse.job)
            is_wanted = self._lighthouses.get(lighthouse.job) is lighthouse
            if not is_wanted or gang_job is None or gang_job.metadata.deletion_timestamp is not None:
                return
            if not lighthouse.has_service:
                await self._create_unless_there(SERVICES, _service(lighthouse))
                lighthouse.has_service = True
            pod = self._cache.pods.get(lighthouse.name)
            if pod is not None and not is_over(pod):
                return  # if it is being deleted, another one follows when it is gone
            if pod is not None:
                try:
                    await self._api.delete(PODS, pod.metadata, grace_s=0)
                except ApiError as error:
                    if error.conflict:
                        return  # it was replaced by another one already, which the cache does not show yet
                    raise
            _log.debug("creates the lighthouse %s of %s", lighthouse.name.name, lighthouse.job.name)
            await self._create_unless_there(PODS, lighthouse.body)

    async def _create_unless_there(self, resource: Resource[Any], body: Object) -> None:
        try:
            await self._api.create(resource, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":  # another conflict is one of a quota that was full for a moment
                raise

    async def _delete(self, lighthouse: _Lighthouse) -> None:
        """Delete the objects, whoever has created them. What cannot be deleted ends with the GangJob.

        The pod comes last: by it the next controller finds what this one has left.
        """
        async with lighthouse.lock:
            metadata = ObjectMeta(name=lighthouse.name.name, namespace=lighthouse.name.namespace)
            _log.debug("deletes the lighthouse %s of %s", metadata.name, lighthouse.job.name)
            for resource in (SERVICES, PODS):
                try:
                    await self._api.delete(resource, metadata)
                except ApiError as error:
                    _log.warning("the lighthouse %s of %s is left: %s", metadata.name, lighthouse.job.name, error)
        # A group may have started while that of an earlier controller was being deleted, and found it there.
        wanted = self._lighthouses.get(lighthouse.job)
        if wanted is not None and wanted.name == lighthouse.name:
            wanted.has_service = False
            self._replace(wanted)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _service(lighthouse: _Lighthouse) -> Object:
    """Return the Service. It selects by the name of the GangJob: of two of one name only one has a pod that runs."""
    labels = {object_names.LIGHTHOUSE: lighthouse.job.name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": lighthouse.name.name,
            "namespace": lighthouse.name.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(lighthouse.job, lighthouse.uid)],
        },
        "spec": {"selector": labels, "ports": [{"name": "grpc", "port": PORT, "targetPort": PORT, "protocol": "TCP"}]},
    }


def lighthouse_pod(group: Job, uid: str, arguments: tuple[str, ...], image: str, security: str) -> Object:
    """Return the pod of the lighthouse to which a replica group of the GangJob with this UID belongs.

    What the job asks of its own pods is left out, but what its image and its program need. `image`: the default one.
    """
    spec, job = group.spec, object_names.key_of(group.id)
    # A variable in the path of the program is one of the image, which only a shell there knows. Its name is a word of
    # the job's command line, in which that shell expands it for the ranks too.
    program, *options = arguments
    command = ["/bin/sh", "-c", f'exec "{program}" {shlex.join(options)}'] if "$" in program else [program, *options]
    # A user that the image does not know has no home directory, and no name, which torch may ask for.
    own = {"HOME": "/tmp", "USER": "ganger", "LOGNAME": "ganger"} if security == RESTRICTED else {}  # noqa: S108
    variables = own | group.origin.environment | spec.env | {"RUST_LOG": "error"}  # it logs each step otherwise
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": object_names.lighthouse(uid),
            "namespace": job.namespace,
            "labels": spec.labels | {object_names.LIGHTHOUSE: job.name},
            # Groups train on while it moves.
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
            "ownerReferences": [owner_reference(job, uid)],
        },
        "spec": {
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,  # it has nothing to save
            "nodeSelector": {key: value for key, value in spec.placement.node_selector.items() if key in _PLATFORM},
            "securityContext": pod_security_context(security),
            "tolerations": [*_UNREACHABLE, *tolerations_of(spec.placement.tolerations)],
            "containers": [
                {
                    "name": CONTAINER,
                    "image": spec.image or image,
                    "command": command,
                    "ports": [{"name": "grpc", "containerPort": PORT}],
                    # Its last output is why it ended: the image may lack a library.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "env": [
                        *no_gpus(),
                        # $(NAME) would be expanded.
                        *({"name": key, "value": value.replace("$", "$$")} for key, value in variables.items()),
                    ],
                    "securityContext": container_security_context(security),
                    "resources": {"requests": REQUESTS, "limits": {"memory": REQUESTS["memory"]}},
                    "volumeMounts": [],
                }
            ],
            "volumes": [],
        },
    }
    _mount_program(pod, spec, program)
    return pod


def _mount_program(pod: Object, spec: JobSpec, program: str) -> None:
    """Merge the section `pod` of a job, as far as its image and its program need it, and mount where the program is.

    The environment of a job may be on a volume that all its nodes share. Other volumes are left out: one of them may be
    for the pods of one node.
    """

    def holds_program(directory: str) -> bool:
        return program.startswith(f"{directory.rstrip('/')}/")

    claims = [volume for volume in spec.volumes if holds_program(volume.path)]
    (container,) = pod["spec"]["containers"]
    pod["spec"]["volumes"] = [
        {"name": f"program-{claim.name}", "persistentVolumeClaim": {"claimName": claim.name, "readOnly": True}}
        for claim in claims
    ]
    container["volumeMounts"] = [
        {"name": f"program-{claim.name}", "mountPath": claim.path, "readOnly": True} for claim in claims
    ]
    if spec.pod is None:
        return
    from ganger.gang_jobs.pod_section import merge_section  # rarely needed

    section, own = spec.pod, spec.pod.container
    volumes = {volume["name"]: volume for volume in section.spec.get("volumes", ()) if "ephemeral" not in volume}
    mounts: list[Object] = [
        mount for mount in own.get("volumeMounts", ()) if mount["name"] in volumes and holds_program(mount["mountPath"])
    ]
    mounted = [volume for name, volume in volumes.items() if any(mount["name"] == name for mount in mounts)]
    needed = {key: section.spec[key] for key in _OF_SECTION if key in section.spec} | {"volumes": mounted}
    kept = {key: own[key] for key in ("securityContext", "env", "imagePullPolicy") if key in own}
    merge_section(
        pod,
        spec,
        PodSection(
            metadata=PodMetadata(labels=section.metadata.labels), spec=needed, container=kept | {"volumeMounts": mounts}
        ),
    )
