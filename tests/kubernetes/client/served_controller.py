"""A cluster with a controller for queries: the fake API server, and the real loop, service and REST interface.

Queries go through the API server's proxy, as on a real cluster; the API server's part in tokens and reviews is played
here: a token names its user. `tests/kubernetes/client/test_query_permissions.py` uses real ones.
"""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ganger.controller.durable.store import DirectoryStore, StoreError
from ganger.controller.durable.stored_code import StoredCode
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.object_service import ObjectService, ServedStore
from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.controller.token_review import identity_of
from ganger.gang_jobs.controller_tokens import (
    CALLER_HEADER,
    DRY_RUN_PARAMETER,
)
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.rest.app import make_app
from ganger.rest.proxy_identity import CallerIdentity, ProxyIdentity
from ganger.settings import Home
from tests.in_process import ganger_in_process
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER, Controlled, controller
from tests.kubernetes.jobs.test_gang_jobs import NO_CODE
from tests.kubernetes.policy.test_policy_objects import definition
from tests.rest.asgi import request as asked_of
from tools.controlled import GANGER
from tools.fakeapi import FakeApi
from tools.fakeapi.errors import StatusError
from tools.fakeapi.server.http import Request
from tools.fakeapi.server.websocket import send_messages
from tools.testcluster.waiting import until

T = TypeVar("T")
Answer = tuple[int, bytes]
Ran = subprocess.CompletedProcess[str]

PROXY = "/api/v1/namespaces/{space}/services/https:ganger:rest/proxy/api/v1"
NODES = 2


