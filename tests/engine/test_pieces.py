"""A state taken to pieces, one for each of its jobs, and put together again, decides as the whole one does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.cycle.plan import plan
from ganger.core.state.state import State
from ganger.engine.eventlog import job_checkpoint
from ganger.engine.eventlog.codec import decode_image, encode_image
from ganger.engine.eventlog.event_log import EventLog
from ganger.policies import fifo
from ganger.registry import policies
from tests.engine.days import Day, days
from tests.engine.scenes import folded, played
from tests.pictures.film import Film


@given(day=days(), at=st.floats(0, 1))
@settings(max_examples=60)
def test_pieces_make_the_whole_again(day: Day, at: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = EventLog(Path(tmp_path_factory.mktemp("log")) / "ganger.db")
    played(day.world(), log, day.policy)
    state = folded(log, max(1, round(at * log.last_seq())))
    log.close()
    jobs = {gang.array or gang.id for gang in state.gangs.values()} | set(state.arrays)
    found = job_checkpoint.pieces(state, sorted(jobs))
    written = {name: job_checkpoint.encode(piece) for name, piece in found.items() if piece is not None}
    assert set(written) == jobs

    rest = decode_image(encode_image(replace(state.image(), gangs=[], arrays=[], promises=[])))
    back = State(job_checkpoint.together((job_checkpoint.decode(text, name) for name, text in written.items()), rest))
    back.validate()
    assert _sorted(back) == _sorted(state)
    for order in policies().values():
        assert plan(back, back.at_ms, order) == plan(state, state.at_ms, order)


@pytest.mark.parametrize("text", ["", "null", "{}", '{"job": {}}', '{"job": null, "gangs": [1]}', "[1]"])
def test_what_is_no_piece_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"piece of a state|validation error"):
        job_checkpoint.decode(text, "A")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("state", "succeeded", "is succeeded"),
        ("state", "pending", "is pending, and has nodes"),
        ("since_ms", -1, "a time or a number that cannot be"),
        ("generation", 2**80, "a time or a number that cannot be"),
        ("left", ["n9"], "is left on n9, where it never was"),
        ("devices", [[0, 10_000]], "a device that no node has"),
        ("devices", [[-1, 0]], "a device that no node has"),
        ("devices", [[1, 1]], "has a device twice"),
        ("promises", [{"gang": "A", "start_ms": 1, "nodes": [], "cause": "reserved"}], "does not wait"),
        ("name", "B", "it is of A"),
    ],
)
def test_what_says_of_itself_what_cannot_be_is_an_error(field: str, value: object, why: str) -> None:
    film = Film(fifo, "n1:.. n2:..", "")
    film.do("A:1x2")
    film.round()
    written = json.loads(
        job_checkpoint.encode(job_checkpoint.pieces(film.state, ["A"])["A"] or job_checkpoint.JobCheckpoint(gangs=()))
    )
    assert job_checkpoint.decode(json.dumps(written), "A").gangs[0].id == "A"
    gang = written["gangs"][0]
    if field == "devices":
        for share, devices in zip(gang["start"]["shares"], cast(list[object], value), strict=True):
            share["devices"] = devices
    elif field != "name":
        (written if field == "promises" else gang)[field] = value
    with pytest.raises(ValueError, match=why):
        job_checkpoint.decode(json.dumps(written), "B" if field == "name" else "A")


def test_who_does_not_live_has_none() -> None:
    assert job_checkpoint.pieces(State(), ["bert"]) == {"bert": None}


def _sorted(state: State) -> str:
    """Everything that a state is made of, in an order that does not depend on who was met first."""
    image = state.image()
    return encode_image(
        replace(
            image,
            gangs=sorted(image.gangs, key=lambda gang: gang.number),
            arrays=sorted(image.arrays, key=lambda array: array.number),
            promises=sorted(image.promises, key=lambda promise: promise.gang),
            waits=dict(sorted(image.waits.items())),
        )
    ).decode()
