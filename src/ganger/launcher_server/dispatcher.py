"""Conversion of launcher messages into events for the core, or into messages to the gang's other launchers.

A backend's gang runtime creates it, owns the generations, and connects to their launchers. Everything here runs on the
event loop.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ganger.launcher_server import message_events
from ganger.launcher_server.checkpoints.checkpoint_agreement import CheckpointAgreement
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.failure_events import ExitCollector
from ganger.launcher_server.generation_state import Generation, kill_after_ms
from ganger.launcher_server.health.fail_hanging_gang import HangDetector
from ganger.launcher_server.health.loss_watch import LossWatch
from ganger.launcher_server.health.preflight_events import preflight_events
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.rank_records import Records
from ganger.launcher_server.retry_rules import RetryRuleSearch
from ganger.model.decision import Cause, Stop
from ganger.model.event import Checkpointed, Cleared, Done, Event, Failed, MetricsKept, Progressed
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.watch.watch_event import Anomaly
from ganger.ports import Report

MAX_REFUSED: Final = 5
"""Refused messages in a row after which a launcher's attempt fails: it would send them again for ever."""

STATES: Final = (
    *("ready", "warmed", "notice_saved", "metrics_kept"),
    *("checkpoint_counts", "stall_report", "stacks_taken", "exit_record"),
)
"""Messages that a launcher repeats after each `welcome`, as long as they hold; they are not acknowledged."""


@dataclass(frozen=True, slots=True)
class LauncherWorld:
    """Lookups that a backend provides; each returns None for what does not exist or is unreachable.

    generation: the newest generation of a gang
    connection: the connection of a gang's launcher on a node
    address: where the agent of a gang on a node is reached
    records: the records of all gangs
    """

    generation: Callable[[str], Generation | None]
    connection: Callable[[str, str], Connection | None]
    address: Callable[[str, str], str | None]
    records: Records


