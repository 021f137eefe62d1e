"""Conformance cases on the fake API server, and on the real one if there is one. Where they differ, the fake is wrong.

`@case` makes a test of a case: an async function that gets a client with an administrator's permissions, and a
namespace.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.fakeapi.api_session import ApiSession
from tools.fakeapi import FakeApi
from tools.testcluster import running_kubeconfig
from tools.testcluster.cluster import KUBECONFIG_VARIABLE

Case = Callable[[ApiSession], Awaitable[None]]
NO_CLUSTER = (
    f"no real API server: `make cluster` starts one, or set {KUBECONFIG_VARIABLE} to the kubeconfig of a cluster that "
    "tests may use"
)
WITHIN_S = 60.0
FORBIDDEN_USER = "nobody-in-particular"


@cache
def real() -> Path | None:
    """Return the kubeconfig of the real API server, if there is one."""
    return running_kubeconfig()


def case(written: Case) -> Callable[[str, Path], None]:
    """Return the test that runs a case in both worlds; it skips where there is no real one."""

    @pytest.mark.parametrize("world", ["fake", "real"])
    def test(world: str, tmp_path: Path) -> None:
        if world == "real" and real() is None:
            pytest.skip(NO_CLUSTER)
        asyncio.run(_run(world, written, tmp_path))

    test.__name__ = written.__name__
    return test


async def _run(world: str, written: Case, folder: Path) -> None:
    async with asyncio.timeout(WITHIN_S), _access(world, folder) as access, aiohttp.ClientSession() as session:
        asking = ApiSession(access, session, f"conformance-{uuid4().hex[:8]}")
        named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": asking.namespace}}
        await asking.created("/api/v1/namespaces", named)
        try:
            if world == "real":
                # Pods are accepted once their namespace has its service account.
                async with asking.watch(asking.path("serviceaccounts")) as events:
                    await anext(events)
            await written(asking)
        finally:
            await asking.ask("DELETE", f"/api/v1/namespaces/{asking.namespace}")


@asynccontextmanager
async def _access(world: str, folder: Path) -> AsyncIterator[Credentials]:
    if world == "real" and (kubeconfig := real()):
        yield Credentials.from_kubeconfig([kubeconfig])
        return
    async with FakeApi(tls=True) as api:
        # Older versions are gone, as on a server that has run for a while; one user has no permissions.
        api.compact()
        api.allow(lambda call: call.user != FORBIDDEN_USER)
        yield Credentials.from_kubeconfig([api.kubeconfig(folder / "config")])
