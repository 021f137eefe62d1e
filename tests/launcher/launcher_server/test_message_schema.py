"""Messages of launchers have the types and ranges that the server relies on, or are refused."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from ganger.launcher.protocol import messages
from ganger.launcher_server import message_events, message_schema
from ganger.launcher_server.message_schema import BadMessage
from tests.launcher.forged import EXIT_RECORD, HEAD, MANY, MESSAGES, SEEDS, forged, forged_message, written

HELLO = {
    "v": 2,
    "type": "hello",
    "token": "t",
    "gang": "job",
    "node": "n1",
    "pid": 1,
    "start_ticks": 2,
    "generations": [1],
    "generation": 1,
    "address": "10.0.0.1",
}
GET_CODE = {"v": 2, "type": "get_code", "token": "t", "gang": "job", "node": "n1", "generation": 1, "start": 0}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("rank_failed", {"at_ms": "x"}),
    ("rank_failed", {"exit_code": "x"}),
    ("rank_failed", {"exit_code": True}),
    ("rank_failed", {"exit_code": 0}),
    ("rank_failed", {"exit_code": 256}),
    ("rank_failed", {"exit_code": None}),
    ("rank_failed", {"signal": 9}),
    ("rank_failed", {"exit_code": None, "signal": 65}),
    ("rank_failed", {"rank": -1}),
    ("rank_failed", {"rank": 0.0}),
    ("rank_failed", {"error_line": "\ud800"}),
    ("rank_failed", {"tail": "x"}),
    ("rank_failed", {"n": 2**63}),
    ("progressed", {"step": 2**60}),
    ("progressed", {"metrics": {"loss": float("nan")}}),
    ("progressed", {"metrics": {"loss": float("inf")}}),
    ("progressed", {"step_times_ms": {"first": 1}}),
    ("metrics_kept", {"values": {"loss": [0, 9, float("nan"), 8, 0.25, 0, 4.0]}}),
    ("metrics_kept", {"values": {"loss": [0, 9, 0.5]}}),
    ("metrics_kept", {"values": {"loss": [-1, 9, 0.5, 8, 0.25, 0, 4.0]}}),
    ("metrics_kept", {"values": {"m" * 101: [0, 9, 0.5, 8, 0.25, 0, 4.0]}}),
    ("metrics_kept", {"values": {f"m{i}": [0, 9, 0.5, 8, 0.25, 0, 4.0] for i in range(33)}}),
    ("metrics_kept", {"values": {"a\tb": [0, 9, 0.5, 8, 0.25, 0, 4.0]}}),
    ("metrics_kept", {"left_out": -1}),
    ("observed", {"points": [[3, 1, float("nan")]]}),
    ("observed", {"points": [[3, 1]]}),
    ("observed", {"points": [[3, -1, 0.5]]}),
    ("observed", {"points": [[3, 1, "0.5"]]}),
    ("observed", {"points": [[3, 1, 0.5]] * 1_001}),
    ("progressed", {"step_times_ms": {"0": -1}}),
    ("progressed", {"busy_shares": {"0": [1, 2]}}),
    ("progressed", {"busy_shares": {"0": ["x", 2, 3]}}),
    ("stall_report", {"stopped_ranks": [[0, "asleep", 5, True]]}),
    ("stall_report", {"stopped_ranks": [[1]]}),
    ("stall_report", {"silent_since_ms": 1.5}),
    ("stall_report", {"ranks_lost_since_ms": True}),
    ("checkpoint_counts", {"schedule": {"id": 1, "segments": [["hour", 10, 5, 0]]}}),
    ("stacks_taken", {"ranks": {"0": {"step": 3}}}),
    ("rank_usage", {"ranks": {"0": [1, 2]}}),
    ("rank_usage", {"ranks": {"0": [-1, 2, 3]}}),
    ("rank_usage", {"ranks": {"0": [0.5, 2, 3]}}),
    ("rank_usage", {"ranks": {"all": [1, 2, 3]}}),
    ("resumed", {"skipped": [{"step": 4, "flaw": 5}]}),
    ("cleared", {"killed": ["0"]}),
    ("started", {"generation": "1"}),
    ("done", {"gang": None}),
]


def test_every_message_of_the_protocol_has_a_schema_with_its_fields() -> None:
    assert sorted([*MESSAGES, "hello"]) == sorted(messages.FROM_LAUNCHER)
    for kind, fields in MESSAGES.items():
        sent = {**HEAD, "type": kind, "n": 1, **fields}
        known = message_schema.message(written(sent))
        assert {**known, "n": 1}.keys() - {"v", "type", "gang", "node", "generation", "n"} == {
            *messages.FROM_LAUNCHER[kind]
        }
        assert fields.items() <= _as_json(known).items()
    for first in (HELLO, GET_CODE):
        assert message_schema.first_message(written(first)) == first
    with pytest.raises(BadMessage):
        message_schema.first_message(written(GET_CODE | {"start": -1}))


@pytest.mark.parametrize(("kind", "wrong"), WRONG, ids=str)
def test_wrong_type_or_range_is_refused(kind: str, wrong: dict[str, Any]) -> None:
    sent = {**HEAD, "type": kind, "n": 1, **MESSAGES[kind]}
    message_schema.message(written(sent))
    with pytest.raises(BadMessage):
        message_schema.message(written({**sent, **wrong}))


@settings(max_examples=MANY)
@given(seed=SEEDS)
def test_any_json_is_a_message_or_refused(seed: int) -> None:
    message, reason = parse_or_reason(message_schema.message, forged_message(Random(seed)))
    assert (0 < len(reason) <= message_schema.REASON_CHARACTERS) != (message is not None)
    if message is not None and message["type"] in (
        "rank_failed",
        "start_failed",
        "resumed",
        "cleared",
        "checkpointed",
        "started",
        "finished",
    ):
        assert message_events.event(message, "job", "n1").generation == message["generation"]


@settings(max_examples=MANY)
@given(seed=SEEDS)
def test_any_json_is_an_exit_record_or_refused(seed: int) -> None:
    record, reason = parse_or_reason(message_schema.exit_record, forged(Random(seed), EXIT_RECORD))
    end = None if record is None else message_events.rank_end(record, "n1")
    assert reason or (end is not None and (end.exit_code is None) != (end.signal is None))


def parse_or_reason(parse: Callable[[bytes], dict[str, Any]], text: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the parsed text; or None, and the reason why it is refused."""
    try:
        return parse(text), ""
    except BadMessage as error:
        return None, str(error)


def _as_json(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the launcher writes it: with lists for tuples."""
    return {name: _listed(value) for name, value in message.items()}


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