class Dispatcher:
    """Reports what launchers send, in order for each gang."""

    def __init__(self, world: LauncherWorld, report: Report, loop: asyncio.AbstractEventLoop) -> None:
        self._world = world
        self._rule_search = RetryRuleSearch(
            world.records, ExitCollector(world.records, world.generation), report, self._retry_of
        )
        self._hang_detector = HangDetector(
            world.records, loop, self._request_stacks, self.report_failure, self.report_event
        )
        self._agreement = CheckpointAgreement(loop, self._is_current, world.connection)
        self._is_closed = False

    def message_received(
        self, connection: Connection, hello: Hello, message: dict[str, Any], generation: Generation | None
    ) -> None:
        """Report a fact about a generation, current or not, and acknowledge it when it is durable.

        The core tells generations apart. `generation` is the result of `current` for the message.
        """
        if message["type"] in STATES:
            if generation is not None:
                self._handle_state(generation, hello.node, message)
            return
        durable = self._report_message(generation, hello, message)
        if message["n"] is not None:
            connection.acknowledge(message["n"], durable, partial(self._on_acknowledged, hello))

    def current(self, hello: Hello, message: dict[str, Any]) -> Generation | None:
        """Return the gang's newest generation if the message is about it, else None.

        Raises BadMessage if the message names a rank that the generation does not have on the launcher's node.
        """
        generation = self._world.generation(hello.gang)
        if generation is None or generation.number != message["generation"]:
            return None
        ranks = generation.ranks_of.get(hello.node)
        if ranks is None:
            return None
        named = {message["rank"]} if "rank" in message else set(message.get("killed", ()))
        if foreign := named - ranks:
            raise BadMessage(f"{message['type']}: rank {min(foreign)} does not run on {hello.node}")
        return generation

    def message_refused(self, hello: Hello, reason: str) -> bool:
        """Count a refused message of a launcher; fail the attempt after several without an acknowledgement in between.

        Returns True if its launcher must be killed: its outstanding messages will never be accepted.
        """
        generation = self._world.generation(hello.gang)
        if generation is None or hello.node not in generation.remaining or not _is_of(generation, hello):
            return False
        generation.refused_counts[hello.node] = generation.refused_counts.get(hello.node, 0) + 1
        if generation.refused_counts[hello.node] != MAX_REFUSED:
            return False
        detail = f"the launcher of {hello.node} broke the protocol: {reason}"
        cause, number = Cause.LAUNCHER_LOST, generation.number
        self.report_failure(
            generation, Failed(gang=hello.gang, generation=number, node=hello.node, cause=cause, detail=detail)
        )
        return True

    def report_event(self, event: Event) -> None:
        """Report an event that no launcher has sent."""
        if not self._is_closed:
            self._rule_search(event)

    def report_failure(self, generation: Generation, failed: Failed) -> None:
        """Report a failure that no launcher has sent, unless the job is done."""
        if self.report_if_done(generation) is None:
            generation.failed.append(failed.node)
            self.report_event(failed)

    def clear(self, generation: Generation, nodes: Iterable[str]) -> None:
        """Record that nothing is left on these nodes; with the last one report the metrics, for the end of the job.

        To be called before the nodes are reported: the core has no job any more when its last node is clear.
        """
        was_left = bool(generation.remaining)
        for node in nodes:
            generation.clear(node)
        if was_left and not generation.remaining and generation.metrics:
            metrics = generation.job_metrics
            self.report_event(MetricsKept(gang=generation.gang, generation=generation.number, metrics=metrics))

    def report_if_done(self, generation: Generation) -> Future[int] | None:
        """Report `Done`, once, if all ranks whose end is the end of the job have ended well; return None if not.

        To be called again when plans become known that were not.
        """
        report = generation.done_report
        if report is None or (report.done() and report.exception() is not None):
            tasks = (self._world.records.task(generation.gang, node) for node in generation.ranks_of)
            if generation.stopping or not message_events.is_done(tasks, generation.number):
                return None
            generation.done_report = self._rule_search(Done(gang=generation.gang, generation=generation.number))
        return generation.done_report

    def close(self) -> None:
        """Report nothing more."""
        self._is_closed = True
        self._rule_search.close()

    def _on_acknowledged(self, hello: Hello) -> None:
        """Reset the count of refused messages: the launcher makes progress.

        Not done as soon as a fact arrives: one that is not durable before the next message is refused is repeated with
        it each time.
        """
        generation = self._world.generation(hello.gang)
        if generation is not None and _is_of(generation, hello):
            generation.refused_counts.pop(hello.node, None)

    def _handle_state(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        match message["type"]:
            case "ready":
                self._start_stage(generation, node, message)
            case "notice_saved":
                self._end_if_saved(generation, node, message)
            case "metrics_kept":
                generation.metrics_received(message["values"], message["left_out"])
            case "checkpoint_counts":
                self._agreement.counts_received(generation, node, message)
            case "stall_report":
                self._hang_detector.stall_reported(generation, node, message)
            case "stacks_taken":
                self._hang_detector.stacks_received(generation, node, message)
            case _:  # a rank ended, so the job may be done: `done` may have arrived before all plans were known
                self.report_if_done(generation)

    def _report_message(
        self, generation: Generation | None, hello: Hello, message: dict[str, Any]
    ) -> Future[int] | None:
        """Report what a message says of the current generation, or of an older one."""
        if message["type"] in ("done", "rank_failed") and generation is not None:
            done = self.report_if_done(generation)
            if done is not None or message["type"] == "done":
                return done  # a rank that fails because the others have ended does no harm
        if message["type"] == "preflight":
            event = self._report_preflight(generation, message["nodes"])
        else:
            event = self._to_event(generation, hello, message)
        return None if event is None else self._rule_search(event)

    def _to_event(self, generation: Generation | None, hello: Hello, message: dict[str, Any]) -> Event | None:
        if message["type"] == "progressed":
            if generation is None or not message["milestone"]:
                return None
            step = generation.progress(hello.node, message["step"])
            for slow in self._hang_detector.steps_made(generation, hello.node, message):
                self.report_event(slow)
            return None if step is None else Progressed(gang=hello.gang, generation=generation.number, step=step)
        if message["type"] == "observed":
            for anomaly in [] if generation is None else _anomalies(generation, hello.node, message["points"]):
                self.report_event(anomaly)
            return None
        if message["type"] in ("done", "rank_usage"):
            return None  # of an older generation, or kept by the place
        if message["type"] == "checkpointed" and message["parts"] > 1:
            step = generation.part_saved(hello.node, message["step"], message["parts"]) if generation else None
            if step is None:
                return None
            message = message | {"step": step}
        event = message_events.event(message, hello.gang, hello.node)
        if generation is not None and isinstance(event, Failed):
            generation.failed.append(hello.node)
        if generation is not None and isinstance(event, Checkpointed):
            self._agreement.checkpoint_saved(generation, event.took_ms)
            generation.saved_step = event.step
        if generation is not None and isinstance(event, Cleared):
            self.clear(generation, event.nodes)
        return event

    def _report_preflight(self, generation: Generation | None, results: list[dict[str, Any]]) -> Event | None:
        """Report what follows from a test of nodes but for the last event, which is returned."""
        events = [] if generation is None else preflight_events(generation, results)
        for event in events[:-1]:
            self.report_event(event)
        last = events[-1] if events else None
        if generation is not None and isinstance(last, Failed):
            generation.failed.append(last.node)
        return last

    def _start_stage(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Let the waiting nodes start the next stage once all nodes are ready."""
        reached = generation.ready(node, message["stage"], message["agent_port"])
        if reached is None:
            return
        stage, waiting = reached
        agents = {
            name: [address, port]
            for name, (_, port) in generation.stages.items()
            if port is not None and (address := self._world.address(generation.gang, name))
        }
        for name in waiting:
            connection = self._world.connection(generation.gang, name)
            if connection is not None:
                connection.send("proceed", generation=generation.number, stage=stage, agents=agents)

    def _end_if_saved(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Have the launchers end a gang, which is being stopped, once the checkpoint of the notice is complete.

        It takes a second message: a rank on one node may still be in the step that another has saved, and in no node's
        power is it to tell whether every part is there. A launcher without a connection gets it when it connects.
        """
        is_complete = generation.notice_saved(node, message["step"], message["parts"])
        if not is_complete or generation.stopping is None or generation.warming:
            return
        for name in generation.remaining:
            connection = self._world.connection(generation.gang, name)
            if connection is not None:
                send_stop(connection, generation.stopping, generation.notice_step)

    def _request_stacks(self, gang: str, node: str, fields: dict[str, Any]) -> None:
        connection = self._world.connection(gang, node)
        if connection is not None:
            connection.send("take_stacks", **fields)

    def _is_current(self, generation: Generation) -> bool:
        return not self._is_closed and self._world.generation(generation.gang) is generation

    def _retry_of(self, gang: str) -> Retry | None:
        generation = self._world.generation(gang)
        return None if generation is None else generation.job.spec.retry


def _anomalies(generation: Generation, node: str, points: list[tuple[int, int, float | None]]) -> list[Anomaly]:
    """Return what the loss of the first node that reports one shows; None stands for what is not a finite number."""
    if generation.loss_watch is None:
        generation.loss_watch, generation.loss_node = LossWatch(generation.gang, generation.number), node
    if node != generation.loss_node:
        return []
    return [anomaly for point in points for anomaly in generation.loss_watch.observe(*point)]


def _is_of(generation: Generation, hello: Hello) -> bool:
    """Return True if a launcher has the generation, or was started for it."""
    return generation.number in (hello.generation, *hello.generations)


def send_stop(connection: Connection, stop: Stop, saved_step: int | None = None) -> None:
    """Have a launcher stop what is left of a generation; `saved_step` is the `notice_step` of that generation."""
    connection.send(
        "stop",
        generation=stop.generation,
        cause=stop.cause.value,
        notice_ms=stop.notice_ms,
        kill_after_ms=kill_after_ms(stop.cause),
        **({} if saved_step is None else {"saved_step": saved_step}),
    )
