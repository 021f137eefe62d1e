"""Carries decisions out in a cluster and tells what became of them: a pod with a launcher for each node of a gang.

Built by `backend`; everything here runs on the event loop, so nothing is locked. What launchers say comes in by the
door; what becomes of pods, of themselves or by somebody's hand, from whoever follows the API server. A launcher that
says nothing any more is not missed before its pod has ended: a broken network alone loses no work.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

from ganger.backends.kubernetes import attempt_pods, object_names
from ganger.backends.kubernetes.attempt_pods import AttemptPods, Unplaceable
from ganger.backends.kubernetes.binding import NotLeadingError, is_over, turned_away
from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.backends.kubernetes.nodes.node_patience import LauncherContact, Launchers
from ganger.backends.kubernetes.pod_bootstrap import PodBootstrap
from ganger.backends.kubernetes.pod_template import SECRETS, WORK
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import pause_s
from ganger.kubeapi.objects import Key, Pod
from ganger.launcher_server import message_events
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import Dispatcher, LauncherWorld, send_stop
from ganger.launcher_server.generation_state import Generation, begun, kill_after_ms
from ganger.launcher_server.listener import LauncherListener
from ganger.launcher_server.remote_records import RemoteRecords
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Start, Stop
from ganger.model.event import Cleared, Event, Failed, Finished
from ganger.model.job import Job
from ganger.ports import Compose, LaunchPlan, LiveGeneration, Report

WEDGED_AFTER_S: Final = 10.0
"""How much longer than its ranks a launcher that was told to stop may take before its pod is deleted."""
STALE_AFTER_S: Final = 30.0
"""How long the pods of a generation that is over may take to end by themselves."""
TURNED_AWAY_FOR_S: Final = 60.0
"""How long a node may turn away what should fit: what ran there before may take its grace to end."""
ASK_AGAIN_AFTER_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 10.0
"""Before launchers are told again where we are."""

_log = logging.getLogger(__name__)


class GangRuntime:
    """The gangs in a cluster. Listens to their launchers. `seen` is kept up to date by somebody else; `gear` knows what
    launchers show."""

    def __init__(
        self,
        placing: AttemptPods,
        gear: PodBootstrap,
        seen: ClusterCache,
        compose: Compose,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._placing, self._gear, self._seen, self._compose, self._loop = placing, gear, seen, compose, loop
        self.door = LauncherListener(self, lambda gang, _: gear.token(gang))
        self._told = RemoteRecords(self.door.connection, loop)
        self._contact = LauncherContact()
        self._generations: dict[str, Generation] = {}
        self._addresses: dict[tuple[str, int], dict[str, str]] = {}
        self._begun: dict[tuple[str, int], list[str]] = {}
        self._newest: dict[str, dict[str, Any]] = {}
        self._placing_now: dict[tuple[str, int], list[tuple[str, Pod]]] = {}
        """Generations that are being placed, with the pods of theirs that ended meanwhile."""
        self._placed: dict[tuple[str, int], dict[str, str]] = {}
        """Uids of the pods that generations were placed as, by node: what else had such a name was before them."""
        self._turned_away_s: dict[tuple[str, int], float] = {}
        """When a pod of a generation was first turned away by its node."""
        self._hearing: Dispatcher
        self._work: set[asyncio.Task[None]] = set()
        self._is_open = False

    # -- what the core decides ----------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """Find again what runs, finish what was only decided, and end what nobody wants any more."""
        self._generations = {one.job.id: begun(one.start, one.job, one.stopping) for one in live}
        world = LauncherWorld(self._generations.get, self.door.connection, self._address, self._told)
        self._hearing = Dispatcher(world, report, self._loop)
        self._is_open = True
        there: dict[tuple[str, int], dict[str, Pod]] = {}
        for pod in self._seen.pods.values():
            if (mark := object_names.mark(pod)) is not None:
                there.setdefault((mark.gang, mark.generation), {})[mark.node] = pod
        for gone in {pod.spec.node_name for pods in there.values() for pod in pods.values()} - self._seen.nodes.keys():
            if gone:
                self.lose(gone)
        for one in live:
            self._resume(self._generations[one.job.id], there.pop((one.job.id, one.start.generation), {}), one.lost)
        for pod in [pod for stale in there.values() for pod in stale.values()]:
            self._end_stale(pod.metadata.key)

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation; the one before it is over by the log."""
        if before := self._generations.get(start.gang):
            self._let_go(before)
            for node in before.start.nodes:
                self._loop.call_later(STALE_AFTER_S, self._end_stale, self._pod_key(before, node))
        generation = self._generations[start.gang] = begun(start, job)
        self._know(generation)
        self._do(self._begin(generation))

    def stop(self, stop: Stop) -> None:
        """Stop what is left of a generation."""
        generation = self._generations.get(stop.gang)
        if generation is not None and generation.number == stop.generation:
            generation.stopping = stop
            self._end(generation, stop)

    def forget(self, gang: str) -> None:
        """The gang has ended: its launchers may go."""
        generation = self._generations.pop(gang, None)
        if generation is not None:
            self._let_go(generation)
        for connection in self.door.of_gang(gang).values():
            connection.send("leave")
        self._told.forget(gang)
        self._newest.pop(gang, None)

    def lose(self, node: str) -> None:
        """A node is gone, with all that ran on it; the core has been told. Nobody is there to end its pods, which would
        be shown for long. Where only its kubelet is gone, what it started runs on: a launcher that hears us ends it."""
        for generation in self._generations.values():
            if node in generation.left:
                if (connection := self.door.connection(generation.gang, node)) is not None:
                    stale = Stop(gang=generation.gang, generation=generation.number, cause=Cause.NODE_LOST)
                    send_stop(connection, stale)
                generation.failed.append(node)
                generation.clear(node)
        for pod in self._seen.pods.values():
            if pod.spec.node_name == node and object_names.mark(pod) is not None:
                self._do(self._end_pod(pod, at_once=True))

    def launchers(self) -> dict[str, Launchers]:
        """Return what the launchers of each node say of it by being connected or not."""
        return self._contact.by_node(self._generations.values(), self.door.connection)

    def progress(self, job: str) -> dict[str, Any] | None:
        """The newest report of rank 0."""
        return self._newest.get(job)

    @property
    def told(self) -> RemoteRecords:
        """What launchers said, and a way to read their files."""
        return self._told

    def close(self) -> None:
        """Let go of everything; pods, launchers and ranks run on."""
        self._is_open = False
        self._hearing.close()
        for generation in self._generations.values():
            generation.forget_deadline()
        for task in self._work:
            task.cancel()
        self._gear.close()
        self.door.close()

    # -- what becomes of pods -----------------------------------------------------------------------------------------

    def pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        """A pod came, changed, or is gone."""
        pod = now or before
        mark = object_names.mark(pod) if pod is not None and self._is_open else None
        if pod is None or mark is None:
            return
        generation = self._generations.get(mark.gang)
        if generation is None or generation.number != mark.generation:
            if now is not None and before is None:
                self._end_stale(now.metadata.key)  # made by a request that was under way for long
        elif now is None or is_over(now):
            self._over(generation, mark.node, pod)
        else:
            self._watch_stuck(generation, now)

    def _over(self, generation: Generation, node: str, pod: Pod) -> None:
        """A pod has ended. Its launcher may still be heard: what it says comes first."""
        meanwhile = self._placing_now.get((generation.gang, generation.number))
        if meanwhile is not None:
            meanwhile.append((node, pod))  # perhaps by our own hand, because not all can be bound
        elif self._counts(generation, node, pod) and self.door.connection(generation.gang, node) is None:
            if turned_away(pod) and self._may_ask_again(generation):
                self._do(self._ask_again(generation))
            else:
                self._conclude(generation, node, attempt_pods.ending(pod))

    def _may_ask_again(self, generation: Generation) -> bool:
        first_s = self._turned_away_s.setdefault((generation.gang, generation.number), self._loop.time())
        return generation.stopping is None and self._loop.time() < first_s + TURNED_AWAY_FOR_S

    async def _ask_again(self, generation: Generation) -> None:
        """A node may still have what ran there before, though no process of it is left: what it turned away is made
        again, and the pods on other nodes wait for it."""
        self._placing_now[generation.gang, generation.number] = []
        await asyncio.sleep(ASK_AGAIN_AFTER_S)
        pods = [self._seen.pods.get(self._pod_key(generation, node)) for node in generation.start.nodes]
        for pod in pods:
            if pod is not None and turned_away(pod):
                await self._end_pod(pod, at_once=True)
        await self._begin(generation)

    def _counts(self, generation: Generation, node: str, pod: Pod) -> bool:
        """Whether a generation is left on a node as this pod: not as another, made again when this one had gone."""
        uids = self._placed.get((generation.gang, generation.number), {})
        return node in generation.left and uids.get(node, pod.metadata.uid) == pod.metadata.uid

    def _conclude(self, generation: Generation, node: str, why: tuple[Cause, str]) -> None:
        """Tell how a generation ended on a node where nothing of it is left."""
        gang, number, task = generation.gang, generation.number, self._told.task(generation.gang, node)
        found = message_events.ending(task, gang, number, node)
        if found is None and attempt_pods.has_succeeded(self._seen.pods.get(self._pod_key(generation, node))):
            found = Finished(gang=gang, generation=number, nodes=(node,))  # its launcher told nobody, for nobody heard
        if self._hearing.done(generation) is not None and not isinstance(found, Finished):
            found = None  # what it had left is not needed any more
        elif not isinstance(found, Finished) and not generation.stopping and node not in generation.failed:
            generation.failed.append(node)
            self._tell(found or Failed(gang=gang, generation=number, node=node, cause=why[0], detail=why[1]))
        if isinstance(found, Finished):
            self._tell(found)
        self._tell(Cleared(gang=gang, generation=number, nodes=(node,)))
        generation.clear(node)

    def _watch_stuck(self, generation: Generation, pod: Pod) -> None:
        """Its node says nothing more of a pod that cannot run: whether it still cannot is looked at later."""
        if attempt_pods.stuck(pod):
            self._loop.call_later(
                attempt_pods.STUCK_AFTER_S, self._give_up, generation, pod.metadata.key, attempt_pods.stuck
            )
        elif attempt_pods.unready(pod):
            self._loop.call_later(
                attempt_pods.UNREADY_AFTER_S, self._give_up, generation, pod.metadata.key, attempt_pods.unready
            )

    def _give_up(self, generation: Generation, key: Key, why: Callable[[Pod], str]) -> None:
        pod = self._seen.pods.get(key)
        mark = object_names.mark(pod) if pod is not None else None
        if pod is not None and mark is not None and mark.node not in generation.failed and why(pod):
            self._fail(generation, mark.node, why(pod))

    def _end_stale(self, key: Key) -> None:
        """Delete a pod, if it is of a generation that nobody wants any more and has not ended by itself."""
        pod = self._seen.pods.get(key)
        mark = object_names.mark(pod) if pod is not None and self._is_open else None
        generation = self._generations.get(mark.gang) if mark else None
        if pod is None or mark is None or is_over(pod) or self._seen.is_alone(mark.gang):
            return
        if generation is None or generation.number != mark.generation:
            self._do(self._end_pod(pod, at_once=not self._seen.answers(mark.node)))

    async def _end_pod(self, pod: Pod, *, at_once: bool) -> None:
        with suppress(NotLeadingError):
            await self._placing.end(pod, at_once=at_once)

    # -- what launchers say -------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Somebody is there, who has yet to say who."""

    def greeted(self, connection: Connection, hello: Hello) -> None:
        """A launcher is there, for the first time or again: tell it what holds."""
        if not self._is_open or self._seen.is_alone(hello.gang):
            connection.close()
            return
        connection.send("welcome")
        generation = self._generations.get(hello.gang)
        current = generation is not None and generation.number == hello.generation and hello.node in generation.left
        if generation is None or not current:
            for number in hello.generations:
                send_stop(connection, Stop(gang=hello.gang, generation=number, cause=Cause.USER))
            connection.send("leave")
            return
        of = (hello.gang, hello.generation)
        self._contact.met(hello.gang, hello.node)
        self._addresses.setdefault(of, {})[hello.node] = hello.address or ""
        if hello.generation in hello.generations and hello.node not in self._begun.setdefault(of, []):
            self._begun[of].append(hello.node)
        if generation.stopping:
            send_stop(connection, generation.stopping)
        else:
            self._run(generation)

    def heard(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        """Something about a generation, current or not: the core tells them apart."""
        if not self._is_open:
            return
        current = self._hearing.current(hello, message)
        ranks = None if current is None else current.ranks
        if self._told.heard(hello.gang, hello.node, message, ranks):
            return
        self._hearing.heard(connection, hello, message, current)
        match message["type"]:
            case "cleared":
                connection.send("leave")  # its pod is of this generation alone
            case "progressed" if current is not None and 0 in current.ranks_of[hello.node]:
                self._newest[hello.gang] = message_events.newest_report(message, time.time_ns() // 1_000_000)

    def refused(self, hello: Hello, why: str) -> None:
        """A launcher's message was refused: after several in a row its pod is deleted."""
        if self._is_open and self._hearing.refused(hello, why):
            self._do(self._clear(self._generations[hello.gang], [hello.node]))

    def parted(self, connection: Connection) -> None:
        """A launcher is gone, or will be back."""
        hello = connection.hello
        generation = self._generations.get(hello.gang) if hello and self._is_open else None
        if hello is None or generation is None or generation.number != hello.generation:
            return
        if hello.node in generation.left and self.door.connection(hello.gang, hello.node) is None:
            self._contact.parted(hello.gang, hello.node, self._loop.time())
            key = self._pod_key(generation, hello.node)
            pod = self._seen.pods.get(key)
            if pod is None or is_over(pod):
                deleted = Cause.LAUNCHER_LOST, f"the pod {key.name} was deleted"
                self._conclude(generation, hello.node, deleted if pod is None else attempt_pods.ending(pod))

    # -- beginning ----------------------------------------------------------------------------------------------------

    async def _begin(self, generation: Generation) -> None:
        """Have it placed, or tell why not; its launchers come by themselves."""
        of = (generation.gang, generation.number)
        ended = self._placing_now.setdefault(of, [])

        def wanted() -> bool:
            is_current = self._generations.get(generation.gang) is generation
            return is_current and generation.stopping is None and not generation.failed

        placed: dict[str, Pod] = {}
        try:
            placed = await self._placing.begin(generation.start, generation.job, wanted)
        except NotLeadingError:
            return
        except Unplaceable as why:
            self._fail(generation, why.node, why.detail, why.cause)
        self._placed[of] = {node: pod.metadata.uid for node, pod in placed.items()}
        del self._placing_now[of]
        self._end_lost(generation, placed)
        if generation.stopping is not None:
            self._end(generation, generation.stopping)
        elif placed:
            for node, pod in ended:
                self._over(generation, node, pod)
            for pod in placed.values():
                self._watch_stuck(generation, self._seen.pods.get(pod.metadata.key, pod))

    def _end_lost(self, generation: Generation, placed: Mapping[str, Pod]) -> None:
        """End the pods that were still bound to nodes which were being lost: `lose` did not see them there."""
        for node, bound in placed.items():
            if node in generation.failed and node not in generation.left:
                pod = self._seen.pods.get(bound.metadata.key, bound)
                if not is_over(pod):
                    self._do(self._end_pod(pod, at_once=not self._seen.answers(node)))

    def _run(self, generation: Generation) -> None:
        """Tell every launcher its plan, once all of them are there: only then is known where each can be reached."""
        of = (generation.gang, generation.number)
        addresses, have = self._addresses[of], self._begun.get(of, [])
        if len(addresses) < len(generation.start.nodes):
            return
        try:
            plans = self._plans(generation, addresses)
        except Exception as error:  # noqa: BLE001 - plug-ins have a say in it; whatever they do, the gang must not hang
            self._fail(generation, generation.start.nodes[0], f"no plan could be made: {error}")
            return
        for plan in plans:
            if plan.node not in have and (connection := self.door.connection(generation.gang, plan.node)) is not None:
                whole = replace(plan, inherits=True, secrets=SECRETS if generation.job.spec.secrets else None)
                if plan.agent:
                    token = self._gear.agent_token(*of)
                    whole = replace(whole, agent_address=addresses[plan.node], agent_token=token)
                connection.send("run", generation=generation.number, plan=asdict(whole))

    def _know(self, generation: Generation) -> None:
        """What each launcher is to run must be known before any of them says how it ended."""
        with suppress(Exception):  # why no plan can be made is told when it is to be run
            for plan in self._plans(generation, {}):
                self._told.plan(plan)

    def _plans(self, generation: Generation, addresses: Mapping[str, str]) -> tuple[LaunchPlan, ...]:
        """With where each node can be reached, as far as that is known. Raises whatever plug-ins do."""
        members = generation.start.nodes
        nodes = {name: self._seen.nodes.get(name) or Node(name=name) for name in members}
        nodes = {name: replace(node, address=addresses.get(name, node.address)) for name, node in nodes.items()}
        start = replace(generation.start, host=nodes[members[0]].address)
        return self._compose(start, generation.job, nodes, WORK)

    def _fail(self, generation: Generation, node: str, detail: str, cause: Cause = Cause.START_FAILED) -> None:
        """It cannot start: whatever is left of it is stopped by what follows."""
        if generation.stopping is None:
            why = Failed(gang=generation.gang, generation=generation.number, node=node, cause=cause, detail=detail)
            self._hearing.fail(generation, why)

    # -- attempt_pods.ending
    # -------------------------------------------------------------------------------------------------------

    def _end(self, generation: Generation, stop: Stop) -> None:
        """Have what is left stopped, by the launchers that are there, and by deleting the pods of the others. What is
        still being placed ends when that has been broken off."""
        generation.forget_deadline()
        if (generation.gang, generation.number) in self._placing_now:
            return
        silent = []
        for node in generation.left:
            connection = self.door.connection(generation.gang, node)
            if connection is None:
                silent.append(node)
            else:
                send_stop(connection, stop)
        if silent:
            self._do(self._clear(generation, silent))
        if generation.left:
            limit_s = (stop.notice_ms + kill_after_ms(stop.cause)) / 1000 + WEDGED_AFTER_S
            generation.deadline = self._loop.call_later(limit_s, self._kill_wedged, generation)

    def _kill_wedged(self, generation: Generation) -> None:
        self._do(self._clear(generation, list(generation.left)))

    async def _clear(self, generation: Generation, nodes: list[str]) -> None:
        """Delete the pods on these nodes; those that are gone already are told at once, the others when they are."""
        try:
            there = await self._placing.clear(generation.start, nodes)
        except NotLeadingError:
            return
        for node in nodes:
            if node not in there and node in generation.left:
                self._tell(Cleared(gang=generation.gang, generation=generation.number, nodes=(node,)))
                generation.clear(node)

    # -- after a restart ----------------------------------------------------------------------------------------------

    def _resume(self, generation: Generation, there: Mapping[str, Pod], lost: Collection[str]) -> None:
        """Carry on with a generation of which this controller knows what objects say; it is over where it is `lost`."""
        self._know(generation)
        nodes = generation.start.nodes
        ran = any(pod.status.phase != "Pending" for pod in there.values())
        unbound = any(not pod.spec.node_name for pod in there.values())
        if generation.stopping is not None:
            self._end(generation, generation.stopping)
        elif not lost and (not ran or (len(there) == len(nodes) and unbound)):
            self._do(self._begin(generation))
        else:
            self._do(self._renew(generation))
            for node in nodes:
                pod = there.get(node)
                if pod is None or (node in lost and not is_over(pod)):
                    self._conclude(generation, node, (Cause.LAUNCHER_LOST, f"the pod on {node} was deleted"))
                elif is_over(pod):
                    self._conclude(generation, node, attempt_pods.ending(pod))

    async def _renew(self, generation: Generation) -> None:
        """Its launchers do not find this controller before that is done."""
        failures = 0
        while self._generations.get(generation.gang) is generation:
            try:
                await self._placing.renew(generation.gang)
            except ApiError as error:
                failures += 1
                _log.warning("the launchers of %s cannot be told where this controller is: %s", generation.gang, error)
                await asyncio.sleep(pause_s(failures, FIRST_PAUSE_S, MOST_PAUSE_S))
            else:
                return

    # -- the loop's own -----------------------------------------------------------------------------------------------

    def _pod_key(self, generation: Generation, node: str) -> Key:
        at = generation.start.nodes.index(node)
        namespace = object_names.key_of(generation.gang).namespace
        return Key(namespace, object_names.pod_name(generation.gang, generation.number, at))

    def _let_go(self, generation: Generation) -> None:
        generation.forget_deadline()
        self._contact.forget(generation)
        for known in (self._addresses, self._begun, self._placed, self._turned_away_s):
            known.pop((generation.gang, generation.number), None)

    def _address(self, gang: str, node: str) -> str | None:
        generation = self._generations.get(gang)
        return None if generation is None else self._addresses.get((gang, generation.number), {}).get(node)

    def _tell(self, event: Event) -> None:
        if self._is_open:
            self._hearing.tell(event)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._over_with)

    def _over_with(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("what was begun in the cluster broke off", exc_info=error)
