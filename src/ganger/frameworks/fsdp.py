"""Fully sharded data parallelism: an alias of torch.distributed."""

from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.c10d import c10d_environment
from ganger.framework_api.rank_environment import PlacedGang

NAME: Final = "fsdp"
DOC: Final = "torch FSDP: as torch"
RESERVED: Final = C10D
NEEDS: Final = "torch"


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    return c10d_environment(placed, rank)
