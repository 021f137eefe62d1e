"""Code that fits into no object: sent to the controller, kept in its store, received by launchers, and removed."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest

from ganger.controller.durable import open_archives, stored_code
from ganger.controller.durable.store import DirectoryStore, Store, StoreError
from ganger.controller.durable.stored_code import StoredCode
from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.gang_jobs.code_archive import MAX_BYTES
from ganger.kubeapi.objects import CustomObject, Key, ObjectMeta
from ganger.launcher_server.code_pieces import NoCodeError
from tests.kubernetes.client.served_controller import ServedController, served
from tools.minio import MinioServer

ARCHIVE = os.urandom(3000)
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()
NAME = f"code/ml/{DIGEST}.tar.gz"


OVER = '{"phase": "Succeeded", "record": "{}"}'


def gang_job(digest: str = DIGEST, namespace: str = "ml", status: str = "{}", name: str = "big") -> CustomObject:
    annotations = {object_names.CODE: digest, object_names.CODE_LOCATION: object_names.IN_STORE}
    about = ObjectMeta(name=name, namespace=namespace, uid="u", annotations=annotations)
    return CustomObject(metadata=about, status=msgspec.Raw(status.encode()))


class CountingStore(DirectoryStore):
    """A store that counts what is read."""

    reads = 0

    def get(self, name: str) -> bytes | None:
        self.reads += 1
        return super().get(name)


class Scene:
    """The code in a store, and the GangJobs that name some; used as a context."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.code.close()

    def __init__(self, folder: Path, store: Store | None) -> None:
        self.store, self.folder = store, folder
        self.jobs: dict[Key, CustomObject] = {}
        self.errors: list[StoreError] = []
        self.code = StoredCode(folder / "own", store, self.jobs.get, self.errors.append)
        self.set_job("big", gang_job())

    def set_job(self, name: str, job: CustomObject) -> None:
        """Create or change a GangJob."""
        key = Key(job.metadata.namespace, name)
        self.code.job_changed(self.jobs.get(key), job)
        self.jobs[key] = job

    def keep(self, content: bytes = ARCHIVE, digest: str = "", namespace: str = "ml") -> str:
        """Send code; return its hash."""
        digest = digest or hashlib.sha256(content).hexdigest()
        self.code.new_file().close()
        self.code.keep(BytesIO(content), digest, namespace)
        return digest

    def remove_unused(self) -> None:
        """Remove once what no job uses."""
        assert self.store is not None
        self.code._remove_unused(self.store)

    def received(self, piece_bytes: int = 1000) -> bytes:
        content, size_bytes = b"", 1
        while len(content) < size_bytes:
            piece = self.code.read("big.ml", len(content), piece_bytes)
            assert piece is not None
            content, size_bytes = content + piece.content, piece.size_bytes
        return content


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path, DirectoryStore(tmp_path / "store")) as opened:
        yield opened


def test_an_archive_is_received_in_pieces_by_the_jobs_of_its_namespace(scene: Scene) -> None:
    assert not scene.code.has(DIGEST, "ml")
    scene.keep()
    assert (scene.code.has(DIGEST, "ml"), scene.code.has(DIGEST, "other")) == (True, False)
    assert scene.received() == ARCHIVE
    assert scene.code.read("big.ml", 1 << 40, 10).content == b""  # type: ignore[union-attr]
    with Scene(scene.folder, scene.store) as next_controller:
        assert next_controller.received(1 << 20) == ARCHIVE
    scene.set_job("big", gang_job(namespace="other"))
    with pytest.raises(NoCodeError, match="not in the store"):
        scene.code.read("big.other", 0, 10)


def test_what_names_no_archive_gets_none(scene: Scene) -> None:
    scene.keep()
    for wrong in ("", "../../etc", "a" * 64):
        scene.set_job("big", gang_job(wrong))
        with pytest.raises(NoCodeError):
            scene.code.read("big.ml", 0, 10)
    with pytest.raises(NoCodeError, match="names no code"):
        scene.code.read("deleted.ml", 0, 10)


def test_content_that_is_not_what_its_hash_says_is_neither_stored_nor_sent(scene: Scene) -> None:
    with pytest.raises(RequestError) as refused:
        scene.keep(b"another", DIGEST)
    assert refused.value.code == "bad_archive"
    assert not scene.code.has(DIGEST, "ml")
    scene.keep()
    (scene.folder / "store" / NAME).write_bytes(b"replaced")
    with pytest.raises(NoCodeError, match="damaged"):
        scene.received()


def test_an_unusable_store_is_said_and_asked_again(scene: Scene) -> None:
    scene.keep()
    store = scene.folder / "store"
    store.rename(scene.folder / "away")
    store.write_text("a file in the way")
    assert scene.code.read("big.ml", 0, 10) is None, "the launcher asks again"
    with pytest.raises(RequestError) as refused:
        scene.keep()
    assert (refused.value.code, len(scene.errors)) == ("store_failed", 2)
    store.unlink()
    (scene.folder / "away").rename(store)
    assert scene.received() == ARCHIVE


