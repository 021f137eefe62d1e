"""Assembly of the controller: the loop over a backend of pods, and a log backed by the cluster's objects.

The controller waits for the lease, lists everything once, restores the state from the GangJobs, and continues from
there. When it loses the lease it exits; its supervisor starts it again to wait again.
"""

import argparse
import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S
from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint, PodBootstrap
from ganger.controller.jobs.claim_restrictions import ClaimRestrictions
from ganger.controller.jobs.code_archives import CodeArchives
from ganger.controller.jobs.ended_jobs import load_ended
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.git_pods import GitPods
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.jobs.job_code import JobCode
from ganger.controller.jobs.job_events import JobEvents
from ganger.controller.listener_certificate import launcher_endpoint
from ganger.controller.object_log import ObjectLog, ObjectSink
from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.controller.policy.queue_status import QueueStatusReporter, ReportTrigger
from ganger.controller.restore import restore
from ganger.controller.token_review import MetricsGate, TokenReviewer
from ganger.core.state.state import Image
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.service import Service, Submission
from ganger.engine.submit.build import check_text, read_spec
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
from ganger.kubeapi.lease import CLIENT_RETRY_FOR_S, LeaderLease, LeaseLostError
from ganger.kubeapi.objects import Key
from ganger.kubeapi.resources import CONFIG_MAPS
from ganger.launcher.build_archive import build
from ganger.launcher_server.listener import server_context
from ganger.model.policy import PolicyDocument
from ganger.model.views.service_views import DryRun
from ganger.rest.proxy_identity import ProxyIdentity
from ganger.rest.token_gate import TokenGate
from ganger.server.assembly import Gate, Server, World, run_server
from ganger.server.state_directory import ServerStartError
from ganger.server.tls_certificate import CertificateFiles
from ganger.settings import Home
from ganger.spec.submission_checks import new_id

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
        git_image: image of the pods that fetch code.
        node_lost_after_s: how long to wait for a silent node.
        arguments: the same as command line arguments, for a restart.
    """

    credentials: Credentials
    namespace: str
    listener_address: str
    image: str
    git_image: str
    node_lost_after_s: float
    arguments: tuple[str, ...]


class Controller(Server):
    """One run of a controller."""

    REFUSES_UNTIL_TOKEN = True

    def __init__(self, home: Home, listen: str | None, lock: int, options: Options) -> None:
        super().__init__(home, listen, lock)
        self._options = options

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[World]:
        """Lead, restore the state from the objects, and continue from there. What is entered last ends first."""
        observed = dict[str, int]()
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            api = await enter(ApiClient(self._options.credentials, PROGRAM))
            may_act = await enter(self._leading())
            backend = await enter(self._backend(api, may_act))
            policies, events = PolicyReconciler(api, may_act), JobEvents(api, backend.job, may_act)
            await enter(_running(policies.run(), events.run()))
            await backend.wait_synced()
            restored = restore(backend, await policies.policy_in_force(), policies.usage())
            log = await enter(self._object_log(backend, restored.image, observed, policies.trigger, events))
            loop = await enter(self._core(log, backend, restored.image.at_ms))
            archives = CodeArchives(api, self._options.namespace, backend, may_act)
            archives.restore(_code_of(restored.image), {key_of(name).namespace for name in restored.unreadable})
            builder = JobBuilder(loop, log.state_of, backend.restrict_by_volumes)
            code = JobCode((await self._git_pods(api, backend)).fetch, archives.put)
            jobs = GangJobReconciler(builder, backend.status_writer.update, restored.image.gangs, code, observed)
            backend.watch_jobs(archives.job_changed, jobs.changed)
            await enter(_running(ClaimRestrictions(loop, backend, jobs.retry_rejected).run(), archives.run()))
            await enter(_running(policies.reconcile(loop, _policy_changed(backend, jobs))))
            has_unwritten = backend.status_writer.has_unwritten
            await enter(_reporting(QueueStatusReporter(loop, policies, restored.usage, has_unwritten)))
            service = ObjectService(loop, log, backend, self._home)
            yield World(loop, backend, service, self._gate(service, TokenReviewer(api, self._options.namespace)))

    @asynccontextmanager
    async def _backend(self, api: ApiClient, may_act: Callable[[], bool]) -> AsyncIterator[KubernetesBackend]:
        """Run a backend whose launcher listener is open. Raises OSError if it cannot listen there."""
        options, home = self._options, self._home.path
        host, _, port = options.listener_address.rpartition(":")
        endpoint, files = self._endpoint()
        bootstrap = PodBootstrap(api, build(home, packed=True), endpoint, options.image)
        backend = KubernetesBackend(api, bootstrap, launch_plans, may_act, options.node_lost_after_s)
        await backend.listener.open(host, int(port), server_context(*files))
        await self._publish_address(api)
        try:
            async with _running(backend.run()):
                yield backend
        finally:
            backend.close()

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

        def write_status(name: str, status: dict[str, Any], *, soon: bool) -> None:
            event_loop.call_soon_threadsafe(partial(backend.write_status, name, status, soon=soon))

        sink = ObjectSink(write_status, observed, trigger.on_written, events.record)
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

    def _gate(self, service: ObjectService, reviewer: TokenReviewer) -> Gate:
        """Return the gate for callers who come through the API server, and for those with a token of this server."""

        def gate(app: ASGIApp) -> ASGIApp:
            with_tokens = MetricsGate(app, TokenGate(app, service), reviewer)
            parameters = {"header": CALLER_HEADER, "dry_run_parameter": DRY_RUN_PARAMETER}
            return ProxyIdentity(app, with_tokens, reviewer.identify, service.owner_of, **parameters)

        return gate

    def _certificate(self, host: str) -> CertificateFiles:
        """Return the launcher listener's certificate: users come through the API server, which does not verify it."""
        return CertificateFiles(*self._endpoint()[1])

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[Callable[[], bool]]:
        """Hold the leader lease for the duration of the context; exit the process when it is lost.

        Yields a function that returns whether it is held, which is asked before everything that is written.
        """
        options = self._options
        async with ApiClient(options.credentials, PROGRAM, retry_for_s=CLIENT_RETRY_FOR_S) as api:
            lease = LeaderLease(api, options.namespace, LEASE, f"{socket.gethostname()}-{os.getpid()}")
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
                yield lambda: lease.is_leading

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


@asynccontextmanager
async def _running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines for the duration of the context."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def control(home: Home, arguments: argparse.Namespace) -> None:
    """Run a controller until a signal stops it. Raises ServerStartError if it cannot start."""
    try:
        credentials = _credentials(arguments.kubeconfig or os.environ.get("KUBECONFIG"), arguments.context)
    except CredentialsError as error:
        raise ServerStartError(str(error), "kubectl config get-contexts") from None
    names = ("kubeconfig", "context", "namespace", "launcher_address", "image", "git_image", "node_lost_after")
    flags = ((f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in names)
    options = Options(
        credentials=credentials,
        namespace=arguments.namespace,
        listener_address=arguments.launcher_address,
        image=arguments.image,
        git_image=arguments.git_image or arguments.image,
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
