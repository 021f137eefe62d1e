"""Refusals of a pod by the API server: exceeded quotas of the namespace, admission webhooks and policies.

The API has no reason of its own for these causes: a quota and a webhook respond with 403 as a missing permission does,
and an unreachable webhook with 500 as any internal error does. So the messages of Kubernetes 1.36 are parsed.
"""

import re
from http import HTTPStatus
from typing import Final

from ganger.kubeapi.api_error import NO_WEBHOOK, ApiError
from ganger.model.decision import Cause

_QUOTA: Final = re.compile(
    r'^(?P<resource>\S+) "(?P<name>[^"]+)" is forbidden: exceeded quota: (?P<quota>\S+), '
    r"requested: (?P<requested>\S+), used: (?P<used>\S+), limited: (?P<limited>\S+)$"
)
_DENIALS: Final = (
    re.compile(r'admission webhook "[^"]+" denied the request'),
    re.compile(r"ValidatingAdmissionPolicy \S+ with binding \S+ denied request"),
    re.compile(r'violates PodSecurity "'),
    re.compile(r"failed quota: \S+: must specify"),
)


def admission_failure(error: ApiError, namespace: str, created: int = 0) -> tuple[Cause, str]:
    """Return the cause and a sentence for a pod, Secret or ConfigMap that the API server refused.

    `created`: pods of the gang that existed by then.
    """
    if NO_WEBHOOK in error.message:
        return Cause.WEBHOOK_UNREACHABLE, error.message[error.message.index(NO_WEBHOOK) :]
    if error.status == HTTPStatus.FORBIDDEN and (match := _QUOTA.match(error.message)):
        return (
            Cause.NAMESPACE_QUOTA,
            f"namespace {namespace}, quota {match['quota']}: {_exceeded_amounts(match, created)}",
        )
    if any(denial.search(error.message) for denial in _DENIALS):
        return Cause.ADMISSION_DENIED, str(error)
    return Cause.START_FAILED, str(error)


def _exceeded_amounts(match: re.Match[str], created: int) -> str:
    """Return the exceeded resources of a quota message."""
    requested, used, limits = (_parse_amounts(match[group]) for group in ("requested", "used", "limited"))
    own = f" ({created} pod{'s' * (created > 1)} of this gang counted)" if created else ""
    exceeded = (
        f"{name}: {used.get(name)} of {limit} used{own}, {requested.get(name)} asked" for name, limit in limits.items()
    )
    return f"{'; '.join(exceeded)} by {match['resource'].removesuffix('s')} {match['name']}"


def _parse_amounts(amounts: str) -> dict[str, str]:
    """Return the amounts of `pods=1,requests.cpu=4` by resource."""
    return {name: amount for name, _, amount in (item.partition("=") for item in amounts.split(","))}
