"""The message by which the agent of a node of a Kubernetes cluster hands its newest sample to the controller.

It is the JSON body of `PUT /api/v1/agents/NODE`, with a token of the agent's service account that names the node.
docs/how-to/telemetry.md describes it.
"""

import re
from dataclasses import replace
from typing import Final

import msgspec

from ganger.model.node_health.node_sample import NodeSample

VERSION: Final = 1
"""Grows with every change by which the other side would take a message for another one."""
PATH: Final = "/api/v1/agents/"
"""The name of the node follows."""
MAX_BYTES: Final = 256 << 10
"""A node with 8 GPUs takes 20 KiB; lines of the kernel's log may fill the rest."""
MAX_DIGITS: Final = 20
"""Of an integer: a counter of 64 bits has no more."""
_LONG_INTEGER: Final = re.compile(rb"\d{21}")
_TEXT_OR_LONG_INTEGER: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|\d{21}')
_LINE_OVERHEAD_BYTES: Final = 64
"""Of a line in JSON, besides its text."""


class BadAgentMessageError(Exception):
    """A message that is not understood. The text is one sentence."""


class NodeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A sample on its way.

    v: VERSION of the sender.
    sent_ms: the time at which it is sent, by the node's clock.
    """

    v: int
    sent_ms: int
    sample: NodeSample


class _Versioned(msgspec.Struct, frozen=True):
    v: int


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(NodeMessage)
_version_decoder: Final = msgspec.json.Decoder(_Versioned)


def encode(sample: NodeSample, sent_ms: int) -> bytes:
    """Return the message of a sample. Its oldest lines are left out, and counted as lost, where it is too long."""
    room = MAX_BYTES - len(_encode(replace(sample, lines=()), sent_ms))
    kept = len(sample.lines)
    for line in reversed(sample.lines):
        room -= _LINE_OVERHEAD_BYTES + len(_encoder.encode(line.text))
        if room < 0:
            break
        kept -= 1
    lines, lost = sample.lines[kept:], sample.lines_lost + kept
    return _encode(replace(sample, lines=lines, lines_lost=lost), sent_ms)


def decode(body: bytes | bytearray) -> NodeMessage:
    """Return a message. Raise BadAgentMessageError for one of another version, or that is not one."""
    try:
        version = _version_decoder.decode(body).v
        if version != VERSION:
            raise BadAgentMessageError(f"the agent speaks version {version}, and this controller version {VERSION}")
        if _LONG_INTEGER.search(body) and any(match[0][:1] != b'"' for match in _TEXT_OR_LONG_INTEGER.finditer(body)):
            raise BadAgentMessageError(f"an integer has more than {MAX_DIGITS} digits")
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAgentMessageError(f"it is no message of an agent: {error}") from None


def _encode(sample: NodeSample, sent_ms: int) -> bytes:
    return _encoder.encode(NodeMessage(v=VERSION, sent_ms=sent_ms, sample=sample))
