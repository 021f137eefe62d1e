"""Code from repositories on Kubernetes: fetched by a pod without rights, and never by the controller."""

import asyncio
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from ganger.controller.jobs import git_pods
from ganger.controller.jobs.git_pods import CONTAINER, HOLDER, LABEL, GitPods
from ganger.errors import RequestError
from ganger.gang_jobs.code_archive import MAX_BYTES
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.objects import Key, ObjectMeta, Pod, PodStatus
from ganger.kubeapi.request import ObjectRef
from ganger.launcher.build_archive import build
from ganger.launcher.fetch_code import ARCHIVE
from ganger.model.job import GitCode
from tests.kubernetes.binding import controller
from tests.kubernetes.jobs.served_repository import commit, git, served
from tests.kubernetes.jobs.test_gang_jobs import cluster
from tests.waiting import until
from tools.fakeapi import FakeApi

OWN = "ganger-system"
PIECE_BYTES = 100
JOB = ObjectMeta(name="job", namespace="team", uid="u-1")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("launcher"), packed=True)


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of two commits, a branch and a tag."""
    repository = tmp_path_factory.mktemp("served") / "tool"
    (repository / "parts").mkdir(parents=True)
    (repository / "parts" / "word.txt").write_text("first")
    commit(repository, "first")
    git(repository, "branch", "old")
    (repository / "parts" / "word.txt").write_text("second")
    (repository / ".gitattributes").write_text("*.txt filter=evil export-subst\n")
    commit(repository, "second")
    git(repository, "tag", "v1")
    return repository


@pytest.fixture(scope="module")
def url(tool: Path) -> Iterator[str]:
    with served(tool.parent) as base:
        yield f"{base}/tool"


def fetched(launcher: Path, folder: Path, *arguments: str, path: str = "/usr/bin:/bin") -> tuple[int, str]:
    """Run the pod's program; return its exit code and its output. The archive is in the folder."""
    command = [sys.executable, "-I", "-S", str(launcher), "fetch", *arguments]
    run = subprocess.run(command, cwd=folder, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert {path.name for path in folder.iterdir()} <= {ARCHIVE}, "nothing else is left"
    return run.returncode, run.stdout


@pytest.mark.parametrize("names", ["HEAD main", "main main", "old old", "v1 main"])
def test_the_program_of_the_pod_fetches_a_ref(names: str, launcher: Path, tool: Path, url: str, tmp_path: Path) -> None:
    ref, name = names.split()
    fetch = partial(fetched, launcher, tmp_path)
    code, output = fetch(url, ref, str(MAX_BYTES))
    assert code == 0, output
    content = (tmp_path / ARCHIVE).read_bytes()
    assert json.loads(output) == {"commit": git(tool, "rev-parse", name), "bytes": len(content)}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        word = archive.extractfile("parts/word.txt")
        assert word is not None
        assert word.read().decode() == {"main": "second", "old": "first"}[name]
    assert fetch(url, ref, str(MAX_BYTES)) == (0, output)
    assert (tmp_path / ARCHIVE).read_bytes() == content, "the same bytes for the same commit"


def test_a_commit_and_what_is_relative_to_a_branch_are_refs_too(
    launcher: Path, tool: Path, url: str, tmp_path: Path
) -> None:
    first = git(tool, "rev-parse", "old")
    for ref in (first, "main~1"):
        _, output = fetched(launcher, tmp_path, url, ref, str(MAX_BYTES))
        assert json.loads(output)["commit"] == first


REFUSALS = {
    "no such ref": ("{url}", "nowhere", str(MAX_BYTES), "no_such_ref", "has no branch, tag or commit nowhere"),
    "not there": ("{url}-gone", "HEAD", str(MAX_BYTES), "git_failed", "cannot be fetched"),
    "too large": ("{url}", "HEAD", "50", "code_too_large", "has more than"),
    "a file": ("file://{tool}", "HEAD", str(MAX_BYTES), "git_failed", "transport 'file' not allowed"),
    "a command": ("ext::touch x", "HEAD", str(MAX_BYTES), "git_failed", "transport 'ext' not allowed"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_fetched_is_said(case: str, launcher: Path, tool: Path, url: str, tmp_path: Path) -> None:
    source, ref, limit, error, says = REFUSALS[case]
    code, output = fetched(launcher, tmp_path, source.format(url=url, tool=tool), ref, limit)
    answer = json.loads(output)
    assert (code, answer["error"]) == (1, error)
    assert says in answer["detail"]
    assert answer["next"]


def test_an_image_without_git_is_named(launcher: Path, url: str, tmp_path: Path) -> None:
    _, output = fetched(launcher, tmp_path, url, "HEAD", str(MAX_BYTES), path="/nonexistent")
    assert json.loads(output)["error"] == "no_git"
    assert "--git-image" in json.loads(output)["next"]


# -- the controller's side ---------------------------------------------------------------------------------------------


class PodRunner:
    """Runs the pods that fetch code as processes of this machine, as a kubelet would, and has their logs and files."""

    def __init__(self, api: FakeApi, launcher: Path, folder: Path) -> None:
        self._api, self._launcher, self._folder = api, launcher, folder
        self.bodies: list[Any] = []
        self.logs: dict[str, str] = {}
        self.added = b""
        """Bytes that a pod has behind its archive."""

    async def run(self) -> None:
        """Run one pod."""
        await until(lambda: self._api.objects("pods", OWN))
        (pod,) = self._api.objects("pods", OWN)
        self.bodies.append(pod)
        (container,) = pod["spec"]["initContainers"]
        arguments = container["command"][4:]
        assert arguments[0] == "fetch"
        code, output = await asyncio.to_thread(fetched, self._launcher, self._folder, *arguments[1:])
        self.logs[pod["metadata"]["name"]] = output
        self._api.put({**pod, "status": {"phase": "Failed" if code else "Running"}})

    async def text(self, ref: ObjectRef[Any], query: Mapping[str, str]) -> str:
        """Return a log, as the API server does."""
        assert (ref.namespace, ref.subresource, query["container"]) == (OWN, "log", CONTAINER)
        return self.logs[ref.name][: int(query["limitBytes"])]

    async def command_output(self, pod: Key, container: str, command: list[str]) -> AsyncGenerator[bytes]:
        """Yield the output of a command, as the API server does."""
        assert (pod.namespace, container, command) == (OWN, HOLDER, ["cat", f"/ganger/work/{ARCHIVE}"])
        assert pod.name in self.logs
        content = (self._folder / ARCHIVE).read_bytes() + self.added
        for start in range(0, len(content), PIECE_BYTES):
            yield content[start : start + PIECE_BYTES]


def _write(file: io.BytesIO, data: bytes) -> None:
    file.write(data)


def _unwanted(data: bytes) -> None:
    raise AssertionError(data)


def with_git_pods(folder: Path, launcher: Path, play: Callable[[FakeApi, GitPods, PodRunner], Awaitable[None]]) -> None:
    async def played() -> None:
        async with cluster(folder) as (api, access), controller(access, folder) as system:
            for name in (OWN, "team"):
                api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            scratch = folder / "scratch"
            scratch.mkdir()
            runner = PodRunner(api, launcher, scratch)
            async with ApiClient(access, PROGRAM) as client:
                client.text = runner.text  # type: ignore[method-assign]
                client.command_output = runner.command_output  # type: ignore[method-assign]
                backend = system.backend
                await play(api, GitPods(client, backend.bootstrap, backend.pods, OWN, "ganger:1"), runner)

    asyncio.run(played())


def test_a_pod_without_rights_fetches_the_code_and_goes(launcher: Path, tool: Path, url: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, pods: GitPods, runner: PodRunner) -> None:
        running = asyncio.create_task(runner.run())
        content = io.BytesIO()
        fetched_code = await pods.fetch(GitCode(git=url, ref="old"), JOB, MAX_BYTES, lambda data: _write(content, data))
        await running
        assert fetched_code.commit == git(tool, "rev-parse", "old")
        received = content.getvalue()
        assert (fetched_code.digest, fetched_code.size_bytes) == (hashlib.sha256(received).hexdigest(), len(received))
        with tarfile.open(fileobj=io.BytesIO(received)) as archive:
            assert "parts/word.txt" in archive.getnames()
        assert not api.objects("pods", OWN), "it is deleted"

        (pod,) = runner.bodies
        kubernetes_validate.validate({key: pod[key] for key in pod if key != "status"}, "1.36", strict=False)
        spec, containers = pod["spec"], [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
        assert [container["name"] for container in containers] == [CONTAINER, HOLDER]
        assert LABEL in pod["metadata"]["labels"], "the network policy applies to it"
        assert spec["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in spec
        assert spec["securityContext"]["runAsNonRoot"]
        for container in containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        assert spec["activeDeadlineSeconds"] == git_pods.TIMEOUT_S
        kinds = {volume["name"]: volume.keys() - {"name"} for volume in spec["volumes"]}
        assert kinds == {"launcher": {"configMap"}, "work": {"emptyDir"}}
        assert spec["volumes"][1]["emptyDir"]["sizeLimit"] == git_pods.DISK

    with_git_pods(tmp_path, launcher, play)


def test_what_a_pod_says_is_what_the_user_reads(launcher: Path, url: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, pods: GitPods, runner: PodRunner) -> None:
        running = asyncio.create_task(runner.run())
        with pytest.raises(RequestError) as refused:
            await pods.fetch(GitCode(git=url, ref="nowhere"), JOB, MAX_BYTES, _unwanted)
        await running
        assert refused.value.code == "no_such_ref"
        assert "ls-remote" in refused.value.next
        assert not api.objects("pods", OWN)

    with_git_pods(tmp_path, launcher, play)


def test_a_pod_that_is_deleted_ends_the_wait(launcher: Path, url: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, pods: GitPods, _: PodRunner) -> None:
        fetching = asyncio.create_task(pods.fetch(GitCode(git=url), JOB, MAX_BYTES, _unwanted))
        await until(lambda: pods._pods)
        await asyncio.sleep(2 * git_pods.POLL_S)  # it has been seen by then
        api.delete("pods", "ganger-git-u-1", OWN)
        with pytest.raises(RequestError, match="its pod was deleted"):
            await fetching

    with_git_pods(tmp_path, launcher, play)


def test_a_namespace_has_a_part_of_the_pods(launcher: Path, url: str, tmp_path: Path) -> None:
    """Slow repositories of one team keep no other team from its code."""

    async def play(api: FakeApi, pods: GitPods, _: PodRunner) -> None:
        jobs = [ObjectMeta(name="job", namespace="team", uid=f"slow-{number}") for number in range(20)]
        jobs.append(ObjectMeta(name="job", namespace="other", uid="quick"))
        fetching = [asyncio.create_task(pods.fetch(GitCode(git=url), job, MAX_BYTES, _unwanted)) for job in jobs]
        await until(lambda: "ganger-git-quick" in {pod["metadata"]["name"] for pod in api.objects("pods", OWN)})
        assert len(api.objects("pods", OWN)) == git_pods.MAX_OF_NAMESPACE + 1
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
        assert not api.objects("pods", OWN), "they are deleted"

    with_git_pods(tmp_path, launcher, play)


def test_a_pod_that_an_earlier_controller_left_is_removed(launcher: Path, tmp_path: Path) -> None:
    async def play(api: FakeApi, pods: GitPods, runner: PodRunner) -> None:
        for namespace, name, labels in (
            (OWN, "left", {LABEL: "fetch"}),
            (OWN, "other", {}),
            ("team", "theirs", {LABEL: "x"}),
        ):
            metadata = {"name": name, "namespace": namespace, "labels": labels}
            api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c"}]}})
        await until(lambda: len(pods._pods) == 3)
        await pods.remove_leftovers()
        assert {pod["metadata"]["name"] for pod in api.objects("pods")} == {"other", "theirs"}

    with_git_pods(tmp_path, launcher, play)


GOOD = {"commit": "a" * 40, "bytes": 3}
FORGED = {
    "nothing": ("Running", ""),
    "no JSON": ("Running", "x\n"),
    "no object": ("Running", "[]\n"),
    "no size": ("Running", json.dumps(GOOD | {"bytes": "3"})),
    "a truth": ("Running", json.dumps(GOOD | {"bytes": True})),
    "less than nothing": ("Running", json.dumps(GOOD | {"bytes": -1})),
    "too large": ("Running", json.dumps(GOOD | {"bytes": MAX_BYTES + 1})),
    "no commit": ("Running", json.dumps(GOOD | {"commit": "$(x)"})),
    "it failed": ("Failed", json.dumps(GOOD)),
    "it ended": ("Succeeded", json.dumps(GOOD)),
    "another code": ("Failed", json.dumps({"error": "internal_error", "detail": "x", "next": "y"})),
    "deep": ("Failed", "[" * 100_000),
    "an object that is deep": ("Failed", '{"error":' * 100_000),
}


@pytest.mark.parametrize("case", FORGED)
def test_nothing_that_a_pod_prints_is_trusted(case: str) -> None:
    phase, log = FORGED[case]
    pod = Pod(metadata=ObjectMeta(name="p", namespace=OWN), status=PodStatus(phase=phase))
    with pytest.raises(RequestError) as refused:
        git_pods._result(GitCode(git="https://code.example.org/a"), pod, log, MAX_BYTES)
    assert refused.value.code == "git_failed"


def test_timeouts_and_refusals_have_their_sentence() -> None:
    late = PodStatus(phase="Failed", reason="DeadlineExceeded", message="Pod was active too long")
    pod = Pod(metadata=ObjectMeta(name="p", namespace=OWN), status=late)
    with pytest.raises(RequestError, match="did not come within 300 s"):
        git_pods._result(GitCode(git="https://code.example.org/a"), pod, "", MAX_BYTES)
    said = json.dumps({"error": "git_failed", "detail": "x" * 5_000 + "\n\x1b[2J", "next": 3})
    with pytest.raises(RequestError) as refused:
        git_pods._result(GitCode(git="https://code.example.org/a"), pod, said, MAX_BYTES)
    assert len(refused.value.detail) <= git_pods.MAX_TEXT
    good = Pod(metadata=ObjectMeta(name="p", namespace=OWN), status=PodStatus(phase="Running"))
    result = git_pods._result(GitCode(git="https://code.example.org/a"), good, json.dumps(GOOD), MAX_BYTES)
    assert result == ("a" * 40, 3)


def test_an_archive_of_another_size_than_its_pod_says_is_not_taken(launcher: Path, url: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, pods: GitPods, runner: PodRunner) -> None:
        runner.added = b"more"
        running = asyncio.create_task(runner.run())
        with pytest.raises(RequestError, match="has other code than it says"):
            await pods.fetch(GitCode(git=url), JOB, MAX_BYTES, _unwanted)
        await running
        assert not api.objects("pods", OWN)

    with_git_pods(tmp_path, launcher, play)
