"""Megatron-LM: torch.distributed, with one queue of work for each GPU.

With more than one, the order in which the kernels of tensor and sequence parallelism are queued would not be that in
which they run, and communication would not overlap with them (Megatron-LM, `validate_args`).
"""

from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.c10d import c10d_environment
from ganger.framework_api.rank_environment import Placed

NAME: Final = "megatron"
DOC: Final = "Megatron-LM: as torch, with CUDA_DEVICE_MAX_CONNECTIONS=1"
RESERVED: Final = C10D
NEEDS: Final = "torch"


def rank_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables of the process `rank`."""
    return c10d_environment(placed, rank) | {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
