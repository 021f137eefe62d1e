"""Objects besides jobs that a user changes: nodes, the Secret of a namespace with users' variables, queues."""

import base64
from http import HTTPStatus
from typing import Any, Final

import msgspec

from ganger.client.client_errors import NOT_FOUND, REFUSED, client_error
from ganger.client.kubernetes import apply_policy
from ganger.client.kubernetes.caller import Caller, not_in_cluster
from ganger.client.kubernetes.find_job import display_name
from ganger.client.kubernetes.job_row import unix_ms
from ganger.gang_jobs.custom_resources import GROUP, QUEUES
from ganger.gang_jobs.object_names import JOB
from ganger.gang_jobs.pod_template import USERS_SECRETS
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ApiStruct, ObjectMeta, Pod
from ganger.kubeapi.request import ObjectRef, write_request
from ganger.kubeapi.resources import NODES, PODS, ListOptions, Resource
from ganger.model.queue import Queue
from ganger.spec.schema import to_mapping

Record = dict[str, Any]


class _Secret(ApiStruct, frozen=True):
    """A Secret with the names of its values."""

    metadata: ObjectMeta
    data: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


_SECRETS: Final = Resource("", "v1", "secrets", _Secret)


# -- nodes -------------------------------------------------------------------------------------------------------------


async def cordon(caller: Caller, name: str, body: Record) -> Record:
    """Mark a node unschedulable, or schedulable again; return its row. Raises ApiError and ClientError."""
    if body.get("reason"):
        raise not_in_cluster("a node's object has no reason for a cordon", "leave --reason out")
    is_cordoned = bool(body["cordoned"])
    try:
        node = await caller.api.merge(ObjectRef(NODES, "", name), {"spec": {"unschedulable": is_cordoned or None}})
    except ApiError as error:
        typed = caller.kubectl("cordon" if is_cordoned else "uncordon", name)
        raise _refusal(error, f"there is no node {name}", "no_such_node", typed) from error
    jobs = {f"{pod.metadata.labels[JOB]}.{pod.metadata.namespace}" for pod in await _pods(caller, name)}
    names = sorted(display_name(job, caller.namespace) for job in jobs)
    return {"name": node.metadata.name, "state": "cordoned" if is_cordoned else "ready", "gangs": names}


async def drain(caller: Caller, name: str, body: Record) -> Record:
    """Mark a node unschedulable, evict the pods of jobs from it, so that these start elsewhere, and return its row."""
    row = await cordon(caller, name, {**body, "cordoned": True})
    for pod in await _pods(caller, name):
        metadata = {"name": pod.metadata.name, "namespace": pod.metadata.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        ref = ObjectRef(PODS, pod.metadata.namespace, pod.metadata.name, "eviction")
        try:
            await caller.api.send(write_request("create", ref, eviction))
        except ApiError as error:
            if not error.missing:
                raise _refusal(error, "", "", caller.kubectl("drain", name)) from error
    return row


async def _pods(caller: Caller, node: str) -> list[Pod]:
    """Return the pods of jobs on a node; none if the caller may not list the pods of all namespaces."""
    try:
        return await caller.api.list(PODS, ListOptions(labels=JOB, fields=f"spec.nodeName={node}"))
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return []


# -- secrets -----------------------------------------------------------------------------------------------------------


async def secrets(caller: Caller) -> list[Record]:
    """Return the names of the values that jobs of the namespace may use. Raises ApiError and ClientError."""
    secret = await _secret(caller)
    if secret is None:
        return []
    times, created_ms = secret.metadata.annotations, unix_ms(secret.metadata.creation_timestamp) or 0
    return [{"name": name, "set_ms": int(times.get(_set_mark(name), created_ms))} for name in sorted(secret.data)]


async def set_secret(caller: Caller, name: str, value: str, at_ms: int) -> Record:
    """Store a value for jobs whose `secrets` name it. Raises ApiError and ClientError."""
    metadata: Record = {"annotations": {_set_mark(name): str(at_ms)}}
    content = {"metadata": metadata, "data": {name: base64.b64encode(value.encode()).decode()}}
    try:
        if await _secret(caller) is None:
            metadata |= {"name": USERS_SECRETS, "namespace": caller.namespace}
            await caller.api.create(_SECRETS, {"apiVersion": "v1", "kind": "Secret"} | content)
        else:
            await caller.api.merge(_secret_ref(caller), content)
    except ApiError as error:
        if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise client_error("bad_secret", str(error), "ganger secret set NAME", 2) from error
        raise _refusal(error, "", "", _kubectl_secret(caller, "edit")) from error
    return {"name": name, "set_ms": at_ms}


async def delete_secret(caller: Caller, name: str) -> None:
    """Delete a stored value; jobs that have it keep it. Raises ApiError and ClientError."""
    secret = await _secret(caller)
    if secret is None or name not in secret.data:
        detail = f"there is no secret {name} in namespace {caller.namespace}"
        raise client_error("no_such_secret", detail, caller.typed("secret", "ls"), NOT_FOUND)
    content = {"metadata": {"annotations": {_set_mark(name): None}}, "data": {name: None}}
    try:
        await caller.api.merge(_secret_ref(caller), content)
    except ApiError as error:
        raise _refusal(error, "", "", _kubectl_secret(caller, "edit")) from error


async def _secret(caller: Caller) -> _Secret | None:
    try:
        return await caller.api.get(_SECRETS, USERS_SECRETS, caller.namespace)
    except ApiError as error:
        if error.missing:
            return None
        raise _refusal(error, "", "", _kubectl_secret(caller, "describe")) from error


def _secret_ref(caller: Caller) -> ObjectRef[_Secret]:
    return ObjectRef(_SECRETS, caller.namespace, USERS_SECRETS)


def _set_mark(name: str) -> str:
    """Return the annotation with the time at which a value was set."""
    return f"{GROUP}/set.{name}"


def _kubectl_secret(caller: Caller, verb: str) -> str:
    return caller.kubectl("-n", caller.namespace, verb, "secret", USERS_SECRETS)


# -- queues ------------------------------------------------------------------------------------------------------------


async def write_queue(caller: Caller, name: str, body: Record | None) -> None:
    """Create, replace or (None) delete a queue's object, and wait until it is in force.

    Raises ApiError, RequestError, and ClientError if the controller refuses it.
    """
    spec = None if body is None else to_mapping(Queue, msgspec.convert({**body, "name": name}, Queue))
    try:
        await apply_policy.write_queue(caller, name, spec)
    except ApiError as error:
        typed = caller.kubectl("delete" if body is None else "edit", QUEUES.plural[:-1] + f".{GROUP}", name)
        if error.missing:
            raise client_error(
                "no_such_queue", f"there is no queue {name}", caller.typed("queue"), NOT_FOUND
            ) from error
        raise _refusal(error, "", "", typed) from error


def _refusal(error: ApiError, missing: str, code: str, typed: str) -> Exception:
    """Return the error of a change that the caller may not make, or of an object that does not exist."""
    if error.missing and code:
        return client_error(code, missing, typed, NOT_FOUND)
    if error.status == HTTPStatus.FORBIDDEN:
        return client_error("forbidden", f"{error}\nan administrator of the cluster may", typed, REFUSED)
    return error
