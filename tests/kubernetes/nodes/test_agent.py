"""The agent of a node on a real cluster: it taints its own node at a notice of its cloud, and may not change more."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.agent.node_taint import TAINT
from tools.controlled import OWN, printed
from tools.metadata_service import metadata_service
from tools.testcluster import Cluster
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def kubeconfig(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the kubeconfig of the agent of node-1."""
    about = [manifest for manifest in printed("--agent") if "agent" in manifest["metadata"]["name"]]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}}
    objects = [namespace, *(manifest for manifest in about if manifest["kind"] != "DaemonSet")]
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    real_cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(listed))
    bound = ("--bound-object-kind=Node", "--bound-object-name=node-1")
    token = real_cluster.kubectl("create", "token", "ganger-agent", "--namespace", OWN, *bound).strip()
    config = json.loads(real_cluster.kubectl("config", "view", "--raw", "--output=json"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path_factory.mktemp("agent") / "kubeconfig"
    path.touch(0o600)
    path.write_text(json.dumps(config))
    yield path
    real_cluster.kubectl("delete", "validatingadmissionpolicybinding", "agent-taints.ganger.dev")


def _taints(on: Cluster) -> list[dict[str, Any]]:
    node = json.loads(on.kubectl("get", "node", "node-1", "-o", "json"))
    return [taint for taint in node["spec"].get("taints", []) if taint["key"] == TAINT]


def test_it_taints_its_node_at_a_notice_and_removes_that_when_it_is_withdrawn(
    real_cluster: Cluster, kubeconfig: Path
) -> None:
    with metadata_service() as clouds:
        command = [sys.executable, "-m", "ganger.agent", "--node", "node-1", "--kubeconfig", str(kubeconfig)]
        agent = subprocess.Popen([*command, "--notices", f"alibaba {clouds.address}"])
        try:
            clouds.notice_s = 300.0
            until(lambda: len(_taints(real_cluster)) == 1, "the taint")
            (taint,) = _taints(real_cluster)
            assert (taint["effect"], taint["value"].isdecimal()) == ("NoSchedule", True)
            clouds.notice_s = None
            until(lambda: not _taints(real_cluster), "the taint to be removed")
        finally:
            agent.terminate()
            assert agent.wait(30) == 0


@pytest.mark.parametrize(
    "change",
    [
        ("taint", "node", "node-2", f"{TAINT}=1:NoSchedule"),
        ("taint", "node", "node-1", "team=nlp:NoSchedule"),
        ("label", "node", "node-1", "team=nlp"),
        ("annotate", "node", "node-1", "team=nlp"),
        ("patch", "node", "node-1", "--patch", '{"spec": {"unschedulable": true}}'),
    ],
)
def test_it_may_change_nothing_else(change: tuple[str, ...], real_cluster: Cluster, kubeconfig: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        real_cluster.kubectl(*change, user=kubeconfig)
    assert "the agent of a node changes its own" in str(refused.value.stderr)
