"""Records kept from launchers' messages, for a server that cannot read their disks.

A backend passes every message to it. Lost with the server: launchers report again how their ranks ended whenever they
connect, and the plans are made again.
"""

import asyncio
import binascii
import itertools
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ganger.launcher_server.connection import Connection
from ganger.launcher_server.health.stack_groups import MAIN, Frames, group_stacks
from ganger.launcher_server.health.stall_messages import format_frame
from ganger.launcher_server.message_events import TAIL_LINES
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.rank_records import RankLog
from ganger.model.views.service_views import Stacks
from ganger.ports import LaunchPlan, RankUsage

READ_TIMEOUT_S: Final = 5.0
NEWEST_BYTES: Final = 1 << 20
"""Part of a log that is searched, since it has to be transferred."""
LINE_CHARACTERS: Final = 1_000
"""Limit of a last line or a frame; launchers send no more of a line."""
STACKS_KEPT: Final = 100
"""Gangs of which the newest stacks are kept, for people also after the gang has ended."""
USAGE_KEPT_S: Final = 30.0
"""Time after which the usage of a rank is no longer its usage now: launchers report it every 10 s."""
_SETUP: Final = "setup.log"


_RECORD: Final = re.compile(rb"^\d+ ([oeOE]) (.*)$", re.MULTILINE)


@dataclass(slots=True)
class _GenerationRecords:
    """Records of one generation on one node.

    ends: exit records by rank
    tails: last lines of ranks whose stacks were taken
    usage: when the newest usage of the ranks came, by the monotonic clock, and that usage
    """

    ranks: list[dict[str, Any]] = field(default_factory=list)
    has_setup: bool = False
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    tails: dict[int, tuple[str, ...]] = field(default_factory=dict)
    usage: tuple[float, tuple[RankUsage, ...]] = (0.0, ())
    is_cleared: bool = False


@dataclass(slots=True)
class RemoteTask:
    """`rank_records.TaskRecords` from messages."""

    node: str
    generations: dict[int, _GenerationRecords] = field(default_factory=dict)

    def planned(self, generation: int) -> list[dict[str, Any]] | None:
        """Return rank, `ends` and `on_failure` of each rank, but no other fields of the plan."""
        records = self.generations.get(generation)
        return None if records is None or not records.ranks else records.ranks

    def exits(self, generation: int) -> list[dict[str, Any]]:
        records = self.generations.get(generation)
        return [] if records is None else list(records.ends.values())

    def cleared(self, generation: int) -> bool:
        records = self.generations.get(generation)
        return records is not None and records.is_cleared


