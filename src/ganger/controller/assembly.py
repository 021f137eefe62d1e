"""Assembly of the controller: the loop over a backend of pods, and a log backed by the cluster's objects.

The controller lists everything, waits for the lease while it follows the cluster, restores the state from the GangJobs,
and continues from there. When it loses the lease it exits; its supervisor starts it again to wait again.
"""

import argparse
import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp

from ganger.backends.kubernetes.foreign.foreign_gang import is_foreign_gang
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S
from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint, PodBootstrap
from ganger.backends.kubernetes.repair.hook_jobs import HookJobs
from ganger.controller.agents.agent_endpoint import AgentEndpoint, AgentGate
from ganger.controller.agents.cluster_agents import ClusterAgents
from ganger.controller.autoscaling.node_protection import NodeProtection
from ganger.controller.autoscaling.node_requests import NodeOperations
from ganger.controller.durable.durable_state import DurableState
from ganger.controller.durable.event_archive import Begin, continued
from ganger.controller.durable.store import StoreError, open_store
from ganger.controller.durable.stored_code import StoredCode
from ganger.controller.image_prefetch import ImagePrefetch
from ganger.controller.jobs.claim_restrictions import ClaimRestrictions
from ganger.controller.jobs.code_archives import CodeArchives
from ganger.controller.jobs.ended_jobs import load_ended
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.git_pods import GitPods
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.jobs.job_code import JobCode
from ganger.controller.jobs.job_events import JobEvents, variables_notice
from ganger.controller.listener_certificate import launcher_endpoint
from ganger.controller.object_log import ObjectLog, ObjectSink
from ganger.controller.object_service import ObjectService, ServedStore
from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.controller.policy.queue_status import QueueStatusReporter, ReportTrigger
from ganger.controller.restore import restore
from ganger.controller.standby import Candidacy, HealthApp, LeaderLabel, StandbyApp
from ganger.controller.storage_migration import StorageMigration
from ganger.controller.token_review import MetricsGate, TokenReviewer
from ganger.controller.training_jobs.training_job_reconciler import TrainingJobReconciler
from ganger.core.state.state import Image
from ganger.engine.launch import launch_plans
from ganger.gang_jobs.controller_tokens import (
    ADDRESS,
    ADDRESS_CERTIFICATE,
    ADDRESS_URL,
    CALLER_HEADER,
    DRY_RUN_PARAMETER,
)
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.gang_jobs.object_names import key_of
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials, CredentialsError
from ganger.kubeapi.lease import CLIENT_RETRY_FOR_S, LeaderLease
from ganger.kubeapi.objects import Key
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import CONFIG_MAPS, LEASES
from ganger.launcher.build_archive import build
from ganger.launcher_server.listener import server_context
from ganger.model.policy import PolicyDocument
from ganger.rest.proxy_identity import ProxyIdentity
from ganger.rest.token_gate import TokenGate
from ganger.server.assembly import Gate, Server, World, run_server
from ganger.server.http_connection import StrangerRelease
from ganger.server.job_activity import JobActivity
from ganger.server.machine_health import SampleChecks, rules_of_cluster
from ganger.server.state_directory import ServerStartError
from ganger.server.tls_certificate import CertificateFiles
from ganger.settings import Home, read_retention_limits

