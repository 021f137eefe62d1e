"""A cluster as a place of the gang runtime: one pod, with a launcher, for each node of a generation.

Everything runs on the event loop. Events come from the launchers' connections and from the API server.
"""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ganger.backends.kubernetes import attempt_pods
from ganger.backends.kubernetes.attempt_pods import AttemptError, AttemptPods, admission_failure
from ganger.backends.kubernetes.binding import NotLeadingError, is_over
from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.backends.kubernetes.nodes.node_patience import LauncherContact, LauncherEvidence
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.runtime.lighthouse_pods import LighthousePods
from ganger.backends.kubernetes.runtime.placed_pods import PlacedPods
from ganger.backends.kubernetes.runtime.pod_events import PodEvents
from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import SECRETS, WORK
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.objects import Key, Pod
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.runtime.gang_runtime import GangRuntime, NodeEnd
from ganger.launcher_server.runtime.remote_place import RemotePlace
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.event import Evicted
from ganger.model.job import STOP_S, Job
from ganger.ports import LaunchPlan, LaunchPlanner, LiveGeneration

RUNS: Final = "runs"
"""Name of the volume in which a job has its run directory."""
STALE_AFTER_S: Final = 30.0
"""Time that the pods of a generation that is over may take to end by themselves."""
INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 10.0
"""Backoff of writing the launchers' new address."""

LOG_INTERVAL_S: Final = 3_600.0
"""Time after which a fault of the installation is logged again."""
_OF_ONE_JOB: Final = re.compile(r'"[^"]*" (?=is forbidden)|in the namespace "[^"]*"')
"""Parts of the text of a refusal that differ between jobs."""

_log = logging.getLogger(__name__)


