"""Gangs on two real nodes with four rails: Multus and whereabouts attach them, and packets are counted by rail."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ganger.model.network_profile import NetworkProfile, Rail
from ganger.networks.attachments import definitions
from tools.controlled import OVER, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.nodes.rails import rails, whereabouts_file
from tools.testcluster.programs import network_plugins

pytestmark = pytest.mark.skipif(
    not network_plugins.is_built(),
    reason="Multus and whereabouts are not built: python -m tools.testcluster build --networks",
)
COUNT, PACKETS = 4, 200
SUBNETS = {"one": ["10.201.0.0/24"] * COUNT, "four": [f"10.202.{rail}.0/24" for rail in range(COUNT)]}
TRAFFIC = (
    """
import fcntl, json, os, pathlib, socket, struct, time

RAILS = ["net%d" % (index + 1) for index in range(COUNT)]

def address(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, 0x8915, struct.pack("256s", interface.encode()))
    return socket.inet_ntoa(answer[20:24])

def packets(way):
    return [int(pathlib.Path("/sys/class/net", rail, "statistics", way + "_packets").read_text()) for rail in RAILS]

def tell(value):
    peer.sendall(json.dumps(value).encode() + b"\\n")

def hear():
    return json.loads(answers.readline())

first = os.environ["GANGER_RANK"] == "0"
place = (os.environ["GANGER_MASTER_ADDR"], 9998)
if first:
    peer = socket.create_server(place).accept()[0]
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.1)
answers = peer.makefile("r")
mine = [address(rail) for rail in RAILS]
tell(mine)
theirs = hear()
for rail in range(COUNT):
    before = packets("tx" if first else "rx")
    tell("ready")
    hear()
    if first:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((mine[rail], 0))
            for _ in range(PACKETS):
                sender.sendto(b"x", (theirs[rail], 9999))
                time.sleep(0.001)
    tell("sent")
    hear()
    time.sleep(0.2)
    after = packets("tx" if first else "rx")
    print("COUNTED", "out" if first else "in", rail, json.dumps([b - a for a, b in zip(before, after)]))
""".replace("COUNT", str(COUNT), 1)
    .replace("range(COUNT)", f"range({COUNT})")
    .replace("PACKETS", str(PACKETS))
)


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    """Run a controller on nodes with rails."""
    with rails(real_cluster, COUNT), controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        yield system


def profile_of(system: Controlled, subnets: str) -> NetworkProfile:
    """Return the profile of the nodes' rails."""
    rails = [
        Rail(
            name=f"rail{index}",
            network=f"{system.namespace}/rail{index}",
            interface=f"net{index + 1}",
            host_interface=f"r{index}",
            subnet=subnet,
        )
        for index, subnet in enumerate(SUBNETS[subnets])
    ]
    return NetworkProfile(name="rails", fabric="tcp", attach="macvlan", rails=tuple(rails))


def apply(system: Controlled, profile: NetworkProfile, *, chained: bool) -> None:
    """Apply the profile and the definitions of its rails, without `chained` those of the main plug-in alone."""
    items: list[Any] = []
    for definition in definitions(profile):
        config = json.loads(definition["spec"]["config"])
        config["plugins"][0]["ipam"]["configuration_path"] = str(whereabouts_file(system.on))
        config["plugins"] = config["plugins"] if chained else config["plugins"][:1]
        items.append({**definition, "spec": {"config": json.dumps(config)}})
    rows = [
        {key: getattr(rail, key) for key in ("name", "network", "interface", "host_interface", "subnet")}
        for rail in profile.rails
    ]
    spec = {"fabric": profile.fabric, "attach": profile.attach, "rails": rows}
    head = {"apiVersion": "ganger.dev/v1alpha1", "kind": "NetworkProfile", "metadata": {"name": "rails"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [*items, head | {"spec": spec}]}
    system.on.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(listed))
    system.on.kubectl("wait", "--for=condition=Accepted", "networkprofile/rails", "--timeout=30s")


def counted(system: Controlled, name: str) -> dict[str, list[list[int]]]:
    """Run two pods on two nodes; return by way and rail of the addresses the packets of each rail's interface."""
    spec = {"nodes": 2, "nproc_per_node": 1, "placement": {"network": "tcp", "strategy": "spread"}}
    system.submit(name, **spec, run='python3 -c "$TRAFFIC"', env={"TRAFFIC": TRAFFIC}, retry={"max": 0})
    status = system.wait(name, *OVER)
    logs = [system.kubectl("logs", pod, "--container", "ranks") for pod in system.pods(name)]
    assert status["phase"] == "Succeeded", (status, logs)
    assert len({pod["spec"]["nodeName"] for pod in system.pods(name).values()}) == 2
    found: dict[str, list[list[int]]] = {"out": [], "in": []}
    for line in "\n".join(logs).splitlines():
        if "COUNTED" in line:
            way, _, numbers = line.partition("COUNTED ")[2].split(" ", 2)
            found[way].append(json.loads(numbers))
    print(name, found)
    return found


@pytest.mark.parametrize("subnets", SUBNETS)
def test_every_packet_of_a_gang_takes_its_own_rail(system: Controlled, subnets: str) -> None:
    apply(system, profile_of(system, subnets), chained=True)
    found = counted(system, f"with-{subnets}")
    for way in ("out", "in"):
        for rail, row in enumerate(found[way]):
            others = sum(row) - row[rail]
            assert row[rail] >= PACKETS, found
            assert others < PACKETS // 10, "ARP and neighbour discovery, and no packet of the gang"


def test_without_the_chain_the_init_check_ends_the_attempt_and_says_what_to_add(system: Controlled) -> None:
    """All packets would leave by one rail: `test_rails` counts them."""
    apply(system, profile_of(system, "one"), chained=False)
    spec = {"nodes": 2, "nproc_per_node": 1, "placement": {"network": "tcp", "strategy": "spread"}}
    system.submit("without-one", **spec, run="true", retry={"max": 0})
    status = system.wait("without-one", *OVER)
    assert status["phase"] == "Failed", status
    assert "the container network-check on " in status["message"], status
    assert "network: " in status["message"], status
