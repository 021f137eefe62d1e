"""Every value of the model is the same after encoding and decoding."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.state.state import Image
from ganger.engine.eventlog import codec
from ganger.model.cluster import Node
from ganger.model.event import Event, NodesListed
from ganger.model.job import Job
from tests.engine.anything import anything
from tests.examples import examples

EVENTS = get_args(Event)


@pytest.mark.parametrize("kind", EVENTS, ids=[kind.__name__ for kind in EVENTS])
@given(data=st.data())
def test_event_round_trip(kind: Any, data: st.DataObject) -> None:
    event = data.draw(anything(kind))
    text = codec.encode(event)
    back = codec.decode(text)
    assert back == event
    assert type(back) is kind
    assert json.loads(text)["kind"] == event.kind


@given(anything(Image))
@examples(8)
def test_image_round_trip(image: Image) -> None:
    assert codec.decode_image(codec.encode_image(image)) == image


@given(anything(Job))
def test_job_round_trip(job: Job) -> None:
    assert codec.adapter(Job).validate_json(codec.adapter(Job).dump_json(job)) == job


def test_nodes_listed_without_foreign_pods_is_read() -> None:
    text = b'{"nodes": [{"name": "n1", "gpus": 2, "device_ids": [0, 1]}], "kind": "nodes_listed"}'
    assert codec.decode(text) == NodesListed(nodes=(Node(name="n1", gpus=2, device_ids=(0, 1)),))
    image = b'{"nodes": [{"name": "n1", "gpus": 2}], "pending_reasons": {"c": {"code": "no_capacity", "need": 1}}}'
    assert codec.decode_image(image).nodes[0].foreign == ()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xfe",
        b'{"kind": "no_such_kind"}',
        b'{"kind": "cleared", "gang": "a"}',
        b'{"kind": "cleared", "gang": "a", "generation": "one", "nodes": []}',
        b'{"kind": "cleared", "gang": "a", "generation": 1, "nodes": ["n1"]',
    ],
)
def test_invalid_event_is_an_error(text: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        codec.decode(text)
