"""Runtime of gangs in a cluster: carries out the core's decisions, with one pod and launcher per node of a gang.

Everything runs on the event loop. Events come from the launchers' connections and from the API server.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from ganger.backends.kubernetes import attempt_pods, object_names
from ganger.backends.kubernetes.attempt_pods import AttemptError, AttemptPods
from ganger.backends.kubernetes.binding import NotLeadingError, is_over
from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.runtime.generation_end import GenerationEnd
from ganger.backends.kubernetes.runtime.launcher_sessions import LauncherSessions
from ganger.backends.kubernetes.runtime.pod_events import PodEvents
from ganger.backends.kubernetes.runtime.runtime_state import RuntimeState
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.objects import Pod
from ganger.launcher_server.dispatcher import Dispatcher, send_stop
from ganger.launcher_server.generation_state import Generation, new_generation
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import Job
from ganger.ports import LaunchPlanner, LiveGeneration, Report

STALE_AFTER_S: Final = 30.0
"""Time that the pods of a generation that is over may take to end by themselves."""
INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 10.0
"""Backoff of writing the launchers' new address."""

_log = logging.getLogger(__name__)


class GangRuntime:
    """The gangs in a cluster, and the listener for their launchers. The caller keeps `cache` up to date."""

    def __init__(
        self,
        attempt: AttemptPods,
        bootstrap: PodBootstrap,
        cache: ClusterCache,
        compose: LaunchPlanner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._attempt, self._bootstrap, self._cache = attempt, bootstrap, cache
        self._state = state = RuntimeState(cache, loop)
        self._sessions = LauncherSessions(
            state, bootstrap, compose, self._launcher_disconnected, self._launcher_rejected
        )
        self._end = GenerationEnd(state, attempt, self._sessions)
        self._events = PodEvents(state, self._end, self._sessions, self._place)
        self.pod_changed = self._events.pod_changed
        self.listener = self._sessions.listener
        self.progress = self._sessions.progress
        self.launchers = self._sessions.by_node

    # -- decisions of the core -----------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """Resume what runs, finish what was only decided, and delete pods of generations that are not live."""
        state = self._state
        state.generations.update({item.job.id: new_generation(item.start, item.job, item.stopping) for item in live})
        state.dispatcher = Dispatcher(self._sessions.world, report, state.loop)
        state.is_open = True
        pods: dict[tuple[str, int], dict[str, Pod]] = {}
        for pod in self._cache.pods.values():
            if (mark := object_names.mark(pod)) is not None:
                pods.setdefault((mark.gang, mark.generation), {})[mark.node] = pod
        bound_nodes = {pod.spec.node_name for by_node in pods.values() for pod in by_node.values()}
        for node in filter(None, bound_nodes - self._cache.nodes.keys()):
            self.lose(node)
        for item in live:
            attempt_pods_by_node = pods.pop((item.job.id, item.start.generation), {})
            self._resume(state.generations[item.job.id], attempt_pods_by_node, item.lost)
        for pod in [pod for by_node in pods.values() for pod in by_node.values()]:
            self._end.delete_stale(pod.metadata.key)

    def start(self, start: Start, job: Job) -> None:
        """Start a generation; the previous one is over by the log."""
        if previous := self._state.generations.get(start.gang):
            self._forget_attempt(previous)
            for node in previous.start.nodes:
                key = self._state.pod_key(previous, node)
                self._state.loop.call_later(STALE_AFTER_S, self._end.delete_stale, key)
        generation = self._state.generations[start.gang] = new_generation(start, job)
        self._sessions.prepare(generation)
        self._state.run(self._place(generation))

    def stop(self, stop: Stop) -> None:
        """Stop what is left of a generation."""
        generation = self._state.generations.get(stop.gang)
        if generation is not None and generation.number == stop.generation:
            generation.stopping = stop
            self._end.stop(generation, stop)

    def forget(self, gang: str) -> None:
        """Forget a gang that has ended and dismiss its launchers."""
        if (generation := self._state.generations.pop(gang, None)) is not None:
            self._forget_attempt(generation)
        self._sessions.forget(gang)
        self._bootstrap.forget(gang)

    def lose(self, node: str) -> None:
        """Handle the loss of a node, which the core knows already, with all that ran on it.

        Its pods are deleted without waiting for a kubelet that is gone. Where only the kubelet is gone its containers
        run on, so a connected launcher gets a stop message.
        """
        for generation in self._state.generations.values():
            if node in generation.remaining:
                if (connection := self._sessions.connection(generation.gang, node)) is not None:
                    send_stop(
                        connection, Stop(gang=generation.gang, generation=generation.number, cause=Cause.NODE_LOST)
                    )
                generation.failed.append(node)
                generation.clear(node)
        for pod in self._cache.pods.values():
            if pod.spec.node_name == node and object_names.mark(pod) is not None:
                self._state.run(self._end.delete(pod, at_once=True))

    def close(self) -> None:
        """Release everything; pods, launchers and ranks run on."""
        self._state.close()
        self._bootstrap.close()
        self.listener.close()

    def _forget_attempt(self, generation: Generation) -> None:
        self._state.forget(generation)
        self._sessions.forget_attempt(generation)

    # -- launchers -----------------------------------------------------------------------------------------------------

    def _launcher_disconnected(self, generation: Generation, node: str) -> None:
        """Conclude the generation on the node if its pod has ended; until then the launcher may come back."""
        pod = self._state.pod(generation, node)
        if pod is None:
            name = self._state.pod_key(generation, node).name
            self._end.conclude(generation, node, Cause.LAUNCHER_LOST, f"the pod {name} was deleted")
        elif is_over(pod):
            self._end.conclude(generation, node, *attempt_pods.end_of(pod))

    def _launcher_rejected(self, generation: Generation, node: str) -> None:
        self._state.run(self._end.clear(generation, [node]))

    # -- placement -----------------------------------------------------------------------------------------------------

    async def _place(self, generation: Generation) -> None:
        """Create and bind the pods, or report why not; the launchers then connect by themselves."""
        state, attempt = self._state, (generation.gang, generation.number)
        ended = state.ended_while_placing.setdefault(attempt, [])

        def is_wanted() -> bool:
            is_current = state.generations.get(generation.gang) is generation
            return is_current and generation.stopping is None and not generation.failed

        placed: dict[str, Pod] = {}
        try:
            placed = await self._attempt.place(generation.start, generation.job, is_wanted)
        except NotLeadingError:
            return
        except AttemptError as error:
            state.report_failure(generation, error.node, error.detail, error.cause)
        state.placed_uids[attempt] = {node: pod.metadata.uid for node, pod in placed.items()}
        del state.ended_while_placing[attempt]
        self._delete_on_lost_nodes(generation, placed)
        if generation.stopping is not None:
            self._end.stop(generation, generation.stopping)
        elif placed:
            for node, pod in ended:
                self._events.pod_ended(generation, node, pod)
            for pod in placed.values():
                self._events.watch_startup(generation, self._cache.pods.get(pod.metadata.key, pod))

    def _delete_on_lost_nodes(self, generation: Generation, placed: Mapping[str, Pod]) -> None:
        """Delete pods that were bound to a node while it was being lost: `lose` did not see them there."""
        for node, bound in placed.items():
            if node in generation.failed and node not in generation.remaining:
                pod = self._cache.pods.get(bound.metadata.key, bound)
                if not is_over(pod):
                    self._state.run(self._end.delete(pod, at_once=not self._cache.is_available(node)))

    # -- restart -------------------------------------------------------------------------------------------------------

    def _resume(self, generation: Generation, pods: Mapping[str, Pod], lost: Collection[str]) -> None:
        """Continue a generation from its pods, by node; it is over on nodes that are `lost`."""
        self._sessions.prepare(generation)
        nodes = generation.start.nodes
        has_run = any(pod.status.phase != "Pending" for pod in pods.values())
        has_unbound = any(not pod.spec.node_name for pod in pods.values())
        if generation.stopping is not None:
            self._end.stop(generation, generation.stopping)
        elif not lost and (not has_run or (len(pods) == len(nodes) and has_unbound)):
            self._state.run(self._place(generation))
        else:
            self._state.run(self._renew_bootstrap(generation))
            for node in nodes:
                pod = pods.get(node)
                if pod is None or (node in lost and not is_over(pod)):
                    self._end.conclude(generation, node, Cause.LAUNCHER_LOST, f"the pod on {node} was deleted")
                elif is_over(pod):
                    self._end.conclude(generation, node, *attempt_pods.end_of(pod))

    async def _renew_bootstrap(self, generation: Generation) -> None:
        """Write this controller's address for the generation's launchers, which cannot connect before."""
        failures = 0
        while self._state.generations.get(generation.gang) is generation:
            try:
                await self._attempt.renew_bootstrap(generation.start)
            except ApiError as error:
                failures += 1
                _log.warning(
                    "%s: this controller's address cannot be written for its launchers: %s", generation.gang, error
                )
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))
            else:
                return
