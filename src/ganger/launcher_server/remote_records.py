"""What launchers tell of their generations, kept for a server that cannot read their disks.

Made by a backend, which hands every message to `heard`. Lost with the server: a launcher says again how its ranks ended
whenever it connects, and the plans are made again.
"""

import asyncio
import binascii
import itertools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ganger.launcher_server.connection import Connection
from ganger.launcher_server.health.stall_messages import frame
from ganger.launcher_server.message_events import TAIL_LINES
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.rank_records import RankLog
from ganger.ports import LaunchPlan

READ_WITHIN_S: Final = 5.0
NEWEST_BYTES: Final = 1 << 20
"""Of a log, that is searched: it comes over the wire."""
LINE_CHARACTERS: Final = 1_000
"""Of a last line or of a frame: launchers send no more of a line."""
_SETUP: Final = "setup.log"


_RECORD: Final = re.compile(rb"^\d+ ([oeOE]) (.*)$", re.MULTILINE)


@dataclass(slots=True)
class _Told:
    """Of one generation on one node. ends: exit records by rank; tails, places: of ranks whose stacks were taken."""

    ranks: list[dict[str, Any]] = field(default_factory=list)
    has_setup: bool = False
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    tails: dict[int, tuple[str, ...]] = field(default_factory=dict)
    places: dict[int, tuple[str, ...]] = field(default_factory=dict)
    is_cleared: bool = False


@dataclass(slots=True)
class RemoteTask:
    """`records.TaskRecords` of what was told."""

    node: str
    generations: dict[int, _Told] = field(default_factory=dict)

    def planned(self, generation: int) -> list[dict[str, Any]] | None:
        """Rank, `ends` and `on_failure` of each; not what else the plan has."""
        told = self.generations.get(generation)
        return None if told is None or not told.ranks else told.ranks

    def exits(self, generation: int) -> list[dict[str, Any]]:
        """Without their last lines."""
        told = self.generations.get(generation)
        return [] if told is None else list(told.ends.values())

    def cleared(self, generation: int) -> bool:
        """Whether its launcher said so."""
        told = self.generations.get(generation)
        return told is not None and told.is_cleared


