"""Events of earlier controllers, in the log of one whose pod has a new disk."""

import gzip
import json
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.durable import event_archive
from ganger.controller.durable.event_archive import Begin, EventArchive
from ganger.controller.durable.store import DirectoryStore, StoredFile, StoreError, unpacked
from ganger.controller.durable.stored_code import StoredCode
from ganger.controller.object_service import ObjectService, ServedStore
from ganger.engine.eventlog import codec
from ganger.engine.eventlog.event_log import LOG_FORMAT, EventLog
from ganger.engine.query.job_history import JobHistories
from ganger.engine.replay import replay
from ganger.model.event import NodeCordoned, PolicySet
from ganger.registry import policies
from ganger.settings import Home
from ganger.simulation.from_log.recorded_days import read_days
from tests.kubernetes.binding import GANG, Controlled, controller
from tests.kubernetes.controller.test_controller_faults import bound, scene, status, submit
from tests.waiting import until
from tools.fakeapi import FakeApi


async def set_policy(system: Controlled, half_life_ms: int) -> None:
    with system.loop.view() as state:
        version, document = state.policy_version, state.document
    system.loop.post(PolicySet(document=replace(document, half_life_ms=half_life_ms), version=version + 1, by="ada"))
    await until(lambda: policy_version(system) == version + 1)


def policy_version(system: Controlled) -> int:
    with system.loop.view() as state:
        return state.policy_version


async def run_job(api: FakeApi, system: Controlled) -> None:
    submit(system)
    await until(lambda: len(bound(api)) == 2 and status(api).get("phase") == "Starting")
    for name in bound(api):
        api.kubelet.finish("default", name, 0)
    await until(lambda: status(api).get("phase") == "Succeeded")


def test_history_replay_and_simulation_go_on_after_the_disk_was_lost(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    first, second = tmp_path / "first", tmp_path / "second"

    async def play(api: FakeApi, access: Any) -> None:
        first.mkdir()
        async with controller(access, first) as system:
            archive = EventArchive(store, first / "ganger.db", Begin(0, 0))
            await set_policy(system, 60_000)
            assert archive.ship()
            await set_policy(system, 120_000)
            await run_job(api, system)
            assert archive.ship()
            assert not archive.ship(), "everything is written"
        assert [file.name for file in store.list("events")][-1].endswith("-2.gz")
        second.mkdir()
        begin = event_archive.newest(store)
        async with controller(access, second, begin=begin) as system:
            no_code = StoredCode(Home(second).code, None, system.backend.job, list[StoreError]().append)
            service = ObjectService(system.loop, system.log, system.backend, Home(second), ServedStore(no_code, tuple))
            image_seq = system.log.rows(limit=1)[0].seq - 1
            assert service.policy_versions() == [], "nothing is known of them yet"
            imported = event_archive.import_earlier(store, second / "ganger.db", image_seq, threading.Event())
            assert imported > 5
            await set_policy(system, 180_000)
            versions = service.policy_versions()
            assert [version.version for version in versions] == [3, 2, 1]
            assert [attempt.outcome for attempt in JobHistories(system.log).attempts(GANG, ended_ms=None)] == [
                "finished"
            ]
        result = replay(system.log, policies())  # type: ignore[arg-type]
        assert (result.first, result.difference) == (1, None)
        days = read_days(second / "ganger.db")
        assert list(days.histories) == [GANG]
        assert days.starts == 1

    scene(tmp_path, play)


def test_files_grow_to_a_size_and_damaged_or_foreign_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    monkeypatch.setattr(event_archive, "FILE_BYTES", 600)

    async def play(api: FakeApi, access: Any) -> None:
        async with controller(access, tmp_path) as system:
            archive = EventArchive(store, tmp_path / "ganger.db", Begin(0, 0))
            archive.ship()
            await run_job(api, system)
            archive.ship()
            await set_policy(system, 60_000)
            archive.ship()
            rows = len(system.log.rows())
        names = [file.name for file in store.list("events")]
        assert len(names) > 1
        store.put(names[-1], b"damaged")
        store.put("events/readme.txt", b"not of ganger")
        store.put(f"events/{1:020}-7.gz", b"")
        copy = tmp_path / "copy.db"
        with closing(sqlite3.connect(tmp_path / "ganger.db")) as database, closing(sqlite3.connect(copy)) as empty:
            database.backup(empty)
            empty.execute("DELETE FROM event")
            empty.commit()
        imported = event_archive.import_earlier(store, copy, rows + 1, threading.Event())
        assert 0 < imported < rows

    scene(tmp_path, play)


def lines(*after_head: Any, **head: Any) -> bytes:
    text = "\n".join(json.dumps(line) for line in ({"format": LOG_FORMAT, **head}, *after_head))
    return gzip.compress(text.encode(), mtime=0)


def row(seq: Any, closes: Any = 1) -> list[Any]:
    event = NodeCordoned(node="n1", by="ada")
    return [seq, 0, closes, event.kind, codec.encode(event).decode()]


FLIPPED = bytearray(lines(row(1)))
FLIPPED[15] ^= 0x55
DAMAGED = {
    "a bit of the compressed data": bytes(FLIPPED),
    "cut off": lines(row(1))[:-9],
    "nested": gzip.compress(b"[" * 100_000),
    "an event too large for the database": lines(row(10**30)),
    "an event of this controller": lines(row(100)),
    "an event that is no number": lines(row("1")),
    "a column of the wrong type": lines(row(1, [])),
    "a state too large for the database": lines(seq=10**30, image="AAAA"),
    "a state after infinitely many events": lines(seq=float("inf"), image="AAAA"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_no_controller_wrote_adds_nothing_and_ends_no_controller(content: bytes, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put(f"events/{1:020}-1.gz", content)
    EventLog(tmp_path / "ganger.db").close()
    assert event_archive.import_earlier(store, tmp_path / "ganger.db", 100, threading.Event()) == 0
    store.put(f"events/{1:020}-1.gz", lines(row(1)))
    assert event_archive.import_earlier(store, tmp_path / "ganger.db", 100, threading.Event()) == 1


def test_numbers_that_no_controller_can_continue_from_are_passed_over(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for name in (f"{7:020}-2", "9" * 20 + "-3", f"{8:020}-{'9' * 60}"):
        store.put(f"events/{name}.gz", b"")
    assert event_archive.newest(store) == Begin(7, 2)


def test_a_file_is_unpacked_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganger.controller.durable.store.MAX_UNPACKED_BYTES", 1 << 20)
    store = DirectoryStore(tmp_path)
    store.put("a", gzip.compress(bytes(1 << 20)))
    (file,) = store.list("")
    assert len(unpacked(store, file)) == 1 << 20
    store.put("a", gzip.compress(bytes((1 << 20) + 1)))
    for size_bytes in (file.size_bytes, 1 << 40):
        with pytest.raises(ValueError, match="bytes"):
            unpacked(store, StoredFile("a", size_bytes, 0))
