"""Client: access to a server from outside its process, for the command line and the SDK."""

from ganger.client.client import Client, ClientError
from ganger.client.client_choice import open_client

__all__ = ["Client", "ClientError", "open_client"]
