"""Compaction of etcd's first versions, as on a server that has run for a while; and what it stores.

Compaction happens before the API server starts, whose caches then begin later too. Without it a young cluster would
still answer for version 1, which an older one reports as expired.
"""

from base64 import b64decode, b64encode

import httpx2

from tools.testcluster.shape import Shape

COMPACTED = 10
"""Versions up to this one are compacted; 0 and 1 mean other things to an API server."""
KEY = "YQ=="
"""Key of an unused value: "a", as etcd's gateway takes it."""


def is_ready(shape: Shape) -> bool:
    """Return whether etcd serves."""
    try:
        return httpx2.get(f"{_url(shape)}/health").json()["health"] == "true"
    except (httpx2.TransportError, ValueError, KeyError):
        return False


def compact(shape: Shape) -> None:
    """Create versions, and compact them."""
    with httpx2.Client(base_url=f"{_url(shape)}/v3/kv") as client:
        for _ in range(COMPACTED):
            client.post("/put", json={"key": KEY, "value": KEY}).raise_for_status()
        client.post("/compaction", json={"revision": str(COMPACTED)}).raise_for_status()


def read_all(shape: Shape, prefix: str) -> list[bytes]:
    """Return the values of all keys with a prefix, as the API server has stored them."""
    begin = prefix.encode()
    end = begin[:-1] + bytes([begin[-1] + 1])
    key_range = {"key": b64encode(begin).decode(), "range_end": b64encode(end).decode()}
    response = httpx2.post(f"{_url(shape)}/v3/kv/range", json=key_range)
    response.raise_for_status()
    return [b64decode(pair["value"]) for pair in response.json().get("kvs", ())]


def _url(shape: Shape) -> str:
    return f"http://127.0.0.1:{shape.etcd_port}"
