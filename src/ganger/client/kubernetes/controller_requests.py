"""Questions that a person puts to the controller of a cluster, by their own kubeconfig. Called by
`client.kubernetes.context_commands`.

The way is the API server's proxy to the controller's service. What a person shows to the API server stays there, so
they ask it for a token that is good for the controller alone and says who they are (`ganger install`, questions.yaml).
"""

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from ganger.backends.kubernetes.controller_tokens import ALL_JOBS, ASKER, CONTROLLER, HEADER, TRIAL, USER
from ganger.backends.kubernetes.custom_resources import GROUP
from ganger.client.kubernetes.caller import REFUSED, UNREACHABLE, Caller, CannotError
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Fields
from ganger.kubeapi.request import Place, Request, Use, decoded, telling
from ganger.kubeapi.resources import Resource
from ganger.settings import CONTROLLER_NAMESPACE

Record = dict[str, Any]

SERVICE: Final = "https:ganger:rest"
_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update"}
"""What the role gives, by method."""
DRY_RUN: Final = "dryRun"
LASTS_S: Final = 600
"""How long a token is good: the API server makes none for less."""


class _May(Fields, frozen=True):
    allowed: bool = False


class _Decision(Fields, frozen=True):
    status: _May


class _Signed(Fields, frozen=True):
    token: str


class _Token(Fields, frozen=True):
    status: _Signed


_DECISIONS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", _Decision)
_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", _Token)


async def ask(who: Caller, user: str, asked: Record) -> Record:
    """What the controller answers to {"method", "target", "body"}: {"status", "body"}. user: the
    name by which the API server knows the person. Raises CannotError and ApiError."""
    if (instead := _instead(who, asked)) is not None:
        why = "through the API server the controller answers questions, and changes nothing"
        raise CannotError("read_only", why, instead, REFUSED)
    token = await _token(who, user)
    path, _, query = asked["target"].partition("?")
    request = Request(
        what="ask the controller",
        use=Use(_VERBS[asked["method"]], "", "services/proxy"),
        method=asked["method"],
        path=f"/api/v1/namespaces/{who.controller}/services/{SERVICE}/proxy/api/v1{path}",
        query={TRIAL if name == DRY_RUN else name: value for name, value in parse_qsl(query)},
        body=None if asked["body"] is None else msgspec.json.encode(asked["body"]),
        headers={HEADER: f"Bearer {token}"},
    )
    try:
        return {"status": HTTPStatus.OK, "body": (await who.api.once(request)).decode()}
    except ApiError as error:
        if _is_problem(error.body):
            return {"status": error.status, "body": error.body.decode()}
        raise _lost(error, who, user) from error


def _instead(who: Caller, asked: Record) -> str | None:
    """What a person types for what only a server of ganger's does so; None for a question."""
    method, (kind, name, verb) = asked["method"], [*asked["target"].partition("?")[0].split("/")[1:], "", "", ""][:3]
    if kind == "queues" and method in ("PUT", "DELETE"):
        return who.kubectl("edit" if method == "PUT" else "delete", "queue.ganger.dev", name)
    if kind == "nodes" and (method == "PATCH" or verb == "drain"):
        cordons = bool((asked["body"] or {}).get("cordoned"))
        return who.kubectl(verb or ("cordon" if cordons else "uncordon"), name)
    return None if method in _VERBS else who.kubectl("api-resources", "--categories=ganger")


async def _token(who: Caller, user: str) -> str:
    may = {"verb": "list", "group": GROUP, "resource": "gangjobs"}
    sees_all = (await who.api.ask(_DECISIONS, {"spec": {"resourceAttributes": may}})).status.allowed
    audiences = [CONTROLLER, f"{USER}{user}", *([ALL_JOBS] if sees_all else [])]
    wanted = {"spec": {"audiences": audiences, "expirationSeconds": LASTS_S}}
    request = telling("create", Place(_ACCOUNTS, who.controller, ASKER, "token"), wanted)
    try:
        return decoded(request, await who.api.once(request), _Token).status.token
    except ApiError as error:
        raise _lost(error, who, user) from error


def _is_problem(body: bytes) -> bool:
    """Whether it is the controller's own word, and not the API server's."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    return isinstance(found, dict) and {"code", "detail", "next"} <= set(found)


def _lost(error: ApiError, who: Caller, user: str) -> Exception:
    """What a refusal of the API server means on this way; itself where it means what it means everywhere."""
    space = who.controller
    elsewhere = f"if it is in another namespace: export {CONTROLLER_NAMESPACE}=NAMESPACE"
    match error.status:
        case HTTPStatus.FORBIDDEN:
            why = f"you may not ask the controller in {space}; who may give roles there lets you\n{error}\n{elsewhere}"
            next_ = who.kubectl("create", "rolebinding", "asker", f"--role={ASKER}", f"--user={user}", "-n", space)
            return CannotError("forbidden", why, next_, REFUSED)
        case HTTPStatus.NOT_FOUND:
            why = f"there is no controller in namespace {space} that can be asked: {error}\n{elsewhere}"
            return CannotError(
                "no_controller", why, f"ganger install --dry-run | {who.kubectl('apply', '-f', '-')}", UNREACHABLE
            )
        case HTTPStatus.BAD_GATEWAY | HTTPStatus.SERVICE_UNAVAILABLE | HTTPStatus.GATEWAY_TIMEOUT:
            why = f"the controller does not answer; jobs run on\n{error}"
            return CannotError("unreachable", why, who.kubectl("get", "pods", "-n", space), UNREACHABLE)
    return error
