"""Requests that free something are accepted on a full disk, from the disk reserve, wherever the server is killed."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.engine.eventlog.disk_reserve import RESERVE_BYTES, DiskReserve
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection
from ganger.engine.loop import Loop
from ganger.errors import RequestError
from ganger.model import event as e
from tests.crash.mortal import Day, Fuse, Killed, MortalLog, MortalWorld, check_sound
from tests.engine.scenes import nodes, serve, submit

S = 1_000
RESERVED_ROWS = 200
ROOM = 1 << 30
JOBS = ("early-0", "a-0", "b-0", "c-0", "d-0")
FREES = (e.StopRequested(gang="a-0"), e.Deleted(gang="early-0"))


@dataclass
class Disk:
    """A disk that counts the rows of a log it has room for, and whether some are reserved; it outlives servers."""

    rows: int = ROOM
    reserved: bool = False
    gave: int = 0


class SimulatedReserve(DiskReserve):
    """The reserve of a disk that only counts."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(None)
        self.disk, self.is_held = disk, disk.reserved

    def hold(self) -> bool:
        self.is_held = self.disk.reserved = self.disk.reserved or self.disk.rows > ROOM // 2
        return self.is_held

    def release(self) -> bool:
        if not self.is_held:
            return False
        self.is_held = self.disk.reserved = False
        self.disk.rows += RESERVED_ROWS
        self.disk.gave += 1
        return True


class CrampedLog(MortalLog):
    """An event log on a disk that may be full; its server may be killed."""

    def __init__(self, path: Path, fuse: Fuse, disk: Disk) -> None:
        super().__init__(path, fuse)
        self.disk, self.reserve = disk, SimulatedReserve(disk)

    def append(
        self,
        batch: Sequence[e.Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        if len(batch) > self.disk.rows:
            raise RequestError("disk_full", "the disk is full", "df -h", 507)
        self.disk.rows -= len(batch)
        super().append(batch, projections, shows, encoded)


def start_on_full_disk(folder: Path, fuse: Fuse, disk: Disk) -> tuple[MortalWorld, CrampedLog, Loop]:
    """Start a server: two jobs hold all nodes, two wait, one was stopped; then the disk is full."""
    world = MortalWorld(nodes(2, gpus=4), dict.fromkeys(JOBS, Behaviour(steps=None)))
    world.fuse = fuse
    log = CrampedLog(folder / "g.db", fuse, disk)
    for index, name in enumerate(JOBS):
        world.at(index * 10, submit(name, 1, 4))
    world.at(2 * S, e.StopRequested(gang="early-0"))
    loop = serve(world, log)
    world.run(loop, 10 * S)
    disk.rows = 0
    return world, log, loop


def last_error(world: VirtualCluster, event: e.Event) -> BaseException | None:
    """Return the error of the last answer to the event, or None."""
    return [answer for request, answer in world.asked if request is event][-1].exception()


def states(log: EventLog) -> dict[str, str]:
    return {row["id"]: state for _, state, row in log.jobs()}


def test_stop_and_delete_are_accepted_on_a_full_disk_but_no_new_job(folder: Path) -> None:
    disk = Disk()
    world, log, loop = start_on_full_disk(folder, Fuse(), disk)
    new, stop, delete, later = submit("new-0"), *FREES, submit("late-0")
    for index, event in enumerate((new, stop, delete, later)):
        world.at(10 * S + index * S, event)
    world.run(loop, 60 * S)
    error = last_error(world, new)
    assert isinstance(error, RequestError)
    assert error.code == "disk_full"
    assert last_error(world, stop) is last_error(world, delete) is None
    error = last_error(world, later)
    assert isinstance(error, RequestError)
    assert (error.code, error.status, disk.gave) == ("disk_full", 507, 1)
    assert "only stop, suspend and delete are accepted" in error.detail
    assert error.detail == loop.health()
    assert states(log) == {"a-0": "stopped", "b-0": "running", "c-0": "running", "d-0": "pending"}
    assert {*world.processes()} == {"b-0", "c-0"}
    disk.rows = ROOM
    again = submit("again-0")
    world.at(61 * S, again)
    world.run(loop, 70 * S)
    assert last_error(world, again) is None
    assert (loop.health(), disk.reserved) == ("ok", True)
    check_sound(Day(log, loop, world, []))


def test_job_is_stopped_even_if_the_server_is_killed_meanwhile(folder: Path) -> None:
    undisturbed = Fuse()
    start_on_full_disk(folder, undisturbed, Disk())
    first = undisturbed.passed + 1
    for point in range(first, first + 100):
        for part in folder.iterdir():
            part.unlink()
        fuse, disk = Fuse(at=(point,)), Disk()
        world, log, loop = start_on_full_disk(folder, fuse, disk)
        world.at(10 * S, FREES[0])
        try:
            world.run(loop, 12 * S)
        except Killed:
            log._writer.close()
            world.run(None, world.elapsed_ms() + S)
            log = CrampedLog(folder / "g.db", fuse, disk)
            loop = serve(world, log)
            world.at(world.elapsed_ms() + S, e.StopRequested(gang="a-0"))
            world.run(loop, world.elapsed_ms() + 3 * S)
        is_over, fuse.at = fuse.passed < point, ()
        assert states(log)["a-0"] == "stopped", fuse.names[-3:]
        assert "a-0" not in world.processes()
        disk.rows = ROOM
        world.at(world.elapsed_ms(), submit("again-0"))
        world.run(loop, world.elapsed_ms() + 2 * S)
        assert loop.health() == "ok"
        world.asked = [(event, answer) for event, answer in world.asked if answer.done()]
        check_sound(Day(log, loop, world, []))
        log.close()
        if is_over:
            break
    else:
        pytest.fail("it has no end")
    assert point > first + 2, "it was killed in the middle of it"


def test_a_reserve_occupies_disk_space_and_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "g.db-reserve"
    reserve = DiskReserve(path)
    assert not reserve.is_held
    assert reserve.hold()
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    assert DiskReserve(path).hold()
    assert reserve.release()
    assert not path.exists()
    assert not reserve.release()
    assert DiskReserve(None).is_held


def test_a_reserve_that_cannot_be_allocated_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, offset: int, length: int) -> None:
        raise OSError(28, os.strerror(28))

    reserve = DiskReserve(tmp_path / "g.db-reserve")
    monkeypatch.setattr("ganger.engine.eventlog.disk_reserve.os.posix_fallocate", full)
    assert not reserve.hold()
    assert (tmp_path / "g.db-reserve").stat().st_size == 0
    assert not DiskReserve(tmp_path / "gone" / "g.db-reserve").hold()
