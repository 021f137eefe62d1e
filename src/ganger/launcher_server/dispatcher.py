"""What a launcher's message leads to: an event for the core, a word to the other launchers of its gang, or nothing.

Made by the supervisor of a backend, which owns the generations and knows how to reach their launchers. Everything here
runs on the event loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ganger.launcher_server import message_events
from ganger.launcher_server.checkpoints.checkpoint_agreement import CheckpointAgreement
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.failure_events import ExitCollector
from ganger.launcher_server.generation_state import Generation, kill_after_ms
from ganger.launcher_server.health.hang import HangDetector
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.rank_records import Records
from ganger.launcher_server.retry_rules import RetryRuleSearch
from ganger.model.decision import Cause, Stop
from ganger.model.event import Checkpointed, Cleared, Done, Event, Failed, Progressed
from ganger.model.job import Retry
from ganger.ports import Report

MOST_REFUSED: Final = 5
"""Messages of a launcher that are refused in a row before its attempt fails: it would send them again for ever."""

STATES: Final = ("ready", "counted", "standing", "stacked", "ended")
"""What a launcher says again after each `welcome`, for as long as it holds: nothing is to be acknowledged."""


@dataclass(frozen=True, slots=True)
class LauncherWorld:
    """What a backend knows: the newest generation of a gang; the launcher of a gang on a node; where the agent of a
    gang's node is reached; and the records. None: nobody knows it, or it is away."""

    generation: Callable[[str], Generation | None]
    connection: Callable[[str, str], Connection | None]
    address: Callable[[str, str], str | None]
    records: Records


