"""Ray: a cluster for each job. The head is on the first node, the other nodes join it.

The job's command runs once, on the head, with RAY_ADDRESS; its end is the end of the job. Processes that `ray start`
leaves in the background carry the generation's mark and are ended with it; `ray stop` is not used, because it would end
other clusters on the machine too. Ports but the head's are chosen by Ray, because virtual nodes share one machine. A
client of a Ray cluster can run code in it, so the cluster accepts only clients with the generation's token.
"""

from collections.abc import Mapping
from typing import Final

from ganger.framework_api.launcher_command import find_interpreter
from ganger.framework_api.rank_environment import AGENT_TOKEN, TASK_DIRECTORY, PlacedGang, shared_environment
from ganger.framework_api.rank_environment import RESERVED as SHARED

NAME: Final = "ray"
DOC: Final = "Ray: the command runs once, on the head, with ray.init() finding a cluster of all nodes"
RESERVED: Final = (*SHARED, "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
PER: Final = "node"
AGENT: Final = True
ROLES: Final = ("head", "worker")
NEEDS: Final = "ray"

_FILE: Final = "ray_node.py"
_PROGRAM: Final = '''\
"""This node's part of the job's Ray cluster, run by ganger: python ray_node.py ADDRESS CPUS GPUS [COMMAND...]."""
import os
import socket
import subprocess
import sys
import time

SECONDS = 300.0
address, cpus, gpus, *command = sys.argv[1:]
start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-ip-address", address]
start += ["--num-cpus", cpus, "--num-gpus", gpus, "--disable-usage-stats"]
host, _, port = os.environ["RAY_ADDRESS"].rpartition(":")
deadline = time.monotonic() + SECONDS


def wait():
    if time.monotonic() > deadline:
        sys.exit("the nodes did not find each other within %g s: see /tmp/ray/session_latest/logs" % SECONDS)
    time.sleep(0.1)


def listens():
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


if not command:
    while not listens():
        wait()
    os.execv(sys.executable, [*start, "--address", os.environ["RAY_ADDRESS"], "--block"])

subprocess.run([*start, "--head", "--port", port, "--include-dashboard=false"], check=True, stdout=subprocess.DEVNULL)
import ray  # noqa: E402 - the head comes first

ray.init(logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(os.environ["GANGER_NODES"]):
    wait()
ray.shutdown()
os.execvp(command[0], command)
'''


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the processes on the node of `rank`."""
    return shared_environment(placed, rank) | {
        "RAY_ADDRESS": f"{placed.host}:{placed.port}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{TASK_DIRECTORY}/{AGENT_TOKEN}",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def rank_command(placed: PlacedGang, rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program that starts this node's part and, on the head, then executes the user's command."""
    host = placed.hosts[placed.host_rank(rank)]
    cpus = max(1, host.cpu_milli // 1000)
    node = (f"{TASK_DIRECTORY}/{_FILE}", host.address, str(cpus), str(len(host.devices)))
    return (find_interpreter(argv), *node, *(argv if placed.host_rank(rank) == 0 else ()))


def files(_placed: PlacedGang) -> dict[str, str]:
    """Return the program."""
    return {_FILE: _PROGRAM}


def lacks(counts: Mapping[str, int]) -> str | None:
    """Return why these numbers of processes of each role are not one cluster, None if they are."""
    heads = counts.get("head", 1)
    return f"has one head, on which the command runs, and not {heads}: write roles.head.count: 1" if heads > 1 else None


def ends(_placed: PlacedGang) -> tuple[int, ...]:
    """Return the rank of the user's command."""
    return (0,)
