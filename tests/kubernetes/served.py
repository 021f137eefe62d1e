"""A cluster with a controller for queries: the fake API server, and the real loop, service and REST interface.

Queries go through the API server's proxy, as on a real cluster; the API server's part in tokens and reviews is played
here: a token names its user. `tests/kubernetes/test_questions.py` uses real ones.
"""

import asyncio
import json
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bench.binding import CRD, OFFER, Controlled, controller
from ganger.backends.kubernetes.controller_tokens import (
    ALL_JOBS_AUDIENCE,
    CALLER_HEADER,
    DRY_RUN_PARAMETER,
    USER_PREFIX,
)
from ganger.backends.kubernetes.custom_resources import PROGRAM
from ganger.controller.assembly import ObjectService
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.jobs.job_code import JobCode
from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.rest.app import make_app
from ganger.rest.proxy_identity import CallerIdentity, ProxyIdentity
from ganger.settings import Home
from tests.kubernetes.test_policy_objects import definition
from tests.rest.asgi import request as asked_of
from tools.controlled import GANGER
from tools.fakeapi import FakeApi
from tools.fakeapi.refusals import Refusal
from tools.fakeapi.wire import Request
from tools.testcluster.waiting import until

T = TypeVar("T")
Answer = tuple[int, bytes]
Ran = subprocess.CompletedProcess[str]

PROXY = "/api/v1/namespaces/{space}/services/https:ganger:rest/proxy/api/v1"
NODES = 2


