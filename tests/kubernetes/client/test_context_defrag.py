"""`ganger --context NAME defrag apply`: jobs are moved by those who may administer the jobs of all namespaces."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.model.event import Started
from tests.kubernetes.client.served_controller import ServedController, served
from tools.testcluster.waiting import until

FILES = {
    "first": "name: first\nresources: {gpu: 2}\nmovable: true\nrun: sleep 600\n",
    "filler": "name: filler\nresources: {gpu: 5}\nrun: sleep 600\n",
    "second": "name: second\nresources: {gpu: 2}\nmovable: true\nrun: sleep 600\n",
    "large": "name: large\nresources: {gpu: 8}\nrun: sleep 600\n",
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    with served(Path(tmp_path_factory.mktemp("defrag"))) as found:
        found.let_in("ada", "list", "administer")
        found.let_in("bob", "list")
        yield found


def submit(system: ServedController, name: str) -> str:
    (system.folder / "job.yaml").write_text(FILES[name])
    return system.ganger("submit", "-f", "job.yaml").stdout.strip()


def runs(system: ServedController, job: str) -> str:
    """Wait until a job has a node, report that it runs there, and return the node."""
    system.wait(job, "Starting")
    (node,) = system.status(job)["nodes"]
    system.does(lambda: system.controlled.loop.post(Started(gang=f"{job}.default", generation=1, nodes=(node,))))
    system.wait(job, "Running")
    return str(node)


def test_jobs_are_moved_for_a_larger_one(system: ServedController) -> None:
    first, filler, second = (submit(system, name) for name in ("first", "filler", "second"))
    nodes = [runs(system, job) for job in (first, filler, second)]
    assert nodes[0] == nodes[1] != nodes[2]
    system.ganger("stop", filler)
    system.wait(filler, "Stopped")
    large = submit(system, "large")
    system.wait(large, "Pending")
    refused = system.ganger("defrag", "apply", caller="bob")
    assert (refused.returncode, "bob may not administer" in refused.stderr) == (4, True), refused
    applied = system.ganger("defrag", "apply")
    assert applied.returncode == 0, applied
    until(lambda: system.status(large).get("phase") == "Starting", f"the larger job to start, after {applied.stdout}")
    assert system.status(first)["nodes"] == system.status(second)["nodes"] != system.status(large)["nodes"]
