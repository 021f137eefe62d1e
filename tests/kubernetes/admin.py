"""Credentials for a fake API server of this process."""

from ganger.kubeapi.credentials import Cluster, ClusterAccess, Credentials, User
from tools.fakeapi import FakeApi


def credentials_of(api: FakeApi, user: str = "admin") -> Credentials:
    """Return what `Credentials.from_kubeconfig` reads of `api.kubeconfig`, without a file.

    To parse one takes 10 ms of CPU time, a tenth of a test with a controller. `test_fakeapi.py` reads the file.
    """
    token = next(token for token, name in api.server.tokens.items() if name == user)
    assert api.url.startswith("http:"), "write a kubeconfig: over TLS it names the authority"
    return Credentials(ClusterAccess(Cluster(server=api.url), User(token=token), "default"))
