"""DeepSpeed: what its launcher gives each process, given by ganger.

A command that names the launcher, `deepspeed [options] train.py ...`, becomes what that would start for each rank:
neither ssh nor pdsh, and no second layer of processes (deepspeed/launcher/runner.py and launch.py).
"""

from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.c10d import c10d_environment
from ganger.framework_api.launcher_command import beside, find_call, length, whole
from ganger.framework_api.rank_environment import Placed

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


def rank_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables of the process `rank`."""
    return c10d_environment(placed, rank) | {
        "CROSS_RANK": str(placed.host_rank(rank)),
        "CROSS_SIZE": str(len(placed.hosts)),
        "LOCAL_SIZE": str(len(placed.share_of(rank).ranks)),
    }


def rank_command(placed: Placed, rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """What the launcher would start as `rank`; a command without it is left as it is."""
    call = find_call(argv, _PROGRAMS)
    if call is None:
        return argv
    options = call.options(_FLAGS)
    said = {option.name for option in options}
    behind = call.rest[length(options) :]
    if not behind:
        return argv  # it has nothing to start, and says so itself
    python = (beside(call.head[0], "python"), "-u", *(["-m"] if "module" in said else []))
    local_rank = f"--local_rank={placed.place_of(rank)[1]}"
    words = (
        *([] if "no-python" in said else python),
        behind[0],
        *([] if "no-local-rank" in said else [local_rank]),
    )
    return call.replaced(words, length(options) + 1)


def recognise(argv: tuple[str, ...]) -> dict[str, int] | None:
    """The size that a command with the launcher in it asks for; None without it."""
    call = find_call(argv, _PROGRAMS)
    if call is None:
        return None
    said = {option.name: option.value for option in call.options(_FLAGS)}
    processes = said.get("num-gpus", said.get("num-accelerators", ""))
    sizes = {"nodes": whole(said.get("num-nodes", "")), "nproc_per_node": whole(processes)}
    return {name: size for name, size in sizes.items() if size}
