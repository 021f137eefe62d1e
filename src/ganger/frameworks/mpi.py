"""MPI: mpirun on the first node starts the processes on all nodes, through ganger's agent in place of ssh.

There is no sshd, there are no keys, and node names need not resolve. Open MPI 5 reads PRTE_MCA_*, Open MPI 4
OMPI_MCA_*, Intel MPI I_MPI_HYDRA_*, MPICH HYDRA_*; each ignores the others. A user's own mpirun is unchanged; any other
command is passed to mpirun. A process gets its rank from mpirun, so none of ganger's is set (docs.open-mpi.org,
"prte_info"; Intel MPI developer reference, "Hydra environment variables"; MPICH, "Using Hydra").
"""

from typing import Final

from ganger.framework_api.launcher_command import Call, find_call, parse_positive
from ganger.framework_api.rank_environment import HOSTFILE, TASK_DIRECTORY, PlacedGang, shared_environment
from ganger.framework_api.rank_environment import RESERVED as SHARED

NAME: Final = "mpi"
DOC: Final = "MPI: mpirun reaches all nodes without ssh; a command without mpirun is given to it"
RESERVED: Final = (
    *SHARED,
    "PRTE_MCA_prte_default_hostfile",
    "PRTE_MCA_plm_ssh_agent",
    "PRTE_MCA_plm_ssh_no_tree_spawn",
    "PRTE_MCA_prte_keep_fqdn_hostnames",
    "OMPI_MCA_orte_default_hostfile",
    "OMPI_MCA_plm_rsh_agent",
    "OMPI_MCA_plm_rsh_no_tree_spawn",
    "OMPI_MCA_orte_keep_fqdn_hostnames",
    "I_MPI_HYDRA_HOST_FILE",
    "I_MPI_HYDRA_BOOTSTRAP",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC",
    "HYDRA_HOST_FILE",
    "HYDRA_LAUNCHER",
    "HYDRA_LAUNCHER_EXEC",
)
PER: Final = "gang"
AGENT: Final = True

PROGRAMS: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
_MACHINEFILE: Final = "machinefile"
_SCRIPT: Final = "mpirun"
# Where MPI comes with the Python that the command names, as wheels do, its mpirun is not in PATH.
_START: Final = """\
#!/bin/sh
# Run by ganger: mpirun PROCESSES COMMAND...
processes=$1
shift
mpirun=${1%/*}/mpirun
[ -x "$mpirun" ] || mpirun=mpirun
exec "$mpirun" -n "$processes" "$@"
"""
_FLAGS: Final = (
    *("allow-run-as-root", "oversubscribe", "use-hwthread-cpus", "report-bindings", "tag-output", "timestamp-output"),
    *("q", "quiet", "v", "verbose", "V", "version", "h", "help", "l", "display-map", "display-allocation", "nolocal"),
    *("bynode", "byslot", "bind-to-core", "bind-to-socket", "bind-to-none", "do-not-launch", "genvall", "genvnone"),
)
_PAIRS: Final = ("mca", "gmca", "omca", "prtemca", "pmixmca", "genv", "env")
_SHARED_MACHINE: Final = {
    # Open MPI names shared memory by the machine and the index on the node: two processes would take one file for
    # theirs. Collectives that go by node (han) take both for one node and wait for ever.
    "OMPI_MCA_btl": "^sm,vader",
    "OMPI_MCA_osc": "^sm",
    "OMPI_MCA_coll": "^han,xhc,sm",
    # More processes than it knows of share the CPUs, and each would spin.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
"""Variables for nodes that share one machine, such as virtual nodes."""


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of mpirun itself, on the node of rank 0."""
    hostfile, agent = f"{TASK_DIRECTORY}/{HOSTFILE}", f"{TASK_DIRECTORY}/agent"
    environment = shared_environment(placed, rank) | {
        "PRTE_MCA_prte_default_hostfile": hostfile,
        "PRTE_MCA_plm_ssh_agent": agent,
        # The agent's path holds on this node only: the others must not pass the start on.
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
        "OMPI_MCA_orte_default_hostfile": hostfile,
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
        "I_MPI_HYDRA_HOST_FILE": f"{TASK_DIRECTORY}/{_MACHINEFILE}",
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
        "HYDRA_HOST_FILE": f"{TASK_DIRECTORY}/{_MACHINEFILE}",
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": agent,
        # A node's processes have the variables of their own node from its agent, not those of the first one.
        "HYDRA_ENV": "none",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Several jobs may share a node: each mpirun would bind its processes to the same first cores.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "I_MPI_PIN": "0",
    }
    if len({host.address for host in placed.hosts}) < len(placed.hosts):
        environment |= _SHARED_MACHINE
    # Its processes would inherit them, and take this rank for theirs.
    return {
        name: value for name, value in environment.items() if name not in ("GANGER_RANK", "LOCAL_RANK", "WORLD_SIZE")
    }


def rank_command(placed: PlacedGang, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the user's own mpirun unchanged, else mpirun with the command, once for each process of the gang."""
    if find_call(argv, PROGRAMS) is not None:
        return argv
    return ("/bin/sh", f"{TASK_DIRECTORY}/{_SCRIPT}", str(placed.world_size), *argv)


def files(placed: PlacedGang) -> dict[str, str]:
    """Return the hosts in the format of Intel MPI and MPICH, and the script that finds mpirun."""
    hosts = "".join(f"{host.name}:{len(host.ranks)}\n" for host in placed.hosts)
    return {_MACHINEFILE: hosts, _SCRIPT: _START}


def recognise(argv: tuple[str, ...]) -> dict[str, int] | None:
    """Return the size that a command with mpirun requests, None without it."""
    call = find_call(argv, PROGRAMS)
    if call is None:
        return None
    values = _said(call)
    processes = parse_positive(values.get("n", values.get("np", values.get("c", ""))))
    per_node = parse_positive(values.get("N", values.get("npernode", values.get("ppn", values.get("perhost", "")))))
    if processes and per_node and processes % per_node == 0:
        return {"nodes": processes // per_node, "nproc_per_node": per_node}
    return {"nproc_per_node": per_node} if per_node else {"processes": processes or 1}


def fixed_size(argv: tuple[str, ...]) -> str | None:
    """Return why a job with this command has one size; without a number of processes mpirun starts one on each slot."""
    call = find_call(argv, PROGRAMS)
    said = {} if call is None else _said(call)
    written = next((f"-{name} {said[name]}" for name in ("n", "np", "c") if name in said), None)
    return written and f"mpirun has the number of processes, {written}: leave that out, or write one number"


def _said(call: Call) -> dict[str, str]:
    """Return the options of mpirun, which end at the program."""
    values: dict[str, str] = {}
    words = list(call.rest)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).lstrip("-").partition("=")
        if equals or name in _FLAGS:
            values[name] = value
        else:
            values[name] = words[0] if words else ""
            del words[: 2 if name in _PAIRS else 1]
    return values
