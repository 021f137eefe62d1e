"""Ends of generations: stopping what is left, deleting pods, and reporting how each node ended."""

from contextlib import suppress
from typing import Final

from ganger.backends.kubernetes import attempt_pods, object_names
from ganger.backends.kubernetes.attempt_pods import AttemptPods
from ganger.backends.kubernetes.binding import NotLeadingError, is_over
from ganger.backends.kubernetes.runtime.launcher_sessions import LauncherSessions
from ganger.backends.kubernetes.runtime.runtime_state import RuntimeState
from ganger.kubeapi.objects import Key, Pod
from ganger.launcher_server import message_events
from ganger.launcher_server.dispatcher import send_stop
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.stop_grace import kill_after_ms
from ganger.model.decision import Cause, Stop
from ganger.model.event import Cleared, Failed, Finished

WEDGED_AFTER_S: Final = 10.0
"""Time beyond its ranks' that a stopping launcher may take before its pod is deleted."""


class GenerationEnd:
    """Ends generations through their launchers where connected, and by deleting their pods elsewhere."""

    def __init__(self, state: RuntimeState, attempt: AttemptPods, sessions: LauncherSessions) -> None:
        self._state, self._attempt, self._sessions = state, attempt, sessions

    def stop(self, generation: Generation, stop: Stop) -> None:
        """Stop what is left. A generation that is still being placed ends when its placement has been aborted."""
        generation.forget_deadline()
        if (generation.gang, generation.number) in self._state.ended_while_placing:
            return
        disconnected = []
        for node in generation.remaining:
            connection = self._sessions.connection(generation.gang, node)
            if connection is None:
                disconnected.append(node)
            else:
                send_stop(connection, stop)
        if disconnected:
            self._state.run(self.clear(generation, disconnected))
        if generation.remaining:
            limit_s = (stop.notice_ms + kill_after_ms(stop.cause)) / 1000 + WEDGED_AFTER_S
            generation.deadline = self._state.loop.call_later(limit_s, self._clear_all, generation)

    def _clear_all(self, generation: Generation) -> None:
        self._state.run(self.clear(generation, list(generation.remaining)))

    async def clear(self, generation: Generation, nodes: list[str]) -> None:
        """Delete the pods on these nodes; report nodes without a pod as cleared now, the others when their pod ends."""
        try:
            with_pods = await self._attempt.delete_on(generation.start, nodes)
        except NotLeadingError:
            return
        for node in nodes:
            if node not in with_pods and node in generation.remaining:
                self._state.report(Cleared(gang=generation.gang, generation=generation.number, nodes=(node,)))
                generation.clear(node)

    def conclude(self, generation: Generation, node: str, cause: Cause, detail: str) -> None:
        """Report how a generation ended on a node where nothing of it is left.

        The launcher's record and the pod's exit count first; `cause` and `detail` are for an end without either.
        """
        gang, number = generation.gang, generation.number
        end = message_events.ending(self._sessions.records.task(gang, node), gang, number, node)
        if end is None and attempt_pods.has_succeeded(self._state.pod(generation, node)):
            end = Finished(gang=gang, generation=number, nodes=(node,))  # its launcher had no controller to report to
        if node in self._state.cache.drained and not isinstance(end, Finished):
            detail = f"its node {node} is drained"
            end = Failed(gang=gang, generation=number, node=node, cause=Cause.DRAINED, detail=detail)
        is_done = self._state.dispatcher.report_if_done(generation) is not None
        if isinstance(end, Finished):
            self._state.report(end)
        elif not is_done and not generation.stopping and node not in generation.failed:
            generation.failed.append(node)
            self._state.report(end or Failed(gang=gang, generation=number, node=node, cause=cause, detail=detail))
        self._state.report(Cleared(gang=gang, generation=number, nodes=(node,)))
        generation.clear(node)

    def delete_stale(self, key: Key) -> None:
        """Delete a pod that has not ended by itself and whose generation is not current any more."""
        state, pod = self._state, self._state.cache.pods.get(key)
        mark = object_names.mark(pod) if pod is not None and state.is_open else None
        if pod is None or mark is None or is_over(pod) or state.cache.is_ignored(mark.gang):
            return
        generation = state.generations.get(mark.gang)
        if generation is None or generation.number != mark.generation:
            state.run(self.delete(pod, at_once=not state.cache.is_available(mark.node)))

    async def delete(self, pod: Pod, *, at_once: bool) -> None:
        """Delete a pod, unless this controller does not lead any more."""
        with suppress(NotLeadingError):
            await self._attempt.delete(pod, at_once=at_once)
