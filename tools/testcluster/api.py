"""The few things that starting a cluster asks of its API server, as its admin."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from tools.testcluster.shape import Shape

TIMEOUT_S = 30.0


def tls(shape: Shape) -> ssl.SSLContext:
    """What trusts the API server, and shows it an admin's certificate."""
    trust = ssl.create_default_context(cafile=shape.pki / "ca.pem")
    trust.load_cert_chain(shape.pki / "admin.pem", shape.pki / "admin-key.pem")
    return trust


@contextmanager
def admin(shape: Shape) -> Iterator[httpx2.Client]:
    """A client that may do everything."""
    with httpx2.Client(base_url=shape.url, verify=tls(shape), timeout=TIMEOUT_S) as client:
        yield client


def is_ready(shape: Shape) -> bool:
    """Whether the API server says that it can serve."""
    try:
        with admin(shape) as client:
            return client.get("/readyz").status_code == httpx2.codes.OK
    except (httpx2.TransportError, FileNotFoundError):
        return False


def ready_nodes(shape: Shape) -> set[str]:
    """Names of the nodes that say they are Ready."""
    with admin(shape) as client:
        answer = client.get("/api/v1/nodes").raise_for_status().json()
    return {
        node["metadata"]["name"]
        for node in answer["items"]
        if any((each["type"], each["status"]) == ("Ready", "True") for each in node["status"].get("conditions", ()))
    }


def has_account(shape: Shape) -> bool:
    """Whether there is the account that pods of the default namespace run as, without which none is made."""
    with admin(shape) as client:
        return client.get("/api/v1/namespaces/default/serviceaccounts/default").status_code == httpx2.codes.OK
