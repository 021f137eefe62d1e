"""Conversion of launchers' messages and records into events of the model.

Messages and records have passed `message_schema`. Pure except `ending` and `is_done`, which read exit records: of a
launcher that no longer responds, and of all nodes of a gang.
"""

from collections.abc import Iterable
from typing import Any, Final

from ganger.launcher_server.launcher_process import describe_signal
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.rank_records import TaskRecords
from ganger.model.decision import Cause
from ganger.model.event import Checkpointed, Cleared, CopyDropped, Event, Evicted, Failed, Finished, Resumed, Started
from ganger.model.evidence import FlawedCheckpoint, PythonError, RankEnd

TAIL_LINES: Final = 20


def event(message: dict[str, Any], gang: str, node: str) -> Event:
    """Convert a message to the event that it reports; raise BadMessage if it reports none."""
    generation = message["generation"]
    match message["type"]:
        case "started":
            return Started(gang=gang, generation=generation, nodes=(node,))
        case "checkpointed":
            fields = {name: message[name] for name in ("step", "took_ms", "saved_ms")}
            return Checkpointed(gang=gang, generation=generation, **fields)
        case "resumed":
            skipped = tuple(FlawedCheckpoint(step=fields["step"], flaw=fields["flaw"]) for fields in message["skipped"])
            fields = {name: message[name] for name in ("step", "older_step", "source")}
            return Resumed(gang=gang, generation=generation, skipped=skipped, **fields)
        case "evicted":
            return Evicted(gang=gang, generation=generation, node=node, notice_ms=message["notice_ms"])
        case "copy_dropped":
            fields = {name: message[name] for name in ("peer", "step", "reason")}
            return CopyDropped(gang=gang, generation=generation, node=node, **fields)
        case "rank_failed":
            return rank_failed(message, gang, generation, node)
        case "start_failed":
            return _start_failed(message, gang, generation, node)
        case "finished":
            return Finished(gang=gang, generation=generation, nodes=(node,))
        case "cleared":
            killed, grace_ms = tuple(message["killed"]), message["grace_ms"]
            return Cleared(gang=gang, generation=generation, nodes=(node,), killed=killed, grace_ms=grace_ms)
        case kind:
            raise BadMessage(f"{kind} reports no event")


def rank_failed(record: dict[str, Any], gang: str, generation: int, node: str) -> Failed:
    """Convert a `rank_failed` message or an exit record to a failure."""
    end = rank_end(record, node)
    rank, exit_code, number = end.rank, end.exit_code, end.signal
    outcome = f"was killed by {describe_signal(number)}" if number else f"exited with code {exit_code}"
    return Failed(
        gang=gang,
        generation=generation,
        node=node,
        cause=Cause.RANK_FAILED,
        rank=rank,
        exit_code=exit_code,
        signal=number,
        detail=f"rank {rank} on {node} {outcome}",
        tail=_tail(record),
        ends=(end,),
        since_ms=end.at_ms or None,
    )


def rank_end(record: dict[str, Any], node: str) -> RankEnd:
    """Convert a `rank_failed` message or an exit record to the end of a rank."""
    names = ("rank", "at_ms", "exit_code", "signal", "step", "out_of_memory")
    error = None if record["error"] is None else PythonError(**record["error"])
    return RankEnd(node=node, error=error, error_line=record["error_line"], **{name: record[name] for name in names})


def ending(task: TaskRecords, gang: str, generation: int, node: str) -> Failed | Finished | None:
    """Derive from exit records how a generation ended on a node whose launcher is gone; None if they do not tell."""
    planned, records = task.planned(generation) or [], task.exits(generation)
    ignored = [rank["rank"] for rank in planned if rank["on_failure"] == "ignore"]
    failures = [record for record in records if _has_failed(record) and record["rank"] not in ignored]
    if failures:
        first = min(failures, key=lambda record: (record["at_ms"], record["rank"]))
        if first["pid"] is not None:
            return rank_failed(first, gang, generation, node)
        return _start_failed(first | {"detail": " ".join(_tail(first))}, gang, generation, node)
    has_left = any(record["left"] for record in records)  # it was stopped before it had finished
    if planned and not has_left and {record["rank"] for record in records} >= {rank["rank"] for rank in planned}:
        return Finished(gang=gang, generation=generation, nodes=(node,))
    return None


def is_done(tasks: Iterable[TaskRecords], generation: int) -> bool:
    """Return True if all ranks of the gang whose end is the end of the job ended well, by plans and exit records."""
    has_counting_rank = False
    for task in tasks:
        ended = {record["rank"] for record in task.exits(generation) if not _has_failed(record)}
        for rank in task.planned(generation) or ():
            if rank["ends"]:
                has_counting_rank = True
                if rank["rank"] not in ended:
                    return False
    return has_counting_rank


def newest_report(message: dict[str, Any], received_ms: int) -> dict[str, Any]:
    """Return the newest report of a rank from a `progressed` message, in the fields of `JobView.progress`.

    The message has neither the report's time, for which `received_ms` stands, nor its phase.
    """
    return {"step": message["step"], "metrics": message["metrics"], "t": received_ms, "phase": None}


def _has_failed(record: dict[str, Any]) -> bool:
    return bool(record["signal"] or record["exit_code"])


def _start_failed(message: dict[str, Any], gang: str, generation: int, node: str) -> Failed:
    return Failed(
        gang=gang,
        generation=generation,
        node=node,
        cause=Cause.START_FAILED,
        exit_code=message["exit_code"],
        detail=message["detail"],
        tail=_tail(message),
    )


def _tail(record: dict[str, Any]) -> tuple[str, ...]:
    """Return the last lines; none for a record sent by a launcher, which has them in its failure message."""
    return tuple(record.get("tail", ())[-TAIL_LINES:])
