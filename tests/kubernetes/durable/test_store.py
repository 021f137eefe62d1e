"""The store: files by name in a directory or a bucket, whole or not at all, and errors without secrets."""

import os
from pathlib import Path

import pytest

from ganger.controller.durable import store as store_module
from ganger.controller.durable.durable_state import delete_old
from ganger.controller.durable.store import BucketStore, DirectoryStore, Store, StoreError, open_store
from ganger.settings import RetentionLimits
from tools.minio import MinioServer

KINDS = ("directory", "bucket")


@pytest.fixture(name="store", params=KINDS)
def its_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    server: MinioServer = request.getfixturevalue("minio")
    return server.store(tmp_path.name)


def test_files_are_written_read_listed_and_deleted(store: Store) -> None:
    assert store.get("a/b/1") is None
    assert store.list("a") == []
    store.delete("a/b/1")
    store.put("a/b/2", b"two")
    store.put("a/b/1", b"one")
    store.put("a/c", b"")
    store.put("ab", b"beside")
    store.put("a/b/1", b"another")
    assert store.get("a/b/1") == b"another"
    assert [(file.name, file.size_bytes) for file in store.list("a")] == [("a/b/1", 7), ("a/b/2", 3), ("a/c", 0)]
    store.delete("a/b/1")
    assert [file.name for file in store.list("a/b")] == ["a/b/2"]


@pytest.mark.parametrize("size_bytes", [0, 999, 1000, 1001, 2500])
def test_a_large_file_of_a_bucket_is_read_in_parts(
    minio: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(store_module, "RANGE_BYTES", 1000)
    store, content = minio.store(tmp_path.name), os.urandom(size_bytes)
    store.put("a", content)
    assert store.get("a") == content


def test_old_files_and_those_beyond_the_size_are_deleted_the_oldest_first(store: Store) -> None:
    for folder in ("events", "logs"):
        for name in "abc":
            store.put(f"{folder}/{name}", b"12345678")
    written_ms = {file.name: file.written_ms for file in store.list("logs")}
    limits = RetentionLimits(logs_ms=1000, logs_bytes=None, events_ms=None, events_bytes=16)
    delete_old(store, limits, min(written_ms.values()) + 999)
    assert len(store.list("logs")) == 3
    assert len(store.list("events")) == 3, "the newest is where the next controller begins, and counts for nothing"
    delete_old(store, RetentionLimits(logs_ms=1000, events_bytes=8), max(written_ms.values()) + 1000)
    assert store.list("logs") == []
    assert [file.name for file in store.list("events")][-1] == "events/c"
    assert len(store.list("events")) == 2


def test_nothing_half_written_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    store.put("a/b", b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="No space left on device") as error:
        store.put("a/b", b"new")
    assert "df -h" in error.value.next
    assert store.get("a/b") == b"old"
    assert [file.name for file in store.list("a")] == ["a/b"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert tmp_path.stat().st_mode & 0o077 == 0


def test_what_is_no_file_is_not_listed_and_a_directory_of_others_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("a/file", b"")
    (tmp_path / "store/a/loop").symlink_to("loop")
    os.mkfifo(tmp_path / "store/a/pipe")
    assert [file.name for file in store.list("a")] == ["a/file"]
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "shared" / "theirs").touch()
    (tmp_path / "file").touch()
    for name in ("shared", "file", "file/store"):
        with pytest.raises(StoreError) as error:
            DirectoryStore(tmp_path / name).put("a", b"")
        assert "ls -ld" in error.value.next


WRONG = {
    "relative": "is not an absolute path",
    "s3://": "is not the URL of a store",
    "s3://bucket?password=x": "is not the URL of a store",
    "https://bucket/folder": "is not the URL of a store",
    "s3://key:secret@bucket": "contains credentials",
}


@pytest.mark.parametrize("location", WRONG)
def test_what_is_no_store_is_refused_without_its_secrets(location: str) -> None:
    with pytest.raises(StoreError, match=WRONG[location]) as error:
        open_store(location)
    assert "secret" not in str(error.value)
    assert error.value.next


def test_a_service_that_is_away_and_wrong_credentials_are_reported_without_secrets(
    minio: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = BucketStore("s3://bucket/folder?endpoint=http://127.0.0.1:9&region=here")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    wrong = minio.store("folder")
    monkeypatch.undo()
    missing = BucketStore(minio.url("folder").replace("s3://", "s3://no-"))
    for store in (away, wrong, missing):
        for use in (lambda store=store: store.put("a", b""), lambda store=store: store.list("a")):
            with pytest.raises(StoreError) as error:
                use()
            assert str(error.value).startswith("s3://")
            assert "secret" not in str(error.value)
            assert minio.secret not in str(error.value)
