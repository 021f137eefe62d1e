"""Review of callers' tokens that come through the API server's proxy, by the API server itself.

`backends.kubernetes.controller_tokens` describes such a token.
"""

import base64
import json
from collections.abc import Sequence
from typing import Final

from ganger.backends.kubernetes.controller_tokens import (
    ADMINISTERS_PREFIX,
    ALL_JOBS_AUDIENCE,
    CALLER_ACCOUNT,
    CONTROLLER_AUDIENCE,
    USER_PREFIX,
)
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ApiStruct
from ganger.kubeapi.resources import Resource
from ganger.rest.proxy_identity import CallerIdentity, NotReviewedError

MAX_CHARACTERS: Final = 16 << 10


class _User(ApiStruct, frozen=True):
    username: str = ""


class _ReviewStatus(ApiStruct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _Review(ApiStruct, frozen=True):
    status: _ReviewStatus


_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", _Review)


class TokenReviewer:
    """Reviews tokens with `api`. `namespace` is that of the tokens' service account."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api, self._account = api, f"system:serviceaccount:{namespace}:{CALLER_ACCOUNT}"

    async def identify(self, token: str) -> CallerIdentity | None:
        """Return the caller of a token; None if it is not valid here. Raises NotReviewedError."""
        if len(token) > MAX_CHARACTERS:
            return None
        try:
            spec = {"token": token, "audiences": [CONTROLLER_AUDIENCE]}
            result = (await self._api.create_review(_REVIEWS, {"spec": spec})).status
        except ApiError as error:
            raise NotReviewedError(f"the API server did not review the token: {error}") from None
        if not result.authenticated or result.user.username != self._account:
            return None
        audiences = _audiences(token)
        return identity_of(audiences)


def identity_of(audiences: Sequence[str]) -> CallerIdentity | None:
    """Return the caller whom the audiences of a token identify; None if they identify no single one."""
    names, namespaces = (
        [audience.removeprefix(prefix) for audience in audiences if audience.startswith(prefix)]
        for prefix in (USER_PREFIX, ADMINISTERS_PREFIX)
    )
    if len(names) != 1 or not names[0]:
        return None
    return CallerIdentity(names[0], sees_all=ALL_JOBS_AUDIENCE in audiences, administers=tuple(namespaces))


def _audiences(token: str) -> Sequence[str]:
    """Return the audiences of a token whose signature the API server has verified (RFC 7519)."""
    payload = token.split(".")[1]
    audiences = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["aud"]
    return [audiences] if isinstance(audiences, str) else audiences