class RemoteRecords:
    """`rank_records.Records` from messages.

    connection_of: returns the connection of a gang's launcher on a node
    loop: runs on another thread than the readers of logs
    """

    def __init__(self, connection_of: Callable[[str, str], Connection | None], loop: asyncio.AbstractEventLoop) -> None:
        self._connection_of = connection_of
        self._loop = loop
        self._gangs: dict[str, dict[str, RemoteTask]] = {}
        self._stacks: OrderedDict[str, tuple[int, dict[int, Frames]]] = OrderedDict()
        """Generation and stacks of the newest hang of each gang, also when others have followed."""
        self._numbers = itertools.count(1)
        self._requests: dict[int, tuple[str, str, asyncio.Future[dict[str, Any]]]] = {}

    def plan(self, plan: LaunchPlan) -> None:
        """Add a generation's plan on a node, and forget older generations there.

        All plans of a generation must be known before `message_events.is_done` is called.
        """
        task = self.task(plan.gang, plan.node)
        records = task.generations.get(plan.generation) or _GenerationRecords()
        records.ranks = [{"rank": rank.rank, "ends": rank.ends, "on_failure": rank.on_failure} for rank in plan.ranks]
        records.has_setup = plan.setup is not None
        task.generations = {
            number: generation for number, generation in task.generations.items() if number > plan.generation
        }
        task.generations[plan.generation] = records

    def stacks(self, gang: str, generation: int) -> Stacks | None:
        """Return the first thread of each rank, grouped by stack, if that is the gang's newest hang."""
        newest, of_ranks = self._stacks.get(gang, (0, {}))
        return group_stacks(gang, generation, list(of_ranks.values())) if newest == generation else None

    def usage(self, gang: str, node: str, generation: int) -> tuple[RankUsage, ...]:
        """Return the usage of the ranks on a node now, as far as its launcher has reported it. From any thread."""
        task = self._gangs.get(gang, {}).get(node)
        records = None if task is None else task.generations.get(generation)
        at_s, usage = (0.0, ()) if records is None else records.usage
        return usage if time.monotonic() - at_s <= USAGE_KEPT_S else ()

    def forget(self, gang: str) -> None:
        """Forget a gang, but for the stacks of its hang."""
        self._gangs.pop(gang, None)

    def message_received(self, gang: str, node: str, message: dict[str, Any], ranks: Collection[int] | None) -> bool:
        """Record a message about these ranks: all of its generation's, or None if that is not the newest one.

        Returns True if the message needs no other handling: `file_content`. Raises BadMessage if its data is not
        base64."""
        kind = message["type"]
        if kind == "file_content":
            self._content_received(gang, node, message)
        elif ranks is not None and kind in ("exit_record", "stacks_taken", "rank_usage", "cleared"):
            records = self.task(gang, node).generations.setdefault(message["generation"], _GenerationRecords())
            if kind == "exit_record":
                records.ends[message["rank"]] = message
            elif kind == "stacks_taken":
                self._keep_stacks(gang, node, message, ranks)
                records.tails |= _tails(message, ranks)
            elif kind == "rank_usage":
                records.usage = time.monotonic(), _usage(gang, node, message, ranks)
            else:
                records.is_cleared = True
        return bool(kind == "file_content")

    async def read(self, gang: str, node: str, generation: int, name: str, start: int) -> tuple[int, bytes, int]:
        """Read a piece of a generation's file, from `start`, or from that many bytes before its end if negative.

        Returns the offset and content of the piece, and the current end of the file. Raises OSError if the launcher is
        away, or does not answer.
        """
        connection = self._connection_of(gang, node)
        if connection is None:
            raise ConnectionError(f"the launcher of {gang} on {node} is not connected")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._requests[number] = (gang, node, answer)
        try:
            connection.send("read_file", generation=generation, id=number, name=name, start=start)
            async with asyncio.timeout(READ_TIMEOUT_S):
                piece = await answer
        finally:
            del self._requests[number]
        return piece["start"], piece["data"], piece["end"]

    # -- Records ------------------------------------------------------------------------------------------------------

    def task(self, gang: str, node: str) -> RemoteTask:
        return self._gangs.setdefault(gang, {}).setdefault(node, RemoteTask(node))

    def logs(self, gang: str, generation: int) -> Iterator[RankLog]:
        """Yield the logs; one that cannot be read is empty."""
        for node, task in list(self._gangs.get(gang, {}).items()):
            records = task.generations.get(generation)
            if records is not None:
                names = {rank["rank"]: f"rank-{rank['rank']}.log" for rank in records.ranks}
                for rank, name in [*names.items(), *([(None, _SETUP)] if records.has_setup else [])]:
                    yield RankLog(node, rank, partial(self._newest_lines, gang, node, generation, name))

    def last_lines(self, gang: str, node: str, generation: int, rank: int) -> tuple[str, ...]:
        """Return the last lines when stacks were taken."""
        records = self.task(gang, node).generations.get(generation)
        return () if records is None else records.tails.get(rank, ())

    def main_frames(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        newest, of_ranks = self._stacks.get(gang, (0, {}))
        stacks = list(of_ranks.items()) if newest == generation else []
        return {rank: stack.frames for rank, stack in stacks if stack.frames}

    # -- reading ------------------------------------------------------------------------------------------------------

    def _newest_lines(self, gang: str, node: str, generation: int, name: str, most_bytes: int) -> Iterator[str]:
        reading = self._read_end(gang, node, generation, name, min(most_bytes, NEWEST_BYTES))
        try:
            data = asyncio.run_coroutine_threadsafe(reading, self._loop).result()
        except OSError:
            return
        yield from _log_lines(data)

    async def _read_end(self, gang: str, node: str, generation: int, name: str, most_bytes: int) -> bytes:
        """Return the whole lines at the end of a file, as far as they existed when this was called."""
        begin, data, end = await self.read(gang, node, generation, name, -most_bytes)
        offset = begin + len(data)
        while data and offset < end:
            start, more, _ = await self.read(gang, node, generation, name, offset)
            if not more:
                break
            data, offset = data + more, start + len(more)
        return data.partition(b"\n")[2] if begin else data

    def _keep_stacks(self, gang: str, node: str, message: dict[str, Any], ranks: Collection[int]) -> None:
        generation, at_ms = message["generation"], int(time.time() * 1000)
        newest, of_ranks = self._stacks.get(gang, (0, {}))
        if generation != newest:
            of_ranks = {}
        known = {stack.frames: stack.frames for stack in of_ranks.values()}  # most ranks stand at the same place
        for rank, detail in message["ranks"].items():
            if int(rank) in ranks:
                frames = _frames_of(detail)
                frames = known.setdefault(frames, frames)
                of_ranks[int(rank)] = Frames(int(rank), node, MAIN, detail["state"], "", frames, at_ms)
        self._stacks[gang] = generation, of_ranks
        self._stacks.move_to_end(gang)
        while len(self._stacks) > STACKS_KEPT:
            self._stacks.popitem(last=False)

    def _content_received(self, gang: str, node: str, message: dict[str, Any]) -> None:
        asked_gang, asked_node, answer = self._requests.get(message["id"], ("", "", None))
        if answer is None or answer.done() or (asked_gang, asked_node) != (gang, node):
            return  # too late
        try:
            data = binascii.a2b_base64(message["data"])
        except binascii.Error as error:
            raise BadMessage(f"content: data is not base64: {error}") from None
        answer.set_result({"start": message["start"], "data": data, "end": message["end"]})


def _tails(message: dict[str, Any], ranks: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return the last lines of these ranks: a job may set the variable of a rank that it does not have."""
    return {
        int(rank): tuple(line[:LINE_CHARACTERS] for line in detail["tail"][-TAIL_LINES:])
        for rank, detail in message["ranks"].items()
        if int(rank) in ranks
    }


def _usage(gang: str, node: str, message: dict[str, Any], ranks: Collection[int]) -> tuple[RankUsage, ...]:
    return tuple(
        RankUsage(gang, node, message["generation"], int(rank), *figures)
        for rank, figures in message["ranks"].items()
        if int(rank) in ranks
    )


def _frames_of(detail: dict[str, Any]) -> tuple[str, ...]:
    return tuple(format_frame(*fields)[:LINE_CHARACTERS] for fields in detail["frames"])


def _log_lines(data: bytes) -> Iterator[str]:
    """Yield the lines in a piece of a log, of both streams, in the order in which they ended.

    Pieces of a line are joined; anything else is skipped. docs/reference/launcher-protocol.md, "Files", has the format.
    """
    pieces = {"o": "", "e": ""}
    for letter, content in _RECORD.findall(data):
        kind = letter.decode()
        text = pieces[kind.lower()] + content.decode(errors="replace")
        pieces[kind.lower()] = text if kind.isupper() else ""
        if kind.islower():
            yield text
    yield from filter(None, pieces.values())
