"""Kubernetes backend: follows the cluster, and carries the core's decisions from its thread to the event loop.

`run` also runs while another controller leads: then nothing is written. Everything that touches the cluster is on the
event loop; what readers on other threads need is fetched there.
"""

import asyncio
import logging
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ganger.backends.kubernetes.attempt_pods import AttemptPods
from ganger.backends.kubernetes.binding import Binder
from ganger.backends.kubernetes.cluster_cache import ClusterCache, find_newest_pod
from ganger.backends.kubernetes.devices.device_claims import DeviceClaims
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang, find_bound_gangs
from ganger.backends.kubernetes.foreign.foreign_gang import is_foreign_gang
from ganger.backends.kubernetes.foreign.foreign_pods import ForeignPods
from ganger.backends.kubernetes.foreign.gang_owners import GangOwners
from ganger.backends.kubernetes.foreign.pod_conditions import PodConditions
from ganger.backends.kubernetes.foreign.pod_groups import BETA_POD_GROUPS, POD_GROUPS, PodGroup
from ganger.backends.kubernetes.kubernetes_metrics import kubernetes_metrics
from ganger.backends.kubernetes.nodes.network_profiles import NetworkProfiles, NodeFabric
from ganger.backends.kubernetes.nodes.node_health import NodeHealth
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory
from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S, NodePatience
from ganger.backends.kubernetes.nodes.nodes_of_cluster import NodesOfCluster
from ganger.backends.kubernetes.nodes.placeholders import Placeholders
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_log_reader import PodLogReader
from ganger.backends.kubernetes.pod_networks import rail_claims, with_rail_devices
from ganger.backends.kubernetes.pod_startup import PodStartup
from ganger.backends.kubernetes.repair.mark_writer import MarkWriter
from ganger.backends.kubernetes.runtime.lighthouse_pods import LighthousePods
from ganger.backends.kubernetes.runtime.pod_place import PodPlace
from ganger.backends.kubernetes.startup_times import StartupReport
from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.backends.kubernetes.volumes.volume_claims import VolumeClaims
from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import GANG_JOBS
from ganger.gang_jobs.namespace_queues import in_queue_of_namespace
from ganger.gang_jobs.pod_template import exec_arguments
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.device_objects import ResourceClaim
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import CustomObject, Key, Node, Object, Pod
from ganger.kubeapi.resources import NODES, PODS
from ganger.launcher_server.runtime.gang_runtime import GangRuntime
from ganger.model.cluster import Cluster
from ganger.model.decision import Start, Stop
from ganger.model.event import Cleared, Event, NodeLost, NodeReturned, StopRequested, Submitted
from ganger.model.job import Job, JobSpec
from ganger.model.job_metrics import Curve, JobMetrics
from ganger.model.network_profile import NetworkProfile
from ganger.model.policy import NamespaceQueues, Rules
from ganger.model.views.service_views import Stacks
from ganger.ports import (
    LaunchPlanner,
    LiveGeneration,
    LogLine,
    LogQuery,
    Metric,
    NotSupported,
    Report,
)

COLLECT_S: Final = 0.2
"""Time for which changes of nodes are collected before the core gets them: a cluster that starts has many at once."""

_log = logging.getLogger(__name__)
PodChanged = Callable[[Pod | None, Pod | None], None]
AmendStatus = Callable[[str, Object], Object]
JobChanged = Callable[[CustomObject | None, CustomObject | None], None]


