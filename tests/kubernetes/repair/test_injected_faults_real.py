"""Faults of a real node under a job of four ranks: one incident each, the job elsewhere, the node repaired and back.

The agent samples files that stand for the node's sysfs, its mounts and the log of its kernel; all else is real.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ganger.check_api.run_checks import BURST_MS
from tests.kubernetes.agents.real_agent import agent
from tests.kubernetes.repair.test_repair_real import health, jobs, node_of
from tools.controlled import OWN, Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

NUMBERS = (1, 2)
"""Of the nodes: each has one of the faults, as two faults of a node within ten minutes are one incident."""
SPAN_MS = 3_600_000
MOUNT = "29 1 259:2 / / {options} - ext4 /dev/nvme0n1p2 {options}\n"
RULES: dict[str, Any] = {
    "correlation": {"settle": "0s"},
    "breaker": {"percent": 100},
    "probation": {"time": "0s", "relapse": "0s"},
    "hooks": {
        "image": BASE_IMAGE,
        **{step: ["true"] for step in ("reset_device", "restart_service", "reboot", "test")},
        "timeout": "2m",
    },
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the agent of each node takes for sysfs, mounts and the log of the kernel."""
    roots = tmp_path_factory.mktemp("roots")
    for number in NUMBERS:
        of_node = roots / f"node-{number}"
        port = of_node / "sys/class/infiniband/mlx5_0/ports/1"
        (port / "counters").mkdir(parents=True)
        fields = {"phys_state": "5: LinkUp", "state": "4: ACTIVE", "rate": "400 Gb/sec", "counters/link_downed": "0"}
        for name, text in fields.items():
            (port / name).write_text(f"{text}\n")
        (of_node / "mounts").write_text(MOUNT.format(options="rw"))
        (of_node / "kmsg").touch()
    return roots


@pytest.fixture(scope="module")
def system(own_cluster: Cluster, roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    folder = tmp_path_factory.mktemp("agent")
    with (
        controlled(own_cluster, folder) as system,
        system.policy(node_health=RULES),
        ExitStack() as agents,
    ):
        for number in NUMBERS:
            of_node = roots / f"node-{number}"
            places: dict[str, str | Path] = {"sys": of_node / "sys", "mounts": of_node / "mounts"}
            own = folder / f"node-{number}"
            own.mkdir()
            agents.enter_context(agent(own_cluster, number, own, {"kernel-log": of_node / "kmsg", **places}))
        yield system


def faults(system: Controlled, code: str) -> list[Any]:
    """Return the faults with a code that the controller was given."""
    events = system.client.events(limit=1000)["items"]
    found = (event["data"]["fault"] for event in events if event["kind"] == "node_faulty")
    return [fault for fault in found if fault["code"] == code]


def lose_link_twice(system: Controlled, roots: Path, node: str) -> None:
    """Have the link of a port go down twice, far enough apart for two times: once is a note."""
    counter = roots / node / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    counter.write_text("1\n")
    until(lambda: faults(system, "link_downed"), "the first of two to be seen")
    (first,) = faults(system, "link_downed")
    until(lambda: sampled_ms(system, node) > first["at_ms"] + BURST_MS, "a later sample")
    counter.write_text("2\n")


def sampled_ms(system: Controlled, node: str) -> int:
    """Return when the newest sample of the node was taken."""
    return max(row["at_ms"] for row in system.client.telemetry(points=3) if row["node"] == node)


def placeable(system: Controlled) -> list[str]:
    """Return the nodes that a job may start on, as the controller lists them."""
    return [row["name"] for row in system.client.nodes() if row["state"] == "ready"]


def make_read_only(_system: Controlled, roots: Path, node: str) -> None:
    (roots / node / "mounts").write_text(MOUNT.format(options="ro"))


@dataclass(frozen=True)
class Injected:
    """A fault of a node: how it comes about, how it is classed, and the steps that repair the node."""

    node: str
    inject: Callable[[Controlled, Path, str], None]
    code: str
    failure_class: str
    device: str
    steps: tuple[str, ...]


FLAP = Injected("node-1", lose_link_twice, "link_downed", "nccl_network_error", "mlx5_0/1", ("restart_service", "test"))
READ_ONLY = Injected("node-2", make_read_only, "read_only", "local_disk_failure", "/", ("reboot", "test"))


@pytest.mark.parametrize("fault", [FLAP, READ_ONLY], ids=["a port that flaps", "a disk that is read-only"])
def test_a_fault_of_a_node_is_one_incident_and_the_node_comes_back(
    system: Controlled, roots: Path, capsys: pytest.CaptureFixture[str], fault: Injected
) -> None:
    bad = fault.node
    until(lambda: bad in {row["node"] for row in system.client.telemetry(points=3)}, "a sample of the node")
    others = [name for name in system.on.ready_nodes() if name != bad]
    for name in others:
        system.on.kubectl("cordon", name)
    until(lambda: placeable(system) == [bad], "the controller to know it", lambda: str(system.client.nodes()))
    job = fault.code.replace("_", "-")
    system.submit(job, run=["sleep", "600"], nproc_per_node=4, image=BASE_IMAGE)
    assert system.wait(job, "Running")["nodes"] == [bad]
    for name in others:
        system.on.kubectl("uncordon", name)
    known = {incident["id"] for incident in system.client.incidents(span_ms=SPAN_MS)}
    begun_s = time.monotonic()
    fault.inject(system, roots, bad)
    until(lambda: node_of(system, bad)["spec"].get("unschedulable"), "its cordon", lambda: str(health(system, bad)))
    until(
        lambda: [step for step, _ in jobs(system, bad)] == [*fault.steps],
        "both hooks",
        lambda: str(health(system, bad)),
    )
    until(lambda: not node_of(system, bad)["spec"].get("unschedulable"), "its return")
    took_s = time.monotonic() - begun_s
    assert system.wait(job, "Running")["nodes"] != [bad]
    (incident,) = (item for item in system.client.incidents(span_ms=SPAN_MS) if item["id"] not in known)
    about = incident["failure_class"], incident["nodes"], incident["device"]
    assert about == (fault.failure_class, [bad], fault.device)
    assert incident["jobs"] == [f"{job}.{system.namespace}"]
    with capsys.disabled():
        print(f"\n{fault.code}: time to pool {took_s:.1f} s, of which up to 10 s to the sample")
    system.on.kubectl("delete", "gangjob", job, "-n", system.namespace)
    system.on.kubectl("delete", "jobs", "-n", OWN, "-l", "ganger.dev/repair")
