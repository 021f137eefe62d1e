"""Both worlds, started once for each file, since whoever holds the controller keeps others waiting; the nodes of the
one are what the cluster has."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.worlds import InPods, OnMachine
from tests.kubernetes.conftest import real_cluster
from tests.real.cluster import ROOT, end_jobs
from tests.real.cluster import Cluster as Embedded
from tools.controlled import controlled
from tools.testcluster import Cluster

__all__ = ["real_cluster"]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all ranks see, wherever they run."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def volumes(shared: Path) -> list[dict[str, str]]:
    """What jobs mount: that folder, the checkout with its environments, and the Python that these link to."""
    paths = {"shared": shared, "checkout": ROOT, "python": Path(sys.base_prefix)}
    return [{"name": name, "path": str(path)} for name, path in paths.items()]


@pytest.fixture(scope="module")
def in_pods(
    real_cluster: Cluster, volumes: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InPods]:
    with controlled(real_cluster, tmp_path_factory.mktemp("pods")) as its:
        for volume in volumes:
            its.lend(volume["name"], Path(volume["path"]))
        yield InPods(its)


@pytest.fixture(scope="module")
def on_machine(in_pods: InPods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnMachine]:
    cluster = Embedded(tmp_path_factory.mktemp("embedded"))
    topology = cluster.folder / "nodes.yaml"
    entries = [
        f"{{name: {each['name']}, cpu: {each['cpu_milli']}m, memory: {each['memory_bytes']}}}"
        for each in in_pods.client.nodes()
    ]
    topology.write_text(f"nodes: [{', '.join(entries)}]\n")
    ganger = str(Path(sys.executable).with_name("ganger"))
    command = [ganger, "server", "start", "--topology", str(topology)]
    subprocess.run(command, env=cluster.environment, check=True, capture_output=True)
    cluster.client.connect()
    yield OnMachine(cluster)
    end_jobs(cluster.client)
    cluster.client.shutdown()
