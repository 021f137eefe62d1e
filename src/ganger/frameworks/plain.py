"""Plain processes: only the variables that every framework has. For programs that find each other by themselves."""

from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import Placed, shared_environment

NAME: Final = "plain"
DOC: Final = "processes that need no framework; GANGER_RANK, LOCAL_RANK and WORLD_SIZE say which is which"
RESERVED: Final = SHARED


def rank_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables of the process `rank`."""
    return shared_environment(placed, rank)
