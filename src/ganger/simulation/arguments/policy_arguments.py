"""A policy document in a file, held against the nodes that are simulated. Called by the errand `sim`.

What is wrong with it is said as `ganger policy apply` says it, with its line and column.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ganger.core.state.state import Image, State
from ganger.engine.policy_doc.policy_text import check_fits, read_policy
from ganger.model.cluster import Node
from ganger.model.policy import PolicyDocument
from ganger.simulation.arguments.argument_error import Unaskable
from ganger.simulation.arguments.run_arguments import parts_of
from ganger.spec.yaml_text import MAX_BYTES

_NEXT: Final = "ganger policy > policy.yaml"


def read_document(path: Path, nodes: Sequence[Node]) -> PolicyDocument:
    """The document. Refused (bad_policy) with a place for each fault; Unaskable: an order that is not there, or a file
    that no document is as long as."""
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise Unaskable(f"{path} is longer than 1 MiB: is it a policy at all?", _NEXT)
    document = check_fits(read_policy(text, str(path)), State(Image(nodes=list(nodes))))
    parts_of(document.order)
    return document
