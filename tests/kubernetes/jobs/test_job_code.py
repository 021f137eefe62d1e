"""Code of a GangJob that is stored for pods, and code that is rejected; with real clusters: tests/conformance."""

import asyncio
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import pytest

from ganger.code.packed_code import pack
from ganger.controller.durable import stored_code
from ganger.controller.durable.store import DirectoryStore
from ganger.controller.durable.stored_code import StoredCode
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.git_pods import FetchedCode
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.jobs.job_code import Fetch, JobCode
from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.gang_jobs.code_archive import MAX_BYTES
from ganger.kubeapi.objects import Key, ObjectMeta
from ganger.launcher_server.code_pieces import NoCodeError
from ganger.model.job import GitCode, JobSpec, Origin
from ganger.spec import spec_from_dict
from tests.kubernetes.binding import Controlled, controller
from tests.kubernetes.jobs.test_gang_jobs import NO_CODE, NODES, cluster, put, status
from tests.waiting import until

ORIGIN = Origin(directory="/ganger/work")
ABOUT = ObjectMeta(name="bert", namespace="team")


def asking(code: object) -> JobSpec:
    return spec_from_dict({"run": "true", "code": code}, "a test")


def test_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "run").write_text("#!/bin/sh\n")
        (tmp_path / name / "sub" / "run").chmod(0o755)
    subprocess.run(["touch", "-d", "2001-01-01", str(tmp_path / "two" / "sub" / "run")], check=True)
    first = pack(tmp_path / "one")
    assert pack(tmp_path / "two") == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert [(entry.name, entry.mode & 0o777, entry.uid) for entry in archive if entry.isfile()] == [
            ("sub/run", 0o755, 0)
        ]


def provided(spec: JobSpec, metadata: ObjectMeta) -> Origin:
    return asyncio.run(NO_CODE.provide(spec, metadata, ORIGIN))


def test_a_directory_counts_when_its_archive_is_named() -> None:
    output = replace_annotations({object_names.CODE: "a" * 64})
    assert provided(asking("./src"), output) == replace(ORIGIN, code_hash="a" * 64)
    for wrong in ("", "a" * 63, "../../" + "a" * 58):
        with pytest.raises(RequestError, match="which a controller cannot access"):
            provided(asking("./src"), replace_annotations({object_names.CODE: wrong}))


def replace_annotations(output: dict[str, str]) -> ObjectMeta:
    return ObjectMeta(name=ABOUT.name, namespace=ABOUT.namespace, annotations=output)


def fetching(content: bytes) -> Fetch:
    """Return a function that fetches this, as a pod does."""

    async def fetch(code: GitCode, job: ObjectMeta, max_bytes: int, write: Callable[[bytes], None]) -> FetchedCode:
        if len(content) > max_bytes:
            raise RequestError("code_too_large", f"{code.git} is too large", "put it into the image")
        write(content)
        return FetchedCode("c" * 40, hashlib.sha256(content).hexdigest(), len(content))

    return fetch


SMALL, LARGE = b"small", os.urandom(MAX_BYTES + 1)
DIGEST = hashlib.sha256(LARGE).hexdigest()
GIT = {"git": "https://code.example.org/tool"}


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_code_of_a_repository_goes_to_an_object_or_to_the_store(content: bytes, tmp_path: Path) -> None:
    in_objects = dict[str, bytes]()

    async def put_object(job: Key, digest: str, archive: bytes) -> None:
        in_objects[digest] = archive

    store = StoredCode(tmp_path / "own", DirectoryStore(tmp_path / "store"), lambda _: None, lambda _: None)
    code, digest = JobCode(fetching(content), put_object, store), hashlib.sha256(content).hexdigest()
    origin = asyncio.run(code.provide(asking(GIT), ABOUT, ORIGIN))
    assert origin == replace(ORIGIN, git_commit="c" * 40, code_hash=digest)
    is_large = content is LARGE
    assert (in_objects, store.has(digest, "team")) == ({} if is_large else {digest: content}, is_large)
    assert code.location(ABOUT.key) == ("store" if is_large else None)


def test_large_code_of_a_repository_is_refused_without_a_store_and_where_the_store_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store, error, remedy in (
        (None, "code_too_large", "start the controller with --store"),
        (DirectoryStore(tmp_path / "store"), "code_store_full", "jobs of the namespace have ended"),
    ):
        monkeypatch.setattr(stored_code, "MAX_OF_NAMESPACE_BYTES", MAX_BYTES)
        code = JobCode(
            fetching(LARGE),
            AsyncMock(side_effect=AssertionError),
            StoredCode(tmp_path / "own", store, lambda _: None, lambda _: None),
        )
        with pytest.raises(RequestError) as refused:
            asyncio.run(code.provide(asking(GIT), ABOUT, ORIGIN))
        assert refused.value.code == error
        assert remedy in refused.value.next
        assert code.location(ABOUT.key) is None


def test_pods_receive_fetched_code_from_the_controller_and_from_the_next_one(tmp_path: Path) -> None:
    @asynccontextmanager
    async def store_of(system: Controlled) -> AsyncIterator[StoredCode]:
        durable = DirectoryStore(tmp_path / "store")
        store = StoredCode(tmp_path / "own", durable, system.backend.job, lambda _: None)
        store.restore({job.metadata.key: DIGEST for job in system.backend.jobs if msgspec.json.decode(job.status)})
        system.backend.bootstrap.fetched = store.fetched
        with closing(store):
            yield store

    async def played() -> None:
        async with cluster(tmp_path) as (api, access):
            async with controller(access, tmp_path) as system, store_of(system) as store:
                code = JobCode(fetching(LARGE), AsyncMock(side_effect=AssertionError), store)
                builder = JobBuilder(
                    system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster
                )
                jobs = GangJobReconciler(builder, system.backend.status_writer.update, [], code, system.observed)
                system.backend.watch_jobs(store.job_changed, jobs.changed)
                put(api, code=GIT)
                await until(lambda: len(api.objects("pods")) == NODES)
                assert status(api)["codeLocation"] == "store"
                for pod in api.objects("pods"):
                    (container,) = pod["spec"]["containers"]
                    environment = {item["name"]: item.get("value") for item in container["env"]}
                    assert environment["GANGER_CODE_SHA256"] == DIGEST
                    assert "GANGER_CODE_FILE" not in environment
                    assert "code" not in {volume["name"] for volume in pod["spec"]["volumes"]}
                piece = store.read("big.default", 0, 10)
                assert piece is not None
                assert (piece.content, piece.size_bytes) == (LARGE[:10], len(LARGE))
            async with controller(access, tmp_path) as system, store_of(system) as store:
                assert store.fetched == {Key("default", "big"): DIGEST}
                assert store.read("big.default", 0, 10) == piece
                system.backend.watch_jobs(store.job_changed)
                api.delete("gangjobs", "big")
                await until(lambda: not store.fetched)
                with pytest.raises(NoCodeError):
                    store.read("big.default", 0, 10)

    asyncio.run(played())


def test_a_job_without_code_comes_from_nowhere_else() -> None:
    assert provided(spec_from_dict({"run": "true"}, "a test"), ABOUT) == ORIGIN
