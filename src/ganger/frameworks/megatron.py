"""Megatron-LM: torch.distributed, with one hardware work queue for each GPU.

With more than one, kernels of tensor and sequence parallelism might not run in the order in which they are launched,
and communication would not overlap with them (Megatron-LM, `validate_args`).
"""

from typing import Final

from ganger.framework_api.c10d import RESERVED as C10D
from ganger.framework_api.c10d import c10d_environment
from ganger.framework_api.rank_environment import PlacedGang

NAME: Final = "megatron"
DOC: Final = "Megatron-LM: as torch, with CUDA_DEVICE_MAX_CONNECTIONS=1"
RESERVED: Final = C10D
NEEDS: Final = "torch"


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    return c10d_environment(placed, rank) | {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
