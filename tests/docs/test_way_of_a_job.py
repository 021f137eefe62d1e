"""The way of a job does not grow: traced again, it has no more files and frames than its page says."""

from collections.abc import Callable, Collection

import pytest

from tests.kubernetes.conftest import real_cluster
from tools.testcluster import Cluster
from tools.way_of_a_job import kubernetes, one_machine
from tools.way_of_a_job.collector import SOURCE, Phase, Process
from tools.way_of_a_job.page import PAGE, World, read, write
from tools.way_of_a_job.way import Frame, Role, Way, way_of

pytestmark = pytest.mark.long

__all__ = ["real_cluster"]

WAYS = read(PAGE.read_text())
REMEDY = "trace again with `make way-of-a-job`"


@pytest.fixture
def ways_on_kubernetes(real_cluster: Cluster) -> list[Way]:
    """Trace jobs in a fixture, for waiting for the one controller of the cluster is not the time of a test."""
    return traces(World.KUBERNETES, lambda: kubernetes.trace(real_cluster))


def traces(world: World, trace: Callable[[], Way]) -> list[Way]:
    """Return the ways of as many jobs, three at most, as it takes until not all of them have grown.

    A slow machine may reach code once that a job usually does not.
    """
    ways = [trace()]
    while growth(world, ways) and len(ways) < 3:
        ways.append(trace())
    return ways


def growth(world: World, ways: list[Way]) -> list[str]:
    """Return what each of the jobs enters in addition to what the page lists, if the counts of all have grown."""
    page, fewest, shallowest = WAYS[world], *_least(ways)
    found = []
    if len(fewest) > len(page.files):
        added = sorted(frozenset.intersection(*(frozenset(way.files) for way in ways)) - page.files)
        found.append(f"{len(fewest)} files, {len(page.files)} on the page; new: {', '.join(added)}")
    if len(shallowest) > len(page.stack):
        names = " > ".join(frame.function for frame in shallowest)
        found.append(f"{len(shallowest)} frames, {len(page.stack)} on the page: {names}")
    return found


def check(world: World, ways: list[Way], capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the ways have not grown, and print where they have shrunk."""
    page, files, stack = WAYS[world], *_least(ways)
    grown = growth(world, ways)
    assert not grown, "; ".join([*grown, f"shorten it, or {REMEDY}"])
    if len(files) < len(page.files) or len(stack) < len(page.stack):
        with capsys.disabled():
            print(f"\n{world.value}: only {len(files)} files and {len(stack)} frames: {REMEDY}")


def _least(ways: list[Way]) -> tuple[Collection[str], list[Frame]]:
    return min((way.files for way in ways), key=len), min((way.stack for way in ways), key=len)


def test_the_way_on_one_machine_does_not_grow(capsys: pytest.CaptureFixture[str]) -> None:
    check(World.MACHINE, traces(World.MACHINE, one_machine.trace), capsys)


def test_the_way_on_kubernetes_does_not_grow(ways_on_kubernetes: list[Way], capsys: pytest.CaptureFixture[str]) -> None:
    check(World.KUBERNETES, ways_on_kubernetes, capsys)


@pytest.mark.parametrize("world", WAYS)
def test_the_files_of_the_page_exist(world: World) -> None:
    frames = {frame.file for frame in WAYS[world].stack if frame.is_own}
    assert [file for file in sorted(WAYS[world].files | frames) if not (SOURCE / file).is_file()] == [], REMEDY


def test_the_page_has_every_world_whole() -> None:
    assert list(WAYS) == list(World)
    assert all(way.steps and way.stack for way in WAYS.values())


def test_what_a_process_does_when_idle_is_not_the_jobs() -> None:
    calls = [("a.py", "tick"), ("b.py", "serve.<locals>.answer"), ("b.py", "end"), ("c.py", "late")]
    phases = [Phase.JOB, Phase.JOB, Phase.JOB, Phase.END]
    process = Process(["ganger"], [(Phase.IDLE, calls[0]), *zip(phases, calls, strict=True)])
    assert way_of([process]).steps == {Role.CLIENT: [("b.py", "serve")]}


def test_several_traces_together_keep_the_order() -> None:
    way = Way({Role.SERVER: [("a.py", "a"), ("c.py", "c")]}, [])
    way.include(Way({Role.SERVER: [("a.py", "x"), ("b.py", "b"), ("c.py", "c")]}, [Frame("a.py", "a", is_own=True)]))
    assert way.steps[Role.SERVER] == [("a.py", "a"), ("b.py", "b"), ("c.py", "c")]
    assert len(way.stack) == 1


def test_a_page_can_be_read_again() -> None:
    frames = [Frame("engine/loop.py", "Loop.run", is_own=True), Frame("contextlib.py", "_Manager.enter", is_own=False)]
    ways = {World.MACHINE: Way({Role.CLIENT: [("cli/__init__.py", "main")], Role.LAUNCHER: [("gone.py", "f")]}, frames)}
    assert read(write(ways)) == ways
