"""DeepSpeed: the variables that its launcher gives each process.

A command with the launcher, `deepspeed [options] train.py ...`, is replaced by what the launcher would start for each
rank: neither ssh nor pdsh, and no second layer of processes (deepspeed/launcher/runner.py and launch.py).
"""

from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.c10d import c10d_environment
from ganger.framework_api.launcher_command import count_words, find_call, parse_positive, sibling_program, size_range
from ganger.framework_api.rank_environment import PlacedGang

NAME: Final = "deepspeed"
DOC: Final = "DeepSpeed: as torch; `deepspeed train.py` is started rank by rank, without ssh"
RESERVED: Final = (*C10D, "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE")
NEEDS: Final = "deepspeed"

_PROGRAMS: Final = ("deepspeed", "ds")
_FLAGS: Final = (
    "module",
    "no-python",
    "no-local-rank",
    "no-ssh",
    "no-ssh-check",
    "force-multi",
    "save-pid",
    "elastic-training",
    "bind-cores-to-rank",
    "h",
    "help",
)


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    return c10d_environment(placed, rank) | {
        "CROSS_RANK": str(placed.host_rank(rank)),
        "CROSS_SIZE": str(len(placed.hosts)),
        "LOCAL_SIZE": str(len(placed.share_of(rank).ranks)),
    }


def rank_command(placed: PlacedGang, rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the launcher would start as `rank`; a command without it unchanged."""
    call = find_call(argv, _PROGRAMS)
    if call is None:
        return argv
    options = call.options(_FLAGS)
    names = {option.name for option in options}
    program = call.rest[count_words(options) :]
    if not program:
        return argv  # it has nothing to start, and says so itself
    python = (sibling_program(call.head[0], "python"), "-u", *(["-m"] if "module" in names else []))
    local_rank = f"--local_rank={placed.place_of(rank)[1]}"
    words = (
        *([] if "no-python" in names else python),
        program[0],
        *([] if "no-local-rank" in names else [local_rank]),
    )
    return call.replace_launcher(words, count_words(options) + 1)


def recognise(argv: tuple[str, ...]) -> dict[str, int | str] | None:
    """Return the size that a command with the launcher requests, None without it.

    With --elastic_training it is a range, from one node to --num_nodes where the options about it are left out.
    """
    call = find_call(argv, _PROGRAMS)
    if call is None:
        return None
    values = {option.name: option.value for option in call.options(_FLAGS)}
    processes = values.get("num-gpus", values.get("num-accelerators", ""))
    nodes = parse_positive(values.get("num-nodes", ""))
    low, high = (parse_positive(values.get(f"{end}-elastic-nodes", "")) for end in ("min", "max"))
    sizes = {
        "nodes": size_range(low or 1, high or nodes) if "elastic-training" in values else nodes,
        "nproc_per_node": parse_positive(processes),
    }
    return {name: size for name, size in sizes.items() if size}
