"""The one way to a server from outside its process: used by the command line and the SDK."""

from ganger.client.client import Client, ClientError

__all__ = ["Client", "ClientError"]
