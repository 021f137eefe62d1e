"""Two controllers in one process with their API server, kubelets, launchers and users, in virtual time.

The API server is `tools.fakeapi`, over the network of the world; a pod that runs is a launcher. One controller leads,
the other stands by; each is killed at any step and started again.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from pathlib import Path
from typing import Any

from ganger.controller.jobs.conditions import OVER
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.standby import Candidacy
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import GANG_JOBS, PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.lease import CLIENT_RETRY_FOR_S, LeaderLease
from ganger.kubeapi.request import ObjectRef
from ganger.launcher_server.connection import Connection
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER, controller
from tests.kubernetes.jobs.test_gang_jobs import NO_CODE
from tests.seeds.launchers import ServerAddress, VirtualLauncher, Work
from tests.seeds.universe import Universe
from tests.seeds.virtual_loop import BEGIN_S, Process
from tools.fakeapi import FakeApi, Fault
from tools.fakeapi.store.store import Change, Table

NODES, GPUS, JOBS = 4, 8, 8
NAMES = ("a", "b")
LISTENER = "launcher listener"
PASSING = (429, 500, 503)
CONTROLLERS = "[ab]"
"""Users of the API server whose requests fail."""


class ControllerWorld:
    """A cluster with two controllers, its users, and its nodes."""

    def __init__(self, universe: Universe, folder: Path) -> None:
        self.universe, self._folder = universe, folder
        self._chance = universe.chance("controller")
        self._pods: dict[str, tuple[VirtualLauncher, Process, str]] = {}
        """Launcher, process and node of each pod that runs, by UID."""
        self._controllers: dict[str, Process] = {}
        self._lives = 0
        self._api: FakeApi
        self._jobs = [f"job{number}" for number in range(JOBS)]
        self._rules: list[Fault] = []
        self._phases: dict[str, str] = {}

    # -- controllers ---------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        process = Process(self.universe.loop, name, lambda: self._died(name))
        self._controllers[name] = process
        if not self.universe.is_healed and self._chance.random() < 0.3:
            process.dies_at = self._chance.randrange(1, 8_000)
        process.run(self._lead(name, process))

    async def _lead(self, name: str, process: Process) -> None:
        """Stand by, lead and act until killed; a controller that loses the lease exits, and one that fails."""
        self._lives += 1
        folder = self._folder / f"{name}-{self._lives}"
        folder.mkdir()
        access = credentials_of(self._api, name)
        try:
            async with AsyncExitStack() as stack:
                own = await stack.enter_async_context(ApiClient(access, PROGRAM, retry_for_s=CLIENT_RETRY_FOR_S))
                lease = LeaderLease(own, "default", "ganger-controller", f"{name}-{self._lives}")
                candidacy = await stack.enter_async_context(Candidacy(lease, process.kill))
                system = await stack.enter_async_context(
                    controller(access, folder, None, lambda: candidacy.may_act, win=candidacy.win)
                )
                self.universe.trace(f"{name} leads")
                with system.loop.view() as state:
                    known = list(state.gangs.values())
                builder = JobBuilder(
                    system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster
                )
                jobs = GangJobReconciler(builder, system.backend.status_writer.update, known, NO_CODE, system.observed)
                system.backend.watch_jobs(jobs.changed, fabrics_changed=jobs.retry_refused)
                listener = system.backend.listener
                self.universe.loop.network.listen(LISTENER, lambda: Connection(listener, listener._token_of))
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 - as a program does, it exits
            self.universe.broken(f"controller {name} failed: {error!r}")
            process.kill()

    def _died(self, name: str) -> None:
        self.universe.trace(f"controller {name} is dead")
        self.universe.struck["controller killed"] += 1
        self.universe.loop.call_later(self._chance.choice((0.0, 0.5, 5.0, 40.0)), self._start, name)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _changed(self, table: Table, change: Change) -> None:
        """Follow what the store writes: pods begin and end, and the laws hold after each change of one."""
        if table.resource.plural == "gangjobs":
            obj = change.new.read()
            phase = "" if change.type == "DELETED" else obj.get("status", {}).get("phase", "")
            name = obj["metadata"]["name"]
            if self._phases.get(name) != phase:
                self._phases[name] = phase
                self.universe.trace(f"{name} is {phase or 'new'}")
        elif table.resource.plural == "pods":
            pod = change.new.read()
            self._follow_pod(pod, is_deleted=change.type == "DELETED")
            self._check_pods()

    def _follow_pod(self, pod: Any, *, is_deleted: bool) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        running, is_ending = self._pods.get(uid), "deletionTimestamp" in pod["metadata"]
        if is_deleted:
            self.universe.trace(f"{name} is gone")
            if running is not None:
                self._kill_pod(uid)
        elif (
            running is None and pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ):
            self.universe.trace(f"{name} runs on {pod['spec']['nodeName']}")
            self._run_pod(pod)
        elif running is not None and is_ending:
            launcher, process, _ = running
            self.universe.loop.call_later(0.01, launcher.terminate, context=process.context)

    def _run_pod(self, pod: Any) -> None:
        annotations, uid = pod["metadata"]["annotations"], pod["metadata"]["uid"]
        gang, node = annotations[object_names.GANG], annotations[object_names.NODE]
        generation = int(pod["metadata"]["labels"][object_names.GENERATION])
        task = self._folder / "pods" / uid
        task.mkdir(parents=True)
        process = Process(self.universe.loop, f"pod {pod['metadata']['name']}")
        server = ServerAddress(self.universe.loop.network, LISTENER, is_remote=True)
        launcher = process.call(VirtualLauncher, self.universe.loop, process, task, server, (gang, node, generation))
        launcher.variables = lambda: {"token": self._token(pod), "address": pod["status"]["podIP"]}
        # The kubelet sees it, and not the process that has ended.
        launcher.on_exit = lambda code: self.universe.loop.call_soon(self._pod_ended, pod, code, context=Context())
        self._pods[uid] = launcher, process, pod["spec"]["nodeName"]
        delay_s = self.universe.ranks.misfortune(gang, generation, f"{node} pod").choice((0.05, 0.5, 3.0))
        self.universe.loop.call_later(delay_s, launcher.begin, context=process.context)

    def _token(self, pod: Any) -> str:
        """Return the launcher's token as its file has it: kubelets follow the Secret."""
        (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "identity"]
        (key,) = [item["key"] for item in volume["secret"]["items"] if item["path"] == "token"]
        secret = self._api.get("secrets", volume["secret"]["secretName"])
        return base64.b64decode((secret or {}).get("data", {}).get(key, "")).decode()

    def _pod_ended(self, pod: Any, code: int) -> None:
        """Write how the containers of a pod ended, unless it is gone."""
        if self._pods.pop(pod["metadata"]["uid"], None) is not None:
            with suppress(KeyError):
                self._api.kubelet.finish(pod["metadata"]["namespace"], pod["metadata"]["name"], code)

    def _kill_pod(self, uid: str) -> None:
        _, process, _ = self._pods.pop(uid)
        process.kill()

    def _check_pods(self) -> None:
        """Check that pods that run have no more GPUs of a node than it has.

        A pod that is created late, by a request that was given up, may be bound beside them: its node rejects it.
        """
        gpus = Counter[str]()
        for pod in self._api.objects("pods"):
            node = pod["spec"].get("nodeName")
            if node and pod["status"].get("phase") == "Running":
                limits = (container["resources"]["limits"] for container in pod["spec"]["containers"])
                gpus[node] += sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)
        for node, count in gpus.items():
            if count > GPUS:
                self.universe.broken(f"{count} GPUs of {node} are bound")

    # -- users ---------------------------------------------------------------------------------------------------------

    async def _user(self, api: ApiClient, name: str) -> None:
        """Submit a job, and change it or not."""
        chance = self._chance
        await asyncio.sleep(chance.uniform(0, 60))
        metadata = {"name": name, "namespace": "default"}
        body = {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": metadata, "spec": self._spec(name)}
        await self._until_done(lambda: api.apply(GANG_JOBS, body))
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 30))
            change: dict[str, Any] = chance.choice(({"stop": True}, {"suspend": True}, {"scale": 1}, {"priority": 200}))
            ref = ObjectRef(GANG_JOBS, "default", name)
            await self._until_done(lambda: api.merge(ref, {"spec": change}))
            if "suspend" in change:
                await asyncio.sleep(chance.uniform(0, 60))
                await self._until_done(lambda: api.merge(ref, {"spec": {"suspend": None}}))

    async def _until_done(self, send: Callable[[], Any]) -> None:
        """Send a request until it is done; it may be repeated."""
        while True:
            with suppress(ApiError):
                await send()
                return
            await asyncio.sleep(1)

    def _spec(self, name: str) -> dict[str, Any]:
        chance = self._chance
        least, most = chance.choice(((1, 1), (1, 1), (2, 2), (3, 3), (1, 3), (2, 4)))
        self.universe.ranks.sizes[f"{name}.default"] = least, most
        return {
            **Work.drawn(chance).spec(),
            "nodes": least if least == most else f"{least}..{most}",
            "nproc_per_node": 1,
            "resources": {"gpu": chance.choice((2, 4, 8))},
            "retry": {"max": chance.choice((1, 3, 10))},
            "priority": chance.choice((0, 0, 100)),
            **({"checkpoint": {"dir": "/ckpt", "grace": "5s"}} if chance.random() < 0.4 else {}),
        }

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    async def _trouble(self) -> None:
        """Strike at random moments until the world is healed."""
        network, chance, struck = self.universe.loop.network, self._chance, self.universe.struck
        strikes = (self._kill_controller, self._fail_requests, self._fail_requests, self._cut_watches, self._compact)
        strikes += (self._kill_launcher, self._delete_pod, self._lose_node, self._cut_off)
        while True:
            await asyncio.sleep(chance.expovariate(1 / 6))
            if chance.random() < 0.3:
                network.loss = chance.choice((0.0, 0.0, 0.005, 0.02))
                network.slowness_s = chance.choice((0.0, 0.3, 3.0))
                continue
            strike = chance.choice(strikes)
            struck[strike.__name__.strip("_")] += 1
            strike()

    def _kill_controller(self) -> None:
        process = self._controllers[self._chance.choice(NAMES)]
        if not process.is_dead:
            process.dies_at = process.steps + self._chance.randrange(1, 500)

    def _inject(self, **rule: Any) -> None:
        self._rules.append(self._api.inject(Fault(**rule)))

    def _fail_requests(self) -> None:
        chance = self._chance
        outcome: dict[str, Any] = chance.choice(
            (
                {"status": chance.choice(PASSING)},
                {"lost": True},
                {"dropped": True},
                {"delay_s": chance.uniform(0.1, 5.0)},
                {"answer_delay_s": chance.uniform(0.1, 5.0)},
            )
        )
        resource = chance.choice(("pods", "pods/binding", "pods*", "gangjobs*", "leases", "*"))
        verb = chance.choice(("create", "patch", "delete", "[!w]*"))
        self._inject(user=CONTROLLERS, resource=resource, verb=verb, times=chance.choice((1, 3, 10)), **outcome)

    def _cut_watches(self) -> None:
        self._api.cut_watches(mid_line=self._chance.random() < 0.5)

    def _compact(self) -> None:
        self._api.compact()
        self._api.cut_watches()

    def _cut_off(self) -> None:
        """Cut one controller off from the API server for a while."""
        how: dict[str, Any] = self._chance.choice(({"dropped": True}, {"resource": "leases", "dropped": True}))
        rule = Fault(user=self._chance.choice(NAMES), times=float("inf"), **how)
        self._rules.append(self._api.inject(rule))
        self.universe.loop.call_later(self._chance.uniform(1, 40), setattr, rule, "times", 0)

    def _kill_launcher(self) -> None:
        if self._pods:
            launcher, process, _ = self._pods[self._chance.choice(sorted(self._pods))]
            process.kill()
            launcher.on_exit(137)

    def _delete_pod(self) -> None:
        if pods := [pod for pod in self._api.objects("pods") if object_names.GANG in pod["metadata"]["annotations"]]:
            pod = self._chance.choice(pods)
            self._api.delete("pods", pod["metadata"]["name"])

    def _lose_node(self) -> None:
        """Lose a node with all that runs on it."""
        node = f"n{self._chance.randrange(NODES)}"
        if self._api.get("nodes", node, "") is None:
            return
        for uid in [uid for uid, (_, _, of) in self._pods.items() if of == node]:
            self._pods[uid][1].kill()
        self._api.delete("nodes", node, "")
        for pod in self._api.objects("pods"):
            if pod["spec"].get("nodeName") == node:
                self._api.delete("pods", pod["metadata"]["name"])
        self.universe.loop.call_later(self._chance.uniform(1, 40), self._add_node, node)

    def _add_node(self, name: str) -> None:
        if self._api.get("nodes", name, "") is None:
            self._api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": OFFER})

    # -- a life --------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Live through the seed's day, heal everything, and check that every job ends."""
        chance = self._chance
        async with FakeApi(kubelet=True, seed=chance.getrandbits(32)) as api:
            self._api = api
            api._started_s = BEGIN_S
            api.kubelet.stop_s, api.kubelet.counts = 0.5, "nvidia.com/gpu"
            api.store.listeners.append(self._changed)
            for number in range(NODES):
                self._add_node(f"n{number}")
            api.put(CRD)
            for user in (*NAMES, "user"):
                api.add_user(user)
            for name in NAMES:
                self._start(name)
            access = credentials_of(api, "user")
            async with ApiClient(access, PROGRAM) as client:
                users = [asyncio.create_task(self._user(client, name)) for name in self._jobs]
                trouble = asyncio.create_task(self._trouble())
                await asyncio.sleep(120)
                trouble.cancel()
                self._heal()
                await asyncio.gather(*users)
            await self._wait_for_ends()
            for process in [*self._controllers.values(), *(process for _, process, _ in self._pods.values())]:
                process.on_death = lambda: None
                process.kill()

    def _heal(self) -> None:
        self.universe.heal()
        for rule in self._rules:
            self.universe.struck["requests failed"] += rule.struck
            rule.times = 0
        for process in self._controllers.values():
            process.dies_at = None
        for number in range(NODES):
            self._add_node(f"n{number}")

    async def _wait_for_ends(self) -> None:
        give_up_s = self.universe.now_s + 3 * 3600
        while True:
            jobs = {job["metadata"]["name"]: job.get("status", {}) for job in self._api.objects("gangjobs")}
            if lost := set(self._jobs) - set(jobs):
                self.universe.broken(f"GangJobs are gone: {sorted(lost)}")
            phases = {name: status.get("phase") for name, status in jobs.items()}
            live = [f"{name} is {phase}" for name, phase in phases.items() if phase not in OVER]
            if not live:
                self.universe.ends.update(phase.lower() for phase in phases.values())
                break
            if self.universe.now_s > give_up_s:
                self.universe.broken(f"never ended: {', '.join(live)}")
                return
            await asyncio.sleep(5)
        await asyncio.sleep(30)
        if left := [name for _, process, name in self._pods.values() if not process.is_dead]:
            self.universe.broken(f"launchers of ended jobs run on {sorted(left)}")
