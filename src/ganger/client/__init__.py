"""Client: access to a server from outside its process, for the command line and the SDK.

It is of this machine's server, of one on another machine, or of a Kubernetes cluster.
"""

import importlib

from ganger.client.client import Client, ClientError
from ganger.client.client_errors import UNREACHABLE, client_error
from ganger.settings import Home

__all__ = ["Client", "ClientError", "open_client"]


def open_client(
    home: Home, server: str | None = None, *, context: str | None = None, namespace: str | None = None
) -> Client:
    """Return a client, not connected yet: of a cluster, else of a server elsewhere, else of a state directory's server.

    Raise ClientError if there is no such context, or no login for the server.

    Args:
        home: The state directory.
        server: The URL of a server on another machine.
        context: A context of the kubeconfig.
        namespace: That of the jobs in the cluster; None: the context's.
    """
    if context is None:
        if server is None:
            return Client(home)
        from ganger.client.remote.remote_client import client_at

        return client_at(server)
    try:  # found by name: what submits to a cluster is not loaded by a client of a server
        module = importlib.import_module("ganger.client.kubernetes.kubernetes_link")
    except ModuleNotFoundError as error:
        from ganger.errors import KUBERNETES_EXTRA, missing_module_message

        raise client_error("not_installed", missing_module_message(error), KUBERNETES_EXTRA, UNREACHABLE) from None
    return Client(home, context, module.KubernetesLink(context, namespace))