class ServedController:
    """`users`: users who may query the controller, and their rights to GangJobs.

    A right is a verb: list, in all namespaces; administer, in that of their contexts. `guards_exec`: a command in a pod
    needs the rights "get exec" and "create exec".
    """

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, api: FakeApi, space: str) -> None:
        self.folder, self.api, self.space, self._loop = folder, api, space, loop
        self.users: dict[str, tuple[str, ...]] = {}
        self.controlled: Controlled
        self.code: StoredCode
        self.store_errors: list[StoreError] = []
        self.logs: dict[str, str] = {}
        """Output of containers by pod."""
        self.controller_is_away = self.guards_exec = False

    def ganger(self, *arguments: str, caller: str = "ada", stdin: str = "", **variables: str) -> Ran:
        """Run `ganger --context WHO WORDS...` in the namespace `default`."""
        command = ("--context", "fakeapi", *arguments)
        return ganger_in_process(command, self._environment(caller) | variables, self.folder, stdin)

    def ganger_process(self, *arguments: str, caller: str = "ada", stdin: str = "", **variables: str) -> Ran:
        """Run the same in a process of its own."""
        about: dict[str, Any] = {"env": self._environment(caller) | variables, "cwd": self.folder, "input": stdin}
        command = [str(GANGER), "--context", "fakeapi", *arguments]
        return subprocess.run(command, **about, timeout=120, text=True, capture_output=True, check=False)

    def _environment(self, caller: str) -> dict[str, str]:
        return {"KUBECONFIG": str(self.folder / caller), "PATH": "/usr/bin:/bin", "HOME": str(self.folder)}

    def does(self, make: Callable[[], T]) -> T:
        """Run something on the event loop of the API server and the controller."""

        async def created() -> T:
            return make()

        return self.awaits(created())

    def awaits(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def status(self, name: str) -> Any:
        """Return the status of a GangJob."""
        return self.does(lambda: (self.api.get("gangjobs", name) or {}).get("status", {}))

    def names(self, plural: str = "gangjobs") -> list[str]:
        return self.does(lambda: [item["metadata"]["name"] for item in self.api.objects(plural)])

    def wait(self, name: str, *phases: str) -> Any:
        until(lambda: self.status(name).get("phase") in phases, f"{name} to be {phases}, not {self.status(name)}")
        return self.status(name)

    def pod_folder(self, pod: str) -> Path:
        """Return the directory that stands for `/ganger` in a pod."""
        return self.folder / "pods" / pod

    def run_in_pod(self, request: Request) -> list[bytes]:
        """Run the command of an exec request, and return the messages of its WebSocket."""
        folder = str(self.pod_folder(request.path.split("/")[-2]))
        argv = [value.replace("/ganger", folder) for name, value in request.parameters if name == "command"]
        ran = subprocess.run([sys.executable, *argv[1:]], capture_output=True, check=False)
        status = {"status": "Failure", "message": f"command terminated with exit code {ran.returncode}"}
        result = status if ran.returncode else {"status": "Success"}
        return [b"\1", b"\1" + ran.stdout, b"\2" + ran.stderr, b"\3" + json.dumps(result).encode()]

    def let_in(self, name: str, *rights: str, asks: bool = True) -> None:
        """Write a kubeconfig of a user."""

        def give() -> None:
            self.api.add_user(name)
            self.api.kubeconfig(self.folder / name, name)

        self.does(give)
        if asks:
            self.users[name] = rights


@contextmanager
def served(folder: Path, space: str = "ganger-system", *, has_store: bool = False) -> Iterator[ServedController]:
    """Run a cluster with ada, who may query the controller; it has a durable store, if wanted, in `store`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    open_ = AsyncExitStack()
    try:
        served_system = asyncio.run_coroutine_threadsafe(
            open_.enter_async_context(_running(folder, space, has_store=has_store)), loop
        ).result(60)
        served_system.let_in("ada")
        yield served_system
    finally:
        asyncio.run_coroutine_threadsafe(open_.aclose(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@asynccontextmanager
async def _running(folder: Path, space: str, *, has_store: bool) -> AsyncIterator[ServedController]:
    async with FakeApi(kubelet=True) as api:
        for index in range(NODES):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
        for created in (CRD, definition("queues", "Queue"), definition("schedulingpolicies", "SchedulingPolicy")):
            api.put(created)
        access = credentials_of(api)
        served_system = ServedController(folder, asyncio.get_running_loop(), api, space)
        async with ApiClient(access, PROGRAM) as own:
            policies = PolicyReconciler(own, lambda: True)
            following = asyncio.create_task(policies.run())
            async with controller(access, folder, policies) as system:
                served_system.controlled = system
                to_be = JobBuilder(
                    system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster
                )
                jobs = GangJobReconciler(to_be, system.backend.status_writer.update, [], NO_CODE, system.observed)
                system.backend.watch_jobs(jobs.changed)
                heeding = asyncio.create_task(policies.reconcile(system.loop, lambda _: jobs.retry_refused()))
                home = Home(folder / "home")
                store = DirectoryStore(folder / "store") if has_store else None
                served_system.code = StoredCode(home.code, store, system.backend.job, served_system.store_errors.append)
                service = ObjectService(
                    system.loop, system.log, system.backend, home, ServedStore(served_system.code, tuple)
                )
                _answer(served_system, service)
                try:
                    yield served_system
                finally:
                    for task in (heeding, following):
                        task.cancel()
                    results = await asyncio.gather(heeding, following, return_exceptions=True)
                    for error in results:
                        if isinstance(error, Exception):
                            raise error


def _answer(served_system: ServedController, service: ObjectService) -> None:
    """Have the API server answer paths without objects."""
    app = make_app(service, lambda _: None)

    async def identify(token: str) -> CallerIdentity | None:
        return identity_of(json.loads(token))

    async def without_token(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(f"without a token: {scope['path']}")

    proxied = ProxyIdentity(
        app, without_token, identify, service.owner_of, header=CALLER_HEADER, dry_run_parameter=DRY_RUN_PARAMETER
    )
    proxy = PROXY.format(space=served_system.space)

    async def caller(_: Request, user: str) -> Answer:
        return 201, json.dumps({"status": {"userInfo": {"username": user}}}).encode()

    async def may(request: Request, user: str) -> Answer:
        review = json.loads(request.body)["spec"]["resourceAttributes"]
        rights = served_system.users.get(user, ())
        allowed = review["resource"] != "gangjobs" or review["verb"] in ("create", *rights)
        if review["resource"] == "pods":
            allowed = f"{review['verb']} {review['subresource']}" in rights or not served_system.guards_exec
        return 201, json.dumps({"status": {"allowed": allowed}}).encode()

    async def token(request: Request, user: str) -> Answer:
        if user not in served_system.users:
            raise StatusError(403, f'serviceaccounts "ganger-caller" is forbidden: User "{user}" cannot create')
        audiences = json.loads(request.body)["spec"]["audiences"]
        return 201, json.dumps({"status": {"token": json.dumps(audiences)}}).encode()

    async def through(request: Request, _: str) -> Answer:
        if served_system.controller_is_away:
            raise StatusError(503, "no endpoints available for service")
        query = "&".join(f"{name}={value}" for name, value in request.query.items())
        target = request.path.removeprefix(proxy) + (f"?{query}" if query else "")
        headers = {CALLER_HEADER: request.headers[CALLER_HEADER]}
        response = await asked_of(proxied, request.method, target, request.body or None, headers)  # type: ignore[arg-type]
        return response.status, response.body

    async def log(request: Request, _: str) -> Answer:
        return 200, served_system.logs.get(request.path.split("/")[-2], "").encode()

    async def run_command(request: Request, _: str) -> None:
        send_messages(request, await asyncio.to_thread(served_system.run_in_pod, request))

    account = f"/api/v1/namespaces/{served_system.space}/serviceaccounts/ganger-caller/token"
    served_system.api.server.handlers |= {
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"): caller,
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"): may,
        ("POST", account): token,
        ("GET", r"/api/v1/namespaces/[^/]+/pods/[^/]+/log"): log,
        ("GET", r"/api/v1/namespaces/[^/]+/pods/[^/]+/exec"): run_command,
        **{(method, f"{proxy}/.*"): through for method in ("GET", "POST", "PUT", "PATCH", "DELETE")},
    }