class Dispatcher:
    """Reports what launchers say, in the order in which it came for each gang."""

    def __init__(self, world: LauncherWorld, report: Report, loop: asyncio.AbstractEventLoop) -> None:
        self._world = world
        self._judging = RetryRuleSearch(
            world.records, ExitCollector(world.records, world.generation), report, self._retry_of
        )
        self._hang = HangDetector(world.records, loop, self._ask_for_stacks, self.fail)
        self._agreement = CheckpointAgreement(loop, self._is_current, world.connection)
        self._is_closed = False

    def heard(
        self, connection: Connection, hello: Hello, message: dict[str, Any], generation: Generation | None
    ) -> None:
        """Report a fact about a generation, current or not: the core tells them apart. Acknowledge it when it is
        durable. `generation` is what `current` returns for the message."""
        if message["type"] in STATES:
            if generation is not None:
                self._state(generation, hello.node, message)
            return
        durable = self._take(generation, hello, message)
        if message["n"] is not None:
            connection.acknowledge(message["n"], durable, partial(self._acknowledged, hello))

    def current(self, hello: Hello, message: dict[str, Any]) -> Generation | None:
        """Return the gang's newest generation if the message is about it, else None. BadMessage if the message names a
        rank as its launcher's own that the generation does not have on that node."""
        generation = self._world.generation(hello.gang)
        if generation is None or generation.number != message["generation"]:
            return None
        ranks = generation.ranks_of.get(hello.node)
        if ranks is None:
            return None
        named = {message["rank"]} if "rank" in message else set(message.get("killed", ()))
        if strange := named - ranks:
            raise BadMessage(f"{message['type']}: rank {min(strange)} does not run on {hello.node}")
        return generation

    def refused(self, hello: Hello, why: str) -> bool:
        """Count a refused message of the node; fail the attempt after several without an acknowledgement in between.
        Return whether its launcher has to be ended: what it owes will never be heard."""
        generation = self._world.generation(hello.gang)
        if generation is None or hello.node not in generation.left or not _is_of(generation, hello):
            return False
        generation.refused[hello.node] = generation.refused.get(hello.node, 0) + 1
        if generation.refused[hello.node] != MOST_REFUSED:
            return False
        detail = f"the launcher of {hello.node} broke the protocol: {why}"
        cause, number = Cause.LAUNCHER_LOST, generation.number
        self.fail(generation, Failed(gang=hello.gang, generation=number, node=hello.node, cause=cause, detail=detail))
        return True

    def tell(self, event: Event) -> None:
        """Report something that no launcher has told."""
        if not self._is_closed:
            self._judging(event)

    def fail(self, generation: Generation, failed: Failed) -> None:
        """Report a failure that no launcher has told, unless the job is done."""
        if self.done(generation) is None:
            generation.failed.append(failed.node)
            self.tell(failed)

    def done(self, generation: Generation) -> Future[int] | None:
        """Report, once, that all ended whose end is the end of the job; None while that is not so. To be asked again
        when plans become known that were not."""
        lost = generation.done is not None and generation.done.done() and generation.done.exception() is not None
        if generation.done is None or lost:
            tasks = (self._world.records.task(generation.gang, node) for node in generation.ranks_of)
            if generation.stopping or not message_events.is_done(tasks, generation.number):
                return None
            generation.done = self._judging(Done(gang=generation.gang, generation=generation.number))
        return generation.done

    def close(self) -> None:
        """Report nothing more."""
        self._is_closed = True
        self._judging.close()

    def _acknowledged(self, hello: Hello) -> None:
        """Begin to count anew what is refused: the launcher gets on. Not as soon as a fact is heard: one that is not
        durable before the next is refused comes again with it, each time."""
        generation = self._world.generation(hello.gang)
        if generation is not None and _is_of(generation, hello):
            generation.refused.pop(hello.node, None)

    def _state(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        match message["type"]:
            case "ready":
                self._proceed(generation, node, message)
            case "counted":
                self._agreement.counted(generation, node, message)
            case "standing":
                self._hang.heard(generation, node, message)
            case "stacked":
                self._hang.answered(generation, node, message)
            case _:  # a rank ended, by which the job may be done: `done` may have come before all was known
                self.done(generation)

    def _take(self, generation: Generation | None, hello: Hello, message: dict[str, Any]) -> Future[int] | None:
        """Report what a message says of the current generation, if it is one, or of an older one."""
        if message["type"] in ("done", "exited") and generation is not None:
            done = self.done(generation)
            if done is not None or message["type"] == "done":
                return done  # who dies because the others have ended does no harm
        event = self._event(generation, hello, message)
        return None if event is None else self._judging(event)

    def _event(self, generation: Generation | None, hello: Hello, message: dict[str, Any]) -> Event | None:
        if message["type"] == "progressed":
            if generation is None or not message["milestone"]:
                return None
            step = generation.progress(hello.node, message["step"])
            for slow in self._hang.paced(generation, hello.node, message):
                self.tell(slow)
            return None if step is None else Progressed(gang=hello.gang, generation=generation.number, step=step)
        if message["type"] == "done":
            return None  # of an older one
        event = message_events.event(message, hello.gang, hello.node)
        if generation is not None and isinstance(event, Failed):
            generation.failed.append(hello.node)
        if generation is not None and isinstance(event, Checkpointed):
            self._agreement.saved(generation)
        if generation is not None and isinstance(event, Cleared):
            generation.clear(hello.node)
        return event

    def _proceed(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Let the nodes that wait go on, when all are ready."""
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

    def _ask_for_stacks(self, gang: str, node: str, fields: dict[str, Any]) -> None:
        connection = self._world.connection(gang, node)
        if connection is not None:
            connection.send("stacks", **fields)

    def _is_current(self, generation: Generation) -> bool:
        return not self._is_closed and self._world.generation(generation.gang) is generation

    def _retry_of(self, gang: str) -> Retry | None:
        generation = self._world.generation(gang)
        return None if generation is None else generation.job.spec.retry


def _is_of(generation: Generation, hello: Hello) -> bool:
    """Return whether a launcher has the generation, or was started for it."""
    return generation.number in (hello.generation, *hello.generations)


def send_stop(connection: Connection, stop: Stop) -> None:
    """Have a launcher stop what is left of a generation."""
    connection.send(
        "stop",
        generation=stop.generation,
        cause=stop.cause.value,
        notice_ms=stop.notice_ms,
        kill_after_ms=kill_after_ms(stop.cause),
    )
