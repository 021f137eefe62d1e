"""The policy of a simulation: a queue order with or without a placement score, or a policy document in a file.

Errors of a document are reported as `ganger policy apply` reports them, with line and column.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ganger import registry
from ganger.core.state.state import Image, State
from ganger.engine.policy_doc.policy_validation import check_fits, read_policy
from ganger.model.cluster import Node
from ganger.model.policy import GpuShares, PolicyDocument
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.spec.yaml_text import MAX_BYTES

_NEXT: Final = "ganger policy > policy.yaml"


def read_document(path: Path, nodes: Sequence[Node]) -> PolicyDocument:
    """Return the policy document of a file, checked against the nodes.

    RequestError (bad_policy): it has errors; InvalidArgument: its order is unknown, or the file is too long.
    """
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"{path} is longer than 1 MiB: is it a policy at all?", _NEXT)
    document = check_fits(read_policy(text, str(path)), State(Image(nodes=list(nodes))))
    order_and_score(document.order)
    return document


def order_and_score(policy: str) -> tuple[str, str]:
    """Return the queue order and the placement score of `ORDER` or `ORDER+SCORE`. InvalidArgument: one is unknown."""
    orders = registry.policies()
    order, plus, score = policy.partition("+")
    if order not in orders:
        raise InvalidArgument(f"there is no queue order {order}", f"name one of {', '.join(sorted(orders))}")
    if plus and score not in registry.scores():
        legal = ", ".join(sorted(registry.scores()))
        raise InvalidArgument(f"there is no placement score {score}", f"name one of {legal}, as {order}+fgd")
    return order, score or GpuShares().score


def with_policy(document: PolicyDocument, policy: str) -> PolicyDocument:
    """Return the document with another order, or another order and score. InvalidArgument: one is unknown."""
    order, plus, score = policy.partition("+")
    order_and_score(policy)
    gpu_shares = replace(document.gpu_shares, score=score) if plus else document.gpu_shares
    return replace(document, order=order, gpu_shares=gpu_shares)
