"""torchrun, for those who want its agent: one on each node, which starts the processes there.

The rendezvous is static and of one generation: ganger says how many nodes there are and which this is, and starts the
gang again itself. torchrun reads each of its options from PET_ and the option's name (torch.distributed.run); one that
was written goes over that, so those about membership are taken out of the command.
"""

from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.launcher_command import PYTHON, find_call, length, whole
from ganger.framework_api.rank_environment import Placed, shared_environment, threads

NAME: Final = "torchrun"
DOC: Final = "torchrun on each node, with a static rendezvous; a command without torchrun is given to it"
RESERVED: Final = (
    *C10D,
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_ID",
    "PET_RDZV_CONF",
    "PET_MAX_RESTARTS",
    "PET_STANDALONE",
)
PER: Final = "node"
NEEDS: Final = "torch"

_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_FLAGS: Final = ("standalone", "m", "module", "no-python", "run-path", "virtual-local-rank", "use-env", "h", "help")
_OURS: Final = (
    "nnodes",
    "nproc-per-node",
    "node-rank",
    "master-addr",
    "master-port",
    "max-restarts",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "standalone",
    "local-addr",
)


def rank_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables of the agent that stands for all processes of the node of `rank`; it gives them their own."""
    host_rank = placed.host_rank(rank)
    given = shared_environment(placed, rank) | {
        "PET_NNODES": str(len(placed.hosts)),
        "PET_NPROC_PER_NODE": str(len(placed.hosts[host_rank].ranks)),
        "PET_NODE_RANK": str(host_rank),
        "PET_MASTER_ADDR": placed.host,
        "PET_MASTER_PORT": str(placed.port),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": placed.job_id,
        "PET_MAX_RESTARTS": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": str(threads(placed, rank)),
    }
    # The processes would inherit them, and take the agent's rank for theirs.
    return {name: value for name, value in given.items() if name not in ("GANGER_RANK", "LOCAL_RANK")}


def rank_command(_placed: Placed, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Torchrun with the options that are the user's to say."""
    call = find_call(argv, ("torchrun",), _MODULES)
    if call is None:
        launcher = (argv[0], "-m", _MODULES[0]) if PYTHON.fullmatch(argv[0]) else ("torchrun",)
        return (*launcher, "--no-python", *argv)
    options = call.options(_FLAGS)
    kept = [word for option in options if option.name not in _OURS for word in option.words]
    return call.replaced((*call.head, *kept), length(options))


def recognise(argv: tuple[str, ...]) -> dict[str, int] | None:
    """The size that a command with torchrun in it asks for; None without torchrun."""
    call = find_call(argv, ("torchrun",), _MODULES)
    if call is None:
        return None
    said = {option.name: option.value for option in call.options(_FLAGS)}
    sizes = {
        "nodes": whole(said.get("nnodes", "").rpartition(":")[2]),
        "nproc_per_node": whole(said.get("nproc-per-node", "")),
    }
    return {name: size for name, size in sizes.items() if size}
