"""Results of the test of nodes, as `ganger.train.preflight` writes them on the node of rank 0: read and sent once.

Any process of a rank may write the file: what does not fit the protocol is left out with a note, and costs nothing.
"""

from __future__ import annotations

import json
import os

from ganger.launcher.logs.log_records import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.protocol.link import MessageSender

MAX_BYTES = 1 << 20
MAX_NODES = 4_096
MAX_FINDINGS, MAX_CODE, MAX_SENTENCE = 4, 40, 150
"""So that the results of all nodes fit into one message."""
MAX_FINDINGS_OF_ALL = 2_000
USUAL_MILLI = 1000


def send_results(path: str, sender: MessageSender) -> None:
    """Send the results in a file, and remove it."""
    try:
        # A pipe that a rank has put there must not hold the launcher up.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(MAX_BYTES + 1)
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        note(f"the results of the test of nodes cannot be read: {error.strerror}")
        return
    try:
        nodes = parse_results(content)
    except (ValueError, RecursionError) as error:
        note(f"the results of the test of nodes are left out: {error}")
        return
    sender.send_fact("preflight", nodes=nodes)


def parse_results(content: bytes) -> list[dict[str, Any]]:
    """Return the results of all nodes, as the protocol has them. Raise ValueError when they are none."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"the file has more than {MAX_BYTES} bytes")
    document = json.loads(content)
    nodes = document.get("nodes") if isinstance(document, dict) else None
    is_listed = isinstance(nodes, list) and 0 < len(nodes) <= MAX_NODES
    if not is_listed or nodes is None:
        raise ValueError(f"the file has no list of at most {MAX_NODES} nodes")
    results = [_node(node) for node in nodes]
    left = MAX_FINDINGS_OF_ALL
    for result in results:
        result["findings"] = result["findings"][:left]
        left -= len(result["findings"])
    return results


def _node(node: object) -> dict[str, Any]:
    fields = node if isinstance(node, dict) else {}
    number, performance, findings = fields.get("node"), fields.get("performance_milli"), fields.get("findings")
    is_known = _is_number(number, MAX_NODES) and _is_number(performance, USUAL_MILLI) and isinstance(findings, list)
    if not is_known or findings is None:
        raise ValueError("the result of a node has no number, no performance or no findings")
    return {"node": number, "performance_milli": performance, "findings": [*map(_finding, findings[:MAX_FINDINGS])]}


def _finding(finding: object) -> dict[str, Any]:
    fields = finding if isinstance(finding, dict) else {}
    code, gpu, sentence, is_bad = (fields.get(name) for name in ("code", "gpu", "sentence", "is_bad"))
    is_known = isinstance(code, str) and code.replace("_", "").isalpha() and code.isascii() and code == code.lower()
    if not (is_known and isinstance(sentence, str) and isinstance(is_bad, bool)):
        raise ValueError("a finding has no code, no sentence or no grade")
    if gpu is not None and not _is_number(gpu, MAX_NODES):
        raise ValueError("a finding has a GPU that is no number")
    text = sentence[:MAX_SENTENCE].encode("utf-8", "replace").decode()
    return {"code": str(code)[:MAX_CODE], "gpu": gpu, "sentence": text, "is_bad": is_bad}


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