class PodPlace(RemotePlace):
    """The pods of gangs: `launcher_server.runtime.gang_runtime.Place`. The caller keeps `cache` up to date."""

    def __init__(
        self,
        attempt: AttemptPods,
        bootstrap: PodBootstrap,
        cache: ClusterCache,
        lighthouses: LighthousePods,
        compose: LaunchPlanner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(compose, loop)
        self._attempt, self._bootstrap, self._cache, self._lighthouses = attempt, bootstrap, cache, lighthouses
        self._pods = PlacedPods(cache)
        self._next_log_s: dict[str, float] = {}
        """When a fault of the installation is logged again. Set when it is logged."""
        self._contact = LauncherContact()
        self._events: PodEvents | None = None
        self._own_pods = defaultdict[str, set[Key]](set)
        """The launchers' pods on each node that are not over: its kubelet counts them, whether they stay or not."""

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a pod that was added, changed or deleted."""
        self._note_own(before, after)
        if self._events is not None:
            self._events.pod_changed(before, after)
        self._lighthouses.pod_changed(before, after)

    def leaving(self, nodes: Collection[str]) -> set[Key]:
        """Return the pods on these nodes of attempts that are over there."""
        events, pods = self._events, self._cache.pods
        keys = [key for node in nodes for key in self._own_pods.get(node, ())]
        return {key for key in keys if events is not None and key in pods and not events.stays(pods[key])}

    def _note_own(self, before: Pod | None, after: Pod | None) -> None:
        pod = after or before
        if pod is None or not pod.spec.node_name or object_names.mark(pod) is None:
            return
        of_node = self._own_pods[pod.spec.node_name]
        if after is not None and not is_over(after):
            of_node.add(pod.metadata.key)
            return
        of_node.discard(pod.metadata.key)
        if not of_node:
            del self._own_pods[pod.spec.node_name]

    def eviction(self, before: Pod | None, after: Pod | None) -> Evicted | None:
        """Return the eviction of a running generation from a node: its pod there has just been deleted.

        The pod tells how long it may take; its launcher, which knows only the grace period that was planned, is later.
        """
        mark = object_names.mark(after) if after is not None and self._events is not None else None
        if after is None or mark is None or after.metadata.deletion_timestamp is None or is_over(after):
            return None
        generation = self.runtime.generations.get(mark.gang)
        is_known = before is not None and before.metadata.deletion_timestamp is not None
        if is_known or generation is None or generation.number != mark.generation or generation.stopping is not None:
            return None
        notice_ms = 1000 * max(0, after.metadata.deletion_grace_period_seconds - STOP_S)
        return Evicted(gang=mark.gang, generation=mark.generation, node=mark.node, notice_ms=notice_ms)

    def launchers(self) -> dict[str, LauncherEvidence]:
        """Return what the launchers of each node show about it by being connected or not."""
        if self._events is None:
            return {}
        return self._contact.by_node(self.runtime.generations.values(), self.runtime.connection)

    def lose(self, node: str) -> None:
        """Handle the loss of a node, which the core knows already, with all that ran on it.

        Its pods are deleted without waiting for a kubelet that is gone. Where only the kubelet is gone its containers
        run on, so a connected launcher gets a stop message.
        """
        self.runtime.lose(node)
        for pod in self._cache.pods.values():
            is_own = object_names.mark(pod) is not None or object_names.job_of_lighthouse(pod) is not None
            if pod.spec.node_name == node and is_own:
                self.runtime.run(self.delete(pod, at_once=True))

    # -- place ---------------------------------------------------------------------------------------------------------

    def open(self, runtime: GangRuntime, live: tuple[LiveGeneration, ...]) -> None:
        super().open(runtime, live)
        self._events = PodEvents(self._pods, runtime, self)
        pods: dict[tuple[str, int], dict[str, Pod]] = {}
        for pod in self._cache.pods.values():
            if (mark := object_names.mark(pod)) is not None:
                pods.setdefault((mark.gang, mark.generation), {})[mark.node] = pod
        bound_nodes = {pod.spec.node_name for by_node in pods.values() for pod in by_node.values()}
        for node in filter(None, bound_nodes - self._cache.nodes.keys()):
            self.lose(node)
        for item in live:
            attempt_pods_by_node = pods.pop((item.job.id, item.start.generation), {})
            generation = runtime.generations[item.job.id]
            self._add_to_lighthouse(generation)
            self._lighthouses.keep(generation.gang)
            self._resume(generation, attempt_pods_by_node, item.lost)
        self._lighthouses.open({object_names.key_of(item.job.id) for item in live})
        for pod in [pod for by_node in pods.values() for pod in by_node.values()]:
            self.delete_stale(pod.metadata.key)

    def begin(self, generation: Generation, previous: Generation | None) -> None:
        if previous is not None:
            for node in previous.start.nodes:
                self.runtime.loop.call_later(STALE_AFTER_S, self.delete_stale, self._pods.key(previous, node))
        super().begin(generation, previous)
        self._add_to_lighthouse(generation)
        self.runtime.run(self.place(generation))

    def is_placing(self, generation: Generation) -> bool:
        return (generation.gang, generation.number) in self._pods.ended_while_placing

    async def place(self, generation: Generation) -> None:
        """Create and bind the pods, or report why not; the launchers then connect by themselves.

        Pods of the generation that exist are kept.
        """
        runtime, events, attempt = self.runtime, self._events, (generation.gang, generation.number)
        ended = self._pods.ended_while_placing.setdefault(attempt, [])
        assert events is not None  # noqa: S101  # set by `open`

        def is_wanted() -> bool:
            is_current = runtime.generations.get(generation.gang) is generation
            return is_current and generation.stopping is None and not generation.failed

        placed: dict[str, Pod] = {}
        try:
            await self._ensure_lighthouse(generation)
            placed = await self._attempt.place(generation.start, generation.job, is_wanted)
        except NotLeadingError:
            return
        except AttemptError as error:
            if error.cause is Cause.INSTALLATION_FAULT:
                self.report_fault(generation, error.node, error.detail, _OF_ONE_JOB.sub("", error.detail))
            else:
                runtime.fail(generation, error.node, error.detail, error.cause)
        self._pods.uids[attempt] = {node: pod.metadata.uid for node, pod in placed.items()}
        del self._pods.ended_while_placing[attempt]
        self._delete_on_lost_nodes(generation, placed)
        if generation.stopping is not None:
            runtime.end(generation, generation.stopping)
        elif placed:
            for node, pod in ended:
                events.pod_ended(generation, node, pod)
            for pod in placed.values():
                events.watch_startup(generation, self._cache.pods.get(pod.metadata.key, pod))

    def _add_to_lighthouse(self, generation: Generation) -> None:
        """Note that a replica group needs the lighthouse of its job, if its framework has one."""
        if not generation.job.spec.replica_groups:
            return
        try:
            first = self._plans(generation, {})[0]
            if first.lighthouse:
                self._lighthouses.add(generation.job, first.lighthouse, self.node(first.node).address or "")
        except Exception as error:  # noqa: BLE001 - an error of the plan is reported when that is to be run
            _log.debug("%s has no lighthouse: %r", generation.gang, error)

    async def _ensure_lighthouse(self, generation: Generation) -> None:
        """Create the lighthouse of a replica group before its pods. Raises AttemptError."""
        try:
            await self._lighthouses.ensure(generation.gang)
        except ApiError as error:
            cause, detail = admission_failure(error, object_names.key_of(generation.gang).namespace)
            detail = f"the lighthouse of the replica groups: {detail}"
            if cause is not Cause.INSTALLATION_FAULT:
                detail = f"{detail}; a job that names one needs no other: env: {{TORCHFT_LIGHTHOUSE: http://HOST:PORT}}"
            raise AttemptError(cause, generation.start.nodes[0], detail) from None

    def _delete_on_lost_nodes(self, generation: Generation, placed: Mapping[str, Pod]) -> None:
        """Delete pods that were bound to a node while it was being lost: `lose` did not see them there."""
        for node, bound in placed.items():
            if node in generation.failed and node not in generation.remaining:
                pod = self._cache.pods.get(bound.metadata.key, bound)
                if not is_over(pod):
                    self.runtime.run(self.delete(pod, at_once=not self._cache.is_available(node)))

    def _resume(self, generation: Generation, pods: Mapping[str, Pod], lost: Collection[str]) -> None:
        """Continue a generation from its pods, by node; it is over on nodes that are `lost`."""
        self.prepare(generation)
        nodes = generation.start.nodes
        has_run = any(pod.status.phase != "Pending" for pod in pods.values())
        has_unbound = any(not pod.spec.node_name for pod in pods.values())
        if generation.stopping is not None:
            return
        if not lost and (not has_run or (len(pods) == len(nodes) and has_unbound)):
            self.runtime.run(self.place(generation))
        else:
            self.runtime.run(self._renew_bootstrap(generation))
            for node in nodes:
                pod = pods.get(node)
                if pod is None or (node in lost and not is_over(pod)):
                    self.conclude(generation, node, Cause.LAUNCHER_LOST, f"the pod on {node} was deleted")
                elif is_over(pod):
                    self.conclude(generation, node, *attempt_pods.end_of(pod))

    async def _renew_bootstrap(self, generation: Generation) -> None:
        """Write this controller's address for the generation's launchers, which cannot connect before."""
        failures = 0
        while self.runtime.generations.get(generation.gang) is generation:
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

    # -- reach ---------------------------------------------------------------------------------------------------------

    def token(self, gang: str, node: str, generation: int) -> str | None:
        """Return the token of one launcher; None if its GangJob was deleted. Raises ValueError for other ids."""
        job = self._cache.jobs.get(object_names.key_of(gang))
        return None if job is None else self._bootstrap.token(gang, job.metadata.uid, generation, node)

    def admits(self, hello: Hello) -> bool:
        return not self._cache.is_ignored(hello.gang)

    def connected(self, generation: Generation, connection: Connection, hello: Hello) -> None:
        self._contact.connected(hello.gang, hello.node)
        super().connected(generation, connection, hello)

    def disconnected(self, hello: Hello) -> None:
        """Conclude the generation on the node if its pod has ended; until then the launcher may come back."""
        generation = self.runtime.generations.get(hello.gang)
        if generation is None or generation.number != hello.generation or hello.node not in generation.remaining:
            return
        self._contact.disconnected(hello.gang, hello.node, self.runtime.loop.time())
        pod = self._pods.pod(generation, hello.node)
        if pod is None:
            name = self._pods.key(generation, hello.node).name
            self.conclude(generation, hello.node, Cause.LAUNCHER_LOST, f"the pod {name} was deleted")
        elif is_over(pod):
            self.conclude(generation, hello.node, *attempt_pods.end_of(pod))

    def node(self, name: str) -> Node:
        return self._cache.nodes.get(name) or Node(name=name)

    def directory(self, job: Job) -> str:
        return WORK

    def complete(self, plan: LaunchPlan, job: Job) -> LaunchPlan:
        # What is in the pod ends with it, so a job may have a volume for what its runs write.
        volume = next((volume.path for volume in job.spec.volumes if volume.name == RUNS), None)
        run_directory = f"{WORK}/{RUNS}/{job.own_path}" if volume is None else f"{volume}/{job.own_path}"
        environment = plan.environment | {"GANGER_RUN_DIR": run_directory}
        if plan.lighthouse and (url := self._lighthouses.url(job.id)) is not None:
            environment["TORCHFT_LIGHTHOUSE"] = url
        return replace(plan, environment=environment, secrets=SECRETS if job.spec.secrets else None)

    # -- end -----------------------------------------------------------------------------------------------------------

    def end(self, generation: Generation, nodes: list[str]) -> None:
        self.runtime.run(self._clear(generation, nodes))

    kill = end

    def sweep(self, generation: Generation, node: str) -> None:
        """Return None: nothing outlives a pod."""

    def conclude(self, generation: Generation, node: str, cause: Cause, detail: str) -> None:
        """Report how a generation ended on a node without a pod; a record of its launcher counts first."""
        end = NodeEnd(cause, detail, attempt_pods.has_succeeded(self._pods.pod(generation, node)))
        if node in self._cache.drained:
            end = end._replace(cause=Cause.DRAINED, detail=f"its node {node} is drained", explains_failure=True)
        self.runtime.conclude(generation, node, end)

    def report_fault(self, generation: Generation, node: str, detail: str, fault: str) -> None:
        """Report that a generation cannot start because of a fault of the installation; log each fault, but rarely.

        Every job meets it at every try, in every namespace. `fault` is what all these tries have in common.
        """
        if self.runtime.loop.time() >= self._next_log_s.get(fault, 0.0):
            self._next_log_s[fault] = self.runtime.loop.time() + LOG_INTERVAL_S
            _log.error("jobs wait for a cluster administrator, first %s: %s", generation.gang, detail)
        self.runtime.fail(generation, node, detail, Cause.INSTALLATION_FAULT)

    def forget(self, gang: str, generation: Generation | None) -> None:
        super().forget(gang, generation)
        self._bootstrap.forget(gang)
        self._lighthouses.remove(gang)

    def forget_attempt(self, generation: Generation) -> None:
        super().forget_attempt(generation)
        self._pods.forget(generation)
        self._contact.forget(generation)

    def close(self) -> None:
        self._bootstrap.close()
        self._lighthouses.close()

    def delete_stale(self, key: Key) -> None:
        """Delete a pod that has not ended by itself and whose generation is not current any more."""
        pod = self._cache.pods.get(key)
        mark = object_names.mark(pod) if pod is not None and self.runtime.is_open else None
        if pod is None or mark is None or is_over(pod) or self._cache.is_ignored(mark.gang):
            return
        generation = self.runtime.generations.get(mark.gang)
        if generation is None or generation.number != mark.generation:
            self.runtime.run(self.delete(pod, at_once=not self._cache.is_available(mark.node)))

    async def delete(self, pod: Pod, *, at_once: bool) -> None:
        """Delete a pod, unless this controller does not lead any more."""
        with suppress(NotLeadingError):
            await self._attempt.delete(pod, at_once=at_once)

    async def _clear(self, generation: Generation, nodes: list[str]) -> None:
        """Delete the pods on these nodes; report nodes without a pod as cleared now, the others when their pod ends."""
        try:
            with_pods = await self._attempt.delete_on(generation.start, nodes)
        except NotLeadingError:
            return
        for node in nodes:
            if node not in with_pods and node in generation.remaining:
                self.runtime.cleared(generation, [node])
