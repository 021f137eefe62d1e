"""Requests for nodes: what the autoscaler of the cluster is asked for, as the policy says, for gangs that wait.

A pass every few seconds compares the demand with what is requested. Names follow from job and attempt, so a controller
that takes over continues with what is there, and nothing is requested twice.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.autoscaling.node_demand import Demand, NodeDemand, find_demand
from ganger.controller.autoscaling.placeholder_pods import PlaceholderPods
from ganger.controller.autoscaling.provisioning import ProvisioningRequests
from ganger.controller.autoscaling.request_notes import RequestNotes
from ganger.engine.loop import Loop
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key

PASS_S: Final = 10.0
"""Interval of passes: an autoscaler looks as often."""
_log = logging.getLogger(__name__)


class NodeOperations:
    """Keeps the requests while `run` runs. `may_act` returns whether this controller leads."""

    def __init__(self, api: ApiClient, loop: Loop, backend: KubernetesBackend, may_act: Callable[[], bool]) -> None:
        self._loop, self._backend, self._may_act = loop, backend, may_act
        self._requests = ProvisioningRequests(api)
        self._placeholders = PlaceholderPods(api, backend.placeholders, may_act)
        self._notes = RequestNotes(backend.status_writer)
        self._may_have_requests = True  # of an earlier controller
        self._failure = ""
        backend.amend_status = self._notes.amend

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            try:
                await self._reconcile()
                self._failure = ""
            except ApiError as error:
                if str(error) != self._failure:
                    _log.warning("nodes cannot be requested of the autoscaler: %s", error)
                    self._failure = str(error)
            await asyncio.sleep(PASS_S)

    async def _reconcile(self) -> None:
        """Make one pass. Raises ApiError."""
        self._backend.placeholders.cleared.clear()  # those gangs have started, so the demand is without them
        demand, provisioning_class, now_ms = await asyncio.to_thread(self._find)
        is_idle = not (demand.by_key or demand.notes or self._may_have_requests or self._backend.placeholders.pods)
        if is_idle or not self._may_act():
            return
        texts, by_pods = dict[Key, str](), dict[Key, NodeDemand]()
        if await self._requests.is_served():
            texts, self._may_have_requests = await self._requests.reconcile(demand.by_key, provisioning_class, now_ms)
        else:
            by_pods, self._may_have_requests = demand.by_key, False
        texts |= await self._placeholders.reconcile(by_pods)
        notes = dict(demand.notes)
        for key, text in texts.items():
            job = demand.by_key[key].job
            notes[job] = notes[job]._replace(text=text)
        self._notes.replace(notes)

    def _find(self) -> tuple[Demand, str, int]:
        now_ms = self._loop.now_ms()
        with self._loop.view() as state:
            gpu_resources = dict(self._backend.gpu_resources)
            demand = find_demand(state, now_ms, self._backend.job, gpu_resources, self._notes.jobs)
            return demand, state.document.autoscaling.provisioning_class, now_ms
