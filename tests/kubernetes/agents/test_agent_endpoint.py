"""Whatever the holder of a token sends, it is answered, and is in the log once."""

import asyncio
import logging
import time
from typing import Any

import msgspec
import pytest

from ganger.agent.node_message import MAX_BYTES, VERSION, encode
from ganger.controller.agents.agent_endpoint import AgentEndpoint, AgentGate
from ganger.model.node_health.node_sample import HostSample, KernelLine, NodeSample
from ganger.rest.proxy_identity import NotReviewedError
from tests.rest.asgi import Answer, request
from tools.agent_listener import PlayedCluster, other_requests

SAMPLE = NodeSample(node="n1", at_ms=5, host=HostSample())
GOOD = encode(SAMPLE, 5)


async def node_of(token: str) -> str | None:
    """Play the review of a token."""
    if token == "away":  # what it is about
        raise NotReviewedError("the API server did not review the token")
    return None if token == "of.another" else token


def put(
    cluster: PlayedCluster, *bodies: bytes, node: str = "n1", token: str = "n1", again: bool = False
) -> list[Answer]:
    """Return the answers to messages, each of which is sent once, or twice."""
    endpoint = AgentEndpoint(cluster.agents, node_of)
    gate: Any = AgentGate(endpoint, endpoint, other_requests)

    async def play() -> list[Answer]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        times = 2 if again else 1
        return [await request(gate, "PUT", f"/agents/{node}", body, headers) for body in bodies for _ in range(times)]

    return asyncio.run(play())


def changed(**parts: Any) -> bytes:
    """Return the message with other values."""
    return msgspec.json.encode(msgspec.json.decode(GOOD) | parts)


def with_sample(**parts: Any) -> bytes:
    """Return the message with other values of its sample."""
    return changed(sample=msgspec.json.decode(GOOD)["sample"] | parts)


BAD = {
    "nothing": b"",
    "no JSON": b"sample",
    "no UTF-8": b'{"v": 1, "sent_ms": 1, "sample": "\xff"}',
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "an older version": changed(v=VERSION - 1),
    "a newer version": changed(v=VERSION + 1),
    "no version": msgspec.json.encode({"sent_ms": 1}),
    "a text as version": changed(v="1"),
    "a text as time": changed(sent_ms="now"),
    "no sample": changed(sample=None),
    "a fraction": with_sample(at_ms=1.5),
    "a number as GPUs": with_sample(gpus=7),
    "a GPU without an index": with_sample(gpus=[{"uuid": "GPU-1"}]),
    "a long integer": with_sample(at_ms=10**400),
    "a counter that is a text": with_sample(ports=[{"device": "eth0", "counters": {"rx_bytes": "7"}}]),
}


@pytest.mark.parametrize("body", BAD.values(), ids=list(BAD))
def test_a_bad_message_is_refused_once_in_the_log_and_changes_nothing(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = PlayedCluster("n1")
    with caplog.at_level(logging.WARNING, logger="ganger"):
        first, second = put(cluster, body, again=True)
    assert (first.status, first.json["code"], second.status) == (400, "bad_agent_message", 400)
    assert len([record for record in caplog.records if "refused the agent of n1" in record.message]) == 1
    assert cluster.agents.samples() == {}


def test_after_a_bad_message_a_good_one_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    cluster = PlayedCluster("n1")
    with caplog.at_level(logging.INFO, logger="ganger"):
        answers = put(cluster, b"{", GOOD)
    assert [answer.status for answer in answers] == [400, 204]
    assert "the agent of n1 is understood again" in caplog.text
    assert cluster.agents.samples()["n1"].at_ms == 5


def test_an_oversized_message_is_not_read_to_its_end() -> None:
    (answer,) = put(PlayedCluster("n1"), b" " * (2 * MAX_BYTES + 2))
    assert (answer.status, answer.json["code"], answer.headers["connection"]) == (413, "body_too_large", "close")


@pytest.mark.parametrize(
    ("node", "token", "status", "code"),
    [
        ("n1", "", 401, "bad_token"),
        ("n1", "of.another", 401, "bad_token"),
        ("n1", "away", 503, "no_review"),
        ("n2", "n1", 403, "not_your_node"),
        ("n9", "n9", 403, "not_your_node"),
        ("%0Afaked line", "n1", 403, "not_your_node"),
    ],
)
def test_an_agent_speaks_for_its_own_node_alone(
    node: str, token: str, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = PlayedCluster("n1", "n2")
    (answer,) = put(cluster, GOOD, node=node, token=token)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert cluster.agents.samples() == {}
    assert all("\n" not in record.message for record in caplog.records)


def test_a_node_that_is_deleted_while_its_message_comes_is_refused() -> None:
    cluster = PlayedCluster("n1")
    endpoint = AgentEndpoint(cluster.agents, node_of)

    async def deleting(scope: Any, receive: Any, send: Any) -> None:
        cluster.nodes.clear()
        await endpoint(scope, receive, send)

    gate: Any = AgentGate(endpoint, deleting, other_requests)
    answer = asyncio.run(request(gate, "PUT", "/agents/n1", GOOD, {"authorization": "Bearer n1"}))
    assert (answer.status, answer.json["code"], cluster.agents.samples()) == (403, "not_your_node", {})


def test_wild_values_are_shown_and_end_nothing() -> None:
    cluster = PlayedCluster("n1")
    gpu = {"index": -1, "uuid": "GPU-1", "utilisation_percent": -(10**19), "memory_used_bytes": 10**19}
    port = {"device": "eth0", "counters": {"rx_bytes": 10**19, "tx_bytes": -1}}
    now_ms = time.time_ns() // 1_000_000
    wild = with_sample(at_ms=-(10**18), gpus=[gpu] * 500, ports=[port], host={"cpu_milli": 5, "cpu_total_milli": 0})
    assert [answer.status for answer in put(cluster, wild, wild)] == [204, 204]
    assert [*cluster.agents.histories(["n1"], now_ms - 60_000, now_ms + 60_000, 3)["n1"]] == ["", "GPU-1"]


def test_of_a_long_kernel_log_the_oldest_lines_are_left_out_and_counted() -> None:
    lines = tuple(KernelLine(seq=number, at_ms=1, text='"é"' * 200) for number in range(2_000))
    body = encode(NodeSample(node="n1", at_ms=1, host=HostSample(), lines=lines, lines_lost=3), 1)
    assert MAX_BYTES * 0.9 < len(body) <= MAX_BYTES
    sent = msgspec.json.decode(body)["sample"]
    assert sent["lines"][-1]["seq"] == 1_999
    assert sent["lines_lost"] == 3 + 2_000 - len(sent["lines"])
