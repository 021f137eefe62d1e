"""Plain processes: only the variables of every framework, for programs that do their own rendezvous."""

from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import PlacedGang, shared_environment

NAME: Final = "plain"
DOC: Final = "processes that need no framework; GANGER_RANK, LOCAL_RANK and WORLD_SIZE say which is which"
RESERVED: Final = SHARED


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    return shared_environment(placed, rank)
