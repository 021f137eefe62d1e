"""What the remote-start agent and its client say to each other: a line of JSON, then frames of either side.

A frame is a kind (1 byte), a length (4 bytes, big-endian) and that many bytes. Used by `agent` and `agent_client`.
"""

from __future__ import annotations

import struct

STDIN = b"i"  # client to agent; an empty one is the end of the input
STDOUT = b"o"
STDERR = b"e"
EXIT = b"x"  # the exit code in decimal digits; the last one
LONGEST_BYTES = 1 << 20

_HEAD = struct.Struct("!cI")


def frame(kind: bytes, payload: bytes) -> bytes:
    """As it goes over the wire."""
    return _HEAD.pack(kind, len(payload)) + payload


def split(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The whole frames in `data`, as (kind, payload), and the rest. ValueError for one that is too long."""
    found, start = [], 0
    while len(data) - start >= _HEAD.size:
        kind, length = _HEAD.unpack_from(data, start)
        if length > LONGEST_BYTES:
            raise ValueError(f"a frame of {length} bytes")
        end = start + _HEAD.size + length
        if end > len(data):
            break
        found.append((kind, data[start + _HEAD.size : end]))
        start = end
    return found, data[start:]
