"""Pods that fetch the code of jobs from repositories, one for each job, in the controller's own namespace.

git and what it talks to are not trusted, so a pod has no token, no rights, no secrets and no volumes of others, little
memory, disk and time; the network policy `ganger-git` limits its connections. An init container fetches, and says in
its log what it has, or why it has nothing; while the other container waits, the controller reads the archive from it.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import GROUP
from ganger.gang_jobs.pod_template import LAUNCHER, WORK, container_security_context, pod_security_context
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Object, ObjectMeta, Pod
from ganger.kubeapi.pod_exec import CommandError
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS
from ganger.launcher.fetch_code import ARCHIVE
from ganger.model.job import GitCode
from ganger.model.policy import RESTRICTED

LABEL: Final = f"{GROUP}/git"
"""Label of the pods: the network policy selects them by it."""
CONTAINER: Final = "git"
"""Init container, which fetches."""
HOLDER: Final = "holder"
"""Container that keeps what was fetched until the controller has read it."""
TIMEOUT_S: Final = 300
START_TIMEOUT_S: Final = 120
"""Additional time for the pod to be scheduled and its image to be pulled."""
MAX_AT_ONCE: Final = 8
MAX_OF_NAMESPACE: Final = 2
"""Maximum number of pods at one time for jobs of one namespace: a repository may be slow on purpose."""
POLL_S: Final = 0.1
"""Interval of looking at the pods that the controller follows anyway."""
DISK: Final = "4Gi"
MAX_LOG_BYTES: Final = 64 << 10
WRITE_BYTES: Final = 1 << 20
"""Size of what is written at once, on a thread."""
MAX_TEXT: Final = 1_000
CODES: Final = ("no_git", "git_failed", "no_such_ref", "code_too_large")
_INITIALIZING: Final = "PodInitializing"
"""Waiting reason of the container that waits for the other one."""
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REMEDY: Final = "clone it, and name the directory in code:"

_log = logging.getLogger(__name__)


class FetchedCode(NamedTuple):
    """The commit of a ref, and SHA-256 and size of its files as a tar.gz."""

    commit: str
    digest: str
    size_bytes: int


class GitPods:
    """Fetches code.

    Args:
        api: client of the API server.
        bootstrap: provides the launcher, which has the pods' program.
        pods: the pods that the controller follows.
        namespace: namespace of the pods.
        image: image of the pods, with git and Python.
    """

    def __init__(
        self, api: ApiClient, bootstrap: PodBootstrap, pods: Mapping[Key, Pod], namespace: str, image: str
    ) -> None:
        self._api, self._bootstrap, self._pods = api, bootstrap, pods
        self._namespace, self._image = namespace, image
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._slots_of = WeakValueDictionary[str, asyncio.Semaphore]()

    async def remove_leftovers(self) -> None:
        """Remove the pods of an earlier controller."""
        for pod in [pod for key, pod in self._pods.items() if key.namespace == self._namespace]:
            if LABEL in pod.metadata.labels:
                await self._remove(pod)

    async def fetch(
        self, code: GitCode, job: ObjectMeta, max_bytes: int, write: Callable[[bytes], None]
    ) -> FetchedCode:
        """Fetch the code of a GangJob, of at most that size, and write it. Raises RequestError."""
        own_slots = self._slots_of.setdefault(job.namespace, asyncio.Semaphore(MAX_OF_NAMESPACE))
        async with own_slots, self._slots:
            try:
                launcher = await self._bootstrap.ensure_launcher(self._namespace)
                pod = await self._api.create(PODS, self._body(code, job.uid, launcher, max_bytes))
                try:
                    done = await self._done(pod, code)
                    commit, size_bytes = _result(code, done, await self._read_log(pod), max_bytes)
                    return FetchedCode(commit, await self._copy(pod, code, size_bytes, write), size_bytes)
                finally:
                    await self._remove(pod)
            except ApiError as error:
                remedy = error.remedy or "submit it again"
                raise RequestError("git_failed", f"code: no pod can fetch it: {error}", remedy) from None

    async def _done(self, created: Pod, code: GitCode) -> Pod:
        """Return the pod once it has fetched or failed. Raises RequestError when it takes too long or is deleted."""
        deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S + START_TIMEOUT_S
        seen = created
        while asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(POLL_S)
            current = self._pods.get(created.metadata.key)
            if current is not None and current.metadata.uid == created.metadata.uid:
                seen = current
                if is_over(seen) or seen.status.phase == "Running":
                    return seen
            elif seen is not created:
                raise RequestError("git_failed", f"{code.git} was not fetched: its pod was deleted", "submit it again")
        why = _startup_problem(seen)
        raise RequestError("git_failed", f"{code.git} was not fetched within {TIMEOUT_S} s{why}", _REMEDY)

    async def _read_log(self, pod: Pod) -> str:
        ref = ObjectRef(PODS, pod.metadata.namespace, pod.metadata.name, "log")
        return await self._api.text(ref, {"container": CONTAINER, "limitBytes": str(MAX_LOG_BYTES)})

    async def _copy(self, pod: Pod, code: GitCode, size_bytes: int, write: Callable[[bytes], None]) -> str:
        """Write the archive of a pod, and return its hash. Raises ApiError, and RequestError if it has another size."""
        digest, left_bytes, block = hashlib.sha256(), size_bytes, b""
        try:
            command = ["cat", f"{WORK}/{ARCHIVE}"]
            async with aclosing(self._api.command_output(pod.metadata.key, HOLDER, command)) as output:
                async for data in output:
                    digest.update(data)
                    left_bytes -= len(data)
                    block += data
                    if left_bytes < 0:
                        break
                    if len(block) >= WRITE_BYTES:
                        await asyncio.to_thread(write, block)
                        block = b""
        except CommandError as error:
            detail = f"{code.git} was fetched, and cannot be read from its pod: {error}: {error.error_output}"
            raise RequestError("git_failed", detail[:MAX_TEXT], "submit it again") from None
        if left_bytes:
            raise RequestError("git_failed", f"{code.git}: its pod has other code than it says", "submit it again")
        await asyncio.to_thread(write, block)
        return digest.hexdigest()

    async def _remove(self, pod: Pod) -> None:
        try:
            await self._api.delete(PODS, pod.metadata, grace_s=0)
        except ApiError as error:
            _log.warning("the pod %s, which fetched code, is left: %s", pod.metadata.name, error)

    def _body(self, code: GitCode, uid: str, launcher: str, max_bytes: int) -> Object:
        fetch = ["python3", "-I", "-S", LAUNCHER, "fetch", code.git, code.ref, str(max_bytes)]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"ganger-git-{uid}", "namespace": self._namespace, "labels": {LABEL: "fetch"}},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "activeDeadlineSeconds": TIMEOUT_S,
                "securityContext": pod_security_context(RESTRICTED),
                "initContainers": [self._container(CONTAINER, fetch)],
                "containers": [self._container(HOLDER, ["sleep", str(TIMEOUT_S)])],
                "volumes": [
                    {"name": "launcher", "configMap": {"name": launcher}},
                    {"name": "work", "emptyDir": {"sizeLimit": DISK}},
                ],
            },
        }

    def _container(self, name: str, command: list[str]) -> Object:
        return {
            "name": name,
            "image": self._image,
            "command": command,
            "workingDir": WORK,
            "env": [{"name": "HOME", "value": WORK}],
            "securityContext": {"readOnlyRootFilesystem": True, **container_security_context(RESTRICTED)},
            "resources": {
                "requests": {"cpu": "100m", "memory": "128Mi"},
                "limits": {"cpu": "1", "memory": "1Gi"},
            },
            "volumeMounts": [
                {"name": "launcher", "mountPath": LAUNCHER.rpartition("/")[0], "readOnly": True},
                {"name": "work", "mountPath": WORK},
            ],
        }


def _startup_problem(pod: Pod) -> str:
    """Return why a pod has not started, as far as its status tells."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    waiting = (status.state.waiting for status in statuses)
    reasons = [f"{state.reason}: {state.message}" for state in waiting if state and state.reason != _INITIALIZING]
    reasons += [item.message for item in pod.status.conditions if item.type == "PodScheduled" and item.message]
    return f": its pod waits ({reasons[0].rstrip(': ')})" if reasons else ""


def _result(code: GitCode, pod: Pod, log: str, max_bytes: int) -> tuple[str, int]:
    """Return commit and size of what a pod says it has. Raises RequestError. Nothing that a pod prints is trusted."""
    fields: dict[str, Any] = {}
    with suppress(msgspec.DecodeError, RecursionError):
        fields = msgspec.json.decode(log.partition("\n")[0], type=dict[str, Any])
    if pod.status.phase == "Running":
        commit, size_bytes = str(fields.get("commit")), fields.get("bytes")
        if _COMMIT.fullmatch(commit) and type(size_bytes) is int and 0 <= size_bytes <= max_bytes:
            return commit, size_bytes
    if fields.get("error") in CODES:
        detail, remedy = (" ".join(str(fields.get(name, "")).split())[:MAX_TEXT] for name in ("detail", "next"))
        raise RequestError(fields["error"], detail, remedy)
    reason = pod.status.reason or "its pod ended without a result"
    if reason == "DeadlineExceeded":
        reason = f"it did not come within {TIMEOUT_S} s"
    detail = f"{code.git} cannot be fetched: {': '.join(filter(None, (reason, pod.status.message[:MAX_TEXT])))}"
    raise RequestError("git_failed", detail, _REMEDY)
