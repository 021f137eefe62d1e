"""`ganger --context NAME scale`, and what an edit of the object does: the size is a field of the GangJob."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.client.served_controller import ServedController, served
from tests.kubernetes.controller.test_interrupted_resizes import revive
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    with served(Path(tmp_path_factory.mktemp("scale"))) as found:
        yield found


def submit(system: ServedController, name: str, *options: str) -> str:
    """Submit a job, of which a node has room for one process; return its name."""
    result = system.ganger("submit", "--name", name, "--cpu", "40", *options, "--", "sleep", "600")
    assert result.returncode == 0, result
    return result.stdout.strip()


def sizes(system: ServedController, name: str) -> tuple[int, int]:
    """Return the attempt and the number of pods that it has, once it has any."""
    status: dict[str, Any] = system.status(name)
    return int(status.get("generation") or 0), len(status.get("nodes") or ())


def running(system: ServedController, name: str) -> int:
    """Return the number of pods of a job that run."""
    pods = system.does(lambda: system.api.objects("pods"))
    own = [pod for pod in pods if pod["metadata"]["name"].startswith(name)]
    return sum(pod["status"].get("phase") == "Running" for pod in own)


def edit(system: ServedController, name: str, **fields: object) -> None:
    """Change the spec of an object, as `kubectl edit` does."""
    found = system.api.get("gangjobs", name)
    assert found is not None
    system.api.put(found | {"spec": found["spec"] | fields})


def end(system: ServedController, name: str) -> None:
    system.ganger("stop", name)
    system.wait(name, "Stopped")


@pytest.mark.parametrize("way", ["command", "object"])
def test_a_job_is_smaller_and_larger_on_request(system: ServedController, way: str) -> None:
    job = submit(system, way, "--nodes", "1..2")
    until(lambda: sizes(system, job) == (1, 2), "all idle nodes")
    for attempt, (size, wish) in enumerate(((1, "-1"), (2, "+1")), 2):
        if way == "command":
            assert f"scaled {job}" in system.ganger("scale", job, wish).stdout
        else:
            system.does(lambda size=size: edit(system, job, scale=size))
        until(lambda attempt=attempt, size=size: sizes(system, job) == (attempt, size), f"{size} nodes")
    end(system, job)


def test_a_job_is_killed_while_it_is_resized(system: ServedController) -> None:
    job = submit(system, "killed", "--nodes", "1..2")
    until(lambda: running(system, job) == 2, "its pods run: one that does not is gone at once")
    system.does(lambda: system.api.kubelet.down.update({"n0", "n1"}))
    assert system.ganger("scale", job, "1").returncode == 0
    system.wait(job, "Resizing")
    assert system.ganger("stop", job).returncode == 0
    system.does(lambda: revive(system.api))
    system.wait(job, "Stopped")
    until(lambda: not [name for name in system.names("pods") if name.startswith(job)], "no pod to be left")


def test_a_role_is_scaled(system: ServedController) -> None:
    (system.folder / "roles.yaml").write_text("run: sleep 600\nroles: {ps: {count: 1}, worker: {count: 1..3}}\n")
    job = system.ganger("submit", "-f", "roles.yaml").stdout.strip()
    until(lambda: system.status(job).get("shape", "").startswith("3x"), "three workers")
    assert f"scaled {job}" in system.ganger("scale", job, "-1").stdout
    until(lambda: system.status(job).get("shape", "").startswith("2x"), "two workers")
    end(system, job)


def test_what_cannot_be_says_why(system: ServedController) -> None:
    rigid, elastic = submit(system, "rigid"), submit(system, "elastic", "--nodes", "1..2")
    for job, wish, want in (
        (rigid, "2", "only a job with a range of nodes can be scaled"),
        (elastic, "3", "its job file allows 1 to 2 nodes"),
        (elastic, "-1", "cannot have 0 nodes"),
    ):
        result = system.ganger("scale", job, wish)
        assert (result.returncode, want in result.stderr) == (2, True), result
    end(system, rigid)
    end(system, elastic)