class KubernetesBackend(NodesOfCluster):
    """Gangs as pods: `ports.Backend`, which documents its methods.

    Args:
        api: client of the API server.
        bootstrap: bootstrap objects of pods.
        compose: makes launch plans.
        may_act: returns whether this controller leads.
        lost_after_s: how long to wait for a node that is not ready and without other signs of life.

    Attributes:
        pod_watcher: called with every change of a pod.
        attempt_pods: places the pods of attempts.
        amend_status: adds to a status that is written to a GangJob.
        logs: reads the logs of pods.
        placeholders: placeholder pods of the cluster.
        rank_usage: returns the usage of ranks by their launchers.
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
        self._groups = Informer(api, POD_GROUPS, self._group_changed)
        self._beta_groups = Informer(api, BETA_POD_GROUPS, self._group_changed)
        self._inventory = NodeInventory()
        self.devices = DeviceClaims(api, self._inventory.devices, self._pods.objects, self._claim_changed)
        self.devices.rails = lambda networks: rail_claims(networks, self._cache.network_profiles)
        self._cache = ClusterCache(
            self._jobs.objects,
            self._pods.objects,
            drained=self._inventory.drained,
            gpu_resources=self._inventory.gpu_resources,
            device_notes=self._inventory.notes,
        )
        self.status_writer = StatusWriter(api, GANG_JOBS, self._jobs.objects, may_act)
        self._pod_startup, self._startup_times = PodStartup(self.status_writer), StartupReport(self.status_writer)
        self.placeholders = Placeholders(api, may_act)
        self._binder = Binder(api, may_act, self.devices, self.placeholders.clear)
        self.volumes = VolumeClaims(api, self._nodes.objects)
        self.marks = MarkWriter(api, self._nodes.objects, may_act)
        self._networks = NetworkProfiles(api, may_act, self._profiles_changed)
        self._informers: tuple[Informer[Any], ...] = (
            *(self._jobs, self._pods, self._nodes, self._groups, self._beta_groups),
            *(self._networks.profiles, self._networks.attachments),
            *(informer for informer, _ in self.devices.informers),
        )
        self.attempt_pods = AttemptPods(self._binder, bootstrap, self.status_writer, self._cache, self.volumes)
        lighthouses = LighthousePods(api, self._cache, bootstrap, self._pod_startup)
        self._place = PodPlace(self.attempt_pods, bootstrap, self._cache, lighthouses, compose, self._loop)
        self._runtime = GangRuntime(self._place, self._loop)
        self._health = NodeHealth(
            self._inventory,
            NodePatience(lost_after_s),
            self._place.launchers,
            lambda: may_act() and self._nodes.last_error is None,
            self._report_nodes_soon,
        )
        self._pod_conditions = PodConditions(api, self._pods.objects, may_act)
        self._foreign = ForeignPods(
            self._binder,
            self._pods.objects,
            GangOwners(api, may_act, self._pod_groups),
            self._inventory,
            self._pod_conditions.update,
            self._place.leaving,
        )
        self.devices.on_foreign_change = self._foreign.reconsider_all
        self.logs = PodLogReader(api, self._cache.pods)
        self.listener, self.rank_usage = self._runtime.listener, self._place.records.usage
        self._namespaces: tuple[NamespaceQueues, ...] = ()
        self._report: Report | None = None
        self._job_watchers: tuple[JobChanged, ...] = ()
        self.amend_status: AmendStatus = lambda job, status: status  # noqa: ARG005
        self.pod_watcher: PodChanged = lambda before, after: None  # noqa: ARG005
        self._fabrics_changed: Callable[[], None] = lambda: None
        self._reached = set[str]()
        """Networks that some node is on, as reported last."""
        self._pending_report: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Follow the cluster and write to it until cancelled."""
        async with asyncio.TaskGroup() as group:
            writers = (self.status_writer, self._pod_conditions, self.marks)
            for follower in (self._jobs, self._pods, self._nodes, *writers):
                group.create_task(follower.run())
            group.create_task(self._groups.run_where_served())
            group.create_task(self._beta_groups.run_where_served())
            group.create_task(self._networks.profiles.run_where_served())
            group.create_task(self._networks.attachments.run_where_served())
            group.create_task(self._networks.writer.run())
            for informer, _ in self.devices.informers:
                group.create_task(informer.run_where_served())
            await self.volumes.run()

    @property
    def _pod_groups(self) -> Mapping[Key, PodGroup]:
        """Live view of the upstream PodGroups, in whatever version they are served."""
        return ChainMap(self._beta_groups.objects, self._groups.objects)  # type: ignore[arg-type]  # it is only read

    async def wait_synced(self) -> None:
        """Wait until everything was listed once."""
        for informer in self._informers:
            await informer.synced.wait()
        self._networks.judge()
        self.devices.count_jobs()
        self._note_volumes()

    async def refresh(self) -> None:
        """Wait until every change in the cluster from before this call is known."""
        await asyncio.gather(*(informer.refresh() for informer in self._informers))
        self.devices.count_jobs()
        self._note_volumes()

    def _note_volumes(self) -> None:
        for pod in self._pods.objects.values():
            self.volumes.pod_changed(None, pod)  # a pod may have been listed before its GangJob

    @property
    def is_writing(self) -> bool:
        """True while pods are being created, bound or deleted, or a change of a job is not on its object yet."""
        has_unwritten = self.status_writer.has_unwritten(sys.maxsize) or self.marks.has_unwritten
        return self._binder.is_busy or has_unwritten

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

    @property
    def nodes(self) -> Mapping[Key, Node]:
        """Current nodes as objects, which change with the cluster."""
        return self._nodes.objects

    @property
    def gpu_resources(self) -> Mapping[str, str]:
        """Live view of the resource of the GPUs of each node that has some."""
        return self._inventory.gpu_resources

    async def wait_until_current(self, namespace: str) -> None:
        """Wait until `jobs` has all changes in a namespace from before this call. Raises ApiError."""
        await self._jobs.wait_until_current(namespace)

    def restrict_by_cluster(self, namespace: str, spec: JobSpec) -> JobSpec:
        """Return a job's spec with what its claims and its fabric need of nodes; from a thread. Raises RequestError."""
        spec = with_rail_devices(spec, self._cache.network_profiles)
        if not (spec.volumes or self.devices.has_claims(namespace, spec)):
            return spec
        return asyncio.run_coroutine_threadsafe(self._restrict(namespace, spec), self._loop).result()

    async def _restrict(self, namespace: str, spec: JobSpec) -> JobSpec:
        spec = await self.devices.count(namespace, await self.volumes.restrict(namespace, spec))
        self._report_nodes()  # the core knows what nodes have of its devices before it gets the job
        return spec

    @property
    def cluster(self) -> Cluster:
        """Current nodes."""
        return self._inventory.cluster()

    def write_status(self, name: str, status: dict[str, Any], *, after_s: float) -> None:
        """Write a job's status to its object after a delay, or earlier with whatever else is written of it."""
        if not is_foreign_gang(name):
            status = self.amend_status(name, self._pod_startup.amend(name, status))
            self.status_writer.update(object_names.key_of(name), status, after_s=after_s)
        elif message := status.get("message"):
            self._foreign.explain(name, message)

    def watch_jobs(self, *watchers: JobChanged, fabrics_changed: Callable[[], None] = lambda: None) -> None:
        """Call the watchers for each GangJob, and then for every change.

        `fabrics_changed` is called when nodes have come to a fabric, or left it, by a network profile.
        """
        self._job_watchers, self._fabrics_changed = watchers, fabrics_changed
        for job in self.jobs:
            self._tell_watchers(None, job)

    def adopt_bound_pods(self) -> list[AdoptedGang]:
        """Return foreign pods that an earlier controller bound as running gangs.

        Called before `open`, and before free capacity is read.
        """
        pods = self._pods.objects
        gangs = find_bound_gangs(
            pods.values(), self._pod_groups, self._inventory, self._foreign.new_id, self._foreign.lookup
        )
        self._foreign.adopt(gangs)
        self._inventory.adopt(pod for gang in gangs for pod in gang.pods)
        return gangs

    def set_policy(self, policy: Rules) -> None:
        """Set what the policy says of pods and namespaces, and the topology levels that PodGroups ask for by labels."""
        self.bootstrap.security, self._namespaces = policy.pods.security, policy.namespaces
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
        return self.logs.lines(query)

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        return self.logs.follow(query, ended)

    def metrics(self, job: str) -> JobMetrics:
        return self._runtime.metrics(job)

    def curves(self, job: str) -> tuple[Curve, ...] | None:
        return None  # its launchers write them to disks of pods

    def reports(self, job: str) -> Iterator[dict[str, Any]]:
        newest = self._place.progress(job)
        return iter([newest] if newest else [])

    def progress(self, job: str) -> dict[str, Any] | None:
        return self._place.progress(job)

    def stacks(self, job: str, generation: int) -> Stacks | None:
        return self._place.records.stacks(job, generation)

    def exec_command(self, gang: str, node: str) -> tuple[str, ...]:
        key = find_newest_pod(self._cache.pods, gang, node)
        flags = ("--namespace", object_names.key_of(gang).namespace)
        return ("/usr/bin/env", "kubectl", *flags, "exec", "-i", *exec_arguments(key))

    def output_directories(self, gang: str) -> tuple[Path, ...]:
        raise NotSupported(
            f"{gang} writes into its pods, which are gone when it has ended, and into its volumes",
            "mount the PersistentVolumeClaim into a pod, and: kubectl cp POD:PATH DIRECTORY",
        )

    def backend_metrics(self) -> tuple[Metric, ...]:
        last_s = {"gangjobs": self._jobs.last_event_s, "pods": self._pods.last_event_s}
        last_s["nodes"] = self._nodes.last_event_s
        return kubernetes_metrics(self._api, dict(self._binder.binds), last_s, self._loop.time())

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
        self._networks.close()
        self._health.close()
        self._report = None
        self._foreign.close()
        self._runtime.close()
        self._place.close()

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        self._inventory.pod_changed(before, after)
        self.devices.pod_changed(before, after)
        self.placeholders.pod_changed(before, after)
        self._report_eviction(before, after)
        self._place.pod_changed(before, after)
        self.volumes.pod_changed(before, after)
        self._pod_startup.pod_changed(before, after)
        self._startup_times.pod_changed(before, after)
        self._foreign.pod_changed(before, after)
        self.pod_watcher(before, after)
        self._report_nodes_soon()

    def _report_eviction(self, before: Pod | None, after: Pod | None) -> None:
        """Report at once that a pod is evicted, or a node drained: the processes end soon, as if they had failed."""
        if after is None or self._report is None or object_names.mark(after) is None:
            return
        drain, eviction = self._inventory.drain_of(after), self._place.eviction(before, after)
        if drain is not None:
            self._report_nodes()
        if events := [event for event in (drain, eviction) if event is not None]:
            self._report(*events)  # together: the drain has no deadline, and the eviction that of the pod

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        self._inventory.node_changed(before, after)
        self._health.node_changed(before, after)
        self.marks.node_changed(before, after)
        self._report_nodes_soon()

    def _profiles_changed(self, in_force: tuple[NetworkProfile, ...], fabrics: tuple[NodeFabric, ...]) -> None:
        self._cache.network_profiles = in_force
        self._inventory.set_fabrics(fabrics)
        if (reported := self._report_nodes()) is not None:
            reported.add_done_callback(lambda _: self._call_in_loop(self._fabrics_changed))

    def _claim_changed(self, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        self._inventory.claim_changed(before, after)
        self._report_nodes_soon()

    def _group_changed(self, before: PodGroup | None, after: PodGroup | None) -> None:
        self._foreign.group_changed(before, after)

    def _job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        self.volumes.job_changed(before, after)
        self.devices.job_changed(before, after)
        if self._inventory.job_changed(before, after):
            self._report_nodes_soon()
        if after is None and before is not None:
            self.status_writer.forget(before.metadata.key)
            for startup in (self._pod_startup, self._startup_times):
                startup.forget(object_names.id_of(before.metadata.key))
        self._tell_watchers(before, after)

    def _tell_watchers(self, before: CustomObject | None, after: CustomObject | None) -> None:
        for watcher in self._job_watchers:
            watcher(before, after)

    def _report_nodes_soon(self) -> None:
        if self._report is not None and self._pending_report is None:
            self._pending_report = self._loop.call_later(COLLECT_S, self._report_nodes)

    def _report_nodes(self) -> Future[int] | None:
        """Report changes of nodes to the core; return None if there are none, else the result."""
        self._pending_report = None
        if self._report is None or not (events := self._inventory.events()):
            return None
        reported = self._report(*events)
        self._update_cache(events)
        # A label or a profile has put the first node on a network: jobs that ask for it are no longer refused.
        reached = {network for node in self._inventory.cluster().nodes for network in node.networks}
        before, self._reached = self._reached, reached
        if not reached <= before:
            reported.add_done_callback(lambda _: self._call_in_loop(self._fabrics_changed))
        return reported

    def _report_foreign(self, event: Event, *more: Event) -> Future[int]:
        """Report events of foreign pods together with the resulting changes of nodes.

        A pod may still use what its gang released or was to have, so nothing may be placed there in between.
        """
        assert self._report is not None  # noqa: S101  # only an open backend has foreign gangs
        if isinstance(event, Submitted):
            try:
                event = Submitted(job=in_queue_of_namespace(event.job, self._namespaces))
            except RequestError as error:
                refused = Future[int]()
                refused.set_exception(error)
                return refused
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

    def _call_in_loop(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call something on the event loop, unless the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)
