"""How a person gets a command to run beside a rank of a GangJob: the words of a `kubectl exec` into its pod.

Called by `in_context`. Whether they may is the cluster's to say, by RBAC, and RBAC knows pods and no owners: whoever
may `create` `pods/exec` in a namespace may do so in everybody's pods there. It is asked beforehand, so that a person
who may not reads which right is missing.
"""

from collections.abc import Mapping
from typing import Any, Final

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.pod_template import beside as words_beside
from ganger.client.kubernetes.caller import NOT_FOUND, REFUSED, Caller, CannotError
from ganger.client.kubernetes.find_job import ENDED, with_pods
from ganger.client.kubernetes.job_row import OVER
from ganger.kubeapi.objects import Fields, Pod
from ganger.kubeapi.resources import PODS, Resource, Selection

Record = dict[str, Any]

ROLE: Final = "ganger-exec"
"""The role that has the right and nothing else; `ganger install` prints it."""


class _Verdict(Fields, frozen=True):
    allowed: bool = False


class _Review(Fields, frozen=True):
    """Whether whoever asks may do a thing."""

    status: _Verdict


_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", _Review)


async def beside(who: Caller, name: str, rank: int | None, node: str | None) -> Record:
    """The words after `kubectl`, its flags for input and terminal left out, and what the launcher in the pod is told.

    Raises ApiError and CannotError.
    """
    its = await with_pods(who, name)
    pods = await who.api.list(PODS, Selection(who.namespace, labels=f"{object_names.JOB}={its.found.metadata.name}"))
    there, state = _there(pods, its.gang), its.state
    # A pod says that it runs until its kubelet has told otherwise.
    if not there or state in (*OVER, ENDED):
        how = "has ended" if state == ENDED else f"is {state}"
        why = f"{name} {how}: a command runs beside a rank that runs"
        raise CannotError("not_running", why, who.typed("explain", name), REFUSED)
    pod, beside_rank = _chosen(who, name, there, rank, node)
    await _may(who)
    mark = object_names.mark(pod)
    generation = mark.generation if mark else 0
    return {
        "kubectl": ["--context", who.context, "--namespace", who.namespace, "exec"],
        "argv": words_beside(pod.metadata.key),
        "generation": generation,
        "rank": beside_rank,
    }


def _there(pods: list[Pod], gang: str) -> dict[str, Pod]:
    """The pods that run of a gang's newest generation, by their node."""
    marked = [(mark, pod) for pod in pods if (mark := object_names.mark(pod)) and mark.gang == gang]
    newest = max((mark.generation for mark, _ in marked), default=0)
    return {mark.node: pod for mark, pod in marked if mark.generation == newest and pod.status.phase == "Running"}


def _chosen(who: Caller, name: str, there: Mapping[str, Pod], rank: int | None, node: str | None) -> tuple[Pod, int]:
    """The pod, and the rank: that one, the first one on the node, or rank 0."""
    ranks = {each: sorted(object_names.roles(pod)) for each, pod in there.items()}
    if node is not None and node not in ranks:
        why = f"{name} does not run on {node}; it runs on {', '.join(sorted(ranks))}"
        raise CannotError("no_such_node", why, who.typed("explain", name), NOT_FOUND)
    if rank is None and node is None:
        rank = 0
    for each, found in ranks.items():
        if (node is None or each == node) and (rank is None or rank in found):
            return there[each], found[0] if rank is None else rank
    every = ", ".join(map(str, sorted(one for found in ranks.values() for one in found)))
    where = f" on {node}" if node else f" that runs; those are {every}"
    raise CannotError("no_such_rank", f"{name} has no rank {rank}{where}", who.typed("explain", name), NOT_FOUND)


async def _may(who: Caller) -> None:
    """CannotError when this person may not run commands in pods."""
    asked = {"namespace": who.namespace, "verb": "create", "resource": "pods", "subresource": "exec"}
    review = await who.api.ask(_REVIEWS, {"spec": {"resourceAttributes": asked}})
    if not review.status.allowed:
        why = f"you may not create pods/exec in namespace {who.namespace}"
        gives = f"the cluster role {ROLE} gives that right, and edit has it too: ask whoever runs the namespace"
        next_ = who.kubectl("auth", "can-i", "create", "pods/exec", "-n", who.namespace)
        raise CannotError("forbidden", f"{why}\n{gives}", next_, REFUSED)
