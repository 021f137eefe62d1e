"""JAX: `jax.distributed.initialize()` without arguments.

JAX reads the coordinator's address from a variable of its own, but the number of processes and the index of each only
from clusters that it knows (jax/_src/clusters/slurm_cluster.py): so each process gets the variables of Slurm. Other
programs react to those variables too; therefore only this framework sets them. Proxy variables, which make JAX hang,
are removed.
"""

from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import PlacedGang, shared_environment

NAME: Final = "jax"
DOC: Final = "JAX: jax.distributed.initialize() finds everything it needs in the environment"
RESERVED: Final = (
    *SHARED,
    "JAX_COORDINATOR_ADDRESS",
    "JAX_LOCAL_DEVICE_IDS",
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    *("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)
NEEDS: Final = "jax"


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    _, local_rank = placed.place_of(rank)
    coordinator = f"{placed.host}:{placed.port}"
    return (
        shared_environment(placed, rank)
        | _devices(placed, rank)
        | {
            "JAX_COORDINATOR_ADDRESS": coordinator,
            # Where the others look for it, and nowhere else.
            "JAX_COORDINATOR_BIND_ADDRESS": coordinator,
            # Any number will do: JAX would make a port of it, had it no address.
            "SLURM_JOB_ID": str(placed.port),
            "SLURM_STEP_NODELIST": ",".join(host.address for host in placed.hosts),
            "SLURM_STEP_NUM_NODES": str(len(placed.hosts)),
            "SLURM_NTASKS": str(placed.world_size),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local_rank),
        }
    )


def _devices(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the GPUs of a process that has several: by default it would take the one numbered SLURM_LOCALID."""
    share = placed.share_of(rank)
    per_rank = len(share.devices) // len(share.ranks)
    if per_rank < 2:
        return {}
    first = placed.place_of(rank)[1] * per_rank
    return {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(first, first + per_rank)))}
