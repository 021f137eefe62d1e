"""Client of the controller of a Kubernetes cluster, through the API server, with a kubeconfig context."""

import os
from collections.abc import AsyncGenerator
from typing import Any

from ganger.client.client import Client
from ganger.client.kubernetes.gang_jobs import GangJobs
from ganger.client.local.http import Request
from ganger.settings import home

Record = dict[str, Any]


class ControllerClient(Client):
    """Client of a controller. Every method raises ClientError; `objects` are the cluster's GangJobs."""

    def __init__(self, context: str, namespace: str | None = None) -> None:
        super().__init__(home(os.environ))
        self.objects = GangJobs(context, namespace)
        self._link = _Link(self.objects)

    def dry_run(self, request: Record) -> Record:
        return self.objects.dry_run(request)


class _Link:
    """Transport to the controller (`client.Link`): each request runs a process."""

    def __init__(self, objects: GangJobs) -> None:
        self._objects = objects

    async def connect(self) -> None:
        """Do nothing: the API server finds the controller."""

    async def came_back(self) -> bool:
        return False

    async def ask(self, request: Request) -> bytes:
        return self._objects.query_controller(request.method, request.target, request.body)

    async def blocks(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the whole response at once."""
        yield await self.ask(request)

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the lines of the whole response: the controller cannot be followed this way."""
        for line in (await self.ask(request)).splitlines():
            yield line
