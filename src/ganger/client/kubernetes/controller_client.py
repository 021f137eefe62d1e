"""The controller of a Kubernetes cluster, asked through the API server as whoever a kubeconfig context says.

What `Client` asks of a server it asks here of the controller; called by `cli.run` where a context is named.
"""

import os
from collections.abc import AsyncGenerator
from typing import Any

from ganger.client.client import Client
from ganger.client.kubernetes.gang_jobs import GangJobs
from ganger.client.local.http import Request
from ganger.settings import home

Record = dict[str, Any]


class ControllerClient(Client):
    """Every method raises ClientError; `objects` are the cluster's."""

    def __init__(self, context: str, namespace: str | None = None) -> None:
        super().__init__(home(os.environ))
        self.objects = GangJobs(context, namespace)
        self._link = _Link(self.objects)

    def dry_run(self, request: Record) -> Record:
        return self.objects.dry_run(request)


class _Link:
    """A way to the controller (`talk.Link`): a request is an errand."""

    def __init__(self, objects: GangJobs) -> None:
        self._objects = objects

    async def connect(self) -> None:
        """The API server finds it."""

    async def came_back(self) -> bool:
        return False

    async def ask(self, request: Request) -> bytes:
        return self._objects.question(request.method, request.target, request.body)

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """Those of the whole answer: nobody follows the controller this way."""
        for line in (await self.ask(request)).splitlines():
            yield line
