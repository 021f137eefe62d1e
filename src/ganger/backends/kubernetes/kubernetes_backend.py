"""The Kubernetes backend: follows the cluster, and takes the core's decisions on its thread to the event loop.

Built by `controller.assembly`, which runs `run` while this controller leads. Everything that touches the cluster lives
on the event loop; what readers ask for on threads of their own is fetched from there."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeVar

from ganger.backends.kubernetes import object_names, pod_logs
from ganger.backends.kubernetes.attempt_pods import AttemptPods
from ganger.backends.kubernetes.binding import Binder
from ganger.backends.kubernetes.cluster_cache import ClusterCache, newest_pod
from ganger.backends.kubernetes.custom_resources import GANG_JOBS
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang, taken_over
from ganger.backends.kubernetes.foreign.foreign_pods import ForeignPods, is_gang_of_others
from ganger.backends.kubernetes.foreign.pod_conditions import PodConditions
from ganger.backends.kubernetes.foreign.pod_groups import POD_GROUPS, PodGroup
from ganger.backends.kubernetes.gang_runtime import GangRuntime
from ganger.backends.kubernetes.nodes.node_health import NodeHealth
from ganger.backends.kubernetes.nodes.node_inventory import Inventory
from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S, NodePatience
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_startup import PodStartup
from ganger.backends.kubernetes.pod_template import CONTAINER, beside
from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import pause_s
from ganger.kubeapi.informer import FIRST_PAUSE_S, MOST_PAUSE_S, Informer, Stored
from ganger.kubeapi.objects import Custom, Key, Node, Pod, ResourceClaim
from ganger.kubeapi.request import Place
from ganger.kubeapi.resources import CLAIMS, NODES, PODS, Resource
from ganger.model.cluster import Cluster
from ganger.model.decision import Start, Stop
from ganger.model.event import Cleared, Event, NodeLost, NodeReturned, StopRequested
from ganger.model.job import Job
from ganger.model.policy import Level
from ganger.model.views.service_views import Stacks
from ganger.ports import Compose, LiveGeneration, LogLine, LogQuery, Metric, NotSupported, Report, Use

CALM_S: Final = 0.2
"""How long changes of nodes are gathered before the core is told: a cluster that starts has many at once."""
FETCH_S: Final = 30.0
_NOT_OURS: Final = "try it on virtual nodes of a machine: ganger server start --topology FILE"
SERVED_AGAIN_S: Final = 300.0
"""How often a server that knows no claims of devices, or no PodGroups, is asked whether it does."""
LONGEST_S: Final = 86_400.0
"""Told in place of for ever, by a watch that has not been heard yet."""

T = TypeVar("T", bound=Stored)
_log = logging.getLogger(__name__)
JobChanged = Callable[[Custom | None, Custom | None], None]


class KubernetesBackend:
    """Gangs as pods: `ports.Backend`, which documents what is said here without a word.

    gear: what pods are given; may_act: whether we lead; lost_after_s: how long a node that is not ready and of which
    nothing is heard is waited for.
    """

    def __init__(
        self,
        api: Api,
        gear: PodBootstrap,
        compose: Compose,
        may_act: Callable[[], bool],
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._api, self._loop = api, asyncio.get_running_loop()
        self.gear = gear
        self._jobs = Informer(api, GANG_JOBS, self._job_changed)
        self._pods = Informer(api, PODS, self._pod_changed)
        self._nodes = Informer(api, NODES, self._node_changed)
        self._claims = Informer(api, CLAIMS, self._claim_changed)
        self._groups = Informer(api, POD_GROUPS, self._group_changed)
        self._inventory = Inventory()
        self._seen = ClusterCache(self._jobs.objects, self._pods.objects)
        self.statuses = StatusWriter(api, GANG_JOBS, self._jobs.objects, may_act)
        self._held_up = PodStartup(self.statuses)
        self._binder = Binder(api, may_act)
        placing = AttemptPods(self._binder, gear, self.statuses, self._seen)
        self._supervisor = GangRuntime(placing, gear, self._seen, compose, self._loop)
        patience, supervisor = NodePatience(lost_after_s), self._supervisor
        self._health = NodeHealth(
            self._inventory,
            patience,
            supervisor.launchers,
            lambda: may_act() and self._nodes.trouble is None,
            self._list_soon,
        )
        self._explained = PodConditions(api, self._pods.objects, may_act)
        followed = self._pods.objects, self._groups.objects
        self._others = ForeignPods(self._binder, *followed, self._inventory, self._explained.want)
        self.door = self._supervisor.door
        self._report: Report | None = None
        self._hearer: JobChanged | None = None
        self._telling: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Follow the cluster and write to it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in (self._jobs, self._pods, self._nodes, self.statuses, self._explained):
                group.create_task(each.run())
            group.create_task(self._follow_served(self._groups, POD_GROUPS))
            await self._follow_served(self._claims, CLAIMS)

    async def listed(self) -> None:
        """Come back when the first listing of everything is complete."""
        for each in (self._jobs, self._pods, self._nodes, self._claims, self._groups):
            await each.synced.wait()

    @property
    def jobs(self) -> list[Custom]:
        """The GangJobs there are."""
        return list(self._jobs.objects.values())

    async def caught_up(self, namespace: str) -> None:
        """Come back when `jobs` has whatever had been done to those of a namespace before this was asked. Raises
        ApiError."""
        await self._jobs.caught_up(namespace)

    @property
    def cluster(self) -> Cluster:
        """The nodes there are."""
        return self._inventory.cluster()

    def tell(self, name: str, status: dict[str, Any], *, soon: bool) -> None:
        """Write what became of a job where people look for it; not `soon`: when it is convenient."""
        if not is_gang_of_others(name):
            self.statuses.want(object_names.key_of(name), self._held_up.amend(name, status), soon=soon)
        elif message := status.get("message"):
            self._others.explain(name, message)

    def hear(self, job_changed: JobChanged) -> None:
        """Be told of each GangJob there is, and then of every change."""
        self._hearer = job_changed
        for each in self.jobs:
            job_changed(None, each)

    def take_over(self) -> list[AdoptedGang]:
        """Pods of others that an earlier controller bound, as gangs that run. Called before `open`, and before anybody
        looks at what nodes have left."""
        pods, groups = self._pods.objects, self._groups.objects
        found = taken_over(pods.values(), groups, self._inventory, self._others.name)
        self._others.take_over(found)
        self._inventory.adopt(pod for each in found for pod in each.pods)
        return found

    def lay_out(self, topology: tuple[Level, ...]) -> None:
        """These are the levels of the network by the policy; none: it says nothing of them. PodGroups ask for one by a
        label of nodes."""
        if topology != self._inventory.topology:
            self._inventory.topology = topology
            self._others.again()

    def leave_alone(self, jobs: frozenset[str]) -> None:
        """Nobody knows what these are: their pods run on, and what they have is given to nobody else. Called before
        `open`."""
        self._seen.alone = jobs
        self._inventory.disown(jobs, self._pods.objects.values())

    # -- what the core decides ----------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        self._hop(self._open, report, live)

    def start(self, start: Start, job: Job) -> None:
        if is_gang_of_others(start.gang):
            self._hop(self._others.start, start)
        else:
            self._hop(self._begin, start, job)

    def stop(self, stop: Stop, job: Job) -> None:
        self._hop((self._others if is_gang_of_others(stop.gang) else self._supervisor).stop, stop)

    def forget(self, gang: str) -> None:
        self._hop((self._others if is_gang_of_others(gang) else self._supervisor).forget, gang)

    def delete(self, gang: str) -> None:
        """Its pods go with its GangJob."""

    def log_bytes(self, gang: str) -> int:
        return 0  # they are the kubelets', and go by their rules

    def drop_logs(self, gang: str, instead: str) -> None:
        """They go with the pods."""

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        return pod_logs.lines(self._seen.pods, query, self._log)

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        return pod_logs.follow(self._seen.pods, query, self._log, ended)

    def metrics(self, job: str) -> Iterator[dict[str, Any]]:
        newest = self._supervisor.progress(job)
        return iter([newest] if newest else [])

    def progress(self, job: str) -> dict[str, Any] | None:
        return self._supervisor.progress(job)

    def stacks(self, job: str, generation: int) -> Stacks | None:
        return None

    def entrance(self, gang: str, node: str) -> tuple[str, ...]:
        key = newest_pod(self._seen.pods, gang, node)
        where = ("--namespace", object_names.key_of(gang).namespace)
        return ("/usr/bin/env", "kubectl", *where, "exec", "-i", *beside(key))

    def use(self) -> Use:
        return Use(0)  # nodes measure it: `kubectl top pod` shows it where the cluster has metrics

    def measures(self) -> tuple[Metric, ...]:
        heard_s = {"gangjobs": self._jobs.heard_s, "pods": self._pods.heard_s, "nodes": self._nodes.heard_s}
        silence = {name: min(self._loop.time() - at_s, LONGEST_S) for name, at_s in heard_s.items()}
        asked = {str(use): float(many) for use, many in self._api.requests.items()}
        return (
            Metric("ganger_api_requests", "Requests to the API server.", "counter", "request", asked),
            Metric("ganger_pod_binds", "Pods that were to be bound.", "counter", "outcome", dict(self._binder.binds)),
            Metric("ganger_watch_silence_seconds", "Since a watch was heard.", "gauge", "resource", silence),
        )

    def lose_node(self, name: str) -> None:
        raise NotSupported(f"{name} is the cluster's, which alone says whether it is there", _NOT_OURS)

    def take_away(self, name: str) -> None:
        """It is its owner's to take."""

    def return_node(self, name: str) -> None:
        raise NotSupported(f"{name} is back when the cluster says that it is Ready", f"kubectl describe node {name}")

    def close(self) -> None:
        self._hop(self._close)

    # -- on the event loop --------------------------------------------------------------------------------------------

    def _open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        ours = {(each.job.id, each.start.generation) for each in live}
        marks = ((pod, object_names.mark(pod)) for pod in self._pods.objects.values())
        self._inventory.outlive(pod for pod, mark in marks if mark and (mark.gang, mark.generation) not in ours)
        self._seen.show(self._inventory.cluster())
        self._report = report
        self._supervisor.open(report, tuple(each for each in live if not is_gang_of_others(each.start.gang)))
        self._list()
        self._others.open(self._report_of_others)

    def _begin(self, start: Start, job: Job) -> None:
        self._inventory.know(start.gang, start.generation)
        self._supervisor.start(start, job)

    def _close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        self._health.close()
        self._report = None
        self._others.close()
        self._supervisor.close()

    def _pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        self._inventory.pod_changed(before, now)
        self._supervisor.pod_changed(before, now)
        self._held_up.pod_changed(before, now)
        self._others.pod_changed(before, now)
        self._list_soon()

    def _node_changed(self, before: Node | None, now: Node | None) -> None:
        self._inventory.node_changed(before, now)
        self._health.node_changed(before, now)
        self._list_soon()

    def _claim_changed(self, before: ResourceClaim | None, now: ResourceClaim | None) -> None:
        self._inventory.claim_changed(before, now)
        self._list_soon()

    def _group_changed(self, before: PodGroup | None, now: PodGroup | None) -> None:
        self._others.group_changed(before, now)

    async def _follow_served(self, follower: Informer[T], resource: Resource[T]) -> None:
        """What not every server has; one that has none is asked again now and then."""
        failures = 0
        while True:
            try:
                if resource.plural in await self._api.serves(resource.group, resource.version):
                    await follower.run()
            except ApiError as error:
                failures += 1
                _log.warning("whether the server has %s is not known: %s", resource.plural, error)
                await asyncio.sleep(pause_s(failures, FIRST_PAUSE_S, MOST_PAUSE_S))
            else:
                follower.synced.set()
                await asyncio.sleep(SERVED_AGAIN_S)

    def _job_changed(self, before: Custom | None, now: Custom | None) -> None:
        if now is None and before is not None:
            self.statuses.forget(before.metadata.key)
            self._held_up.forget(object_names.id_of(before.metadata.key))
        if self._hearer is not None:
            self._hearer(before, now)

    def _list_soon(self) -> None:
        if self._report is not None and self._telling is None:
            self._telling = self._loop.call_later(CALM_S, self._list)

    def _list(self) -> None:
        """Tell the core what became of the nodes."""
        self._telling = None
        if self._report is None:
            return
        if happened := self._inventory.events():
            self._report(*happened)
            self._look_at(happened)

    def _report_of_others(self, event: Event, *beside: Event) -> Future[int]:
        """What happened to pods of others, and what became of the nodes: what a gang of theirs lets go of, or was to
        have, one of its pods may have all the same, and nobody is to be placed there between the two."""
        assert self._report is not None  # noqa: S101  # else they have none
        freed = [node for each in (event, *beside) if isinstance(each, Cleared) for node in each.nodes]
        self._inventory.freed(freed)
        happened = self._inventory.events() if freed or isinstance(event, StopRequested) else []
        done = self._report(event, *beside, *happened)
        if happened:
            self._look_at(happened)
        return done

    def _look_at(self, happened: Sequence[Event]) -> None:
        """What is known of nodes goes by what the core was told."""
        before, lost = self._seen.nodes, [each.node for each in happened if isinstance(each, NodeLost)]
        for event in happened:
            if isinstance(event, NodeLost):
                self._seen.away[event.node] = event.detail
            elif isinstance(event, NodeReturned):
                self._seen.away.pop(event.node, None)
        self._seen.show(self._inventory.cluster())
        gone = before.keys() - self._seen.nodes.keys()
        for node in (*lost, *sorted(gone)):
            if node in gone:
                self._seen.away.pop(node, None)
            self._supervisor.lose(node)
            self._others.lose(node)

    def _log(self, pod: Key, since: str) -> str:
        """A pod's log, fetched for a reader on another thread."""
        query = {"container": CONTAINER, "timestamps": "true"} | ({"sinceTime": since} if since else {})
        reading = self._api.text(Place(PODS, pod.namespace, pod.name, "log"), query)
        try:
            return asyncio.run_coroutine_threadsafe(reading, self._loop).result(FETCH_S)
        except ApiError as error:
            if error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                return ""  # its container has not begun yet, or is gone
            raise pod_logs.Unread(str(error)) from None
        except TimeoutError:
            raise pod_logs.Unread(f"the log of {pod.name} did not come within {FETCH_S:.0f} s") from None

    def _hop(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Run something on the event loop; a loop that has ended has nothing to do any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)
