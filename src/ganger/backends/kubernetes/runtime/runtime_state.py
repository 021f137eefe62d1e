"""State that the parts of the gang runtime share."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.kubeapi.objects import Key, Pod
from ganger.launcher_server.dispatcher import Dispatcher
from ganger.launcher_server.generation_state import Generation
from ganger.model.decision import Cause
from ganger.model.event import Event, Failed

AttemptId = tuple[str, int]
"""A gang's id and the number of its generation."""

_log = logging.getLogger(__name__)


class RuntimeState:
    """Newest generation of each gang, and what happened to its pods. Lives on the event loop, so nothing is locked.

    Attributes:
        dispatcher: reports events to the core; set when the runtime opens.
        ended_while_placing: generations that are being placed, with their pods that ended meanwhile.
        placed_uids: UIDs of the pods that generations were placed as, by node; another pod of that name came before.
        first_rejected_s: when a node first rejected a pod of a generation.
    """

    dispatcher: Dispatcher

    def __init__(self, cache: ClusterCache, loop: asyncio.AbstractEventLoop) -> None:
        self.cache, self.loop = cache, loop
        self.is_open = False
        self.generations: dict[str, Generation] = {}
        self.ended_while_placing: dict[AttemptId, list[tuple[str, Pod]]] = {}
        self.placed_uids: dict[AttemptId, dict[str, str]] = {}
        self.first_rejected_s: dict[AttemptId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def pod_key(self, generation: Generation, node: str) -> Key:
        """Return the key of a generation's pod on a node."""
        namespace = object_names.key_of(generation.gang).namespace
        index = generation.start.nodes.index(node)
        return Key(namespace, object_names.pod_name(generation.gang, generation.number, index))

    def pod(self, generation: Generation, node: str) -> Pod | None:
        """Return a generation's pod on a node, if it exists."""
        return self.cache.pods.get(self.pod_key(generation, node))

    def report(self, event: Event) -> None:
        """Report an event to the core while the runtime is open."""
        if self.is_open:
            self.dispatcher.report_event(event)

    def report_failure(self, generation: Generation, node: str, detail: str, cause: Cause = Cause.START_FAILED) -> None:
        """Report that a generation cannot start; the core then stops what is left of it."""
        if generation.stopping is None:
            failed = Failed(gang=generation.gang, generation=generation.number, node=node, cause=cause, detail=detail)
            self.dispatcher.report_failure(generation, failed)

    def forget(self, generation: Generation) -> None:
        """Forget a generation that is over."""
        generation.forget_deadline()
        self.placed_uids.pop((generation.gang, generation.number), None)
        self.first_rejected_s.pop((generation.gang, generation.number), None)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that `close` cancels; log its error."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def close(self) -> None:
        """Cancel all tasks and report nothing more."""
        self.is_open = False
        self.dispatcher.close()
        for generation in self.generations.values():
            generation.forget_deadline()
        for task in self._tasks:
            task.cancel()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the gang runtime failed", exc_info=error)
