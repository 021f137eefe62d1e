"""Conversion of what launchers say, and left behind, into events of the model.

Called by backends. Messages and records have the types and ranges of `message_schema`. Pure but for `ending` and
`is_done`, which ask for the exit records: of a launcher that can no longer speak, and of all nodes of a gang.
"""

from collections.abc import Iterable
from typing import Any, Final

from ganger.launcher_server.launcher_process import signal_words
from ganger.launcher_server.message_schema import BadMessage
from ganger.launcher_server.rank_records import TaskRecords
from ganger.model.decision import Cause
from ganger.model.event import Checkpointed, Cleared, Event, Failed, Finished, Resumed, Started
from ganger.model.evidence import FlawedCheckpoint, PythonError, RankEnd

TAIL_LINES: Final = 20


def event(message: dict[str, Any], gang: str, node: str) -> Event:
    """The event that a launcher's message reports. BadMessage when it is not one that does."""
    generation = message["generation"]
    match message["type"]:
        case "started":
            return Started(gang=gang, generation=generation, nodes=(node,))
        case "checkpointed":
            step, took_ms = message["step"], message["took_ms"]
            return Checkpointed(gang=gang, generation=generation, step=step, took_ms=took_ms)
        case "resumed":
            passed = tuple(FlawedCheckpoint(step=each["step"], flaw=each["flaw"]) for each in message["passed"])
            steps = {"step": message["step"], "older_step": message["older_step"]}
            return Resumed(gang=gang, generation=generation, passed=passed, **steps)
        case "exited":
            return rank_failed(message, gang, generation, node)
        case "start_failed":
            return _start_failed(message, gang, generation, node)
        case "finished":
            return Finished(gang=gang, generation=generation, nodes=(node,))
        case "cleared":
            killed, grace_ms = tuple(message["killed"]), message["grace_ms"]
            return Cleared(gang=gang, generation=generation, nodes=(node,), killed=killed, grace_ms=grace_ms)
        case other:
            raise BadMessage(f"{other} reports no event")


def rank_failed(record: dict[str, Any], gang: str, generation: int, node: str) -> Failed:
    """The failure that an `exited` message or an exit record tells of."""
    end = rank_end(record, node)
    rank, exit_code, number = end.rank, end.exit_code, end.signal
    how = f"was killed by {signal_words(number)}" if number else f"exited with code {exit_code}"
    return Failed(
        gang=gang,
        generation=generation,
        node=node,
        cause=Cause.RANK_FAILED,
        rank=rank,
        exit_code=exit_code,
        signal=number,
        detail=f"rank {rank} on {node} {how}",
        tail=_tail(record),
        ends=(end,),
        since_ms=end.at_ms or None,
    )


def rank_end(record: dict[str, Any], node: str) -> RankEnd:
    """How a rank ended, by its `exited` message or exit record."""
    names = ("rank", "at_ms", "exit_code", "signal", "step", "out_of_memory", "words")
    error = None if record["error"] is None else PythonError(**record["error"])
    return RankEnd(node=node, error=error, **{name: record[name] for name in names})


def ending(task: TaskRecords, gang: str, generation: int, node: str) -> Failed | Finished | None:
    """How a generation ended on a node whose launcher is gone, by the exit records; None when they do not tell."""
    planned, records = task.planned(generation) or [], task.exits(generation)
    harmless = [rank["rank"] for rank in planned if rank["on_failure"] == "ignore"]
    failures = [record for record in records if _is_bad(record) and record["rank"] not in harmless]
    if failures:
        first = min(failures, key=lambda record: (record["at_ms"], record["rank"]))
        if first["pid"] is not None:
            return rank_failed(first, gang, generation, node)
        return _start_failed(first | {"detail": " ".join(_tail(first))}, gang, generation, node)
    if planned and {record["rank"] for record in records} >= {rank["rank"] for rank in planned}:
        return Finished(gang=gang, generation=generation, nodes=(node,))
    return None


def is_done(tasks: Iterable[TaskRecords], generation: int) -> bool:
    """Whether all ranks of the gang whose end is the end of the job ended well, by plans and exit records."""
    counts = False
    for task in tasks:
        ended = {record["rank"] for record in task.exits(generation) if not _is_bad(record)}
        for rank in task.planned(generation) or ():
            if rank["ends"]:
                counts = True
                if rank["rank"] not in ended:
                    return False
    return counts


def newest_report(message: dict[str, Any], heard_ms: int) -> dict[str, Any]:
    """Return what a `progressed` message tells of the newest report of a rank, in the fields of `JobView.progress`. The
    message has neither the report's time nor its phase: `heard_ms` stands for the time."""
    return {"step": message["step"], "metrics": message["metrics"], "t": heard_ms, "phase": None}


def _is_bad(record: dict[str, Any]) -> bool:
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
    """None of a record that came over the wire: there the message that reports the failure has them."""
    return tuple(record.get("tail", ())[-TAIL_LINES:])
