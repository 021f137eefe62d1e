"""Commands beside a rank of a GangJob: the arguments of `kubectl exec` into its pod.

RBAC decides, and knows pods but no owners: who may `create` `pods/exec` in a namespace may do so in every pod there.
The permission is checked beforehand, so that a missing one is named.
"""

import shutil
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.pod_template import exec_arguments
from ganger.client.client_errors import NOT_FOUND, REFUSED, ClientError, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.find_job import ENDED_STATE, find_job_with_pods
from ganger.kubeapi.objects import Pod
from ganger.kubeapi.resources import PODS, ListOptions
from ganger.model.job import ENDED

Record = dict[str, Any]

ROLE: Final = "ganger-exec"
"""Role with this permission alone; `ganger install` prints it."""


async def exec_command(caller: Caller, name: str, rank: int | None, node: str | None) -> Record:
    """Return the command line of `kubectl`, up to its flags for input and terminal, and what follows these in `inside`.

    Raises ApiError and ClientError.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ClientError("no_kubectl", "exec needs kubectl, which is not on PATH", "install kubectl, or set PATH", 125)
    job = await find_job_with_pods(caller, name)
    labels = f"{object_names.JOB}={job.gang_job.metadata.name}"
    running = _running_pods(await caller.api.list(PODS, ListOptions(caller.namespace, labels=labels)), job.gang)
    state = job.state
    # A pod reads as running until its kubelet reports otherwise.
    if not running or state in (*ENDED, ENDED_STATE):
        description = "has ended" if state == ENDED_STATE else f"is {state}"
        detail = f"{name} {description}: a command needs a running rank"
        raise client_error("not_running", detail, caller.typed("explain", name), REFUSED)
    pod, target_rank = _select_rank(caller, name, running, rank, node)
    await _check_permission(caller)
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


def _running_pods(pods: list[Pod], gang: str) -> dict[str, Pod]:
    """Return the running pods of a gang's newest generation by node."""
    marked = [(mark, pod) for pod in pods if (mark := object_names.mark(pod)) and mark.gang == gang]
    newest = max((mark.generation for mark, _ in marked), default=0)
    return {mark.node: pod for mark, pod in marked if mark.generation == newest and pod.status.phase == "Running"}


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


async def _check_permission(caller: Caller) -> None:
    """Raise ClientError if the caller may not run commands in pods."""
    if not await caller.may(namespace=caller.namespace, verb="create", resource="pods", subresource="exec"):
        detail = f"you may not create pods/exec in namespace {caller.namespace}"
        remedy = f"the cluster role {ROLE} grants it, as does edit: ask the namespace's administrator"
        next_step = caller.kubectl("auth", "can-i", "create", "pods/exec", "-n", caller.namespace)
        raise client_error("forbidden", f"{detail}\n{remedy}", next_step, REFUSED)
