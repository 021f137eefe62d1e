"""Requests to the API server that starting a cluster needs, as its admin."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from tools.testcluster.shape import Shape

TIMEOUT_S = 30.0


def tls(shape: Shape) -> ssl.SSLContext:
    """Return a TLS context that verifies the API server and has an admin's certificate."""
    trust = ssl.create_default_context(cafile=shape.pki / "ca.pem")
    trust.load_cert_chain(shape.pki / "admin.pem", shape.pki / "admin-key.pem")
    return trust


@contextmanager
def admin(shape: Shape) -> Iterator[httpx2.Client]:
    """Return a client with all permissions."""
    with httpx2.Client(base_url=shape.url, verify=tls(shape), timeout=TIMEOUT_S) as client:
        yield client


def is_ready(shape: Shape) -> bool:
    """Return whether the API server reports that it can serve."""
    try:
        with admin(shape) as client:
            return client.get("/readyz").status_code == httpx2.codes.OK
    except (httpx2.TransportError, FileNotFoundError):
        return False


def ready_nodes(shape: Shape) -> set[str]:
    """Return the names of nodes that report Ready."""
    with admin(shape) as client:
        answer = client.get("/api/v1/nodes").raise_for_status().json()
    return {
        node["metadata"]["name"]
        for node in answer["items"]
        if any(
            (condition["type"], condition["status"]) == ("Ready", "True")
            for condition in node["status"].get("conditions", ())
        )
    }


def has_account(shape: Shape) -> bool:
    """Return whether the default namespace has its service account, without which no pod is created."""
    with admin(shape) as client:
        return client.get("/api/v1/namespaces/default/serviceaccounts/default").status_code == httpx2.codes.OK
