"""Events of the pods of gangs: ended, rejected by their node, or unable to run.

The API server reports them, whether a pod ended by itself or was deleted. While a launcher is connected its report
counts first; while it is not, its pod is left running: a network failure alone loses no work.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ganger.backends.kubernetes import attempt_pods, object_names, pod_startup
from ganger.backends.kubernetes.binding import is_over, is_rejected
from ganger.backends.kubernetes.runtime.generation_end import GenerationEnd
from ganger.backends.kubernetes.runtime.launcher_sessions import LauncherSessions
from ganger.backends.kubernetes.runtime.runtime_state import RuntimeState
from ganger.kubeapi.objects import Key, Pod
from ganger.launcher_server.generation_state import Generation

REJECTED_FOR_S: Final = 60.0
"""Time for which a node may reject pods that should fit: what ran there before may take its grace period to end."""
RECREATE_AFTER_S: Final = 1.0


class PodEvents:
    """Handles changes of pods. `place` places a generation again, keeping the pods that exist."""

    def __init__(
        self,
        state: RuntimeState,
        end: GenerationEnd,
        sessions: LauncherSessions,
        place: Callable[[Generation], Coroutine[Any, Any, None]],
    ) -> None:
        self._state, self._end, self._sessions, self._place = state, end, sessions, place

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a pod that was added, changed or deleted."""
        pod = after or before
        mark = object_names.mark(pod) if pod is not None and self._state.is_open else None
        if pod is None or mark is None:
            return
        generation = self._state.generations.get(mark.gang)
        if generation is None or generation.number != mark.generation:
            if after is not None and before is None:
                self._end.delete_stale(after.metadata.key)  # created by a request that was in flight for long
        elif after is None or is_over(after):
            self.pod_ended(generation, mark.node, pod)
        else:
            self.watch_startup(generation, after)

    def pod_ended(self, generation: Generation, node: str, pod: Pod) -> None:
        """Handle the end of a pod. If its launcher is still connected, wait for its report."""
        ended_while_placing = self._state.ended_while_placing.get((generation.gang, generation.number))
        if ended_while_placing is not None:
            ended_while_placing.append((node, pod))  # perhaps deleted because not all pods can be bound
        elif self._is_current(generation, node, pod) and self._sessions.connection(generation.gang, node) is None:
            if is_rejected(pod) and self._may_recreate(generation):
                self._state.run(self._recreate(generation))
            else:
                self._end.conclude(generation, node, *attempt_pods.end_of(pod))

    def watch_startup(self, generation: Generation, pod: Pod) -> None:
        """Check later whether a pod that cannot run still cannot: its node reports nothing more about it."""
        for delay_s, problem in (
            (pod_startup.STUCK_AFTER_S, pod_startup.stuck_message),
            (pod_startup.UNREADY_AFTER_S, pod_startup.unready_message),
        ):
            if problem(pod):
                self._state.loop.call_later(delay_s, self._give_up, generation, pod.metadata.key, problem)
                return

    def _give_up(self, generation: Generation, key: Key, problem: Callable[[Pod], str]) -> None:
        pod = self._state.cache.pods.get(key)
        mark = object_names.mark(pod) if pod is not None else None
        if pod is not None and mark is not None and mark.node not in generation.failed and (detail := problem(pod)):
            self._state.report_failure(generation, mark.node, detail)

    def _is_current(self, generation: Generation, node: str, pod: Pod) -> bool:
        """Return whether a generation is left on a node as this pod, and not as one created after this one was gone."""
        uids = self._state.placed_uids.get((generation.gang, generation.number), {})
        return node in generation.remaining and uids.get(node, pod.metadata.uid) == pod.metadata.uid

    def _may_recreate(self, generation: Generation) -> bool:
        now_s = self._state.loop.time()
        first_s = self._state.first_rejected_s.setdefault((generation.gang, generation.number), now_s)
        return generation.stopping is None and now_s < first_s + REJECTED_FOR_S

    async def _recreate(self, generation: Generation) -> None:
        """Create the pods again that their nodes rejected; those on other nodes wait for them.

        A node may still count what ran there before, though no process of it is left.
        """
        self._state.ended_while_placing[generation.gang, generation.number] = []
        await asyncio.sleep(RECREATE_AFTER_S)
        for pod in [self._state.pod(generation, node) for node in generation.start.nodes]:
            if pod is not None and is_rejected(pod):
                await self._end.delete(pod, at_once=True)
        await self._place(generation)