class Served:
    """`people`: users who may query the controller, and whether they may list the jobs of all namespaces."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, api: FakeApi, space: str) -> None:
        self.folder, self.api, self.space, self._loop = folder, api, space, loop
        self.people: dict[str, bool] = {}
        self.its: Controlled
        self.logs: dict[str, str] = {}
        """Output of containers by pod."""
        self.controller_is_away = False

    def ganger(self, *words: str, who: str = "ada", given: str = "", **variables: str) -> Ran:
        """Run `ganger --context WHO WORDS...` in the namespace `default`."""
        environment = {"KUBECONFIG": str(self.folder / who), "PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        about: dict[str, Any] = {"env": environment | variables, "cwd": self.folder, "timeout": 120, "input": given}
        command = [str(GANGER), "--context", "fakeapi", *words]
        return subprocess.run(command, **about, text=True, capture_output=True, check=False)

    def does(self, make: Callable[[], T]) -> T:
        """Run something on the event loop of the API server and the controller."""

        async def made() -> T:
            return make()

        return self.awaits(made())

    def awaits(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def status(self, name: str) -> Any:
        """Return the status of a GangJob."""
        return self.does(lambda: (self.api.get("gangjobs", name) or {}).get("status", {}))

    def names(self, plural: str = "gangjobs") -> list[str]:
        return self.does(lambda: [each["metadata"]["name"] for each in self.api.objects(plural)])

    def wait(self, name: str, *phases: str) -> Any:
        until(lambda: self.status(name).get("phase") in phases, f"{name} to be {phases}, not {self.status(name)}")
        return self.status(name)

    def let_in(self, name: str, *, asks: bool = True, sees_all: bool = False) -> None:
        """Write a kubeconfig of a user."""

        def give() -> None:
            self.api.user(name)
            self.api.kubeconfig(self.folder / name, name)

        self.does(give)
        if asks:
            self.people[name] = sees_all


@contextmanager
def served(folder: Path, space: str = "ganger-system") -> Iterator[Served]:
    """Run a cluster with ada, who may query the controller."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    open_ = AsyncExitStack()
    try:
        found = asyncio.run_coroutine_threadsafe(open_.enter_async_context(_running(folder, space)), loop).result(60)
        found.let_in("ada")
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(open_.aclose(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@asynccontextmanager
async def _running(folder: Path, space: str) -> AsyncIterator[Served]:
    async with FakeApi(kubelet=True) as api:
        for at in range(NODES):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{at}"}, "status": OFFER})
        for made in (CRD, definition("queues", "Queue"), definition("schedulingpolicies", "SchedulingPolicy")):
            api.put(made)
        access = Credentials.from_kubeconfig([api.kubeconfig(folder / "config")])
        found = Served(folder, asyncio.get_running_loop(), api, space)
        async with ApiClient(access, PROGRAM) as own:
            policies = PolicyReconciler(own, lambda: True)
            following = asyncio.create_task(policies.run())
            async with controller(access, folder, policies) as its:
                found.its = its
                to_be = JobBuilder(its.loop, its.log.state_of)
                jobs = GangJobReconciler(
                    to_be, its.backend.status_writer.update, [], JobCode(Home(folder / "code"), _no_code)
                )
                its.log.observed = jobs.observed
                its.backend.watch_jobs(jobs.changed)
                heeding = asyncio.create_task(policies.reconcile(its.loop, lambda _: jobs.retry_refused()))
                _answer(found, ObjectService(its.loop, its.log, its.backend, Home(folder / "home")))
                try:
                    yield found
                finally:
                    for task in (heeding, following):
                        task.cancel()
                    done = await asyncio.gather(heeding, following, return_exceptions=True)
                    for error in done:
                        if isinstance(error, Exception):
                            raise error


def _no_code(namespace: str, digest: str, _: bytes) -> None:
    raise AssertionError(f"code {digest} in {namespace}")


def _answer(found: Served, service: ObjectService) -> None:
    """Have the API server answer paths without objects."""
    app = make_app(service, lambda _: None)

    async def identify(token: str) -> CallerIdentity | None:
        audiences = json.loads(token)
        [name] = [each.removeprefix(USER_PREFIX) for each in audiences if each.startswith(USER_PREFIX)]
        return CallerIdentity(name, sees_all=ALL_JOBS_AUDIENCE in audiences)

    async def nobody(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(f"without a token: {scope['path']}")

    visitors = ProxyIdentity(
        app, nobody, identify, service.owner_of, header=CALLER_HEADER, dry_run_parameter=DRY_RUN_PARAMETER
    )
    proxy = PROXY.format(space=found.space)

    async def who(_: Request, user: str) -> Answer:
        return 201, json.dumps({"status": {"userInfo": {"username": user}}}).encode()

    async def may(request: Request, user: str) -> Answer:
        asked = json.loads(request.body)["spec"]["resourceAttributes"]
        allowed = found.people.get(user, False) if asked["resource"] == "gangjobs" else True
        return 201, json.dumps({"status": {"allowed": allowed}}).encode()

    async def token(request: Request, user: str) -> Answer:
        if user not in found.people:
            raise Refusal(403, f'serviceaccounts "ganger-asker" is forbidden: User "{user}" cannot create')
        audiences = json.loads(request.body)["spec"]["audiences"]
        return 201, json.dumps({"status": {"token": json.dumps(audiences)}}).encode()

    async def through(request: Request, _: str) -> Answer:
        if found.controller_is_away:
            raise Refusal(503, "no endpoints available for service")
        query = "&".join(f"{name}={value}" for name, value in request.query.items())
        target = request.path.removeprefix(proxy) + (f"?{query}" if query else "")
        headers = {CALLER_HEADER: request.headers[CALLER_HEADER]}
        told = await asked_of(visitors, request.method, target, request.body or None, headers)  # type: ignore[arg-type]
        return told.status, told.body

    async def log(request: Request, _: str) -> Answer:
        return 200, found.logs.get(request.path.split("/")[-2], "").encode()

    account = f"/api/v1/namespaces/{found.space}/serviceaccounts/ganger-asker/token"
    found.api.server.beside |= {
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"): who,
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"): may,
        ("POST", account): token,
        ("GET", r"/api/v1/namespaces/[^/]+/pods/[^/]+/log"): log,
        **{(method, f"{proxy}/.*"): through for method in ("GET", "POST", "PUT", "PATCH", "DELETE")},
    }
