"""Assembly of the controller: the loop over a backend of pods, and a log backed by the cluster's objects.

The controller waits for the lease, lists everything once, restores the state from the GangJobs, and continues from
there. When it loses the lease it exits; its supervisor starts it again to wait anew.
"""

import argparse
import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp

from ganger import __version__
from ganger.backends.kubernetes.controller_tokens import (
    ADDRESS,
    ADDRESS_CERTIFICATE,
    ADDRESS_URL,
    CALLER_HEADER,
    DRY_RUN_PARAMETER,
)
from ganger.backends.kubernetes.custom_resources import PROGRAM
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S
from ganger.backends.kubernetes.object_names import id_of, key_of
from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint, PodBootstrap
from ganger.controller.jobs.claim_restrictions import ClaimRestrictions
from ganger.controller.jobs.code_archives import CodeArchives
from ganger.controller.jobs.ended_jobs import load_ended
from ganger.controller.jobs.gang_job_reconciler import OVER, GangJobReconciler
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.jobs.job_code import JobCode
from ganger.controller.jobs.job_events import JobEvents
from ganger.controller.listener_certificate import launcher_endpoint
from ganger.controller.object_log import ObjectLog
from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.controller.policy.queue_status import QueueStatusReporter
from ganger.controller.policy.queue_usage import Usage, current_node_time, current_usage, known_run_times
from ganger.controller.token_review import MetricsGate, TokenReviewer
from ganger.core.fold.fold import new_gang
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import GangStep
from ganger.core.state.state import Image
from ganger.engine.eventlog import job_checkpoint
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.service import Service, Submission
from ganger.engine.submit.build import check_text, read_spec
from ganger.engine.submit.submit_order import new_id
from ganger.engine.wall_clock import WallClock
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials, CredentialsError
from ganger.kubeapi.lease import CLIENT_RETRY_FOR_S, LeaderLease, LeaseLostError
from ganger.kubeapi.objects import CustomObject, Key
from ganger.kubeapi.resources import CONFIG_MAPS
from ganger.launcher.build_archive import build
from ganger.launcher_server.listener import server_context
from ganger.model.cluster import Cluster, Node, NodeState
from ganger.model.policy import PolicyDocument, document_of
from ganger.model.queue import Queue
from ganger.model.views.service_views import DryRun
from ganger.ports import Backend
from ganger.registry import order
from ganger.rest.proxy_identity import ProxyIdentity
from ganger.server.assembly import SHUTDOWN_S, Server, run_server
from ganger.server.state_directory import ServerStartError
from ganger.settings import Home

LEASE: Final = "ganger-controller"
DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")
_log = logging.getLogger("ganger")


