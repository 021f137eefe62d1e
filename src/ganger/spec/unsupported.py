"""Fields that a spec will have later: refused by name, with what to do until then, never ignored.

Called by `spec`. The list is the whole spec of the design, less what `model.job` has by now: a field leaves it
when it arrives there.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from ganger.spec.schema import KIND
from ganger.spec.spec_document import Document, Loc, Problem, dotted, shown
from ganger.spec.text_fields import did_you_mean

_KEYS: Final[dict[Loc, str]] = {
    ("data",): "name its directory: volumes: [{name: NAME, path: /PATH}]",
    ("services",): "start it by hand beside the job",
    ("sweep",): "submit one job for each value, in a shell loop",
    ("notify",): "wait for it: `ganger wait ID`",
    ("resources", "shm"): "processes share the shared memory of this machine: leave it out",
    ("resources", "rdma"): "processes have the network of this machine: leave it out",
    ("limits", "idle"): "set time",
    ("limits", "cost"): "set time",
    ("retry", "on"): "set max: what is not the job's fault is tried again anyway",
}
_KINDS: Final = ("dev", "service", "sweep", "workflow")


def later(document: Document) -> Iterator[Problem]:
    """A problem for everything in the document that comes later. `document.data` is a mapping."""
    for at, instead in _KEYS.items():
        if _has(document.data, at):
            yield Problem(at, f"{dotted(at)} is not yet supported: {instead}", key=True)
    yield from _kind(document.data)
    nodes = document.data.get("nodes")
    if isinstance(nodes, str) and re.fullmatch(r"\s*\d+\s*\.\.\s*\d+\s*", nodes):
        yield Problem(("nodes",), f"nodes: a range, {shown(nodes)}, is not yet supported: write one number")


def _has(data: Any, at: Loc) -> bool:
    for key in at:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def _kind(data: dict[str, Any]) -> Iterator[Problem]:
    kind = data.get("kind", KIND)
    if kind in _KINDS:
        yield Problem(("kind",), f"kind: {kind} is not yet supported: write job, or leave it out")
    elif kind != KIND:
        meant = did_you_mean(kind, (KIND, *_KINDS)) if isinstance(kind, str) else ""
        yield Problem(("kind",), f"kind: {shown(kind)} is not a kind of work: write job, or leave it out{meant}")
