"""The server of a Kubernetes cluster: the one loop, over a backend that makes pods, and a log whose truth are objects.

Called by `python -m ganger.controller`. It waits for the lease, looks at everything once, puts the state
together from what the GangJobs say of themselves, and goes on from there. When it loses the lease it ends: whoever
starts it again lets it wait anew.
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
from ganger.backends.kubernetes.controller_tokens import HEADER, TRIAL
from ganger.backends.kubernetes.custom_resources import PROGRAM
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S
from ganger.backends.kubernetes.object_names import id_of, key_of
from ganger.backends.kubernetes.pod_bootstrap import Entry, PodBootstrap
from ganger.controller.jobs.code_archives import Archives
from ganger.controller.jobs.ended_jobs import finished
from ganger.controller.jobs.gang_job_reconciler import OVER, GangJobs
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.jobs.job_code import JobCode
from ganger.controller.listener_certificate import entry
from ganger.controller.object_log import ObjectLog
from ganger.controller.policy.policy_reconciler import PolicyObjects
from ganger.controller.policy.queue_status import QueueFigures
from ganger.controller.policy.queue_usage import Usage, runs_known, spent_by_now
from ganger.controller.token_review import Reviewer
from ganger.core.fold.fold import submitted
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import GangStep
from ganger.core.state.state import Image
from ganger.engine.eventlog import job_checkpoint
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.service import Service, Submission
from ganger.engine.submit.build import check_text, new_id, read_spec
from ganger.engine.wall_clock import WallClock
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.credentials import Credentials, Unusable
from ganger.kubeapi.lease import ASKED_WITHIN_S, LeaderLease, LeaseLostError
from ganger.kubeapi.objects import Custom, Key
from ganger.launcher.build_archive import build
from ganger.launcher_server.listener import server_context
from ganger.model.cluster import Cluster, Node, NodeState
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue
from ganger.model.views.service_views import DryRun
from ganger.ports import Backend
from ganger.registry import order
from ganger.rest.proxy_identity import ProxyIdentity
from ganger.server.assembly import END_S, Server, serving
from ganger.server.state_directory import ServerStartError
from ganger.settings import Home

LEASE: Final = "ganger-controller"
DEFAULT: Final = Path("~/.kube/config")
_log = logging.getLogger("ganger")


class ObjectService(Service):
    """The service of a controller, whose jobs are objects.

    The directories and programs of a job are those of its pods, so they are not checked here, and no code is brought.
    """

    def __init__(self, loop: Loop, log: EventLog, backend: Backend, home: Home) -> None:
        """Over a loop that is open, and the log it writes."""
        super().__init__(loop, log, backend, home)
        self._to_be = JobBuilder(loop, log.state_of)

    def owner_of(self, id: str) -> str | None:
        """Return the user of a job; None if there is no such job."""
        found = self._log.job(id)
        return found[0].user if found else None

    def dry_run(self, submission: Submission, asking: str | None = None) -> DryRun:
        """Return what the next cycle would do with a GangJob of that spec in the submission's namespace."""
        check_text(submission)
        spec = read_spec(submission)
        key = Key(submission.namespace, new_id(spec.name, lambda _: False))
        return self._intake.planned(self._to_be.job(key, asking or self._user, spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """access: to the API server; namespace: where the controller's own objects are; door: HOST:PORT that launchers
    connect to; image: of jobs that name none; node_lost_after_s: how long a node of which nothing is heard is waited
    for; told: the same as words of a command line."""

    access: Credentials
    namespace: str
    door: str
    image: str
    node_lost_after_s: float
    told: tuple[str, ...]


class Controller(Server):
    """One life of a controller."""

    REFUSES_UNTIL_TOKEN = True

    def __init__(self, home: Home, listen: str | None, lock: int, options: Options) -> None:
        super().__init__(home, listen, lock)
        self._options = options
        self._reviewer: Reviewer | None = None

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[tuple[EventLog, Loop, Backend]]:
        options, event_loop = self._options, asyncio.get_running_loop()
        async with AsyncExitStack() as open_:
            api = await open_.enter_async_context(Api(options.access, PROGRAM))
            own = await open_.enter_async_context(Api(options.access, PROGRAM, within_s=ASKED_WITHIN_S))
            self._reviewer = Reviewer(api, options.namespace)
            election = await open_.enter_async_context(self._leading(own))
            backend = await self._backend(api, lambda: election.leading)
            open_.callback(backend.close)
            await open_.enter_async_context(_running(backend.run()))
            policies = PolicyObjects(api, lambda: election.leading)
            await open_.enter_async_context(_running(policies.run()))
            await backend.listed()
            policy, used = await policies.kept(), policies.used()
            backend.lay_out(policy.topology)
            taken = backend.take_over()
            image, unread = image_of(backend.jobs, backend.cluster, policy, used, taken)
            backend.leave_alone(unread)

            def tell(name: str, status: dict[str, Any], *, soon: bool) -> None:
                event_loop.call_soon_threadsafe(partial(backend.tell, name, status, soon=soon))

            log = await asyncio.to_thread(ObjectLog, self._home.database, image, tell, finished(backend.jobs))
            open_.callback(log.close)
            loop = Loop(log, backend, order, WallClock(image.at_ms), __version__)
            loop.open()
            core = threading.Thread(target=self._run_core, args=(loop, event_loop), name="core", daemon=True)
            core.start()
            open_.push_async_callback(asyncio.to_thread, core.join, END_S)
            open_.callback(loop.close)
            archives = Archives(api, options.namespace, backend, lambda: election.leading)
            archives.know(_code_of(image), {key_of(name).namespace for name in unread})
            code = JobCode(self._home, partial(_put_code, archives, event_loop))
            jobs = GangJobs(JobBuilder(loop, log.state_of), backend.statuses.want, image.gangs, code)
            log.observed = jobs.observed

            def heard(before: Custom | None, now: Custom | None) -> None:
                archives.heard(before, now)
                jobs.changed(before, now)

            backend.hear(heard)
            await open_.enter_async_context(_running(archives.run()))

            def in_force(document: PolicyDocument) -> None:
                backend.lay_out(document.topology)
                jobs.again()

            await open_.enter_async_context(_running(policies.follow(loop, in_force)))
            figures = QueueFigures(loop, policies, used, backend.statuses.owes)
            log.told, policies.regrouped = figures.told, figures.look_again
            open_.push_async_callback(figures.end)
            await open_.enter_async_context(_running(figures.run()))
            yield log, loop, backend

    def _service(self, loop: Loop, log: EventLog, backend: Backend) -> Service:
        return ObjectService(loop, log, backend, self._home)

    async def _backend(self, api: Api, may_act: Callable[[], bool]) -> KubernetesBackend:
        """A backend whose door is open. OSError when nobody can listen there."""
        options, home = self._options, self._home.path
        host, _, port = options.door.rpartition(":")
        at_door, files = self._entry()
        gear = PodBootstrap(api, build(home, packed=True), at_door, options.image)
        backend = KubernetesBackend(api, gear, launch_plans, may_act, options.node_lost_after_s)
        await backend.door.open(host, int(port), server_context(*files))
        return backend

    def _entry(self) -> tuple[Entry, tuple[Path, Path]]:
        return entry(self._home.path / "door", self._options.door)

    def _gate(self, app: ASGIApp, service: Service) -> ASGIApp:
        assert self._reviewer is not None  # noqa: S101  # made with the world
        assert isinstance(service, ObjectService)  # noqa: S101  # `_service` made it
        others, identify = super()._gate(app, service), self._reviewer.identify
        return ProxyIdentity(app, others, identify, service.owner_of, header=HEADER, trial=TRIAL)

    def _certificate(self) -> tuple[Path, Path]:
        """That of the door. People come by the API server, which asks for none."""
        return self._entry()[1]

    @asynccontextmanager
    async def _leading(self, api: Api) -> AsyncIterator[LeaderLease]:
        """Inside it we lead; who may not any more ends."""
        election = LeaderLease(api, self._options.namespace, LEASE, f"{socket.gethostname()}-{os.getpid()}")
        leads = asyncio.Event()

        async def hold() -> None:
            leads.set()
            await asyncio.Event().wait()

        async def lead() -> None:
            try:
                await election.lead(hold)
            except LeaseLostError as lost:
                _log.error("%s: this controller ends", lost)
                self._leave(None)

        async with _running(lead()):
            await leads.wait()
            yield election

    def _program(self) -> list[str]:
        return ["ganger.controller", *self._options.told]

    def _lost_files(self) -> None:
        """Objects are the truth: nothing of the state directory is missed."""


def _put_code(archives: Archives, loop: asyncio.AbstractEventLoop, job: Key, digest: str, archive: bytes) -> None:
    """For a thread that brings the code of a job."""
    asyncio.run_coroutine_threadsafe(archives.put(job, digest, archive), loop).result()


def _code_of(image: Image) -> dict[Key, str]:
    """The hash of their code, of live jobs that have any."""
    jobs = chain((gang.job for gang in image.gangs), (array.job for array in image.arrays))
    return {key_of(job.id): job.origin.code_hash for job in jobs if job.origin.code_hash}


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Inside it this is being done."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def image_of(
    found: Iterable[Custom],
    cluster: Cluster,
    policy: PolicyDocument,
    used: Mapping[str, Usage] = MappingProxyType({}),
    taken: Sequence[AdoptedGang] = (),
) -> tuple[Image, frozenset[str]]:
    """The state that GangJobs say they are in, on these nodes and under this policy, with what was used of each queue
    and gangs of others that are `taken` over; and the ids of those that cannot be read."""
    every, seq, unread = list[job_checkpoint.JobCheckpoint](), 0, list[str]()
    for custom in found:
        status: dict[str, Any] = msgspec.json.decode(custom.status) or {}
        seq = max(seq, int(status.get("seq") or 0))
        # A phase may have been written by hand: the record says whether the job lives.
        if (record := status.get("record")) and (status.get("phase") not in OVER or job_checkpoint.is_piece(record)):
            try:
                every.append(job_checkpoint.decode(record, id_of(custom.metadata.key)))
            except ValueError as error:
                unread.append(id_of(custom.metadata.key))
                _log.error("%s: its status.record cannot be read: %s", unread[-1], error)
    for each in taken:  # as if they were submitted now, and had been placed before
        seq += 1
        every.append(job_checkpoint.JobCheckpoint(gangs=(_running_gang(each, seq),)))
    gangs = [gang for piece in every for gang in piece.gangs]
    # The core learns what is gone, or has become smaller, by the first listing, as it would have.
    nodes = _as_they_were(cluster.nodes, gangs)
    # A queue whose object went while nobody looked stays for those who are in it.
    queues = policy.queues | {gang.queue: Queue(name=gang.queue) for gang in gangs if gang.queue not in policy.queues}
    used = {name: each for name, each in used.items() if name in queues}
    at_ms = max((*(gang.since_ms for gang in gangs), *(each.at_ms for each in used.values())), default=0)
    rest = Image(seq=seq, at_ms=at_ms, nodes=nodes, levels=cluster.levels)
    rest = replace(rest, rules=policy.rules, queues=list(queues.values()))
    spent = spent_by_now(used.values(), policy.rules.half_life_ms, queues)
    rest = replace(rest, spent=spent, runs=runs_known(used))
    ready = {node.name: NodeState.READY for node in nodes}
    return job_checkpoint.together(every, replace(rest, node_states=ready)), frozenset(unread)


def _as_they_were(nodes: Sequence[Node], gangs: Iterable[Gang]) -> list[Node]:
    """The nodes, and those that gangs say they have; each with as many GPUs as they say it has."""
    gpus: dict[str, int] = {}
    for share in (share for gang in gangs if gang.start is not None for share in gang.start.shares):
        gpus[share.node] = max(gpus.get(share.node, 0), 1 + max(share.devices, default=-1))
    gone = sorted(gpus.keys() - {node.name for node in nodes})
    every = (*nodes, *(Node(name=name) for name in gone))
    return [replace(node, gpus=gpus[node.name]) if node.gpus < gpus.get(node.name, 0) else node for node in every]


def _running_gang(taken: AdoptedGang, seq: int) -> Gang:
    """A gang that has its nodes; that it runs is said once the backend is open."""
    gang = submitted(taken.job, seq, taken.submitted_ms)
    gang.generation, gang.start, gang.began_ms = taken.start.generation, taken.start, taken.began_ms
    gang.left = list(gang.nodes)
    gang.step(GangStep.PLACED, taken.began_ms)
    return gang


def control(home: Home, arguments: argparse.Namespace) -> None:
    """Control a cluster until told to end. CannotServe says why not."""
    try:
        access = _access(arguments.kubeconfig or os.environ.get("KUBECONFIG"), arguments.context)
    except Unusable as error:
        raise ServerStartError(str(error), "kubectl config get-contexts") from None
    named = ("kubeconfig", "context", "namespace", "door", "image", "node_lost_after")
    words = ((f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in named)
    told = [(name, str(value)) for name, value in words if value is not None]
    options = Options(
        access=access,
        namespace=arguments.namespace,
        door=arguments.door,
        image=arguments.image,
        node_lost_after_s=LOST_AFTER_S if arguments.node_lost_after is None else arguments.node_lost_after,
        told=tuple(word for pair in told for word in pair),
    )
    serving(home, lambda lock: Controller(home, arguments.listen, lock, options), arguments.lock_fd)


def _access(files: str | None, context: str | None) -> Credentials:
    if files is None and context is None and not DEFAULT.expanduser().exists():
        return Credentials.in_cluster()
    return Credentials.of_files([Path(each) for each in (files or str(DEFAULT)).split(":") if each], context)
