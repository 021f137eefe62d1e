"""Whose a token is that somebody brings through the API server's proxy: the API server itself is asked.

Called by `controller.assembly`. `backends.kubernetes.controller_tokens` says what such a token is.
"""

import base64
import json
from collections.abc import Sequence
from typing import Final

from ganger.backends.kubernetes.controller_tokens import ALL_JOBS, ASKER, CONTROLLER, USER
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Fields
from ganger.kubeapi.resources import Resource
from ganger.rest.proxy_identity import CallerIdentity, NotReviewedError

MOST_CHARACTERS: Final = 16 << 10


class _Who(Fields, frozen=True):
    username: str = ""


class _Judged(Fields, frozen=True):
    authenticated: bool = False
    user: _Who = _Who()


class _Review(Fields, frozen=True):
    status: _Judged


_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", _Review)


class Reviewer:
    """Asks over `api`; the account is in `namespace`."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._account = api, f"system:serviceaccount:{namespace}:{ASKER}"

    async def identify(self, token: str) -> CallerIdentity | None:
        """Whose the token is; None: it is not good here. Raises NotReviewedError."""
        if len(token) > MOST_CHARACTERS:
            return None
        try:
            judged = (await self._api.ask(_REVIEWS, {"spec": {"token": token, "audiences": [CONTROLLER]}})).status
        except ApiError as error:
            raise NotReviewedError(f"the API server did not say whose the token is: {error}") from None
        if not judged.authenticated or judged.user.username != self._account:
            return None
        audiences = _audiences(token)
        names = [each.removeprefix(USER) for each in audiences if each.startswith(USER)]
        return CallerIdentity(names[0], sees_all=ALL_JOBS in audiences) if len(names) == 1 and names[0] else None


def _audiences(token: str) -> Sequence[str]:
    """For whom it is, of a token whose signature the API server has found good (RFC 7519)."""
    payload = token.split(".")[1]
    found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["aud"]
    return [found] if isinstance(found, str) else found
