"""`ganger fetch --context`: files of running pods, on the fake API server; the pods are directories of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.launcher.build_archive import build
from tests.kubernetes.client.served_controller import ServedController, served
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    with served(tmp_path_factory.mktemp("cluster")) as actual:
        yield actual


@pytest.fixture(scope="module")
def job(system: ServedController) -> str:
    """Submit a job of two pods, each with the code, and with files that its rank wrote."""
    arguments = ("--nodes", "2", "--gpu", "8", "--checkpoint", "ckpt", "--name", "wide", "--", "x")
    name = system.ganger("submit", *arguments).stdout.strip()
    system.wait(name, "Starting")
    until(lambda: len(system.names("pods")) == 2, f"pods of {name}")
    for rank, pod in enumerate(sorted(system.names("pods"))):
        root = system.pod_folder(pod)
        for part in ("launcher", "task", "work/results", "work/ckpt"):
            (root / part).mkdir(parents=True)
        build(root / "launcher", packed=True).rename(root / "launcher" / "launcher.pyz")
        (root / "work/train.py").write_text("code")
        (root / "task/plan-1.json").write_text("{}")
        (root / "work/results/all.json").write_text(f"rank {rank}")
        (root / f"work/results/{rank}.json").write_text("own")
        (root / "work/ckpt/big").write_text("weights")
        (root / "work/results/outside").symlink_to("/etc/passwd")
    return name


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def fetch(system: ServedController, target: Path, *arguments: str) -> tuple[int, str]:
    result = system.ganger("fetch", "-o", str(target), *arguments)
    return result.returncode, result.stderr


def test_files_of_all_pods_come_together(system: ServedController, job: str, tmp_path: Path) -> None:
    """Those of rank 0 prevail; code and checkpoints stay, and a link that leads outside is named."""
    code, text = fetch(system, tmp_path / "all", job)
    assert (code, "results/outside" in text) == (0, True), text
    assert files(tmp_path / "all") == ["results/0.json", "results/1.json", "results/all.json"]
    assert (tmp_path / "all/results/all.json").read_text() == "rank 0"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("train.py", ["train.py"]),
        ("results/1.json", ["1.json"]),
        ("results", ["results/0.json", "results/1.json", "results/all.json"]),
        ("ckpt/", ["ckpt/big"]),
    ],
)
def test_a_path(system: ServedController, job: str, tmp_path: Path, path: str, expected: list[str]) -> None:
    code, text = fetch(system, tmp_path / "to", job, path)
    assert (code, files(tmp_path / "to")) == (0, expected), text


@pytest.mark.parametrize(
    "path", ["../../../../etc/passwd", "/etc/passwd", "results/outside", "gone", "-x", "\udcff", "ä'\"$(id)"]
)
def test_no_path_leads_out_of_the_pod_s_directories(
    system: ServedController, job: str, tmp_path: Path, path: str
) -> None:
    code, text = fetch(system, tmp_path / "to", job, "--", path)
    assert (code, files(tmp_path)) == (3, []), text
    assert f"{job} has no " in text
    assert f"all that it wrote: ganger --context fakeapi fetch {job}" in text


def test_a_launcher_that_cannot_run_is_reported(system: ServedController, job: str, tmp_path: Path) -> None:
    pod = min(system.names("pods"))
    launcher = system.pod_folder(pod) / "launcher"
    launcher.rename(launcher.with_name("gone"))
    try:
        code, text = fetch(system, tmp_path / "to", job)
    finally:
        launcher.with_name("gone").rename(launcher)
    assert (code, files(tmp_path)) == (5, [])
    assert f"the launcher of pod {pod} failed: command terminated with exit code 2" in text
    assert "can't open file" in text


def test_it_takes_the_right_to_run_commands(system: ServedController, job: str, tmp_path: Path) -> None:
    system.guards_exec = True
    system.users["ada"] = ("get exec",)
    try:
        code, text = fetch(system, tmp_path / "to", job)
    finally:
        system.guards_exec = False
    assert (code, files(tmp_path)) == (4, [])
    assert "you may not create pods/exec in namespace default" in text


def test_files_are_gone_with_the_pods(system: ServedController, job: str, tmp_path: Path) -> None:
    waiting = system.ganger("submit", "--nodes", "2", "--gpu", "8", "--", "x").stdout.strip()
    code, text = fetch(system, tmp_path / "to", waiting)
    assert (code, f"{waiting} is pending: files are read from its running pods" in text) == (4, True), text
    for name in (waiting, job):
        assert system.ganger("stop", name).returncode == 0
        system.wait(name, "Stopped")
    code, text = fetch(system, tmp_path / "to", job, "results")
    assert (code, files(tmp_path)) == (4, [])
    assert f"{job} is stopped: files are read from its running pods, and only volumes outlive these" in text
    assert "write to a volume: ganger explain-spec volumes" in text
