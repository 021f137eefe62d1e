"""PaddlePaddle: collective training, and parameter servers if the gang has the role ps or server.

Names: python/paddle/distributed/launch (collective.py, ps.py) and the role maker of fleet. A command with Paddle's
launcher is replaced by what that would start for each rank; its HTTP rendezvous is not needed.
"""

from collections.abc import Mapping
from typing import Final

from ganger.framework_api.launcher_command import count_words, find_call, parse_positive, parse_range
from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import PlacedGang, shared_environment

NAME: Final = "paddle"
DOC: Final = "PaddlePaddle: init_parallel_env() and fleet, collective or with parameter servers"
RESERVED: Final = (
    *SHARED,
    "PADDLE_MASTER",
    "PADDLE_NNODES",
    "PADDLE_JOB_ID",
    "PADDLE_TRAINER_ID",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_TRAINER_NUM",
    "PADDLE_SERVER_NUM",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_PORT",
    "PADDLE_RANK_IN_NODE",
    "POD_IP",
    "TRAINING_ROLE",
    "FLAGS_selected_gpus",
)
ROLES: Final = ("chief", "master", "worker", "trainer", "ps", "server")
NEEDS: Final = "paddle"

_SERVERS: Final = ("ps", "server")
_MODULES: Final = ("paddle.distributed.launch", "paddle.distributed.fleet.launch")


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    servers, trainers = _servers(placed), _trainers(placed)
    environment = shared_environment(placed, rank) | {
        "PADDLE_MASTER": f"{placed.host}:{placed.port}",
        "PADDLE_NNODES": str(len(placed.hosts)),
        "PADDLE_JOB_ID": placed.job_id,
        "PADDLE_TRAINERS_NUM": str(len(trainers)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(placed.endpoint(peer) for peer in trainers),
        "PADDLE_CURRENT_ENDPOINT": placed.endpoint(rank),
        "PADDLE_RANK_IN_NODE": str(placed.place_of(rank)[1]),
    }
    if rank in trainers:
        environment |= {"PADDLE_TRAINER_ID": str(trainers.index(rank))} | _gpus(placed, rank)
    if servers:
        environment |= {
            "TRAINING_ROLE": "PSERVER" if rank in servers else "TRAINER",
            "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(placed.endpoint(peer) for peer in servers),
            "PADDLE_SERVER_NUM": str(len(servers)),
            "PADDLE_TRAINER_NUM": str(len(trainers)),
            "POD_IP": placed.share_of(rank).address,
            "PADDLE_PORT": str(placed.port_of(rank)),
        }
    return environment


def rank_command(_placed: PlacedGang, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the script without Paddle's launcher."""
    call = find_call(argv, (), _MODULES)
    if call is None:
        return argv
    return call.replace_launcher((call.head[0], "-u"), count_words(call.options(())))


def lacks(counts: Mapping[str, int]) -> str | None:
    """Return why parameter servers are of no use with these numbers of processes of each role, None if they are."""
    if any(role not in _SERVERS for role in counts):
        return None
    return "has servers and no trainers: write run for the workers, or roles.trainer"


def ends(placed: PlacedGang) -> tuple[int, ...]:
    """Return the trainers, if there are servers."""
    return _trainers(placed) if _servers(placed) else ()


def recognise(argv: tuple[str, ...]) -> dict[str, int | str] | None:
    """Return the size that a command with Paddle's launcher requests, None without it."""
    call = find_call(argv, (), _MODULES)
    if call is None:
        return None
    values = {option.name: option.value for option in call.options(())}
    devices = next((values[name] for name in ("devices", "gpus") if name in values), "")
    sizes = {
        "nodes": parse_range(nodes := values.get("nnodes", "")) or parse_positive(nodes.rpartition(":")[2]),
        "nproc_per_node": parse_positive(values.get("nproc-per-node", ""))
        or (devices.count(",") + 1 if devices else None),
    }
    return {name: size for name, size in sizes.items() if size}


def _servers(placed: PlacedGang) -> tuple[int, ...]:
    return tuple(rank for role in _SERVERS for rank in placed.roles.get(role, ()))


def _trainers(placed: PlacedGang) -> tuple[int, ...]:
    return tuple(rank for role, ranks in placed.roles.items() if role not in _SERVERS for rank in ranks)


def _gpus(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the GPU of a trainer, by its index among those that the trainers of its node see."""
    share = placed.share_of(rank)
    # Those of a share of one GPU see that one alone.
    return {"FLAGS_selected_gpus": str(placed.place_of(rank)[1] * (not share.is_share))} if share.devices else {}
