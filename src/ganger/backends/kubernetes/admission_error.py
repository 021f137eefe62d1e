"""Causes for which the API server refuses a pod of a gang, its Secret or a ConfigMap. Pure; called by `placing`.

The API has no code of its own for these: a quota and a webhook answer 403 as a missing right does, and a webhook that
cannot be reached answers 500 as any fault of the server does. So its words are read, which are those of Kubernetes
1.36.
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


def not_admitted(error: ApiError, namespace: str, made: int = 0) -> tuple[Cause, str]:
    """Return the cause and one sentence for an object that was refused. `made`: pods of the gang that there were."""
    if NO_WEBHOOK in error.message:
        return Cause.WEBHOOK_UNREACHABLE, error.message[error.message.index(NO_WEBHOOK) :]
    if error.status == HTTPStatus.FORBIDDEN and (found := _QUOTA.match(error.message)):
        return Cause.NAMESPACE_QUOTA, f"namespace {namespace}, quota {found['quota']}: {_amounts(found, made)}"
    if any(denial.search(error.message) for denial in _DENIALS):
        return Cause.ADMISSION_DENIED, str(error)
    return Cause.START_FAILED, str(error)


def _amounts(found: re.Match[str], made: int) -> str:
    """Return what is short, by resource."""
    asked, used, limits = (_parsed(found[part]) for part in ("requested", "used", "limited"))
    own = f" ({made} pod{'s' * (made > 1)} of this gang counted)" if made else ""
    short = (
        f"{name}: {used.get(name)} of {limit} used{own}, {asked.get(name)} asked" for name, limit in limits.items()
    )
    return f"{'; '.join(short)} by {found['resource'].removesuffix('s')} {found['name']}"


def _parsed(amounts: str) -> dict[str, str]:
    """Return the amounts of `pods=1,requests.cpu=4` by resource."""
    return {name: amount for name, _, amount in (each.partition("=") for each in amounts.split(","))}
