"""Kubernetes backend: follows the cluster, and carries the core's decisions from its thread to the event loop.

`run` runs while this controller leads. Everything that touches the cluster is on the event loop; what readers on other
threads need is fetched there.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from ganger.backends.kubernetes.attempt_pods import AttemptPods
from ganger.backends.kubernetes.binding import Binder
from ganger.backends.kubernetes.cluster_cache import ClusterCache, find_newest_pod
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang, find_bound_gangs
from ganger.backends.kubernetes.foreign.foreign_pods import ForeignPods, is_foreign_gang
from ganger.backends.kubernetes.foreign.pod_conditions import PodConditions
from ganger.backends.kubernetes.foreign.pod_groups import POD_GROUPS, PodGroup
from ganger.backends.kubernetes.nodes.node_health import NodeHealth
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory
from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S, NodePatience
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_startup import PodStartup
from ganger.backends.kubernetes.runtime.pod_place import PodPlace
from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.backends.kubernetes.volumes.volume_claims import VolumeClaims
from ganger.gang_jobs import object_names, pod_logs
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.gang_jobs.pod_template import CONTAINER, exec_arguments
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.informer import INITIAL_BACKOFF_S, MAX_BACKOFF_S, HasMetadata, Informer
from ganger.kubeapi.objects import CustomObject, Key, Node, Pod, ResourceClaim
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import NODES, PODS, RESOURCE_CLAIMS, Resource
from ganger.launcher_server.runtime.gang_runtime import GangRuntime
from ganger.model.cluster import Cluster
from ganger.model.decision import Start, Stop
from ganger.model.event import Cleared, Event, NodeLost, NodeReturned, StopRequested
from ganger.model.job import Job, JobSpec
from ganger.model.policy import Rules
from ganger.model.views.service_views import Stacks
from ganger.ports import LaunchPlanner, LiveGeneration, LogLine, LogQuery, Metric, NotSupported, Report, UsageSample

COLLECT_S: Final = 0.2
"""Time for which changes of nodes are collected before the core gets them: a cluster that starts has many at once."""
FETCH_TIMEOUT_S: Final = 30.0
_TRY_VIRTUAL_NODES: Final = "try it on virtual nodes of a machine: ganger server start --topology FILE"
OPTIONAL_CHECK_S: Final = 300.0
"""Interval between requests for a resource that the server does not have, such as ResourceClaims or PodGroups."""
MAX_SILENCE_S: Final = 86_400.0
"""Reported instead of infinity for a watch without any message."""

T = TypeVar("T", bound=HasMetadata)
_log = logging.getLogger(__name__)
JobChanged = Callable[[CustomObject | None, CustomObject | None], None]


class KubernetesBackend:
    """Gangs as pods: `ports.Backend`, which documents its methods.

    Args:
        api: client of the API server.
        bootstrap: bootstrap objects of pods.
        compose: makes launch plans.
        may_act: returns whether this controller leads.
        lost_after_s: how long to wait for a node that is not ready and without other signs of life.
    """

    def __init__(
        self,
        api: ApiClient,
        bootstrap: PodBootstrap,
        compose: LaunchPlanner,
        may_act: Callable[[], bool],
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._api, self._loop = api, asyncio.get_running_loop()
        self.bootstrap = bootstrap
        self._jobs = Informer(api, GANG_JOBS, self._job_changed)
        self._pods = Informer(api, PODS, self._pod_changed)
        self._nodes = Informer(api, NODES, self._node_changed)
        self._claims = Informer(api, RESOURCE_CLAIMS, self._claim_changed)
        self._groups = Informer(api, POD_GROUPS, self._group_changed)
        self._inventory = NodeInventory()
        self._cache = ClusterCache(self._jobs.objects, self._pods.objects, drained=self._inventory.drained)
        self.status_writer = StatusWriter(api, GANG_JOBS, self._jobs.objects, may_act)
        self._pod_startup = PodStartup(self.status_writer)
        self._binder = Binder(api, may_act)
        self.volumes = VolumeClaims(api, self._nodes.objects)
        attempt = AttemptPods(self._binder, bootstrap, self.status_writer, self._cache, self.volumes)
        self._place = PodPlace(attempt, bootstrap, self._cache, compose, self._loop)
        self._runtime = GangRuntime(self._place, self._loop)
        self._health = NodeHealth(
            self._inventory,
            NodePatience(lost_after_s),
            self._place.launchers,
            lambda: may_act() and self._nodes.last_error is None,
            self._report_nodes_soon,
        )
        self._pod_conditions = PodConditions(api, self._pods.objects, may_act)
        pods, groups = self._pods.objects, self._groups.objects
        self._foreign = ForeignPods(self._binder, pods, groups, self._inventory, self._pod_conditions.update)
        self.listener = self._runtime.listener
        self._report: Report | None = None
        self._job_watchers: tuple[JobChanged, ...] = ()
        self._pending_report: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Follow the cluster and write to it until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in (self._jobs, self._pods, self._nodes, self.status_writer, self._pod_conditions):
                group.create_task(follower.run())
            group.create_task(self._follow_optional(self._groups, POD_GROUPS))
            group.create_task(self.volumes.run())
            await self._follow_optional(self._claims, RESOURCE_CLAIMS)

    async def wait_synced(self) -> None:
        """Wait until everything was listed once."""
        for informer in (self._jobs, self._pods, self._nodes, self._claims, self._groups):
            await informer.synced.wait()
        for pod in self._pods.objects.values():
            self.volumes.pod_changed(None, pod)  # a pod may have been listed before its GangJob

    @property
    def jobs(self) -> list[CustomObject]:
        """Current GangJobs."""
        return list(self._jobs.objects.values())

    def job(self, key: Key) -> CustomObject | None:
        """Return a GangJob, if it exists."""
        return self._jobs.objects.get(key)

    @property
    def pods(self) -> Mapping[Key, Pod]:
        """Current pods, which change with the cluster."""
        return self._pods.objects

    async def wait_until_current(self, namespace: str) -> None:
        """Wait until `jobs` has all changes in a namespace from before this call. Raises ApiError."""
        await self._jobs.wait_until_current(namespace)

    def restrict_by_volumes(self, namespace: str, spec: JobSpec) -> JobSpec:
        """Return a job's spec with the labels that its claims require of nodes; from a thread. Raises RequestError."""
        if not spec.volumes:
            return spec
        return asyncio.run_coroutine_threadsafe(self.volumes.restrict(namespace, spec), self._loop).result()

    @property
    def cluster(self) -> Cluster:
        """Current nodes."""
        return self._inventory.cluster()

    def write_status(self, name: str, status: dict[str, Any], *, soon: bool) -> None:
        """Write a job's status to its object, now or, without `soon`, at a convenient time."""
        if not is_foreign_gang(name):
            self.status_writer.update(object_names.key_of(name), self._pod_startup.amend(name, status), soon=soon)
        elif message := status.get("message"):
            self._foreign.explain(name, message)

    def watch_jobs(self, *watchers: JobChanged) -> None:
        """Call the watchers for each GangJob, and then for every change."""
        self._job_watchers = watchers
        for job in self.jobs:
            self._tell_watchers(None, job)

    def adopt_bound_pods(self) -> list[AdoptedGang]:
        """Return foreign pods that an earlier controller bound as running gangs.

        Called before `open`, and before free capacity is read.
        """
        pods, groups = self._pods.objects, self._groups.objects
        gangs = find_bound_gangs(pods.values(), groups, self._inventory, self._foreign.new_id)
        self._foreign.adopt(gangs)
        self._inventory.adopt(pod for gang in gangs for pod in gang.pods)
        return gangs

    def set_policy(self, policy: Rules) -> None:
        """Set what the policy says of pods, and the topology levels, for which PodGroups ask by node labels."""
        self.bootstrap.security = policy.pods.security
        if policy.topology != self._inventory.topology:
            self._inventory.topology = policy.topology
            self._foreign.reconsider_all()

    def ignore_jobs(self, jobs: frozenset[str]) -> None:
        """Ignore jobs whose state cannot be read: their pods run on, and keep what they use. Called before `open`."""
        self._cache.ignored_jobs = jobs
        self._inventory.ignore_jobs(jobs, self._pods.objects.values())

    # -- ports.Backend -------------------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        self._call_in_loop(self._open, report, live)

    def start(self, start: Start, job: Job) -> None:
        if is_foreign_gang(start.gang):
            self._call_in_loop(self._foreign.start, start)
        else:
            self._call_in_loop(self._begin, start, job)

    def stop(self, stop: Stop, job: Job) -> None:
        self._call_in_loop((self._foreign if is_foreign_gang(stop.gang) else self._runtime).stop, stop)

    def forget(self, gang: str) -> None:
        self._call_in_loop((self._foreign if is_foreign_gang(gang) else self._runtime).forget, gang)

    def delete(self, gang: str) -> None:
        """Do nothing: the pods are deleted with the GangJob."""

    def log_bytes(self, gang: str) -> int:
        return 0  # kubelets keep them, and rotate them by their own rules

    def drop_logs(self, gang: str, instead: str) -> None:
        """Do nothing: logs are deleted with the pods."""

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        return pod_logs.lines(self._cache.pods, query, self._fetch_log)

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        return pod_logs.follow(self._cache.pods, query, self._fetch_log, ended)

    def metrics(self, job: str) -> Iterator[dict[str, Any]]:
        newest = self._place.progress(job)
        return iter([newest] if newest else [])

    def progress(self, job: str) -> dict[str, Any] | None:
        return self._place.progress(job)

    def stacks(self, job: str, generation: int) -> Stacks | None:
        return None

    def exec_command(self, gang: str, node: str) -> tuple[str, ...]:
        key = find_newest_pod(self._cache.pods, gang, node)
        flags = ("--namespace", object_names.key_of(gang).namespace)
        return ("/usr/bin/env", "kubectl", *flags, "exec", "-i", *exec_arguments(key))

    def output_directories(self, gang: str) -> tuple[Path, ...]:
        raise NotSupported(
            f"{gang} writes into its pods, which are gone when it has ended, and into its volumes",
            "mount the PersistentVolumeClaim into a pod, and: kubectl cp POD:PATH DIRECTORY",
        )

    def measure_usage(self) -> UsageSample:
        return UsageSample(0)  # `kubectl top pod` shows it where the cluster has metrics

    def backend_metrics(self) -> tuple[Metric, ...]:
        last_s = (self._jobs.last_event_s, self._pods.last_event_s, self._nodes.last_event_s)
        now_s, names = self._loop.time(), ("gangjobs", "pods", "nodes")
        silence_s = {name: min(now_s - time_s, MAX_SILENCE_S) for name, time_s in zip(names, last_s, strict=True)}
        requests = {str(permission): float(count) for permission, count in self._api.requests.items()}
        binds = dict(self._binder.binds)
        return (
            Metric("ganger_api_requests", "Requests to the API server.", "counter", "request", requests),
            Metric("ganger_pod_binds", "Pod bindings by outcome.", "counter", "outcome", binds),
            Metric("ganger_watch_silence_seconds", "Since a watch was heard.", "gauge", "resource", silence_s),
        )

    def lose_node(self, name: str) -> None:
        raise NotSupported(f"{name} belongs to the cluster, which alone decides whether it is lost", _TRY_VIRTUAL_NODES)

    def remove_node(self, name: str) -> None:
        """Do nothing: the node belongs to the cluster."""

    def return_node(self, name: str) -> None:
        raise NotSupported(f"{name} returns when the cluster reports it Ready", f"kubectl describe node {name}")

    def close(self) -> None:
        self._call_in_loop(self._close)

    # -- on the event loop --------------------------------------------------------------------------------------------

    def _open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        attempts = {(generation.job.id, generation.start.generation) for generation in live}
        marks = ((pod, object_names.mark(pod)) for pod in self._pods.objects.values())
        self._inventory.mark_stale(pod for pod, mark in marks if mark and (mark.gang, mark.generation) not in attempts)
        self._cache.set_cluster(self._inventory.cluster())
        self._report = report
        self._runtime.open(report, tuple(each for each in live if not is_foreign_gang(each.start.gang)))
        self._report_nodes()
        self._foreign.open(self._report_foreign)

    def _begin(self, start: Start, job: Job) -> None:
        self._inventory.claim_generation(start.gang, start.generation)
        self._runtime.start(start, job)

    def _close(self) -> None:
        if self._pending_report is not None:
            self._pending_report.cancel()
        self._health.close()
        self._report = None
        self._foreign.close()
        self._runtime.close()
        self._place.close()

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        self._inventory.pod_changed(before, after)
        self._report_drain(after)
        self._place.pod_changed(before, after)
        self.volumes.pod_changed(before, after)
        self._pod_startup.pod_changed(before, after)
        self._foreign.pod_changed(before, after)
        self._report_nodes_soon()

    def _report_drain(self, pod: Pod | None) -> None:
        """Report at once that a node is drained: the processes of the evicted pod end soon, as if they had failed."""
        if pod is None or self._report is None or object_names.mark(pod) is None:
            return
        if (drain := self._inventory.drain_of(pod)) is not None:
            self._report_nodes()
            self._report(drain)

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        self._inventory.node_changed(before, after)
        self._health.node_changed(before, after)
        self._report_nodes_soon()

    def _claim_changed(self, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        self._inventory.claim_changed(before, after)
        self._report_nodes_soon()

    def _group_changed(self, before: PodGroup | None, after: PodGroup | None) -> None:
        self._foreign.group_changed(before, after)

    async def _follow_optional(self, informer: Informer[T], resource: Resource[T]) -> None:
        """Follow a resource that not every server has; check for it from time to time."""
        failures = 0
        while True:
            try:
                if resource.plural in await self._api.list_resources(resource.group, resource.version):
                    await informer.run()
            except ApiError as error:
                failures += 1
                _log.warning("cannot find out whether the server has %s: %s", resource.plural, error)
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))
            else:
                informer.synced.set()
                await asyncio.sleep(OPTIONAL_CHECK_S)

    def _job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        self.volumes.job_changed(before, after)
        if after is None and before is not None:
            self.status_writer.forget(before.metadata.key)
            self._pod_startup.forget(object_names.id_of(before.metadata.key))
        self._tell_watchers(before, after)

    def _tell_watchers(self, before: CustomObject | None, after: CustomObject | None) -> None:
        for watcher in self._job_watchers:
            watcher(before, after)

    def _report_nodes_soon(self) -> None:
        if self._report is not None and self._pending_report is None:
            self._pending_report = self._loop.call_later(COLLECT_S, self._report_nodes)

    def _report_nodes(self) -> None:
        """Report changes of nodes to the core."""
        self._pending_report = None
        if self._report is None:
            return
        if events := self._inventory.events():
            self._report(*events)
            self._update_cache(events)

    def _report_foreign(self, event: Event, *more: Event) -> Future[int]:
        """Report events of foreign pods together with the resulting changes of nodes.

        A pod may still use what its gang released or was to have, so nothing may be placed there in between.
        """
        assert self._report is not None  # noqa: S101  # only an open backend has foreign gangs
        freed = [node for each in (event, *more) if isinstance(each, Cleared) for node in each.nodes]
        self._inventory.note_freed(freed)
        node_events = self._inventory.events() if freed or isinstance(event, StopRequested) else []
        done = self._report(event, *more, *node_events)
        if node_events:
            self._update_cache(node_events)
        return done

    def _update_cache(self, events: Sequence[Event]) -> None:
        """Update the cached nodes to what the core knows."""
        before, lost = self._cache.nodes, [event.node for event in events if isinstance(event, NodeLost)]
        for event in events:
            if isinstance(event, NodeLost):
                self._cache.unreachable[event.node] = event.detail
            elif isinstance(event, NodeReturned):
                self._cache.unreachable.pop(event.node, None)
        self._cache.set_cluster(self._inventory.cluster())
        gone = before.keys() - self._cache.nodes.keys()
        for node in (*lost, *sorted(gone)):
            if node in gone:
                self._cache.unreachable.pop(node, None)
            self._place.lose(node)
            self._foreign.lose(node)

    def _fetch_log(self, pod: Key, since: str) -> str:
        """Fetch a pod's log for a reader on another thread."""
        query = {"container": CONTAINER, "timestamps": "true"} | ({"sinceTime": since} if since else {})
        fetch = self._api.text(ObjectRef(PODS, pod.namespace, pod.name, "log"), query)
        try:
            return asyncio.run_coroutine_threadsafe(fetch, self._loop).result(FETCH_TIMEOUT_S)
        except ApiError as error:
            if error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                return ""  # its container has not started yet, or is gone
            raise pod_logs.LogUnavailableError(str(error)) from None
        except TimeoutError:
            raise pod_logs.LogUnavailableError(f"no log of {pod.name} within {FETCH_TIMEOUT_S:.0f} s") from None

    def _call_in_loop(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call something on the event loop, unless the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)