class ObjectService(Service):
    """Service of a controller, whose jobs are objects.

    Directories and programs of a job are those of its pods, so they are not checked here, and no code is uploaded.
    """

    def __init__(self, loop: Loop, log: EventLog, backend: KubernetesBackend, home: Home) -> None:
        super().__init__(loop, log, backend, home)
        self._job_builder = JobBuilder(loop, log.state_of, backend.restrict_by_volumes)

    def owner_of(self, id: str) -> str | None:
        """Return the user of a job; None if the job does not exist."""
        job = self._log.job(id)
        return job[0].user if job else None

    def dry_run(self, submission: Submission, asking: str | None = None) -> DryRun:
        """Return what the next cycle would do with a GangJob of that spec in the submission's namespace."""
        check_text(submission)
        spec = read_spec(submission)
        key = Key(submission.namespace, new_id(spec.name, lambda _: False))
        user = asking or self._user
        job = self._job_builder.job(key, user, spec, is_administrator=self._is_administrator)
        return self._submit_service.plan(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a controller.

    Attributes:
        credentials: credentials for the API server.
        namespace: namespace of the controller's own objects.
        listener_address: HOST:PORT to which launchers connect.
        image: default image of jobs.
        node_lost_after_s: how long to wait for a silent node.
        arguments: the same as command line arguments, for a restart.
    """

    credentials: Credentials
    namespace: str
    listener_address: str
    image: str
    node_lost_after_s: float
    arguments: tuple[str, ...]


class Controller(Server):
    """One run of a controller."""

    REFUSES_UNTIL_TOKEN = True

    def __init__(self, home: Home, listen: str | None, lock: int, options: Options) -> None:
        super().__init__(home, listen, lock)
        self._options = options
        self._reviewer: TokenReviewer | None = None

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[tuple[EventLog, Loop, Backend]]:
        options, event_loop = self._options, asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(ApiClient(options.credentials, PROGRAM))
            lease_client = ApiClient(options.credentials, PROGRAM, retry_for_s=CLIENT_RETRY_FOR_S)
            await stack.enter_async_context(lease_client)
            self._reviewer = TokenReviewer(api, options.namespace)
            lease = await stack.enter_async_context(self._leading(lease_client))
            backend = await self._backend(api, lambda: lease.is_leading)
            stack.callback(backend.close)
            await stack.enter_async_context(_running(backend.run()))
            await self._publish_address(api)
            policies = PolicyReconciler(api, lambda: lease.is_leading)
            await stack.enter_async_context(_running(policies.run()))
            await backend.wait_synced()
            policy, usage = await policies.policy_in_force(), policies.usage()
            backend.set_policy(policy)
            adopted = backend.adopt_bound_pods()
            image, unreadable = restore_image(backend.jobs, backend.cluster, policy, usage, adopted)
            backend.ignore_jobs(unreadable)

            def write_status(name: str, status: dict[str, Any], *, soon: bool) -> None:
                event_loop.call_soon_threadsafe(partial(backend.write_status, name, status, soon=soon))

            log = await asyncio.to_thread(ObjectLog, self._home.database, image, write_status, load_ended(backend.jobs))
            stack.callback(log.close)
            loop = Loop(log, backend, order, WallClock(image.at_ms), __version__)
            loop.open()
            core = threading.Thread(target=self._run_core, args=(loop, event_loop), name="core", daemon=True)
            core.start()
            stack.push_async_callback(asyncio.to_thread, core.join, SHUTDOWN_S)
            stack.callback(loop.close)
            archives = CodeArchives(api, options.namespace, backend, lambda: lease.is_leading)
            archives.restore(_code_of(image), {key_of(name).namespace for name in unreadable})
            code = JobCode(self._home, partial(_put_code, archives, event_loop))
            builder = JobBuilder(loop, log.state_of, backend.restrict_by_volumes)
            jobs = GangJobReconciler(builder, backend.status_writer.update, image.gangs, code)
            log.observed = jobs.observed

            def job_changed(before: CustomObject | None, after: CustomObject | None) -> None:
                archives.job_changed(before, after)
                jobs.changed(before, after)

            backend.watch_jobs(job_changed)
            restrictions = ClaimRestrictions(loop, backend, jobs.retry_rejected)
            await stack.enter_async_context(_running(restrictions.run()))
            await stack.enter_async_context(_running(archives.run()))

            def policy_changed(document: PolicyDocument) -> None:
                backend.set_policy(document)
                jobs.retry_refused()

            await stack.enter_async_context(_running(policies.reconcile(loop, policy_changed)))
            reporter = QueueStatusReporter(loop, policies, usage, backend.status_writer.has_unwritten)
            job_events = JobEvents(api, backend.job, lambda: lease.is_leading)
            log.on_written, policies.on_regrouped = reporter.on_written, reporter.notify
            log.on_notices = job_events.record
            await stack.enter_async_context(_running(job_events.run()))
            stack.push_async_callback(reporter.end)
            await stack.enter_async_context(_running(reporter.run()))
            yield log, loop, backend

    def _service(self, loop: Loop, log: EventLog, backend: Backend) -> Service:
        assert isinstance(backend, KubernetesBackend)  # noqa: S101  # `_backend` made it
        return ObjectService(loop, log, backend, self._home)

    async def _backend(self, api: ApiClient, may_act: Callable[[], bool]) -> KubernetesBackend:
        """Return a backend whose launcher listener is open. Raises OSError if it cannot listen there."""
        options, home = self._options, self._home.path
        host, _, port = options.listener_address.rpartition(":")
        endpoint, files = self._endpoint()
        bootstrap = PodBootstrap(api, build(home, packed=True), endpoint, options.image)
        backend = KubernetesBackend(api, bootstrap, launch_plans, may_act, options.node_lost_after_s)
        await backend.listener.open(host, int(port), server_context(*files))
        return backend

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

    def _gate(self, app: ASGIApp, service: Service) -> ASGIApp:
        assert self._reviewer is not None  # noqa: S101  # made with the world
        assert isinstance(service, ObjectService)  # noqa: S101  # `_service` made it
        with_tokens = MetricsGate(app, super()._gate(app, service), self._reviewer)
        identify = self._reviewer.identify
        return ProxyIdentity(
            app, with_tokens, identify, service.owner_of, header=CALLER_HEADER, dry_run_parameter=DRY_RUN_PARAMETER
        )

    def _certificate(self) -> tuple[Path, Path]:
        """Return the launcher listener's certificate: users come through the API server, which does not verify it."""
        return self._endpoint()[1]

    @asynccontextmanager
    async def _leading(self, api: ApiClient) -> AsyncIterator[LeaderLease]:
        """Hold the leader lease for the duration of the context; exit the process when it is lost."""
        lease = LeaderLease(api, self._options.namespace, LEASE, f"{socket.gethostname()}-{os.getpid()}")
        is_leading = asyncio.Event()

        async def hold() -> None:
            is_leading.set()
            await asyncio.Event().wait()

        async def lead() -> None:
            try:
                await lease.lead(hold)
            except LeaseLostError as error:
                _log.error("%s: this controller exits", error)
                self._leave(None)

        async with _running(lead()):
            await is_leading.wait()
            yield lease

    def _program(self) -> list[str]:
        return ["ganger.controller", *self._options.arguments]

    def _missing_file(self) -> None:
        """Return None: objects are the source of truth, so nothing of the state directory is missed."""


def _put_code(archives: CodeArchives, loop: asyncio.AbstractEventLoop, job: Key, digest: str, archive: bytes) -> None:
    """Store the code of a job from another thread."""
    asyncio.run_coroutine_threadsafe(archives.put(job, digest, archive), loop).result()


def _code_of(image: Image) -> dict[Key, str]:
    """Return the code hashes of live jobs that have code."""
    jobs = chain((gang.job for gang in image.gangs), (array.job for array in image.arrays))
    return {key_of(job.id): job.origin.code_hash for job in jobs if job.origin.code_hash}


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine for the duration of the context."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def restore_image(
    gang_jobs: Iterable[CustomObject],
    cluster: Cluster,
    policy: PolicyDocument,
    usage: Mapping[str, Usage] = MappingProxyType({}),
    adopted: Sequence[AdoptedGang] = (),
) -> tuple[Image, frozenset[str]]:
    """Return the state that the objects describe, and the ids of GangJobs that cannot be read.

    Args:
        gang_jobs: the GangJobs.
        cluster: the nodes.
        policy: the policy in force.
        usage: recorded usage by queue.
        adopted: running gangs of foreign pods.
    """
    checkpoints, seq, unreadable = list[job_checkpoint.JobCheckpoint](), 0, list[str]()
    for gang_job in gang_jobs:
        status: dict[str, Any] = msgspec.json.decode(gang_job.status) or {}
        seq = max(seq, int(status.get("seq") or 0))
        # A phase may have been written by hand: the record decides whether the job is live.
        if (record := status.get("record")) and (
            status.get("phase") not in OVER or job_checkpoint.is_checkpoint(record)
        ):
            try:
                checkpoints.append(job_checkpoint.decode(record, id_of(gang_job.metadata.key)))
            except ValueError as error:
                unreadable.append(id_of(gang_job.metadata.key))
                _log.error("%s: its status.record cannot be read: %s", unreadable[-1], error)
    for gang in adopted:  # as if submitted now, and placed before
        seq += 1
        checkpoints.append(job_checkpoint.JobCheckpoint(gangs=(_running_gang(gang, seq),)))
    gangs = [gang for checkpoint in checkpoints for gang in checkpoint.gangs]
    # The core learns from the first listing what is gone or has become smaller.
    nodes = _nodes_of_gangs(cluster.nodes, gangs)
    # A queue whose object was deleted while no controller ran stays for its jobs.
    queues = policy.queues | {gang.queue: Queue(name=gang.queue) for gang in gangs if gang.queue not in policy.queues}
    usage = {name: of_queue for name, of_queue in usage.items() if name in queues}
    at_ms = max((*(gang.since_ms for gang in gangs), *(of_queue.at_ms for of_queue in usage.values())), default=0)
    image = Image(
        seq=seq,
        at_ms=at_ms,
        nodes=nodes,
        levels=cluster.levels,
        document=document_of(policy, queues),
        usage=current_usage(usage.values(), policy.half_life_ms, queues),
        node_time=current_node_time(usage.values(), queues),
        run_times=known_run_times(usage),
        node_states={node.name: NodeState.READY for node in nodes},
    )
    return job_checkpoint.join_checkpoints(checkpoints, image), frozenset(unreadable)


