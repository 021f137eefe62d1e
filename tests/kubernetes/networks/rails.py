"""Two hosts with four network cards each, and a pod on each host, as network namespaces on one switch.

The pods' interfaces are made by the CNI plug-ins of this machine from the definitions that a profile renders, as Multus
would call them; addresses come from the plug-in `static` instead of whereabouts, which needs an API server.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ganger.model.network_profile import NetworkProfile
from ganger.networks import init_check
from ganger.networks.attachments import definitions
from ganger.networks.render import PodFacts, render

PLUGINS = Path("/usr/lib/cni")
NEEDED = ("macvlan", "static", "tuning", "sbr")
TRAFFIC = Path(__file__).with_name("rail_traffic.py")
PREFIX = f"rails{os.getpid()}"
SWITCH, HOSTS, PODS = "switch", ("host1", "host2"), ("pod1", "pod2")
PACKETS = 25


def run(*command: str, text: str | None = None, **environment: str) -> str:
    """Return the output of a command."""
    answer = subprocess.run(
        command, input=text, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 0, f"{' '.join(command)}: {answer.stderr or answer.stdout}"
    return answer.stdout


def in_namespace(name: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs in a namespace."""
    return ("ip", "netns", "exec", f"{PREFIX}-{name}")


@contextmanager
def wired(rails: int) -> Iterator[None]:
    """Make the switch and the hosts, with a cable of each network card to the switch."""
    names = (SWITCH, *HOSTS, *PODS)
    try:
        for name in names:
            run("ip", "netns", "add", f"{PREFIX}-{name}")
        on_switch = ("ip", "-n", f"{PREFIX}-{SWITCH}")
        run(*on_switch, "link", "add", "bridge0", "type", "bridge")
        run(*on_switch, "link", "set", "bridge0", "up")
        for host in HOSTS:
            for rail in range(rails):
                port, card = f"{host}r{rail}", f"r{rail}"
                run(*on_switch, "link", "add", port, "type", "veth", "peer", card, "netns", f"{PREFIX}-{host}")
                run(*on_switch, "link", "set", port, "master", "bridge0", "up")
                run("ip", "-n", f"{PREFIX}-{host}", "link", "set", card, "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", f"{PREFIX}-{name}"], capture_output=True, check=False)


def attach(host: str, pod: str, index: int, profile: NetworkProfile, *, chained: bool) -> list[str]:
    """Attach the rails to a pod; return their addresses. Without `chained` only the main plug-in is called."""
    addresses = []
    for rail, definition in zip(profile.rails, definitions(profile), strict=True):
        config = json.loads(definition["spec"]["config"])
        assert rail.subnet is not None
        network, _, length = rail.subnet.partition("/")
        number = (
            index if len({each.subnet for each in profile.rails}) > 1 else 4 * index + profile.rails.index(rail) - 3
        )
        address = f"{network.rpartition('.')[0]}.{number}"
        addresses.append(address)
        previous: dict[str, Any] | None = None
        for plugin in config["plugins"] if chained else config["plugins"][:1]:
            if "ipam" in plugin:
                routes = plugin["ipam"].get("routes", [])
                plugin["ipam"] = {"type": "static", "addresses": [{"address": f"{address}/{length}"}], "routes": routes}
            call = {**plugin, "cniVersion": config["cniVersion"], "name": config["name"], "prevResult": previous}
            result = run(
                *in_namespace(host),
                str(PLUGINS / plugin["type"]),
                text=json.dumps({key: value for key, value in call.items() if value is not None}),
                CNI_COMMAND="ADD",
                CNI_CONTAINERID=f"{PREFIX}-{pod}",
                CNI_NETNS=f"/run/netns/{PREFIX}-{pod}",
                CNI_IFNAME=rail.interface,
                CNI_PATH=str(PLUGINS),
            )
            previous = json.loads(result)
    return addresses


def packets_by_rail(profile: NetworkProfile, *, chained: bool) -> dict[str, Counter[tuple[int, int]]]:
    """Return how many packets of each rail left the first pod, and arrived at the second, by each rail.

    {"out" or "in": {(rail of the address, rail of the interface): packets}}
    """
    with wired(len(profile.rails)):
        sources, targets = (
            attach(host, pod, index, profile, chained=chained)
            for index, (host, pod) in enumerate(zip(HOSTS, PODS, strict=True), 1)
        )
        interfaces = [rail.interface for rail in profile.rails]
        counters = [_counting(pod, interfaces) for pod in PODS]
        pairs = [f"{source}>{target}" for source, target in zip(sources, targets, strict=True)]
        run(*in_namespace(PODS[0]), sys.executable, str(TRAFFIC), "send", *pairs, str(PACKETS))
        counted = [json.loads(counter.communicate(timeout=30)[0]) for counter in counters]
    found: dict[str, Counter[tuple[int, int]]] = {"out": Counter(), "in": Counter()}
    for (way, addresses), packets in zip((("out", sources), ("in", targets)), counted, strict=True):
        for key, count in packets.items():
            interface, direction, source, target = key.split()
            if direction == way:
                rail = addresses.index(source if way == "out" else target)
                found[way][rail, interfaces.index(interface)] += count
    return found


def check_findings(profile: NetworkProfile, *, chained: bool) -> list[str]:
    """Return what the init check of the first pod says, whose rails are attached as in `packets_by_rail`."""
    expected = render(profile, PodFacts()).expected | {"rdma_devices": 0, "locked_memory": False}
    with wired(len(profile.rails)):
        for index, (host, pod) in enumerate(zip(HOSTS, PODS, strict=True), 1):
            attach(host, pod, index, profile, chained=chained)
        command = (*in_namespace(PODS[0]), sys.executable, "-I", "-S", init_check.__file__, json.dumps(expected))
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr.splitlines()


def _counting(pod: str, interfaces: list[str]) -> subprocess.Popen[str]:
    """Start a counter; return once it counts."""
    command = (*in_namespace(pod), sys.executable, str(TRAFFIC), "count", *interfaces)
    counter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert counter.stdout is not None
    assert counter.stdout.readline() == "ready\n"
    return counter
