"""The way of a job does not grow: traced again, it has no more files and frames than its page says."""

from collections.abc import Callable

import pytest

from tests.kubernetes.conftest import real_cluster
from tools.testcluster import Cluster
from tools.way_of_a_job import kubernetes, one_machine
from tools.way_of_a_job.collector import SOURCE, Phase, Process
from tools.way_of_a_job.page import PAGE, World, read, write
from tools.way_of_a_job.way import Frame, Role, Way, way_of

__all__ = ["real_cluster"]

WAYS = read(PAGE.read_text())
REMEDY = "trace again with `make way-of-a-job`"


def growth(world: World, trace: Callable[[], Way], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what a job enters in addition to what the page lists, if its counts have grown; empty if they have not.

    Two traces must agree: a slow machine may reach code once that a job usually does not.
    """
    page, traced = WAYS[world], trace()
    if len(traced.files) <= len(page.files) and len(traced.stack) <= len(page.stack):
        if (len(traced.files), len(traced.stack)) != (len(page.files), len(page.stack)):
            with capsys.disabled():
                print(f"\n{world.value}: only {len(traced.files)} files and {len(traced.stack)} frames: {REMEDY}")
        return []
    again = trace()
    found = []
    if min(len(traced.files), len(again.files)) > len(page.files):
        added = sorted((traced.files & again.files) - page.files)
        found.append(f"{len(traced.files)} files, {len(page.files)} on the page; new: {', '.join(added)}")
    if min(len(traced.stack), len(again.stack)) > len(page.stack):
        names = " > ".join(frame.function for frame in traced.stack)
        found.append(f"{len(traced.stack)} frames, {len(page.stack)} on the page: {names}")
    return found


def test_the_way_on_one_machine_does_not_grow(capsys: pytest.CaptureFixture[str]) -> None:
    grown = growth(World.MACHINE, one_machine.trace, capsys)
    assert not grown, "; ".join([*grown, f"shorten it, or {REMEDY}"])


def test_the_way_on_kubernetes_does_not_grow(real_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    grown = growth(World.KUBERNETES, lambda: kubernetes.trace(real_cluster), capsys)
    assert not grown, "; ".join([*grown, f"shorten it, or {REMEDY}"])


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
