"""The caller of requests to a Kubernetes cluster, by a kubeconfig context, and errors for the caller."""

import shlex
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from ganger.client.client_errors import NOT_FOUND, REFUSED, UNREACHABLE, USAGE, ClientError, Unreachable, client_error
from ganger.gang_jobs.custom_resources import GROUP, VERSION
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import AccessReview, ApiStruct
from ganger.kubeapi.resources import Resource


class _User(ApiStruct, frozen=True):
    username: str


class _ReviewStatus(ApiStruct, frozen=True):
    user_info: _User


class _Review(ApiStruct, frozen=True):
    """The API server's review of the caller."""

    status: _ReviewStatus


_ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", AccessReview)
_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", _Review)


@dataclass(slots=True)
class Caller:
    """The caller of requests.

    Attributes:
        api: client of the API server, as the caller.
        context: the kubeconfig context.
        namespace: the namespace of the jobs.
        has_namespace: the namespace was given, and is not just the context's.
        controller: the controller's namespace.
        tokens: tokens for queries to the controller by their audiences, each with the time until which it is used.
    """

    api: ApiClient
    context: str
    namespace: str
    has_namespace: bool
    controller: str
    tokens: dict[tuple[str, ...], tuple[str, float]] = field(default_factory=dict)
    _user: str = ""

    async def user(self) -> str:
        """Return the API server's name of the caller. Raises ApiError."""
        if not self._user:
            self._user = (await self.api.create_review(_REVIEWS, {})).status.user_info.username
        return self._user

    async def may(self, **attributes: str) -> bool:
        """Return whether the caller has a permission, by its attributes for the API server. Raises ApiError."""
        review = await self.api.create_review(_ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}})
        return review.status.allowed

    def typed(self, *arguments: str) -> str:
        """Return a ganger command line for this caller."""
        namespace = ("--namespace", self.namespace) if self.has_namespace else ()
        return shlex.join(("ganger", "--context", self.context, *namespace, *arguments))

    def kubectl(self, *arguments: str) -> str:
        """Return a kubectl command line for this caller."""
        return shlex.join(("kubectl", "--context", self.context, *arguments))


async def client_error_of(caller: Caller, error: ApiError) -> ClientError:
    """Return the error for the user, with the next command to type."""
    match error.status:
        case 0:
            return _unreachable("unreachable", error, caller.kubectl("cluster-info"))
        case HTTPStatus.UNAUTHORIZED:
            detail = f"the API server does not accept the credentials of context {caller.context}: they have expired"
            return client_error("unauthorized", f"{detail}\n{error}", caller.kubectl("auth", "whoami"), REFUSED)
        case HTTPStatus.FORBIDDEN:
            next_step = caller.kubectl("auth", "can-i", "--list", "-n", caller.namespace)
            return client_error("forbidden", str(error), next_step, REFUSED)
        case HTTPStatus.NOT_FOUND if "gangjobs" not in await caller.api.list_resources(GROUP, VERSION):
            detail = f"ganger is not installed in the cluster of context {caller.context}"
            next_step = f"ganger install --dry-run | {caller.kubectl('apply', '-f', '-')}"
            return client_error("not_installed", detail, next_step, UNREACHABLE)
        case HTTPStatus.NOT_FOUND:
            return client_error("not_found", str(error), caller.typed("ls"), NOT_FOUND)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
            return client_error("bad_spec", str(error), "kubectl explain gangjob.spec", USAGE)
        case HTTPStatus.CONFLICT:
            return client_error("conflict", str(error), caller.typed("ls"), REFUSED)
        case _:
            return _unreachable("api_server", error, caller.kubectl("get", "--raw", "/readyz?verbose"))


def not_in_cluster(detail: str, next: str) -> ClientError:
    """Return the error of a request that cannot be carried out in a cluster."""
    return client_error("not_in_cluster", detail, next, USAGE)


def _unreachable(code: str, error: ApiError, next: str) -> Unreachable:
    """Return the error of a server that was tried often enough already."""
    lost = Unreachable(code, str(error), next)
    lost.sent, lost.is_final = error.outcome_unknown, True
    return lost
