"""torchrun, for scripts that need its agent: one agent on each node, which starts the processes there.

The rendezvous is static and for one generation: ganger sets the number of nodes and the index of each, and restarts the
gang itself. torchrun reads each of its options from PET_ and the option's name (torch.distributed.run); an option on
the command line overrides that, so those about membership are removed from the command.

`accelerate launch` runs the same agent, but takes the membership from its own options and its configuration file, over
which options take precedence (accelerate/commands/launch.py and utils/launch.py): they are replaced.
"""

from dataclasses import replace
from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.launcher_command import (
    PYTHON,
    Call,
    count_words,
    find_call,
    parse_count,
    parse_positive,
    parse_range,
)
from ganger.framework_api.rank_environment import PlacedGang, shared_environment, thread_count

NAME: Final = "torchrun"
DOC: Final = (
    "torchrun or `accelerate launch` on each node, with a static rendezvous; a command without either is given to "
    "torchrun"
)
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
_AUTOMATIC: Final = ("auto", "gpu", "cpu", "xpu")
"""Values of --nproc-per-node that leave the number to torchrun, here to ganger."""
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
_ACCELERATE_MODULES: Final = ("accelerate.commands.launch",)
_ACCELERATE_FLAGS: Final = (
    *("quiet", "q", "cpu", "multi-gpu", "tpu", "enable-cpu-affinity", "use-deepspeed", "use-fsdp", "use-megatron-lm"),
    *("use-parallelism-config", "same-network", "m", "module", "no-python", "tpu-cluster", "no-tpu-cluster"),
    *("dynamo-use-fullgraph", "dynamo-use-dynamic", "dynamo-use-regional-compilation", "tpu-use-sudo"),
    *("downcast-bf16", "fp8-use-autocast-during-eval", "debug", "h", "help"),
)
_OUR_ACCELERATE: Final = (
    *("num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port", "same-network"),
    *("max-restarts", "rdzv-backend", "rdzv-conf", "deepspeed-multinode-launcher"),
)


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the agent of the node of `rank`; the agent sets those of its processes."""
    host_rank = placed.host_rank(rank)
    environment = shared_environment(placed, rank) | {
        "PET_NNODES": str(len(placed.hosts)),
        "PET_NPROC_PER_NODE": str(len(placed.hosts[host_rank].ranks)),
        "PET_NODE_RANK": str(host_rank),
        "PET_MASTER_ADDR": placed.host,
        "PET_MASTER_PORT": str(placed.port),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": placed.job_id,
        "PET_MAX_RESTARTS": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": str(thread_count(placed, rank)),
    }
    # The processes would inherit them, and take the agent's rank for theirs.
    return {name: value for name, value in environment.items() if name not in ("GANGER_RANK", "LOCAL_RANK")}


def rank_command(placed: PlacedGang, rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the launcher with the options that are left to the user."""
    if (accelerate := _find_accelerate(argv)) is not None:
        return _accelerate_command(placed, rank, accelerate)
    call = find_call(argv, ("torchrun",), _MODULES)
    if call is None:
        launcher = (argv[0], "-m", _MODULES[0]) if PYTHON.fullmatch(argv[0]) else ("torchrun",)
        return (*launcher, "--no-python", *argv)
    options = call.options(_FLAGS)
    user_words = [word for option in options if option.name not in _OURS for word in option.words]
    return call.replace_launcher((*call.head, *user_words), count_words(options))


def recognise(argv: tuple[str, ...]) -> dict[str, int | str] | None:
    """Return the size and the retries that a command with one of the launchers requests, None without them.

    A text that is no size stays as it is, for the validation to refuse.
    """
    if (accelerate := _find_accelerate(argv)) is not None:
        return {**_accelerate_sizes(accelerate)}
    call = find_call(argv, ("torchrun",), _MODULES)
    if call is None:
        return None
    values = {option.name: option.value for option in call.options(_FLAGS)}
    sizes = {
        "nodes": parse_range(values.get("nnodes", "")) or _size(values.get("nnodes", "").rpartition(":")[2]),
        "nproc_per_node": _size(values.get("nproc-per-node", "")),
    }
    retries = parse_count(values.get("max-restarts", ""))
    return {name: size for name, size in sizes.items() if size} | ({} if retries is None else {"retries": retries})


def _size(text: str) -> int | str | None:
    """Return the number that a text is, the text if it is none, and None where the size is left open."""
    is_open = text in _AUTOMATIC or "$" in text or "`" in text  # a variable is unknown until the shell has expanded it
    return None if is_open else parse_positive(text) or text


def _find_accelerate(argv: tuple[str, ...]) -> Call | None:
    """Return the call of `accelerate launch`, by any of its names; None without it."""
    call = find_call(argv, ("accelerate", "accelerate-launch"), _ACCELERATE_MODULES)
    if call is None or call.head[0].rpartition("/")[2] != "accelerate":
        return call
    is_launch = call.rest[:1] == ("launch",)
    return replace(call, head=(*call.head, "launch"), rest=call.rest[1:]) if is_launch else None


def _accelerate_command(placed: PlacedGang, rank: int, call: Call) -> tuple[str, ...]:
    options, machines = call.options(_ACCELERATE_FLAGS), len(placed.hosts)
    membership = (
        f"--num_processes={sum(len(host.ranks) for host in placed.hosts)}",
        f"--num_machines={machines}",
        f"--machine_rank={placed.host_rank(rank)}",
        f"--main_process_ip={placed.host}",
        f"--main_process_port={placed.port}",
        "--same_network",
        # With a configuration file of DeepSpeed the first machine would start the others through ssh.
        "--deepspeed_multinode_launcher=standard",
        "--max_restarts=0",
    )
    user_words = [word for option in options if option.name not in _OUR_ACCELERATE for word in option.words]
    return call.replace_launcher((*call.head, *membership, *user_words), count_words(options))


def _accelerate_sizes(call: Call) -> dict[str, int]:
    values = {option.name: option.value for option in call.options(_ACCELERATE_FLAGS)}
    machines, processes = (parse_positive(values.get(name, "")) for name in ("num-machines", "num-processes"))
    sizes = {
        "nodes": machines,
        "processes": None if machines else processes,
        "nproc_per_node": -(-processes // machines) if machines and processes else None,
    }
    retries = parse_count(values.get("max-restarts", ""))
    return {name: size for name, size in sizes.items() if size} | ({} if retries is None else {"retries": retries})