class RemoteRecords:
    """`records.Records`, which documents what is said here without a word. `connection_of` finds the launcher of a gang
    on a node; `loop` runs on another thread than those that read logs."""

    def __init__(self, connection_of: Callable[[str, str], Connection | None], loop: asyncio.AbstractEventLoop) -> None:
        self._connection_of = connection_of
        self._loop = loop
        self._gangs: dict[str, dict[str, RemoteTask]] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, str, asyncio.Future[dict[str, Any]]]] = {}

    def plan(self, plan: LaunchPlan) -> None:
        """A generation is about to be begun, or was: older ones on that node are not asked for any more. All plans of a
        generation must be known before anybody asks whether its job is done."""
        task = self.task(plan.gang, plan.node)
        told = task.generations.get(plan.generation) or _Told()
        told.ranks = [{"rank": rank.rank, "ends": rank.ends, "on_failure": rank.on_failure} for rank in plan.ranks]
        told.has_setup = plan.setup is not None
        task.generations = {number: old for number, old in task.generations.items() if number > plan.generation}
        task.generations[plan.generation] = told

    def forget(self, gang: str) -> None:
        """Nobody will ask for this gang again."""
        self._gangs.pop(gang, None)

    def heard(self, gang: str, node: str, message: dict[str, Any], ranks: Collection[int] | None) -> bool:
        """Keep what a message tells of these ranks: all that its generation has, None if that is not the newest. Return
        whether it is for this alone: `content`. BadMessage for one that is no base64."""
        kind = message["type"]
        if kind == "content":
            self._answered(gang, node, message)
        elif ranks is not None and kind in ("ended", "stacked", "cleared"):
            told = self.task(gang, node).generations.setdefault(message["generation"], _Told())
            if kind == "ended":
                told.ends[message["rank"]] = message
            elif kind == "stacked":
                _keep_stacks(told, message, ranks)
            else:
                told.is_cleared = True
        return bool(kind == "content")

    async def read(self, gang: str, node: str, generation: int, name: str, start: int) -> tuple[int, bytes, int]:
        """A piece of a file of a generation, from `start` on, negative: so many bytes before its end. Gives where it
        begins, the piece, and where the file ends now. OSError when the launcher is away, or does not answer."""
        connection = self._connection_of(gang, node)
        if connection is None:
            raise ConnectionError(f"the launcher of {gang} on {node} is away")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = (gang, node, answer)
        try:
            connection.send("read", generation=generation, id=number, name=name, start=start)
            async with asyncio.timeout(READ_WITHIN_S):
                found = await answer
        finally:
            del self._asked[number]
        return found["start"], found["data"], found["end"]

    # -- Records ------------------------------------------------------------------------------------------------------

    def task(self, gang: str, node: str) -> RemoteTask:
        return self._gangs.setdefault(gang, {}).setdefault(node, RemoteTask(node))

    def logs(self, gang: str, generation: int) -> Iterator[RankLog]:
        """A log that cannot be read is empty."""
        for node, task in list(self._gangs.get(gang, {}).items()):
            told = task.generations.get(generation)
            if told is not None:
                names = {rank["rank"]: f"rank-{rank['rank']}.log" for rank in told.ranks}
                for rank, name in [*names.items(), *([(None, _SETUP)] if told.has_setup else [])]:
                    yield RankLog(node, rank, partial(self._newest, gang, node, generation, name))

    def last_lines(self, gang: str, node: str, generation: int, rank: int) -> tuple[str, ...]:
        """As they were when stacks were taken."""
        told = self.task(gang, node).generations.get(generation)
        return () if told is None else told.tails.get(rank, ())

    def places(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        found: dict[int, tuple[str, ...]] = {}
        for task in self._gangs.get(gang, {}).values():
            told = task.generations.get(generation)
            found |= {} if told is None else told.places
        return found

    # -- reading ------------------------------------------------------------------------------------------------------

    def _newest(self, gang: str, node: str, generation: int, name: str, most_bytes: int) -> Iterator[str]:
        reading = self._end_of(gang, node, generation, name, min(most_bytes, NEWEST_BYTES))
        try:
            data = asyncio.run_coroutine_threadsafe(reading, self._loop).result()
        except OSError:
            return
        yield from _log_lines(data)

    async def _end_of(self, gang: str, node: str, generation: int, name: str, most_bytes: int) -> bytes:
        """The last bytes of a file that were there when this began; whole lines of it."""
        begin, data, end = await self.read(gang, node, generation, name, -most_bytes)
        at = begin + len(data)
        while data and at < end:
            start, more, _ = await self.read(gang, node, generation, name, at)
            if not more:
                break
            data, at = data + more, start + len(more)
        return data.partition(b"\n")[2] if begin else data

    def _answered(self, gang: str, node: str, message: dict[str, Any]) -> None:
        whose, where, answer = self._asked.get(message["id"], ("", "", None))
        if answer is None or answer.done() or (whose, where) != (gang, node):
            return  # it came too late
        try:
            data = binascii.a2b_base64(message["data"])
        except binascii.Error as error:
            raise BadMessage(f"content: data is no base64: {error}") from None
        answer.set_result({"start": message["start"], "data": data, "end": message["end"]})


def _keep_stacks(told: _Told, message: dict[str, Any], ranks: Collection[int]) -> None:
    """Keep what is told of these ranks: a job may also set the variable of one that it does not have."""
    for rank, detail in message["ranks"].items():
        if int(rank) in ranks:
            told.tails[int(rank)] = tuple(line[:LINE_CHARACTERS] for line in detail["tail"][-TAIL_LINES:])
            if place := tuple(frame(*each)[:LINE_CHARACTERS] for each in detail["place"]):
                told.places[int(rank)] = place


def _log_lines(data: bytes) -> Iterator[str]:
    """Return the lines in a piece of a log (docs/reference/launcher-protocol.md, "Files") of both streams, in the order
    in which they ended. Pieces of a line are joined; anything else is skipped."""
    pieces = {"o": "", "e": ""}
    for letter, content in _RECORD.findall(data):
        kind = letter.decode()
        text = pieces[kind.lower()] + content.decode(errors="replace")
        pieces[kind.lower()] = text if kind.isupper() else ""
        if kind.islower():
            yield text
    yield from filter(None, pieces.values())
