"""Commands in the pods of a GangJob: the arguments of `kubectl exec` beside a rank, and files that its ranks wrote.

RBAC decides, and knows pods but no owners: who may use `pods/exec` in a namespace may do so in every pod there. The
permission is checked beforehand, so that a missing one is named.
"""

import json
import shutil
import tarfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import chain
from typing import Any, Final

from ganger.client.client_errors import NOT_FOUND, REFUSED, UNREACHABLE, ClientError, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.find_job import ENDED_STATE, FoundJob, find_job_with_pods
from ganger.client.kubernetes.job_row import read_spec
from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import CONTAINER, LAUNCHER_COMMAND, TASK, WORK, exec_arguments
from ganger.kubeapi.objects import Pod
from ganger.kubeapi.pod_exec import CommandError
from ganger.kubeapi.resources import PODS, ListOptions
from ganger.model.job import ENDED

Record = dict[str, Any]

ROLE: Final = "ganger-exec"
"""Role with this permission alone; `ganger install` prints it."""
END_OF_ARCHIVE: Final = bytes(2 * tarfile.BLOCKSIZE)


async def exec_command(caller: Caller, name: str, rank: int | None, node: str | None) -> Record:
    """Return the command line of `kubectl`, up to its flags for input and terminal, and what follows these in `inside`.

    Raises ApiError and ClientError.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ClientError("no_kubectl", "exec needs kubectl, which is not on PATH", "install kubectl, or set PATH", 125)
    job = await find_job_with_pods(caller, name)
    running = await _running_pods(caller, job)
    if not running:
        detail = f"{name} {_description(job)}: a command needs a running rank"
        raise client_error("not_running", detail, caller.typed("explain", name), REFUSED)
    pod, target_rank = _select_rank(caller, name, running, rank, node)
    await _check_permission(caller, "create")
    mark = object_names.mark(pod)
    generation = mark.generation if mark else 0
    return {
        "job": job.text,
        "generation": generation,
        "rank": target_rank,
        "node": mark.node if mark else "",
        "argv": [kubectl, "--context", caller.context, "--namespace", caller.namespace, "exec"],
        "inside": exec_arguments(pod.metadata.key),
    }


async def fetch_files(caller: Caller, name: str, path: str | None) -> AsyncGenerator[bytes]:
    """Yield files of a job as a tar archive: of each running pod, and of the lowest rank last, whose files prevail.

    Raises ApiError and ClientError.
    """
    job = await find_job_with_pods(caller, name)
    running = await _running_pods(caller, job)
    if not running:
        detail = f"{name} {_description(job)}: files are read from its running pods, and only volumes outlive these"
        raise client_error(
            "not_running", detail, "to keep files, write to a volume: ganger explain-spec volumes", REFUSED
        )
    await _check_permission(caller, "get", "create")
    missing: ClientError | None = None
    is_sent = False
    for pod in sorted(running.values(), key=_first_rank, reverse=True):
        command = caller.api.command_output(pod.metadata.key, CONTAINER, _files_command(job, pod, path))
        try:
            async with aclosing(command) as blocks:
                async for block in blocks:
                    yield block
            is_sent = True
        except CommandError as error:
            missing = _files_error(caller, job.text, pod, error, is_named=path is not None)
            if missing.code != "no_such_file":
                raise missing from None
    if missing is not None and not is_sent:
        raise missing
    yield END_OF_ARCHIVE


def _files_command(job: FoundJob, pod: Pod, path: str | None) -> list[str]:
    """Return the command that sends files from a pod; only a path reaches the volumes."""
    mark, spec = object_names.mark(pod), read_spec(job.gang_job)
    checkpoints = spec.checkpoint.dir if spec and spec.checkpoint else None
    volumes = [volume.path for volume in spec.volumes] if spec and path is not None else []
    generation = mark.generation if mark else 0
    return [*LAUNCHER_COMMAND, "files", TASK, str(generation), checkpoints or "", path or "", WORK, *volumes]


def _files_error(caller: Caller, name: str, pod: Pod, error: CommandError, *, is_named: bool) -> ClientError:
    """Return the error that the launcher of a pod wrote, for the user."""
    try:
        reply = json.loads(error.error_output)
        code, detail = str(reply["error"]), f"{name} has {reply['detail']}"
    except (ValueError, TypeError, KeyError):
        detail = f"the launcher of pod {pod.metadata.name} failed: {error}\n{error.error_output}".rstrip()
        return client_error("fetch_failed", detail, caller.typed("logs", name), UNREACHABLE)
    fetch = caller.typed("fetch", name)
    if code == "too_many_files":
        return client_error(code, detail, f"name a part: {fetch} PATH", REFUSED)
    return client_error(
        code, detail, f"all that it wrote: {fetch}" if is_named else caller.typed("get", name), NOT_FOUND
    )


async def _running_pods(caller: Caller, job: FoundJob) -> dict[str, Pod]:
    """Return the running pods of a job's newest generation by node; none once the job has ended."""
    labels = f"{object_names.JOB}={job.gang_job.metadata.name}"
    pods = await caller.api.list(PODS, ListOptions(caller.namespace, labels=labels))
    if job.state in (*ENDED, ENDED_STATE):  # a pod reads as running until its kubelet reports otherwise
        return {}
    marked = [(mark, pod) for pod in pods if (mark := object_names.mark(pod)) and mark.gang == job.gang]
    newest = max((mark.generation for mark, _ in marked), default=0)
    return {mark.node: pod for mark, pod in marked if mark.generation == newest and pod.status.phase == "Running"}


def _description(job: FoundJob) -> str:
    return "has ended" if job.state == ENDED_STATE else f"is {job.state}"


def _first_rank(pod: Pod) -> int:
    return min(object_names.roles_by_rank(pod), default=0)


def _select_rank(
    caller: Caller, name: str, running: Mapping[str, Pod], rank: int | None, node: str | None
) -> tuple[Pod, int]:
    """Return the pod and rank: the given rank, the first one on the node, or rank 0."""
    ranks = {pod_node: sorted(object_names.roles_by_rank(pod)) for pod_node, pod in running.items()}
    if node is not None and node not in ranks:
        detail = f"{name} does not run on {node}; it runs on {', '.join(sorted(ranks))}"
        raise client_error("no_such_node", detail, caller.typed("explain", name), NOT_FOUND)
    if rank is None and node is None:
        rank = 0
    for pod_node, node_ranks in ranks.items():
        if node in (None, pod_node) and (rank is None or rank in node_ranks):
            return running[pod_node], node_ranks[0] if rank is None else rank
    running_ranks = ", ".join(map(str, sorted(chain.from_iterable(ranks.values()))))
    suffix = f" on {node}" if node else f" that runs; running ranks: {running_ranks}"
    raise client_error("no_such_rank", f"{name} has no rank {rank}{suffix}", caller.typed("explain", name), NOT_FOUND)


async def _check_permission(caller: Caller, *verbs: str) -> None:
    """Raise ClientError if the caller may not run commands in pods."""
    for verb in verbs:
        if not await caller.may(namespace=caller.namespace, verb=verb, resource="pods", subresource="exec"):
            detail = f"you may not {verb} pods/exec in namespace {caller.namespace}"
            remedy = f"the cluster role {ROLE} grants it, as does edit: ask the namespace's administrator"
            next_step = caller.kubectl("auth", "can-i", verb, "pods/exec", "-n", caller.namespace)
            raise client_error("forbidden", f"{detail}\n{remedy}", next_step, REFUSED)
