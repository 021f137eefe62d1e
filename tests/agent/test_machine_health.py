"""Faults of GPUs under a job, on a real server: from the first sign of one to the node that is back."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ganger.check_api.rule_tables import OWN_RULES
from ganger.model.cluster import Node
from ganger.model.node_health.fault import Fault, Severity
from ganger.server.machine_health import placed_faults, rules_in_force, rules_of_cluster
from ganger.settings import Home, SettingsError
from tests.rest.serving import ServerHome
from tests.waiting import wait_until

TOPOLOGY = "nodes: [{name: n1, gpu: h100:2, cpu: 8}, {name: n2, gpu: h100:2, cpu: 8}]\n"
POLICY = """
node_health:
  correlation: {{settle: 0s}}
  hooks: {{reset_device: [{hook}, reset], reboot: [{hook}, reboot], test: [{hook}, test]}}
"""
HOOK = """#!{python} -IS
import os, sys
with open({log!r}, "a") as file:
    print(sys.argv[1], os.environ["GANGER_NODE"], os.environ["GANGER_CODE"], os.environ["GANGER_GPU"], file=file)
os.replace({repaired!r}, {modes!r}) if sys.argv[1] != "test" else None
"""
XID = "3,{seq},{usec},-;NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"


@pytest.fixture
def place(tmp_path: Path, stub_nvml: Path, gpu_modes: Callable[[str], None]) -> Iterator[ServerHome]:
    """Prepare a server with two nodes that have two of the stub's GPUs each, and a kernel log that is a file."""
    gpu_modes("4")
    directory = tmp_path / "home"
    directory.mkdir()
    place = ServerHome(directory)
    place.home.topology.write_text(TOPOLOGY)
    (tmp_path / "kmsg").write_text("")
    place.home.settings_file.write_text(f'[agent]\nnvml_library = "{stub_nvml}"\nkernel_log = "{tmp_path / "kmsg"}"\n')
    yield place
    place.close()


def health(place: ServerHome) -> dict[str, dict[str, Any]]:
    """Return the rows of `ganger node health` by node."""
    return {row["node"]: row for row in place.client.node_health()["nodes"]}


@dataclass(frozen=True)
class Injected:
    """A fault of a GPU: how it shows, its code and class, and the step that repairs it."""

    code: str
    failure_class: str
    step: str
    says: str
    line: str = ""
    mode: str = ""


FALLEN = Injected("xid_79", "gpu_fallen_off_bus", "reboot", "fallen off the bus", line=XID)
LINK = Injected("nvlink_down", "nvlink_error", "reset", "NVLinks 3 are down", mode="nolink")


