"""Events of the pods of gangs: ended, rejected by their node, or unable to run.

The API server reports them, whether a pod ended by itself or was deleted. While a launcher is connected its report
counts first; while it is not, its pod is left running: a network failure alone loses no work.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from ganger.backends.kubernetes import attempt_pods, pod_startup
from ganger.backends.kubernetes.binding import is_over, is_rejected
from ganger.backends.kubernetes.nodes.node_room import is_late
from ganger.backends.kubernetes.runtime.placed_pods import PlacedPods
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Key, Pod
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.runtime.gang_runtime import GangRuntime
from ganger.model.decision import Cause

REJECTED_FOR_S: Final = 60.0
"""Time for which a node may reject pods that should fit: what ran there before may take its grace period to end."""
RECREATE_AFTER_S: Final = 1.0


class PodActions(Protocol):
    """Consequences of events: `pod_place.PodPlace`."""

    async def place(self, generation: Generation) -> None:
        """Place a generation again, keeping the pods that exist."""

    def conclude(self, generation: Generation, node: str, cause: Cause, detail: str) -> None:
        """Report how a generation ended on a node without a pod."""

    def report_fault(self, generation: Generation, node: str, detail: str, fault: str) -> None:
        """Report that a generation cannot start because of a fault of the installation."""

    async def delete(self, pod: Pod, *, at_once: bool) -> None:
        """Delete a pod."""

    def delete_stale(self, key: Key) -> None:
        """Delete a pod whose generation is not current any more."""


class PodEvents:
    """Handles changes of pods."""

    def __init__(self, pods: PlacedPods, runtime: GangRuntime, actions: PodActions) -> None:
        self._pods, self._runtime, self._actions = pods, runtime, actions

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a pod that was added, changed or deleted."""
        pod = after or before
        mark = object_names.mark(pod) if pod is not None and self._runtime.is_open else None
        if pod is None or mark is None:
            return
        generation = self._runtime.generations.get(mark.gang)
        if generation is None or generation.number != mark.generation:
            if after is not None and before is None:
                self._actions.delete_stale(after.metadata.key)  # created by a request that was in flight for long
        elif after is None or is_over(after):
            self.pod_ended(generation, mark.node, pod)
        else:
            self.watch_startup(generation, after)

    def pod_ended(self, generation: Generation, node: str, pod: Pod) -> None:
        """Handle the end of a pod. If its launcher is still connected, wait for its report."""
        ended_while_placing = self._pods.ended_while_placing.get((generation.gang, generation.number))
        if ended_while_placing is not None:
            ended_while_placing.append((node, pod))  # perhaps deleted because not all pods can be bound
        elif self._is_current(generation, node, pod) and self._runtime.connection(generation.gang, node) is None:
            staying = filter(self.stays, self._pods.cache.pods.values())
            may_fit = is_rejected(pod) and not is_late(pod, self._pods.cache.cluster, staying)
            if may_fit and self._may_recreate(generation):
                # From now on, not from the task's first step: other nodes may reject theirs in the same moment, and two
                # tasks that place one generation would each take the pods of the other for ended ones.
                self._pods.ended_while_placing[generation.gang, generation.number] = []
                self._runtime.run(self._recreate(generation))
            else:
                self._actions.conclude(generation, node, *attempt_pods.end_of(pod))

    def watch_startup(self, generation: Generation, pod: Pod) -> None:
        """Check later whether a pod that cannot run still cannot: its node reports nothing more about it."""
        for delay_s, problem in (
            (pod_startup.STUCK_AFTER_S, pod_startup.stuck_message),
            (pod_startup.UNREADY_AFTER_S, pod_startup.unready_message),
        ):
            if problem(pod):
                self._runtime.loop.call_later(delay_s, self._give_up, generation, pod.metadata.key, problem)
                return

    def stays(self, pod: Pod) -> bool:
        """Return whether a pod has its node: one of ganger's has it while its generation is left there."""
        if (mark := object_names.mark(pod)) is None:
            return True
        generation = self._runtime.generations.get(mark.gang)
        return generation is not None and generation.number == mark.generation and mark.node in generation.remaining

    def _give_up(self, generation: Generation, key: Key, problem: Callable[[Pod], str]) -> None:
        pod = self._pods.cache.pods.get(key)
        mark = object_names.mark(pod) if pod is not None else None
        if pod is not None and mark is not None and mark.node not in generation.failed and (detail := problem(pod)):
            if not pod_startup.lacks_default_image(pod, generation.job):
                self._runtime.fail(generation, mark.node, detail)
                return
            # What a registry says of each try may have another port or digest in it.
            fault = "it is the default image of jobs: ganger controller --image, controller.args of the chart"
            self._actions.report_fault(generation, mark.node, f"{detail}; {fault}", fault)

    def _is_current(self, generation: Generation, node: str, pod: Pod) -> bool:
        """Return whether a generation is left on a node as this pod, and not as one created after this one was gone."""
        uids = self._pods.uids.get((generation.gang, generation.number), {})
        return node in generation.remaining and uids.get(node, pod.metadata.uid) == pod.metadata.uid

    def _may_recreate(self, generation: Generation) -> bool:
        now_s = self._runtime.loop.time()
        first_s = self._pods.first_rejected_s.setdefault((generation.gang, generation.number), now_s)
        return generation.stopping is None and now_s < first_s + REJECTED_FOR_S

    async def _recreate(self, generation: Generation) -> None:
        """Create the pods again that their nodes rejected; those on other nodes wait for them.

        A node may still count what ran there before, though no process of it is left.
        """
        await asyncio.sleep(RECREATE_AFTER_S)
        for pod in [self._pods.pod(generation, node) for node in generation.start.nodes]:
            if pod is not None and is_rejected(pod):
                await self._actions.delete(pod, at_once=True)
        await self._actions.place(generation)
