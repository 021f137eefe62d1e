"""The GPUs of a node as the device plugin of HAMi registers them in annotations of the node.

Sources: `docs/develop/protocol.md` and `pkg/device` of Project-HAMi/HAMi. The register is JSON, or in older versions
`UUID,COUNT,MIB,CORES,TYPE,NUMA,HEALTHY,INDEX,MODE:` per GPU, the last two of which are newer than the others.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

REGISTER: Final = "hami.io/node-nvidia-register"
SCORES: Final = "hami.io/node-nvidia-score"
"""Scores of the links between each pair of GPUs, on the scale of `model.cluster.LINK_SCORES`."""
MAX_GPUS: Final = 256
"""More than any node has: a register of more is none."""
_OLD_FIELDS: Final = 7


class HamiGpu(NamedTuple):
    """One GPU of a node. parts: how many pods may share it."""

    uuid: str
    parts: int
    memory_mib: int
    name: str
    is_healthy: bool = True


class _Registered(msgspec.Struct, frozen=True):
    id: str
    count: int = 1
    devmem: int = 0
    type: str = ""
    health: bool = False
    index: int = 0


class _PairScores(msgspec.Struct, frozen=True):
    uuid: str = ""
    score: dict[str, int] = {}


def hami_gpus(annotations: Mapping[str, str]) -> tuple[HamiGpu, ...]:
    """Return the GPUs of a node in the order of their indices; none without HAMi, or if its register is not one."""
    text = annotations.get(REGISTER, "")
    return _parse(text) if text else ()


def hami_links(annotations: Mapping[str, str]) -> tuple[tuple[int, ...], ...]:
    """Return the matrix of links of a node by its annotation. Raises ValueError if it is not one for its GPUs."""
    try:
        pairs = msgspec.json.decode(annotations[SCORES], type=list[_PairScores])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"it is not the scores of pairs of GPUs: {error}") from None
    scores = {row.uuid: row.score for row in pairs}
    uuids = [gpu.uuid for gpu in hami_gpus(annotations)]
    try:
        return tuple(tuple(0 if a == b else scores[a][b] for b in uuids) for a in uuids)
    except KeyError as error:
        raise ValueError(f"the GPU {error} has no score for another one") from None


@lru_cache(maxsize=1 << 12)
def _parse(text: str) -> tuple[HamiGpu, ...]:
    try:
        if text.lstrip().startswith("["):
            rows = msgspec.json.decode(text, type=list[_Registered])
        else:
            rows = [_old_row(row.split(",")) for row in text.split(":") if "," in row]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
    if len(rows) > MAX_GPUS:
        return ()
    rows.sort(key=lambda row: row.index)
    return tuple(HamiGpu(row.id, max(1, row.count), max(0, row.devmem), row.type, row.health) for row in rows)


def _old_row(fields: list[str]) -> _Registered:
    """Return the GPU of a row; rows without an index are in order."""
    if len(fields) < _OLD_FIELDS:
        raise ValueError
    index = int(fields[_OLD_FIELDS]) if len(fields) > _OLD_FIELDS else 0
    uuid, count, memory_mib, _, name, _, health = fields[:_OLD_FIELDS]
    return _Registered(uuid, int(count), int(memory_mib), name, health == "true", index)