def test_without_a_store_large_code_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path, None)
    for act in (scene.keep, lambda: scene.code.has(DIGEST, "ml")):
        with pytest.raises(RequestError) as refused:
            act()
        assert (refused.value.code, "--store" in refused.value.next) == ("code_too_large", True)
    with pytest.raises(NoCodeError):
        scene.received()


def removed_when(scene: Scene, holds: Callable[[], bool]) -> None:
    """Remove unused code until the condition holds."""

    async def run() -> None:
        task = asyncio.create_task(scene.code.run(lambda: True))
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - what it waits for is in files
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_code_stays_as_long_as_a_job_uses_it_and_a_while_longer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(stored_code, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(stored_code, "CHECK_INTERVAL_S", 0.001)
    scene.keep()
    scene.keep(os.urandom(10))
    files = scene.folder / "store" / "code" / "ml"
    now_s[0] = stored_code.KEEP_UNUSED_S + 1
    removed_when(scene, lambda: len(list(files.iterdir())) == 1)
    assert scene.received() == ARCHIVE
    scene.set_job("big", gang_job(status=OVER))
    now_s[0] *= 1.5
    assert scene.code.has(DIGEST, "ml"), "a user is about to submit it again"
    now_s[0] += stored_code.KEEP_UNUSED_S - 1
    scene.remove_unused()
    assert files.exists()
    now_s[0] += 2
    removed_when(scene, lambda: not files.exists())


@pytest.mark.parametrize("limit", ["bytes", "number"])
def test_code_of_jobs_that_start_together_is_read_once_and_what_exceeds_the_disk_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    jobs, room, now_s = 8, 6, [0.0]
    monkeypatch.setattr(open_archives, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(open_archives, "MAX_ARCHIVE_BYTES", 100)
    if limit == "bytes":
        monkeypatch.setattr(open_archives, "MAX_OPEN_BYTES", room * 100)
    else:
        monkeypatch.setattr(open_archives, "MAX_OPEN", room)
    store = CountingStore(tmp_path / "store")
    with Scene(tmp_path, store) as scene:
        for number in range(jobs):
            content = bytes([number]) * 100
            scene.set_job(f"job-{number}", gang_job(scene.keep(content), name=f"job-{number}"))

        def received(start: int) -> list[int]:
            pieces = [scene.code.read(f"job-{number}.ml", start, 50) for number in range(jobs)]
            return [number for number, piece in enumerate(pieces) if piece and piece.content == bytes([number]) * 50]

        assert received(0) == received(50) == list(range(room))
        assert store.reads == room
        now_s[0] = open_archives.IN_USE_S - 1
        assert scene.code.read("job-0.ml", 0, 50)
        now_s[0] += 2
        assert [bool(scene.code.read(f"job-{number}.ml", 0, 50)) for number in (6, 7, 0)] == [True] * 3
        assert store.reads == jobs, "what is in use stays"
        assert not scene.errors


def test_all_stored_code_has_a_limit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.keep()
    monkeypatch.setattr(stored_code, "MAX_STORED_BYTES", len(ARCHIVE) + 9)
    scene.keep()
    more = os.urandom(10)
    with pytest.raises(RequestError) as refused:
        scene.keep(more, namespace="other")
    assert (refused.value.code, refused.value.status) == ("code_store_full", 507)
    assert "all jobs together" in refused.value.detail
    assert "submit it again" in refused.value.next
    scene.keep(more[1:], namespace="other")
    assert not scene.errors


def stored(scene: Scene, namespace: str = "ml") -> set[str]:
    folder = scene.folder / "store" / "code" / namespace
    return {path.name.partition(".")[0] for path in folder.iterdir()} if folder.exists() else set()


def test_a_namespace_has_a_share_of_which_unused_code_leaves_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(stored_code, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(stored_code, "MAX_OF_NAMESPACE_BYTES", 3 * len(ARCHIVE))
    scene.keep()
    digests = [DIGEST]
    for name in ("first", "second"):
        now_s[0] += 1
        digests.append(scene.keep(os.urandom(len(ARCHIVE))))
        scene.set_job(name, gang_job(digests[-1], name=name))
    now_s[0] += stored_code.EXPECTED_S
    with pytest.raises(RequestError) as refused:
        scene.keep(os.urandom(1))
    assert refused.value.code == "code_store_full"
    assert "the namespace ml has no room" in refused.value.detail
    assert "jobs of the namespace have ended" in refused.value.next
    assert stored(scene) == {*digests}, "code of live jobs stays"
    scene.keep(os.urandom(len(ARCHIVE)), namespace="other")

    for name, digest in (("second", digests[2]), ("first", digests[1])):
        scene.set_job(name, gang_job(digest, status=OVER, name=name))
        now_s[0] += 1
    with pytest.raises(RequestError):
        scene.keep(os.urandom(1))
    now_s[0] += stored_code.EXPECTED_S
    with pytest.raises(RequestError):
        scene.keep(os.urandom(2 * len(ARCHIVE) + 1))
    assert stored(scene) == {*digests}, "nothing is removed in vain"
    newest = scene.keep(os.urandom(len(ARCHIVE)))
    assert stored(scene) == {DIGEST, digests[1], newest}, "that of the job that ended first is gone"
    assert scene.code.has(digests[1], "ml"), "a user is about to submit it again"
    with pytest.raises(RequestError):
        scene.keep(os.urandom(1))
    assert len(stored(scene, "other")) == 1
    assert scene.received() == ARCHIVE


def test_the_last_room_is_for_namespaces_that_have_no_code_in_use(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(stored_code, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    for name, size_bytes in (("STORED", 100), ("OF_NAMESPACE", 40), ("OF_SHARED", 60)):
        monkeypatch.setattr(stored_code, f"MAX_{name}_BYTES", size_bytes)

    def refusal(size_bytes: int, namespace: str) -> str:
        with pytest.raises(RequestError) as refused:
            scene.keep(os.urandom(size_bytes), namespace=namespace)
        assert refused.value.code == "code_store_full"
        return refused.value.detail

    for namespace, size_bytes in (("a", 20), ("a", 20), ("b", 20)):
        scene.keep(os.urandom(size_bytes), namespace=namespace)
    assert "is for namespaces that have none there, and b has some" in refusal(1, "b")
    scene.keep(os.urandom(30), namespace="c")
    assert "and c has some" in refusal(1, "c")
    scene.keep(os.urandom(10), namespace="d")
    assert "all jobs together" in refusal(1, "e")
    now_s[0] += stored_code.EXPECTED_S  # no job has named any of it
    scene.keep(os.urandom(1), namespace="b")
    assert len(stored(scene, "c")) == len(stored(scene, "d")) == 1, "what is removed is no more than needed"


def test_unused_code_of_any_namespace_makes_room_for_that_of_all(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.keep()
    old = scene.keep(os.urandom(10), namespace="other")
    monkeypatch.setattr(stored_code, "MAX_STORED_BYTES", len(ARCHIVE) + 10)
    with Scene(scene.folder, scene.store) as next_controller:
        assert stored(next_controller, "other") == {old}
        new = next_controller.keep(os.urandom(10), namespace="third")
        assert (stored(next_controller, "other"), stored(next_controller, "third")) == (set(), {new})
        assert next_controller.received() == ARCHIVE
        next_controller.code.job_changed(next_controller.jobs.pop(Key("ml", "big")), None)
        assert not next_controller.code._users


def test_a_bucket_keeps_code(tmp_path: Path, minio: MinioServer) -> None:
    with Scene(tmp_path, minio.store("code")) as scene:
        scene.keep()
        assert scene.code.has(DIGEST, "ml")
        assert scene.received() == ARCHIVE
        scene.remove_unused()
        assert scene.code.has(DIGEST, "ml")


def project(system: ServedController) -> Path:
    """Make a directory with code that does not get smaller than a ConfigMap."""
    code = system.folder / "project"
    code.mkdir()
    (code / "weights").write_bytes(os.urandom(MAX_BYTES + 1))
    return code


def test_a_large_directory_is_submitted_through_the_controller(tmp_path: Path) -> None:
    with served(tmp_path, has_store=True) as system:
        code = project(system)
        ran = system.ganger("submit", "--code", str(code), "--name", "big", "--cpu", "1", "--", "true")
        assert ran.returncode == 0, ran.stderr
        [name] = system.names()
        [stored] = (tmp_path / "store" / "code" / "default").iterdir()
        metadata: Any = system.does(lambda: system.api.get("gangjobs", name))["metadata"]  # type: ignore[index]
        assert metadata["annotations"][object_names.CODE] == stored.name.removesuffix(".tar.gz")
        assert metadata["annotations"][object_names.CODE_LOCATION] == "store"
        assert not [other for other in system.names("configmaps") if other.startswith("ganger-code-")]
        [environment] = system.does(
            lambda: [
                {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
                for pod in system.api.objects("pods")
            ]
        ) or [{}]
        written = stored.stat().st_mtime_ns
        again = system.ganger("submit", "--code", str(code), "--name", "again", "--cpu", "1", "--", "true")
        assert again.returncode == 0, again.stderr
        assert stored.stat().st_mtime_ns == written, "it is sent once"
        assert "GANGER_CODE_FILE" not in environment


def test_a_large_directory_is_refused_without_a_store(tmp_path: Path) -> None:
    with served(tmp_path) as system:
        ran = system.ganger("submit", "--code", str(project(system)), "--cpu", "1", "--", "true")
        assert "the controller has no durable store" in ran.stderr
        assert not system.names()
