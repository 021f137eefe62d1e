"""What launchers say, and what they left behind, as events of the model.

Called by backends. Pure but for `ending` and `is_done`, which ask for the exit records: of a launcher that can no
longer speak, and of all nodes of a gang.
"""

from collections.abc import Iterable
from typing import Any, Final

from ganger.model.decision import Cause
from ganger.model.event import Checkpointed, Cleared, Event, Failed, Finished, Resumed, Started
from ganger.model.evidence import FlawedCheckpoint, PythonError, RankEnd
from ganger.tasks.process import signal_words
from ganger.tasks.records import TaskRecords

TAIL_LINES: Final = 20


class BadMessage(ValueError):
    """A message that is not of the protocol."""


def event(message: dict[str, Any], gang: str, node: str) -> Event:
    """The event that a launcher's message reports. BadMessage when it is not one that does."""
    generation = whole(message, "generation")
    match message.get("type"):
        case "started":
            return Started(gang=gang, generation=generation, nodes=(node,))
        case "checkpointed":
            took_ms = whole({"took_ms": 0, **message}, "took_ms")  # an older launcher does not tell
            return Checkpointed(gang=gang, generation=generation, step=whole(message, "step"), took_ms=took_ms)
        case "resumed":
            return _resumed(message, gang, generation)
        case "exited":
            return rank_failed(message, gang, generation, node)
        case "start_failed":
            return _start_failed(message, gang, generation, node)
        case "finished":
            return Finished(gang=gang, generation=generation, nodes=(node,))
        case "cleared":
            return _cleared(message, gang, generation, node)
        case other:
            raise BadMessage(f"a launcher does not send {other!r}")


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
    number, error, step = record.get("signal"), record.get("error"), record.get("step")
    return RankEnd(
        rank=whole(record, "rank"),
        node=node,
        at_ms=record.get("at_ms", 0),
        exit_code=None if number else record.get("exit_code"),
        signal=number,
        step=step if isinstance(step, int) else None,
        out_of_memory=record.get("out_of_memory") is True,
        error=_error(error) if isinstance(error, dict) else None,
        words=str(record.get("words") or ""),
    )


def ending(task: TaskRecords, gang: str, generation: int, node: str) -> Failed | Finished | None:
    """How a generation ended on a node whose launcher is gone, by the exit records; None when they do not tell."""
    planned, records = task.planned(generation) or [], task.exits(generation)
    harmless = [rank["rank"] for rank in planned if rank.get("on_failure") == "ignore"]
    failures = [record for record in records if _is_bad(record) and record["rank"] not in harmless]
    if failures:
        first = min(failures, key=lambda record: (record.get("at_ms", 0), record["rank"]))
        if "pid" in first:
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
            if rank.get("ends"):
                counts = True
                if rank["rank"] not in ended:
                    return False
    return counts


def _resumed(message: dict[str, Any], gang: str, generation: int) -> Resumed:
    step, flaws = message.get("step"), message.get("passed")
    if not isinstance(flaws, list) or not all(isinstance(each, dict) for each in flaws):
        raise BadMessage(f"resumed: passed must be a list of objects, not {flaws!r}")
    passed = tuple(FlawedCheckpoint(step=whole(each, "step"), flaw=str(each.get("flaw", ""))) for each in flaws)
    return Resumed(
        gang=gang, generation=generation, step=None if step is None else whole(message, "step"), passed=passed
    )


def _cleared(message: dict[str, Any], gang: str, generation: int, node: str) -> Cleared:
    """An older launcher does not tell whom it killed, nor one that never ran it."""
    killed, grace_ms = message.get("killed", []), whole({"grace_ms": 0, **message}, "grace_ms")
    if not isinstance(killed, list) or not all(isinstance(rank, int) for rank in killed):
        raise BadMessage(f"cleared: killed must be a list of ranks, not {killed!r}")
    return Cleared(gang=gang, generation=generation, nodes=(node,), killed=tuple(killed), grace_ms=grace_ms)


def newest_report(message: dict[str, Any], heard_ms: int) -> dict[str, Any]:
    """Return what a `progressed` message tells of the newest report of a rank, in the fields of `JobView.progress`. The
    message has neither the report's time nor its phase: `heard_ms` stands for the time."""
    return {"step": whole(message, "step"), "metrics": message.get("metrics") or {}, "t": heard_ms, "phase": None}


def whole(message: dict[str, Any], name: str) -> int:
    """A whole number of a message. BadMessage when it has none of that name."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadMessage(f"{message.get('type')}: {name} must be a whole number, not {value!r}")
    return value


def _error(found: dict[str, Any]) -> PythonError:
    """What of it is there, as far as it is of the right kind."""
    texts = {name: str(found.get(name) or "") for name in ("type", "message", "file", "source", "led_to")}
    line = found.get("line")
    return PythonError(**texts, line=line if isinstance(line, int) else 0)


def _is_bad(record: dict[str, Any]) -> bool:
    return bool(record.get("signal") or record.get("exit_code"))


def _start_failed(message: dict[str, Any], gang: str, generation: int, node: str) -> Failed:
    return Failed(
        gang=gang,
        generation=generation,
        node=node,
        cause=Cause.START_FAILED,
        exit_code=message.get("exit_code"),
        detail=str(message.get("detail", "")),
        tail=_tail(message),
    )


def _tail(record: dict[str, Any]) -> tuple[str, ...]:
    lines = record.get("tail")
    return tuple(str(line) for line in lines[-TAIL_LINES:]) if isinstance(lines, list) else ()
