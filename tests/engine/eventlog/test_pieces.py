"""A state split into the checkpoints of its jobs and joined again decides as before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.state.state import State
from ganger.engine.eventlog import job_checkpoint
from ganger.engine.eventlog.codec import decode_image, encode_image
from ganger.engine.eventlog.event_log import EventLog
from ganger.policies import fifo
from ganger.registry import policies
from tests.engine.days import Day, days
from tests.engine.scenes import folded, played
from tests.examples import examples
from tests.pictures.film import Film


@given(day=days(), fraction=st.floats(0, 1))
@examples(8)
def test_checkpoints_join_to_the_same_state(
    day: Day, fraction: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = EventLog(Path(tmp_path_factory.mktemp("log")) / "ganger.db")
    played(day.world(), log, day.policy)
    state = folded(log, max(1, round(fraction * log.last_seq())))
    log.close()
    jobs = {gang.array or gang.id for gang in state.gangs.values()} | set(state.arrays)
    checkpoints = job_checkpoint.checkpoint_jobs(state, sorted(jobs))
    written = {
        name: job_checkpoint.encode(checkpoint) for name, checkpoint in checkpoints.items() if checkpoint is not None
    }
    assert set(written) == jobs

    rest = decode_image(encode_image(replace(state.image(), gangs=[], arrays=[], reservations=[])))
    joined = State(
        job_checkpoint.join_checkpoints((job_checkpoint.decode(text, name) for name, text in written.items()), rest)
    )
    joined.validate()
    assert _sorted(joined) == _sorted(state)
    for order in policies().values():
        assert plan(joined, joined.at_ms, order) == plan(state, state.at_ms, order)


@pytest.mark.parametrize("text", ["", "null", "{}", '{"job": {}}', '{"job": null, "gangs": [1]}', "[1]"])
def test_an_invalid_checkpoint_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a job checkpoint|validation error"):
        job_checkpoint.decode(text, "A")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("state", "succeeded", "is succeeded"),
        ("state", "pending", "is pending, and has nodes"),
        ("since_ms", -1, "a time or a number out of range"),
        ("generation", 2**80, "a time or a number out of range"),
        ("left", ["n9"], "is left on n9, where it never ran"),
        ("devices", [[0, 10_000]], "a device number out of range"),
        ("devices", [[-1, 0]], "a device number out of range"),
        ("devices", [[1, 1]], "has a device twice"),
        (
            "reservations",
            [{"gang": "A", "start_ms": 1, "nodes": [], "cause": "reserved"}],
            "has a reserved start, and is not pending",
        ),
        ("name", "B", "the checkpoint belongs to A"),
    ],
)
def test_a_contradicting_checkpoint_is_an_error(field: str, value: object, message: str) -> None:
    film = Film(fifo, "n1:.. n2:..", "")
    film.do("A:1x2")
    film.run_cycles()
    written = json.loads(
        job_checkpoint.encode(
            job_checkpoint.checkpoint_jobs(film.state, ["A"])["A"] or job_checkpoint.JobCheckpoint(gangs=())
        )
    )
    assert job_checkpoint.decode(json.dumps(written), "A").gangs[0].id == "A"
    gang = written["gangs"][0]
    if field == "devices":
        for share, devices in zip(gang["attempt"]["start"]["shares"], cast(list[object], value), strict=True):
            share["devices"] = devices
    elif field != "name":
        parts = {"reservations": written, "generation": gang["attempt"], "left": gang["attempt"]}
        parts.get(field, gang)[field] = value
    with pytest.raises(ValueError, match=message):
        job_checkpoint.decode(json.dumps(written), "B" if field == "name" else "A")


def test_a_job_that_is_not_live_has_no_checkpoint() -> None:
    assert job_checkpoint.checkpoint_jobs(State(), ["bert"]) == {"bert": None}


def _sorted(state: State) -> str:
    """Return all parts of a state as JSON, in a fixed order."""
    image = state.image()
    return encode_image(
        replace(
            image,
            gangs=sorted(image.gangs, key=lambda gang: gang.number),
            arrays=sorted(image.arrays, key=lambda array: array.number),
            reservations=sorted(image.reservations, key=lambda reserved: reserved.gang),
            pending=replace(image.pending, reasons=dict(sorted(image.pending.reasons.items()))),
        )
    ).decode()
