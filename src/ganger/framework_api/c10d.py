"""Environment variables of torch.distributed, for every framework that is based on torch.

Names and meanings are those that torchrun gives its workers
(torch/distributed/elastic/agent/server/local_elastic_agent.py), so that the same script runs under both; Megatron-LM,
FSDP, Lightning and Accelerate read them too.
"""

from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import PlacedGang, shared_environment, thread_count

RESERVED: Final = (
    *SHARED,
    "RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)


def c10d_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`.

    A group is what one torchrun agent would manage: a node's share of a role.
    """
    group, _ = placed.place_of(rank)
    share = placed.share_of(rank)
    return shared_environment(placed, rank) | {
        "RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(len(share.ranks)),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(len(placed.nodes)),
        "ROLE_RANK": str(placed.role_rank(rank)),
        "ROLE_WORLD_SIZE": str(len(placed.roles[share.role])),
        "ROLE_NAME": share.role,
        "MASTER_ADDR": placed.host,
        "MASTER_PORT": str(placed.port),
        "TORCHELASTIC_RESTART_COUNT": str(placed.generation - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(placed.max_restarts),
        "TORCHELASTIC_RUN_ID": placed.job_id,
        # No agent keeps the store: rank 0 opens it itself.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # torch would start one thread for every CPU of the machine in each process.
        "OMP_NUM_THREADS": str(thread_count(placed, rank)),
    }
