"""Objects of the API server by their paths, without ganger's client. Requests outlast a restart of the server."""

import asyncio
import time
from typing import Any, Final, Self

import aiohttp

from bench.kubernetes.kwok import NAMESPACE
from tools.testcluster import Cluster
from tools.testcluster.control_plane.admin_client import tls

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODES: Final = "/api/v1/nodes"
GANG_JOBS: Final = f"/apis/ganger.dev/v1alpha1/namespaces/{NAMESPACE}/gangjobs"
JOBS: Final = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
POD_GROUPS: Final = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{NAMESPACE}/podgroups"
AT_ONCE: Final = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
MERGE: Final = "application/merge-patch+json"
PATIENCE_S: Final = 60.0
RETRY_S: Final = 0.2

Object = dict[str, Any]


class RawObjects:
    """Objects as the API server has them."""

    def __init__(self, cluster: Cluster) -> None:
        connector = aiohttp.TCPConnector(ssl=tls(cluster.shape))
        timeout = aiohttp.ClientTimeout(total=5)
        self._session = aiohttp.ClientSession(cluster.shape.url, connector=connector, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def list(self, path: str) -> list[Object]:
        """Return all objects of a path."""
        answer = await self._request("GET", path)
        assert answer is not None
        return list(answer["items"])

    async def create(self, path: str, body: Object) -> None:
        """Create an object, if it does not exist."""
        await self._request("POST", path, body)

    async def merge(self, path: str, body: Object) -> bool:
        """Change fields of an object; return whether it exists."""
        return await self._request("PATCH", path, body) is not None

    async def delete(self, path: str) -> None:
        """Delete an object at once, if it exists."""
        await self._request("DELETE", path, AT_ONCE)

    async def _request(self, method: str, path: str, body: Object | None = None) -> Any:
        """Return the response, or None where the object is gone, exists already, or changes too fast.

        Raises RuntimeError for a request that the server rejects, and TimeoutError if it is away for too long.
        """
        headers = {"Content-Type": MERGE} if method == "PATCH" else {}
        until_s, problem = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < until_s:
            try:
                async with self._session.request(method, path, json=body, headers=headers) as answer:
                    if answer.status < 300:
                        return await answer.json()
                    problem = f"{method} {path}: {answer.status}: {await answer.text()}"
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = f"{method} {path}: {error!r}"
            else:
                if answer.status in (404, 409) and method != "GET":
                    return None
                # RBAC and admission of a server that has just started are not ready at once.
                if answer.status < 500 and answer.status not in (401, 403, 404, 429):
                    raise RuntimeError(problem)
            await asyncio.sleep(RETRY_S)
        raise TimeoutError(problem)