def _nodes_of_gangs(nodes: Sequence[Node], gangs: Iterable[Gang]) -> list[Node]:
    """Return the nodes as the gangs know them: with those that are gone, and at least the GPUs that gangs hold."""
    gpus: dict[str, int] = {}
    for share in (share for gang in gangs if gang.attempt.start is not None for share in gang.attempt.start.shares):
        gpus[share.node] = max(gpus.get(share.node, 0), 1 + max(share.devices, default=-1))
    gone = [Node(name=name) for name in sorted(gpus.keys() - {node.name for node in nodes})]
    all_nodes = (*nodes, *gone)
    return [replace(node, gpus=gpus[node.name]) if node.gpus < gpus.get(node.name, 0) else node for node in all_nodes]


def _running_gang(adopted: AdoptedGang, seq: int) -> Gang:
    """Return a gang that has its nodes; it is reported as started once the backend is open."""
    gang = new_gang(adopted.job, seq, adopted.submitted_ms)
    gang.attempt = gang.attempt.next(adopted.start, adopted.began_ms)
    gang.step(GangStep.PLACED, adopted.began_ms)
    return gang


def control(home: Home, arguments: argparse.Namespace) -> None:
    """Run a controller until a signal stops it. Raises ServerStartError if it cannot start."""
    try:
        credentials = _credentials(arguments.kubeconfig or os.environ.get("KUBECONFIG"), arguments.context)
    except CredentialsError as error:
        raise ServerStartError(str(error), "kubectl config get-contexts") from None
    names = ("kubeconfig", "context", "namespace", "launcher_address", "image", "node_lost_after")
    flags = ((f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in names)
    options = Options(
        credentials=credentials,
        namespace=arguments.namespace,
        listener_address=arguments.launcher_address,
        image=arguments.image,
        node_lost_after_s=LOST_AFTER_S if arguments.node_lost_after is None else arguments.node_lost_after,
        arguments=tuple(chain.from_iterable((flag, str(value)) for flag, value in flags if value is not None)),
    )
    run_server(home, lambda lock: Controller(home, arguments.listen, lock, options), arguments.lock_fd)


def _credentials(files: str | None, context: str | None) -> Credentials:
    if files is None and context is None and not DEFAULT_KUBECONFIG.expanduser().exists():
        return Credentials.in_cluster()
    return Credentials.from_kubeconfig(
        [Path(file) for file in (files or str(DEFAULT_KUBECONFIG)).split(":") if file], context
    )
