"""torch.distributed without torchrun: each process joins the c10d store that rank 0 opens at MASTER_ADDR:MASTER_PORT.

ganger manages the membership, so there is no agent and no elastic rendezvous.
"""

from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.c10d import c10d_environment
from ganger.framework_api.rank_environment import PlacedGang

NAME: Final = "torch"
DOC: Final = "torch.distributed: init_process_group() finds everything it needs in the environment"
RESERVED: Final = C10D
NEEDS: Final = "torch"


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    return c10d_environment(placed, rank)
