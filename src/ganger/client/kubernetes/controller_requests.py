"""Queries to the controller of a cluster with the caller's kubeconfig.

They go through the API server's proxy to the controller's service, or, if it runs outside the cluster, to the address
that it has published. The caller's credentials stay with the API server,
so the caller requests a token that is valid for the controller alone and identifies them (`ganger install`,
controller-queries.yaml).
"""

import time
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from ganger.client.client_errors import REFUSED, UNREACHABLE, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.local.http import problem_of
from ganger.gang_jobs.controller_tokens import (
    ADDRESS,
    ADDRESS_CERTIFICATE,
    ADDRESS_URL,
    ADMINISTERS_PREFIX,
    ALL_JOBS_AUDIENCE,
    ALL_NAMESPACES_ADMINISTERED,
    CALLER_ACCOUNT,
    CALLER_HEADER,
    CONTROLLER_AUDIENCE,
    DRY_RUN_PARAMETER,
    LISTS_PREFIX,
    SUBMITS_PREFIX,
    USER_PREFIX,
)
from ganger.gang_jobs.custom_resources import GROUP, PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials, CredentialsError
from ganger.kubeapi.objects import ApiStruct
from ganger.kubeapi.request import JSON, ObjectRef, Permission, Request, decode_response, write_request
from ganger.kubeapi.resources import CONFIG_MAPS, Resource
from ganger.settings import CONTROLLER_NAMESPACE

Record = dict[str, Any]

SERVICE: Final = "https:ganger:rest"
_JOB_RIGHTS: Final = {"group": GROUP, "resource": "gangjobs"}
_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update"}
"""Verbs that the role grants, by HTTP method."""
DRY_RUN: Final = "dryRun"
_DEFRAG: Final = "POST", "/defrag"
"""Open to those who may administer the jobs of all namespaces."""
_JOBS: Final = "/jobs"
"""The resource of a job's dry run, whose answer depends on the right to administer jobs."""
_CODE: Final = "/code/"
"""Below it is code: open to those who may create jobs in its namespace."""
OCTETS: Final = "application/octet-stream"
UPLOAD_TIMEOUT_S: Final = 120.0
"""Time for which the controller may be silent once it has all of an upload, which it writes to its store."""
TOKEN_LIFETIME_S: Final = 600
"""Lifetime of a token: the minimum that the API server accepts."""


class _TokenStatus(ApiStruct, frozen=True):
    token: str


class _TokenRequest(ApiStruct, frozen=True):
    status: _TokenStatus


_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", _TokenRequest)


async def query_controller(caller: Caller, method: str, target: str, body: Any = None) -> bytes:
    """Send a request below /api/v1 to the controller and return the body of its response.

    A body of bytes is sent as it is, any other one as JSON.

    Raises ClientError and ApiError.
    """
    path, _, parameters = target.partition("?")
    user = await caller.user()
    token = await _token(caller, user, await _audiences(caller, method, path))
    request = Request(
        description="query the controller",
        permission=Permission(_VERBS[method], "", "services/proxy"),
        method=method,
        path=f"/api/v1/namespaces/{caller.controller}/services/{SERVICE}/proxy/api/v1{path}",
        query={DRY_RUN_PARAMETER if name == DRY_RUN else name: value for name, value in parse_qsl(parameters)},
        body=body if body is None or isinstance(body, bytes) else msgspec.json.encode(body),
        content_type=OCTETS if isinstance(body, bytes) else JSON,
        headers={CALLER_HEADER: f"Bearer {token}"},
        response_timeout_s=UPLOAD_TIMEOUT_S if isinstance(body, bytes) else None,
    )
    try:
        return await _send(caller, request, path)
    except ApiError as error:
        if _is_problem(error.body):
            raise problem_of(error.status, error.body) from error
        raise _explain_error(error, caller, user) from error


