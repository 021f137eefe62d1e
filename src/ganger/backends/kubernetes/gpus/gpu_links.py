"""The matrix of links between the GPUs of a node, from its annotations.

`ganger.dev/gpu-links` is what `nvidia-smi topo -m` prints, whole or only the rows of GPUs, which may be separated by
`;`. `ganger.dev/gpu-groups` names a group of each GPU, such as its NUMA node or rail: of sets with equal links, those
within one group are better; without it the NUMA nodes of the printed table are the groups. Without the first, the
scores that HAMi's device plugin writes count. An annotation that is no matrix for the GPUs of its node is logged and
left out.
"""

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from ganger.backends.kubernetes.gpus.hami_devices import SCORES, hami_links
from ganger.gang_jobs.custom_resources import GROUP
from ganger.model.cluster import LINK_SCORES, NVLINK_SCORE

GPU_LINKS: Final = f"{GROUP}/gpu-links"
GPU_GROUPS: Final = f"{GROUP}/gpu-groups"
MAX_SCORE: Final = 1_000_000
"""More than any link has: sums over a node stay small."""
_SELF: Final = "X"
_NVLINK: Final = re.compile(r"NV([1-9][0-9]{0,2})")
_ROW_NAME: Final = re.compile(r"GPU[0-9]{1,3}")
_NUMA: Final = re.compile(r"[0-9]{1,4}")
_log = logging.getLogger(__name__)

Matrix = tuple[tuple[int, ...], ...]


def gpu_links(annotations: Mapping[str, str], gpus: int, node: str) -> Matrix:
    """Return the matrix of a node's GPUs; empty if there is none."""
    text, groups = annotations.get(GPU_LINKS, ""), annotations.get(GPU_GROUPS, "")
    name = GPU_LINKS if text else SCORES
    if gpus < 2 or name not in annotations:
        return ()
    try:
        return _links(text, groups, gpus) if text else _checked(hami_links(annotations), gpus)
    except ValueError as error:
        _log_invalid(node, name, str(error))
        return ()


@lru_cache(maxsize=1 << 10)
def _links(text: str, groups: str, gpus: int) -> Matrix:
    """Return the matrix of the words of a table. Raises ValueError."""
    rows = [words for row in re.split(r"[\n;]", text) if (words := _cells(row))]
    if len(rows) != gpus:
        raise ValueError(f"it has {len(rows)} rows for {gpus} GPUs")
    if any(len(row) < gpus for row in rows):
        raise ValueError(f"a row has fewer links than the node has GPUs, {gpus}")
    of_gpus = groups.replace(",", " ").split() if groups else [_numa_node(row) for row in rows]
    if len(of_gpus) != gpus:
        raise ValueError(f"{GPU_GROUPS} has {len(of_gpus)} groups for {gpus} GPUs")
    if any((row[column] == _SELF) != (index == column) for index, row in enumerate(rows) for column in range(gpus)):
        raise ValueError("its diagonal is not X")
    return _checked(
        tuple(
            tuple(0 if a == b else _score(row[b]) + (of_gpus[a] == of_gpus[b] != "") for b in range(gpus))
            for a, row in enumerate(rows)
        ),
        gpus,
    )


def _cells(row: str) -> list[str]:
    """Return the cells of a row of a GPU, without its name; none for a header, another device, or the legend."""
    words = row.split()
    if words and _ROW_NAME.fullmatch(words[0]):
        words = words[1:]
    return words if words and (words[0] == _SELF or _is_link(words[0])) and "=" not in words else []


def _is_link(word: str) -> bool:
    return word in LINK_SCORES or _NVLINK.fullmatch(word) is not None


def _score(word: str) -> int:
    if (links := _NVLINK.fullmatch(word)) is not None:
        return NVLINK_SCORE * int(links[1])
    if word not in LINK_SCORES:
        raise ValueError(f"{word!r} is no kind of link: {', '.join(LINK_SCORES)}, or NV and the number of NVLinks")
    return LINK_SCORES[word]


def _numa_node(row: list[str]) -> str:
    """Return the column `NUMA Affinity` behind the links and the CPUs of a row; empty without it."""
    behind = [word for word in row if word != _SELF and not _is_link(word)]
    return behind[1] if len(behind) > 1 and _NUMA.fullmatch(behind[1]) else ""


def _checked(matrix: Matrix, gpus: int) -> Matrix:
    """Return a matrix. Raises ValueError if it is not one of links between so many GPUs."""
    if len(matrix) != gpus:
        raise ValueError(f"it is of {len(matrix)} GPUs, the node has {gpus}")
    for a, row in enumerate(matrix):
        for b, score in enumerate(row):
            if score != matrix[b][a]:
                raise ValueError(f"it is not symmetric: GPU{a} to GPU{b} differs from GPU{b} to GPU{a}")
            if not 0 <= score <= MAX_SCORE:
                raise ValueError(f"the score {score} is not within 0 to {MAX_SCORE}")
    return matrix


@lru_cache(maxsize=1 << 14)
def _log_invalid(node: str, name: str, message: str) -> None:
    """Log an invalid annotation once, not with each heartbeat of the node."""
    _log.warning("node %s: annotation %s: %s; the links between its GPUs count as equal", node, name, message)
