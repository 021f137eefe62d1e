"""The gang runtime between the core's decisions and launchers: what it keeps of a job from attempt to attempt."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ganger.launcher_server.connection import Hello
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.runtime.gang_runtime import GangRuntime
from ganger.model.decision import NodeShare, Start
from ganger.model.event import Event
from ganger.model.job import Job, JobSpec, Origin
from tests.launcher.forged import MESSAGES

GANG = "job"


class Scene:
    """A runtime without launchers, and the place where it begins generations; messages are handed to it."""

    keeps_launchers = False
    records: Any = None

    def __init__(self) -> None:
        self.begun: list[Generation] = []
        self.events: list[Event] = []
        self.loop = asyncio.new_event_loop()
        place: Any = self
        self.runtime = GangRuntime(place, self.loop)
        self.runtime.open(self._report, ())
        self.job = Job(id=GANG, user="me", spec=JobSpec(run="x"), origin=Origin(directory="/"))

    def start(self, number: int, *nodes: str) -> Generation:
        shares = tuple(NodeShare(node, (rank,)) for rank, node in enumerate(nodes))
        self.runtime.start(Start(gang=GANG, generation=number, shares=shares, host="h", port=1), self.job)
        return self.begun[-1]

    def hears(self, node: str, kind: str, **fields: Any) -> None:
        generation = self.runtime.generations[GANG].number
        nothing: Any = None
        hello = Hello(gang=GANG, node=node, process=nothing, generations=(generation,), generation=generation)
        message = {**MESSAGES[kind], "type": kind, "gang": GANG, "node": node, "generation": generation, "n": None}
        self.runtime.message_received(nothing, hello, message | fields)

    # -- the place -------------------------------------------------------------------------------------------------

    def token(self, gang: str, node: str, generation: int) -> str | None:
        return None

    def address(self, gang: str, node: str) -> str | None:
        return None

    def open(self, runtime: GangRuntime, live: tuple[Any, ...]) -> None:
        """Do nothing: nothing runs yet."""

    def begin(self, generation: Generation, previous: Generation | None) -> None:
        self.begun.append(generation)

    def message_received(self, hello: Hello, message: dict[str, Any], current: Generation | None) -> bool:
        return False

    def _report(self, event: Event) -> "Future[int]":
        self.events.append(event)
        future: Future[int] = Future()
        future.set_result(len(self.events))
        return future


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.runtime.close()
    scene.loop.close()


def test_what_was_learned_of_pauses_belongs_to_the_job(scene: Scene) -> None:
    """The next attempt runs on another node, and gets the longest of what each node has seen."""
    scene.start(1, "n1", "n2")
    for node, longest_s in (("n1", {"eval": 61.5, "": 3.0}), ("n2", {"eval": 70.0, "upload": 9.0})):
        pauses = {"longest_s": longest_s, "suspected_s": 0.0, "stuck_step": -1}
        scene.hears(node, "stall_report", stopped_ranks=[], pauses=pauses)
    pauses = {"longest_s": {}, "suspected_s": 54.0, "stuck_step": 50}
    scene.hears("n1", "stall_report", stopped_ranks=[], pauses=pauses)
    assert scene.start(2, "n3").pauses == {
        "longest_s": {"eval": 70.0, "": 3.0, "upload": 9.0},
        "suspected_s": 54.0,
        "stuck_step": 50,
    }
