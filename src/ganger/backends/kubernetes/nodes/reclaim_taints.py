"""Taints by which other programs announce that a node is taken away, and the notice that each leaves.

Their evictions follow, with the deadline of each pod; the taint comes first, and keeps new pods away. Sources: the
documentation of AWS Node Termination Handler, Karpenter and GKE (reference: elastic-network-data, section 2).
"""

from typing import Final, NamedTuple

from ganger.agent.cloud_notices import GOOGLE_NOTICE_S, MAX_NOTICE_S
from ganger.agent.node_taint import TAINT
from ganger.kubeapi.objects import Node

_AWS_NOTICE_S: Final = 120.0
NOTICES_S: Final = {
    "aws-node-termination-handler/spot-itn": _AWS_NOTICE_S,
    "aws-node-termination-handler/asg-lifecycle-termination": _AWS_NOTICE_S,
    "karpenter.sh/disrupted": _AWS_NOTICE_S,
    "karpenter.sh/disruption": _AWS_NOTICE_S,
    "cloud.google.com/impending-node-termination": GOOGLE_NOTICE_S,
}
"""By key of the taint. A recommendation to rebalance is none: the node may stay for hours."""


class ReclaimNotice(NamedTuple):
    """Announcement that a node is taken away: the key of its taint, and seconds from now."""

    taint: str
    left_s: float


def reclaim_notice(node: Node, now_s: float) -> ReclaimNotice | None:
    """Return the notice of a node that ends first, if it has any. `now_s`: Unix seconds."""
    found = [ReclaimNotice(taint.key, NOTICES_S[taint.key]) for taint in node.spec.taints if taint.key in NOTICES_S]
    ends = (taint.value for taint in node.spec.taints if taint.key == TAINT)
    found += (ReclaimNotice(TAINT, min(max(0.0, int(end) - now_s), MAX_NOTICE_S)) for end in ends if _is_seconds(end))
    return min(found, key=lambda notice: notice.left_s, default=None)


def _is_seconds(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12
