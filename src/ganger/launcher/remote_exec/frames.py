"""Wire format of the remote-start agent: a line of JSON each way, then frames in both directions.

The agent's line has a challenge, the client's a command and the proof that it knows the token, which itself is not
sent. A frame is a kind (1 byte), a length (4 bytes, big-endian) and that many bytes.
"""

from __future__ import annotations

import hmac
import struct

VERSION = 2
STDIN = b"i"  # client to agent; an empty frame is the end of the input
STDOUT = b"o"
STDERR = b"e"
EXIT = b"x"  # the exit code in decimal digits; the last frame
DISMISSED = 255  # as exit code: the generation is over on the agent's node
MAX_BYTES = 1 << 20
HOLD = "ganger:hold"
"""First word of the command, HOLD NODE, of a node that sends a checkpoint (`peer_copy`): no program has that name."""

_HEAD = struct.Struct("!cI")


def proof(token: str, challenge: str, command: str) -> str:
    """Return what a client that knows the token answers to a challenge, valid for this command alone."""
    text = f"{challenge}\n{command}".encode(errors="surrogatepass")
    return hmac.new(token.encode(), text, "sha256").hexdigest()


def frame(kind: bytes, payload: bytes) -> bytes:
    """Return a frame in its wire format."""
    return _HEAD.pack(kind, len(payload)) + payload


def split(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the whole frames in `data` as (kind, payload), and the rest; raise ValueError if one is too long."""
    frames, start = [], 0
    while len(data) - start >= _HEAD.size:
        kind, length = _HEAD.unpack_from(data, start)
        if length > MAX_BYTES:
            raise ValueError(f"a frame of {length} bytes")
        end = start + _HEAD.size + length
        if end > len(data):
            break
        frames.append((kind, data[start + _HEAD.size : end]))
        start = end
    return frames, data[start:]
