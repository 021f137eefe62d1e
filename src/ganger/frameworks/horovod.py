"""Horovod over gloo: each process gets the variables of horovodrun, and rank 0 runs the rendezvous store.

A command with horovodrun is replaced by what that would start for each rank: no ssh, and no second layer of processes
(horovod/runner/gloo_run.py). Horovod over MPI is a job of the framework mpi: its processes get their rank from mpirun.

The driver of Elastic Horovod asks a script for the hosts and tells the processes when they change. Here a resize is a
new generation: a process that `hvd.elastic.run` initialises again within one gets its rank from the same variables.
"""

from typing import Final

from ganger.framework_api.companion import companion
from ganger.framework_api.launcher_command import (
    Call,
    Option,
    count_words,
    find_call,
    find_interpreter,
    parse_positive,
    size_range,
)
from ganger.framework_api.rank_environment import HOSTFILE, TASK_DIRECTORY, PlacedGang, shared_environment
from ganger.framework_api.rank_environment import RESERVED as SHARED

NAME: Final = "horovod"
DOC: Final = "Horovod over gloo; `horovodrun train.py` is started rank by rank, without ssh (with mpirun: mpi)"
RESERVED: Final = (
    *SHARED,
    "HOROVOD_HOSTNAME",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
)
NEEDS: Final = "horovod"

_PROGRAMS: Final = ("horovodrun",)
_MPI: Final = ("mpirun", "mpiexec")
_FLAGS: Final = (
    *("gloo", "mpi", "js", "tcp", "verbose", "disable-cache", "check-build", "cb", "v", "version", "h", "help"),
    *(
        "autotune",
        "no-autotune",
        "timeline-mark-cycles",
        "no-stall-check",
        "log-hide-timestamp",
        "no-log-hide-timestamp",
    ),
    *("hierarchical-allreduce", "no-hierarchical-allreduce", "hierarchical-allgather", "no-hierarchical-allgather"),
)
_PAIRS: Final = ("blacklist-cooldown-range",)
_NOT_TWICE: Final = "echo 'ganger: each rank would run mpirun; say framework: mpi to run it once' >&2; exit 64"
_FILE: Final = "horovod_rank.py"
_DISCOVERY_FILE: Final = "discover_hosts"
_DISCOVERY: Final = f"""\
#!/bin/sh
# The hosts of this generation, in the format of Horovod's --host-discovery-script.
exec sed 's/ slots=/:/' "${{0%/*}}/{HOSTFILE}"
"""
_STORE: Final = """\
def serve():
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    store = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
    with open(os.environ["GANGER_HOSTFILE"]) as file:
        hosts = ",".join(line.strip().replace(" slots=", ":") for line in file)
    store.init(get_host_assignments(parse_hosts(hosts), int(os.environ["HOROVOD_SIZE"])))
    store.serve_forever()
"""


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`. Local: on the same node; cross: of the same local rank."""
    host = placed.hosts[placed.host_rank(rank)]
    local_rank = host.ranks.index(rank)
    nodes_with_local_rank = [node.name for node in placed.hosts if len(node.ranks) > local_rank]
    environment = shared_environment(placed, rank) | {
        "HOROVOD_HOSTNAME": host.name,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(placed.world_size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(len(host.ranks)),
        "HOROVOD_CROSS_RANK": str(nodes_with_local_rank.index(host.name)),
        "HOROVOD_CROSS_SIZE": str(len(nodes_with_local_rank)),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": placed.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(placed.port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if all(node.address.startswith("127.") for node in placed.hosts):
        # Elsewhere Horovod and NCCL find the interface themselves, better than a setting that does not know its name.
        environment |= {"HOROVOD_GLOO_IFACE": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return environment


def rank_command(placed: PlacedGang, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return what horovodrun would start as this rank, once the store listens."""
    if find_call(argv, _MPI) is not None:
        return ("/bin/sh", "-c", _NOT_TWICE)
    call = find_call(argv, _PROGRAMS)
    command = argv if call is None else call.replace_launcher((), count_words(_options(call)))
    return (find_interpreter(argv), f"{TASK_DIRECTORY}/{_FILE}", placed.host, str(placed.port), *command)


def files(_placed: PlacedGang) -> dict[str, str]:
    """Return the program that runs the store, and waits for it, and the one that lists the hosts."""
    return {_FILE: companion("store", _STORE), _DISCOVERY_FILE: _DISCOVERY}


def recognise(argv: tuple[str, ...]) -> dict[str, int | str] | None:
    """Return the size that a command with horovodrun requests, None without it."""
    call = find_call(argv, _PROGRAMS)
    if call is None:
        return None
    values = {option.name: option.value for option in _options(call)}
    processes = parse_positive(values.get("np", values.get("num-proc", values.get("n", ""))))
    low, high = (parse_positive(values.get(f"{end}-np", values.get(f"{end}-num-proc", ""))) for end in ("min", "max"))
    sizes = {
        "processes": size_range(low or processes, high) or low or processes,
        "nproc_per_node": parse_positive(values.get("slots-per-host", "")),
    }
    return {name: size for name, size in sizes.items() if size}


def _options(call: Call) -> list[Option]:
    """Return the options of horovodrun."""
    return call.options(_FLAGS, _PAIRS)
