"""Standby of a controller: how a candidate for the lease is seen while another controller leads, and how it takes over.

It follows the cluster with a warm cache, passes its probes, and answers every request with where the leader is. The
Service of the controller selects the pod with the label `ganger.dev/leads`, which only the leader's has.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.lease import LeaderLease, LeaseLostError
from ganger.kubeapi.objects import Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS
from ganger.rest.problem_json import problem

LEADS: Final = "ganger.dev/leads"
"""Label of the leader's pod, which the controller's Service selects."""
HEALTH: Final = "/healthz"
"""Path of the probes, for which no token is needed."""

_log = logging.getLogger("ganger")


class Candidacy:
    """Candidacy for the lease for the duration of the context: the lease is released at its end.

    lost: called when the lease is lost, and this process must not act any more.
    """

    def __init__(self, lease: LeaderLease, lost: Callable[[], None]) -> None:
        self._lease, self._lost = lease, lost
        self._is_won = asyncio.Event()
        self._leading: asyncio.Task[None] | None = None
        self._is_resigned = False

    @property
    def may_act(self) -> bool:
        """True while this controller leads, which is checked before everything that is written."""
        return self._lease.is_leading and not self._is_resigned

    @property
    def holder(self) -> str:
        """Holder of the lease as far as is known; empty without one."""
        return self._lease.holder

    async def win(self) -> None:
        """Wait until this controller leads."""
        self._leading = asyncio.create_task(self._lead())
        await self._is_won.wait()

    def resign(self) -> None:
        """Let nothing more be written, though the lease is still held until what was sent has been answered."""
        self._is_resigned = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)

    async def _lead(self) -> None:
        try:
            await self._lease.lead(self._hold)
        except LeaseLostError as error:
            _log.error("%s: this controller exits", error)
            self._lost()

    async def _hold(self) -> None:
        self._is_won.set()
        await asyncio.Event().wait()


class StandbyApp:
    """Application of a controller that does not lead yet: it refuses every request with the name of the leader."""

    def __init__(self, candidacy: Candidacy) -> None:
        self._candidacy = candidacy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse one request."""
        holder = self._candidacy.holder
        leader = f"{holder} leads" if holder and not self._candidacy.may_act else "no controller leads yet"
        detail = f"this controller is a standby: {leader}"
        response = problem(503, "not_leader", detail, f"kubectl get pods -l {LEADS}=true --all-namespaces")
        response.headers["Retry-After"] = "1"
        await response(scope, receive, send)


class HealthApp:
    """`app`, and the path of the probes before any gate: the event loop answers, so the process is alive."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = PlainTextResponse("ok\n") if scope["type"] == "http" and scope["path"] == HEALTH else self._app
        await app(scope, receive, send)


class LeaderLabel:
    """The label of the leader's pod.

    Args:
        api: client of the API server.
        namespace: namespace of the controller's pods.
        pod: name of this controller's pod; None outside a cluster, where there is nothing to label.
    """

    def __init__(self, api: ApiClient, namespace: str, pod: str | None) -> None:
        self._api, self._namespace, self._pod = api, namespace, pod

    async def remove(self) -> None:
        """Remove the label that an earlier process in this pod may have left."""
        if self._pod is not None:
            await self._set(self._pod, None)

    async def take(self, pods: Iterable[Pod]) -> None:
        """Set the label on this controller's pod, and remove it from the others: a killed leader could not."""
        if self._pod is None:
            return
        keys = [pod.metadata.key for pod in pods if LEADS in pod.metadata.labels]
        await self._set(self._pod, "true")
        for key in keys:
            if key.namespace == self._namespace and key.name != self._pod:
                await self._set(key.name, None)

    async def _set(self, pod: str, value: str | None) -> None:
        try:
            await self._api.merge(ObjectRef(PODS, self._namespace, pod), {"metadata": {"labels": {LEADS: value}}})
        except ApiError as error:
            if not error.missing:
                _log.warning(
                    "the label %s of pod %s was not set, so clients may not find the leader: %s", LEADS, pod, error
                )
