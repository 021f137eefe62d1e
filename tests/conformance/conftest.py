"""Both worlds, with the same nodes, started once per file, since the controller is exclusive."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.worlds import InPods, OnMachine, server_of
from tests.kubernetes.conftest import real_cluster
from tests.real.cluster import ROOT
from tools.controlled import ROOT_PODS, controlled
from tools.testcluster import Cluster

pytest.register_assert_rewrite("tests.conformance.suite")

__all__ = ["real_cluster"]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all ranks can access, wherever they run."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def volumes(shared: Path) -> list[dict[str, str]]:
    """Return the volumes of jobs: that folder, the checkout with its environments, and the Python they link to."""
    paths = {"shared": shared, "checkout": ROOT, "python": Path(sys.base_prefix)}
    return [{"name": name, "path": str(path)} for name, path in paths.items()]


@pytest.fixture(scope="module")
def in_pods(
    real_cluster: Cluster, volumes: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InPods]:
    pods = {**ROOT_PODS, "git_hosts": ["198.18.*"]}
    with controlled(real_cluster, tmp_path_factory.mktemp("pods")) as cluster, cluster.policy(pods=pods):
        for volume in volumes:
            cluster.lend(volume["name"], Path(volume["path"]))
        yield InPods(cluster)


@pytest.fixture(scope="module")
def on_machine(in_pods: InPods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnMachine]:
    nodes = {node["name"]: (f"{node['cpu_milli']}m", str(node["memory_bytes"])) for node in in_pods.client.nodes()}
    with server_of(tmp_path_factory.mktemp("embedded"), nodes) as cluster:
        yield OnMachine(cluster)


@pytest.fixture(scope="module")
def reference(on_machine: OnMachine) -> OnMachine:
    return on_machine


@pytest.fixture(scope="module")
def world(in_pods: InPods) -> InPods:
    return in_pods