LEASE: Final = "ganger-controller"
FINISH_S: Final = 1.0
"""Time for which a controller that ends waits for what it is binding and writing, before it releases the lease."""
FINISH_CHECK_S: Final = 0.02
DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")
_log = logging.getLogger("ganger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a controller.

    Attributes:
        credentials: credentials for the API server.
        namespace: namespace of the controller's own objects.
        listener_address: HOST:PORT to which launchers connect.
        pod: name of the controller's pod; None outside a cluster.
        store: directory or URL of the durable store; None without one.
        image: default image of jobs.
        git_image: image of the pods that fetch code.
        node_lost_after_s: how long to wait for a silent node.
        node_rules: file with the rules of the site for faults of nodes, which may not exist.
        arguments: the same as command line arguments, for a restart.
    """

    credentials: Credentials
    namespace: str
    listener_address: str
    pod: str | None
    store: str | None
    image: str
    git_image: str
    node_lost_after_s: float
    node_rules: Path | None
    arguments: tuple[str, ...]


class Controller(Server):
    """One run of a controller."""

    REFUSES_UNTIL_TOKEN = True

    def __init__(self, home: Home, listen: str | None, lock: int, options: Options) -> None:
        super().__init__(home, listen, lock)
        self._options = options
        self._starting: asyncio.Task[Any] | None = None
        """The task that stands by and restores, while it does: until then nothing can be left."""
        self._has_frozen = False

    async def serve(self) -> str | None:
        """Serve as any server; a controller that cannot follow the cluster any more ends. Raises ServerStartError."""
        python = None
        try:
            python = await super().serve()
        except asyncio.CancelledError:
            if not self._has_frozen:
                raise
        if self._has_frozen:
            detail = "this controller cannot follow the cluster any more, see its log; jobs keep running"
            raise ServerStartError(detail, " ".join(("python -m", *self._program())))
        return python

    def _freeze(self) -> None:
        """End: a controller whose view of the cluster is frozen would only look alive, and keep the lease."""
        _log.error("this controller cannot follow the cluster any more: it exits, and another one takes over")
        self._has_frozen = True
        if self._starting is not None:
            self._starting.cancel()
        else:
            self._leave(None)

    @contextmanager
    def _ended_by_freezing(self) -> Iterator[None]:
        """Have a frozen view end the current task for the duration of the context."""
        self._starting = asyncio.current_task()
        try:
            yield
        finally:
            self._starting = None

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[World]:
        """Stand by until this controller leads, and continue. What is entered last ends first."""
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            api = await enter(ApiClient(self._options.credentials, PROGRAM))
            candidacy = await enter(self._candidacy())
            backend = await enter(self._backend(api, candidacy))
            policies = PolicyReconciler(api, lambda: candidacy.may_act)
            await enter(_running(policies.run(), failed=self._freeze))
            with self._ended_by_freezing():
                await asyncio.gather(backend.wait_synced(), policies.wait_synced())
                label = LeaderLabel(api, self._options.namespace, self._options.pod)
                await label.remove()
                async with self._answering(HealthApp(StandbyApp(candidacy))):
                    _log.info("standing by: the cluster is listed; this controller leads once it has the lease")
                    await candidacy.win()
                    api.fence(lambda: candidacy.may_act)
                    self._leave_on_signals()  # before that there is nothing to release
                    await asyncio.gather(backend.refresh(), policies.refresh())
                    world = await enter(self._leading(api, candidacy, backend, policies))
            await enter(_running(label.take(backend.pods.values())))
            yield world

    @asynccontextmanager
    async def _leading(
        self, api: ApiClient, candidacy: Candidacy, backend: KubernetesBackend, policies: PolicyReconciler
    ) -> AsyncIterator[World]:
        """Restore the state from the objects, and continue from there. What is entered last ends first."""
        observed = dict[str, int]()

        def may_act() -> bool:
            return candidacy.may_act

        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            events = JobEvents(api, backend.job, may_act)
            durable = self._durable(api, may_act)
            store, failed = (None, _log.warning) if durable is None else (durable.store, durable.failed)
            code_in_store = stack.enter_context(closing(StoredCode(self._home.code, store, backend.job, failed)))
            backend.listener.serve_code(code_in_store.read)
            await enter(self._launcher_listener(api, backend))
            await enter(_running(events.run()))
            restored = restore(backend, await policies.policy_in_force(), policies.usage())
            image = continued(restored.image, await durable.begin() if durable is not None else None)
            log = await enter(self._object_log(backend, image, observed, policies.trigger, events))
            if durable is not None:
                begin = Begin(image.seq, image.policy_version)
                retention = durable.retain(read_retention_limits(self._home))
                await enter(_running(durable.run(self._home.database, begin), retention))
            hooks = HookJobs(api, self._options.namespace, self._options.image, backend.marks, may_act)
            backend.hooks = hooks
            await enter(_running(hooks.run()))
            loop = await enter(self._core(log, backend, image.at_ms))
            backend.attempt_pods.variables_watcher = lambda start, changes: events.record(
                [variables_notice(start, changes)], loop.now_ms()
            )
            archives = CodeArchives(api, self._options.namespace, backend, may_act)
            in_objects = code_in_store.restore(_code_of(restored.image))
            archives.restore(in_objects, {key_of(name).namespace for name in restored.unreadable})
            backend.bootstrap.fetched = code_in_store.fetched
            builder = JobBuilder(loop, log.state_of, backend.job, backend.restrict_by_cluster)
            code = JobCode((await self._git_pods(api, backend)).fetch, archives.put, code_in_store)
            jobs = GangJobReconciler(builder, backend.status_writer.update, restored.image.gangs, code, observed)
            training_jobs = TrainingJobReconciler(api, backend, may_act)
            watchers = [archives.job_changed, code_in_store.job_changed, jobs.changed, training_jobs.job_changed]
            if durable is not None:
                watchers.append((await enter(durable.rank_logs(backend))).job_changed)
            backend.watch_jobs(*watchers, fabrics_changed=jobs.retry_refused)
            await enter(_running(ClaimRestrictions(loop, backend, jobs.retry_rejected).run(), archives.run()))
            await enter(_running(training_jobs.run(), StorageMigration(api, may_act).run()))
            await enter(_running(code_in_store.run(may_act)))
            prefetch = ImagePrefetch(api, loop, backend, may_act)
            protection = NodeProtection(api, loop, backend, may_act)
            await enter(_running(NodeOperations(api, loop, backend, may_act).run(), prefetch.run(), protection.run()))
            await enter(_running(policies.reconcile(loop, _policy_changed(backend, jobs))))
            has_unwritten = backend.status_writer.has_unwritten
            await enter(_reporting(QueueStatusReporter(loop, policies, restored.usage, has_unwritten)))
            served_store = ServedStore(code_in_store, tuple if durable is None else durable.metrics)
            service = ObjectService(loop, log, backend, self._home, served_store)
            activity = JobActivity(loop, backend.rank_usage, service.live_usage.sessions, is_foreign_gang)
            service.live_usage.attach(activity.idle_job)
            checks = SampleChecks(loop, rules_of_cluster(self._options.node_rules), tuple)
            agents = ClusterAgents(backend.nodes, backend.pods, loop.now_ms, checks, activity)
            service.telemetry.attach(agents)
            backend.usage = partial(agents.usage, loop.view, backend.rank_usage)
            reviewer = TokenReviewer(api, self._options.namespace)
            yield World(loop, backend, service, self._gate(service, reviewer, agents))

    @asynccontextmanager
    async def _backend(self, api: ApiClient, candidacy: Candidacy) -> AsyncIterator[KubernetesBackend]:
        """Run a backend; at its end, nothing that it has sent is unanswered."""
        bootstrap = PodBootstrap(api, build(self._home.path, packed=True), self._endpoint()[0], self._options.image)
        backend = KubernetesBackend(
            api,
            bootstrap,
            launch_plans,
            lambda: candidacy.may_act,
            self._options.node_lost_after_s,
        )
        try:
            async with _running(backend.run(), failed=self._freeze):
                yield backend
                await _until(lambda: not backend.is_writing)
                candidacy.resign()
                await _until(lambda: not api.requests_in_flight)
        finally:
            backend.close()

    @asynccontextmanager
    async def _launcher_listener(self, api: ApiClient, backend: KubernetesBackend) -> AsyncIterator[None]:
        """Listen for launchers until the backend is closed. Raises OSError if it cannot listen there."""
        host, _, port = self._options.listener_address.rpartition(":")
        await backend.listener.open(host, int(port), server_context(*self._endpoint()[1]))
        await self._publish_address(api)
        yield

    def _durable(self, api: ApiClient, may_act: Callable[[], bool]) -> DurableState | None:
        store = self._options.store
        lease = ObjectRef(LEASES, self._options.namespace, LEASE)
        return DurableState(open_store(store), api, lease, may_act) if store else None

    async def _git_pods(self, api: ApiClient, backend: KubernetesBackend) -> GitPods:
        """Return what fetches code, after removing what an earlier controller has left."""
        git = GitPods(api, backend.bootstrap, backend.pods, self._options.namespace, self._options.git_image)
        await git.remove_leftovers()
        return git

    @asynccontextmanager
    async def _object_log(
        self,
        backend: KubernetesBackend,
        image: Image,
        observed: Mapping[str, int],
        trigger: ReportTrigger,
        events: JobEvents,
    ) -> AsyncIterator[ObjectLog]:
        """Open a log that begins with an image and writes to the objects of jobs."""
        event_loop = asyncio.get_running_loop()

        def write_status(name: str, status: dict[str, Any], *, after_s: float) -> None:
            event_loop.call_soon_threadsafe(partial(backend.write_status, name, status, after_s=after_s))

        sink = ObjectSink(write_status, observed, trigger.on_written, events.record, backend.write_mark)
        log = await asyncio.to_thread(ObjectLog, self._home.database, image, sink, load_ended(backend.jobs))
        try:
            yield log
        finally:
            log.close()

    def _endpoint(self) -> tuple[LauncherEndpoint, tuple[Path, Path]]:
        return launcher_endpoint(self._home.path / "launcher_listener", self._options.listener_address)

    async def _publish_address(self, api: ApiClient) -> None:
        """Write address and certificate of the REST interface, for clients of a controller outside the cluster."""
        if self._listen is None:
            return
        options, (endpoint, _) = self._options, self._endpoint()
        host, port = options.listener_address.rpartition(":")[0], self._listen.rpartition(":")[2]
        metadata = {"name": ADDRESS, "namespace": options.namespace}
        data = {ADDRESS_URL: f"https://{host}:{port}", ADDRESS_CERTIFICATE: endpoint.certificate}
        try:
            await api.apply(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        except ApiError as error:
            _log.warning("clients cannot find this controller unless a service leads to it: %s", error)

    def _gate(self, service: ObjectService, reviewer: TokenReviewer, agents: ClusterAgents) -> Gate:
        """Return the gate for callers who come through the API server, for agents, and for tokens of this server."""
        endpoint = AgentEndpoint(agents, reviewer.agent_node)

        def gate(app: ASGIApp) -> ASGIApp:
            with_agents = AgentGate(endpoint, StrangerRelease(endpoint), TokenGate(app, service))
            with_tokens = MetricsGate(app, with_agents, reviewer)
            parameters = {"header": CALLER_HEADER, "dry_run_parameter": DRY_RUN_PARAMETER}
            return HealthApp(ProxyIdentity(app, with_tokens, reviewer.identify, service.owner_of, **parameters))

        return gate

    def _certificate(self, host: str) -> CertificateFiles:
        """Return the launcher listener's certificate: users come through the API server, which does not verify it."""
        return CertificateFiles(*self._endpoint()[1])

    @asynccontextmanager
    async def _candidacy(self) -> AsyncIterator[Candidacy]:
        """Be a candidate for the lease for the duration of the context; exit the process when the lease is lost."""
        options = self._options
        async with ApiClient(options.credentials, PROGRAM, retry_for_s=CLIENT_RETRY_FOR_S) as api:
            lease = LeaderLease(api, options.namespace, LEASE, f"{socket.gethostname()}-{os.getpid()}")
            async with Candidacy(lease, partial(self._leave, None)) as candidacy:
                yield candidacy

    def _program(self) -> list[str]:
        return ["ganger.controller", *self._options.arguments]

    def _missing_file(self) -> None:
        """Return None: objects are the source of truth, so nothing of the state directory is missed."""


def _policy_changed(backend: KubernetesBackend, jobs: GangJobReconciler) -> Callable[[PolicyDocument], None]:
    """Return a function that hands a new policy to the backend, and submits again what the old one refused."""

    def policy_changed(document: PolicyDocument) -> None:
        backend.set_policy(document)
        jobs.retry_refused()

    return policy_changed


def _code_of(image: Image) -> dict[Key, str]:
    """Return the code hashes of live jobs that have code."""
    jobs = chain((gang.job for gang in image.gangs), (array.job for array in image.arrays))
    return {key_of(job.id): job.origin.code_hash for job in jobs if job.origin.code_hash}


@asynccontextmanager
async def _reporting(reporter: QueueStatusReporter) -> AsyncIterator[None]:
    """Report the figures of queues for the duration of the context, and once more at its end."""
    try:
        async with _running(reporter.run()):
            yield
    finally:
        await reporter.end()


async def _until(holds: Callable[[], bool]) -> None:
    """Wait until `holds` returns True, but not for long: the lease is to be released."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + FINISH_S
    while not holds() and loop.time() < end_s:  # noqa: ASYNC110 - two parts of it have no event
        await asyncio.sleep(FINISH_CHECK_S)


@asynccontextmanager
async def _running(*work: Coroutine[Any, Any, None], failed: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Run coroutines for the duration of the context. One that fails is logged at once, and `failed` is called."""
    is_ending = False

    def ended(name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not is_ending:
            _log.error("%s failed and does not run any more", name, exc_info=error)
            failed()

    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    for coroutine, task in zip(work, tasks, strict=True):
        task.add_done_callback(partial(ended, getattr(coroutine, "__qualname__", "a part of the controller")))
    try:
        yield
    finally:
        is_ending = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def control(home: Home, arguments: argparse.Namespace) -> None:
    """Run a controller until a signal stops it. Raises ServerStartError if it cannot start."""
    try:
        credentials = _credentials(arguments.kubeconfig or os.environ.get("KUBECONFIG"), arguments.context)
    except CredentialsError as error:
        raise ServerStartError(str(error), "kubectl config get-contexts") from None
    try:
        if arguments.store:
            open_store(arguments.store)
    except StoreError as error:
        raise ServerStartError(str(error), error.next) from None
    names = (
        "kubeconfig",
        "context",
        "namespace",
        "launcher_address",
        "pod",
        "store",
        "image",
        "git_image",
        "node_lost_after",
        "node_rules",
    )
    flags = ((f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in names)
    options = Options(
        credentials=credentials,
        namespace=arguments.namespace,
        listener_address=arguments.launcher_address,
        pod=arguments.pod,
        store=arguments.store,
        image=arguments.image,
        git_image=arguments.git_image or arguments.image,
        node_lost_after_s=LOST_AFTER_S if arguments.node_lost_after is None else arguments.node_lost_after,
        node_rules=arguments.node_rules,
        arguments=tuple(chain.from_iterable((flag, str(value)) for flag, value in flags if value is not None)),
    )
    run_server(home, lambda lock: Controller(home, arguments.listen, lock, options), arguments.lock_fd)


def _credentials(files: str | None, context: str | None) -> Credentials:
    if not files and context is None and not DEFAULT_KUBECONFIG.expanduser().exists():
        return Credentials.in_cluster()
    return Credentials.from_kubeconfig(
        [Path(file) for file in (files or str(DEFAULT_KUBECONFIG)).split(":") if file], context
    )
