"""Names that a job may use on Kubernetes, by `pods` of the policy.

The controller creates pods with its own rights, so what a GangJob may mount, be labelled with and tolerate is decided
here, and not by the rights of its user.
"""

import ipaddress
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from ganger.errors import RequestError
from ganger.model.job import GitCode, JobSpec
from ganger.model.policy import Pods

ALL: Final = "*"
"""Pattern of all names that are not reserved; of a job, the toleration of all taints."""
RESERVED_DOMAINS: Final = ("kubernetes.io", "k8s.io", "ganger.dev")
"""Domains of label and taint keys with a meaning of their own, and all domains below them."""
RESERVED_HOSTS: Final = ("svc", "local", "localhost", "internal")
"""Last parts of host names that are inside of a cluster, a machine or a site."""


def check_pod_policy(spec: JobSpec, pods: Pods) -> None:
    """Raise RequestError (not_permitted) for the first name of a job that the policy does not permit."""
    _check("volumes", (volume.name for volume in spec.volumes), "PersistentVolumeClaim", pods.volumes)
    _check("secrets", spec.secrets, "key of ganger-secrets", pods.secrets)
    _check("labels", spec.labels, "label", pods.labels)
    taints = (taint.partition("=")[0] for taint in spec.placement.tolerations)
    _check("tolerations", taints, "taint", pods.tolerations)
    if isinstance(spec.code, GitCode):
        _check("git_hosts", [_host_of(spec.code.git)], "host of code.git", pods.git_hosts)


def _check(key: str, names: Iterable[str], kind: str, patterns: tuple[str, ...]) -> None:
    is_reserved = _is_reserved_host if key == "git_hosts" else _is_reserved_key
    for name in names:
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        if not matching or (matching == [ALL] and is_reserved(name)):
            permitted = f"it permits {', '.join(patterns)}" if patterns else "it permits none"
            reserved = ", and this one is reserved" if matching else ""
            detail = f"the policy does not permit the {kind} {name}: {permitted} (pods.{key}){reserved}"
            remedy = f"leave it out, or ask an administrator to add it to pods.{key} of the SchedulingPolicy"
            raise RequestError("not_permitted", detail, remedy, 403)


def _is_reserved_key(key: str) -> bool:
    """Return whether a key of a label or taint is one of Kubernetes or ganger; so is the toleration of all taints."""
    domain = key.rpartition("/")[0]
    return key == ALL or any(domain == reserved or domain.endswith(f".{reserved}") for reserved in RESERVED_DOMAINS)


def _is_reserved_host(host: str) -> bool:
    """Return whether a host is an address, or a name that may lead into the cluster or to the machine itself."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # An address may be written as numbers in other ways, too: 2130706433, 0x7f.1.
        last = host.rpartition(".")[2]
        return "." not in host or last in RESERVED_HOSTS or re.fullmatch(r"\d+|0x[0-9a-f]*", last) is not None
    return True


def _host_of(url: str) -> str:
    """Return the host of a repository that a pod can fetch. Raises RequestError for one that needs files or keys."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "git") or not parts.hostname:
        detail = f"code: {url} is fetched by a pod, which has neither your files nor your ssh keys"
        raise RequestError("bad_spec", detail, "give a URL that needs neither: https://HOST/PATH or git://HOST/PATH")
    return parts.hostname.rstrip(".")
