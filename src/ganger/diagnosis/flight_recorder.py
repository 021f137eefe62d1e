"""Dumps of torch's flight recorder (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`): which collective operations a rank waits in.

A dump is a pickle, or JSON, of plain containers: version, process groups, and the newest operations with their state. A
pickle is read without the names of classes and functions, so that a dump of others executes nothing. Source: torch,
`FlightRecorder.cpp`, 2025-08."""

import json
import pickle
from math import prod
from typing import Any, BinaryIO, Final

from ganger.core.failure.findings import CollectiveWork, FileFindings, Place

NAME: Final = "nccl_trace"
"""In the name of a dump: its files are called `nccl_trace_rank_3`."""
MAX_BYTES: Final = 64 << 20
MAX_GROUPS: Final = 1000


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and texts, and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} in a dump")


def read_dump(file: BinaryIO, name: str, rank: int | None) -> FileFindings:
    """Return the operations of a dump. Raises ValueError if it is none, or damaged.

    name: Path of the file in its folder, as evidence shows it.
    """
    data = file.read(MAX_BYTES)
    file.seek(0)
    try:
        dump = json.loads(data) if data[:1] in (b"{", b" ", b"\n") else _PlainUnpickler(file).load()
        works = _works(dump, name, -1 if rank is None else rank)
    except Exception as error:  # pickle raises whatever its damaged content leads to
        raise ValueError(f"no dump of a flight recorder: {type(error).__name__}: {error}"[:200]) from error
    result = FileFindings(works=works)
    if rank is not None:
        result.ranks.add(rank)
    return result


def _works(dump: dict[str, Any], name: str, rank: int) -> list[CollectiveWork]:
    """Return for each process group the oldest operation that is not complete, else the newest one."""
    works: dict[str, CollectiveWork] = {}
    for entry in dump["entries"]:
        if entry.get("is_p2p") or len(works) >= MAX_GROUPS:
            continue
        group = str(entry.get("process_group", [entry.get("pg_id", "")])[0])
        known = works.get(group)
        if known is None or known.is_complete:
            works[group] = _work(entry, group, name, rank)
    return list(works.values())


def _work(entry: dict[str, Any], group: str, name: str, rank: int) -> CollectiveWork:
    operation = str(entry["profiling_name"]).removeprefix("nccl:").replace("_", "").upper()
    sizes = entry.get("input_sizes") or []
    elements = sum(prod(int(size) for size in tensor) for tensor in sizes)
    sequence, is_complete = int(entry["collective_seq_id"]), entry["state"] == "completed"
    state = "completed" if is_complete else "waits in"
    return CollectiveWork(
        rank=rank,
        group=group,
        sequence=sequence,
        operation=operation,
        elements=elements if sizes else None,
        place=Place(name, 1),
        text=f"flight recorder: rank {rank} {state} {operation} {sequence} of group {group}",
        is_complete=is_complete,
    )