async def _send(caller: Caller, request: Request, path: str) -> bytes:
    """Send a query through the API server, or, where no service leads to the controller, to its published address."""
    try:
        return await caller.api.send(request)
    except ApiError as error:
        if not error.missing or _is_problem(error.body):
            raise
        missing = error
    try:
        published = (await caller.api.get(CONFIG_MAPS, ADDRESS, caller.controller)).data
        credentials = Credentials.anonymous(published[ADDRESS_URL], published[ADDRESS_CERTIFICATE])
    except (ApiError, KeyError, CredentialsError):
        raise missing from None
    async with ApiClient(credentials, PROGRAM) as direct:
        try:
            return await direct.send(replace(request, path=f"/api/v1{path}"))
        except ApiError as error:
            if error.status:
                raise
            detail = f"no service leads to a controller, and the one at {credentials.url} does not respond; jobs run on"
            install = f"ganger install --dry-run | {caller.kubectl('apply', '-f', '-')}"
            raise client_error("unreachable", f"{detail}\n{error}", install, UNREACHABLE) from error


async def _audiences(caller: Caller, method: str, path: str) -> list[str]:
    """Return the audiences for the rights that the answer to a query depends on, as far as the caller has them."""
    if path == _JOBS and await caller.may(**_JOB_RIGHTS, verb="administer", namespace=caller.namespace):
        return [f"{ADMINISTERS_PREFIX}{caller.namespace}"]
    if path.startswith(_CODE) and await caller.may(**_JOB_RIGHTS, verb="create", namespace=caller.namespace):
        return [f"{SUBMITS_PREFIX}{caller.namespace}"]
    if (method, path) == _DEFRAG and await caller.may(**_JOB_RIGHTS, verb="administer"):
        return [ALL_NAMESPACES_ADMINISTERED]
    return []


async def _token(caller: Caller, user: str, rights: list[str]) -> str:
    """Return a token with these audiences and those of every query; one is used for half of its lifetime."""
    known = caller.tokens.get(tuple(rights))
    if known is not None and known[1] > time.monotonic():
        return known[0]
    sees = []
    if await caller.may(**_JOB_RIGHTS, verb="list"):
        sees = [ALL_JOBS_AUDIENCE]
    elif await caller.may(**_JOB_RIGHTS, verb="list", namespace=caller.namespace):
        sees = [f"{LISTS_PREFIX}{caller.namespace}"]
    audiences = [CONTROLLER_AUDIENCE, f"{USER_PREFIX}{user}", *sees, *rights]
    body = {"spec": {"audiences": audiences, "expirationSeconds": TOKEN_LIFETIME_S}}
    request = write_request("create", ObjectRef(_ACCOUNTS, caller.controller, CALLER_ACCOUNT, "token"), body)
    try:
        token = decode_response(request, await caller.api.send(request), _TokenRequest).status.token
    except ApiError as error:
        raise _explain_error(error, caller, user) from error
    caller.tokens[tuple(rights)] = token, time.monotonic() + TOKEN_LIFETIME_S / 2
    return token


def _is_problem(body: bytes) -> bool:
    """Return whether the body is an error of the controller, and not of the API server."""
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    return isinstance(content, dict) and {"code", "detail", "next"} <= set(content)


def _explain_error(error: ApiError, caller: Caller, user: str) -> Exception:
    """Return the error that an API server error means on this path; itself if it means nothing special."""
    namespace = caller.controller
    hint = f"if it is in another namespace: export {CONTROLLER_NAMESPACE}=NAMESPACE"
    match error.status:
        case HTTPStatus.FORBIDDEN:
            detail = f"you may not query the controller in {namespace}; its administrator can allow it\n{error}\n{hint}"
            binding = ("rolebinding", "caller", f"--role={CALLER_ACCOUNT}", f"--user={user}")
            return client_error("forbidden", detail, caller.kubectl("create", *binding, "-n", namespace), REFUSED)
        case HTTPStatus.NOT_FOUND:
            detail = f"there is no controller to query in namespace {namespace}: {error}\n{hint}"
            install = f"ganger install --dry-run | {caller.kubectl('apply', '-f', '-')}"
            return client_error("no_controller", detail, install, UNREACHABLE)
        case HTTPStatus.BAD_GATEWAY | HTTPStatus.SERVICE_UNAVAILABLE | HTTPStatus.GATEWAY_TIMEOUT:
            detail = f"the controller does not respond; jobs run on\n{error}"
            return client_error("unreachable", detail, caller.kubectl("get", "pods", "-n", namespace), UNREACHABLE)
        case _:
            return error