@pytest.mark.parametrize(
    ("fault", "is_killed"),
    [
        pytest.param(FALLEN, False, id="job runs on", marks=pytest.mark.long),
        pytest.param(FALLEN, True, id="rank is killed"),
        pytest.param(LINK, False, id="an NVLink is down", marks=pytest.mark.long),
    ],
)
def test_a_fault_of_a_gpu_is_one_incident_and_its_node_comes_back(
    place: ServerHome, tmp_path: Path, gpu_modes: Callable[[str], None], fault: Injected, is_killed: bool
) -> None:
    hook, log, policy, pid = tmp_path / "hook", tmp_path / "hooks.log", tmp_path / "policy.yaml", tmp_path / "pid"
    repaired, modes = tmp_path / "repaired", tmp_path / "gpu-modes"
    repaired.write_text("4")
    text = HOOK.format(python=sys.executable, log=str(log), repaired=str(repaired), modes=str(modes))
    hook.write_text(text)
    hook.chmod(0o755)
    policy.write_text(POLICY.format(hook=hook))
    run = ["sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 300"]
    name = place.submit(run, resources={"gpu": 2}, nproc_per_node=1)
    (bad,) = place.until(name, "running")["row"]["nodes"]
    assert place.ganger("policy", "apply", str(policy)).returncode == 0
    wait_until(lambda: place.client.telemetry(points=3), "a sample")
    wait_until(pid.exists, "the rank runs")

    gpu = 0 if bad == "n1" else 2
    with (tmp_path / "kmsg").open("a") as kernel_log:
        kernel_log.write(fault.line.format(seq=1, usec=1, bus=0x10 + gpu))
    if fault.mode:
        gpu_modes(f"4 {gpu}={fault.mode}")
    if is_killed:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    wait_until(lambda: health(place).get(bad, {}).get("state") == "probation", "the node is back on probation")

    assert log.read_text().splitlines() == [f"{step} {bad} {fault.code} {gpu}" for step in (fault.step, "test")]
    assert place.until(name, "running")["row"]["nodes"] == [{"n1": "n2", "n2": "n1"}[bad]]
    assert fault.says in place.ganger("node", "history", bad).stdout
    (incident,) = json.loads(place.ganger("incidents", "-o", "json").stdout)
    assert (incident["failure_class"], incident["nodes"], incident["gpu"]) == (fault.failure_class, [bad], gpu)
    assert (incident["job"], incident["rank"]) == ((name, 0) if is_killed else ("", None))
    assert incident["jobs"] == ([] if is_killed else [name])
    assert any("taken out of service" in sentence for sentence in incident["done"])
    if is_killed:
        assert "evidence: " in place.ganger("incidents", name).stdout


def fault(gpu: int | None, node: str = "machine") -> Fault:
    return Fault(node=node, check="xid", code="79", severity=Severity.REBOOT, gpu=gpu, at_ms=1, sentence="x")


@pytest.mark.parametrize(
    ("gpu", "nodes", "placed"),
    [
        (1, (Node(name="a", device_ids=(0,)), Node(name="b", device_ids=(1,))), [("b", False)]),
        (2, (Node(name="a", device_ids=(0,)), Node(name="b", device_ids=(1,))), []),
        (None, (Node(name="a"), Node(name="b")), []),
        (None, (Node(name="a"),), [("a", True)]),
        (0, (Node(name="a", device_ids=(0,)),), [("a", False)]),
        (0, (), []),
    ],
)
def test_only_faults_of_gpus_take_a_node_out_of_service(
    gpu: int | None, nodes: Sequence[Node], placed: list[tuple[str, bool]]
) -> None:
    assert [(fault.node, fault.is_shadow) for fault in placed_faults([fault(gpu)], nodes)] == placed


def test_rules_of_the_site_replace_rows_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    home, rules = Home(tmp_path), tmp_path / "rules.toml"
    assert rules_in_force(home) is OWN_RULES
    home.settings_file.write_text(f'[agent]\nrules = "{rules}"\n')
    with pytest.raises(SettingsError, match="No such file"):
        rules_in_force(home)
    rules.write_text('[[xid]]\ncode = 79\nseverity = "terrible"\n')
    with pytest.raises(SettingsError, match="terrible"):
        rules_in_force(home)
    rules.write_text('[[xid]]\ncode = 79\nseverity = "replace"\n')
    assert rules_in_force(home) != OWN_RULES


def test_wrong_rules_of_a_cluster_are_logged_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules = tmp_path / "rules.toml"
    assert rules_of_cluster(None) is rules_of_cluster(rules) is OWN_RULES
    rules.write_text('[[xid]]\ncode = 79\nseverity = "replace"\n')
    assert rules_of_cluster(rules) != OWN_RULES
    for wrong in (b'[[xid]]\ncode = 79\nseverity = "terrible"\n', b"[[xid", b"\xff"):
        rules.write_bytes(wrong)
        assert rules_of_cluster(rules) is OWN_RULES
    rules.unlink()
    rules.mkdir()
    assert rules_of_cluster(rules) is OWN_RULES
    assert [record.message.count("left out") for record in caplog.records] == [1] * 4
