"""Placement scores by their names in the policy's `gpu_shares.score`, one file each.

A score provides two functions that read the nodes as they are and change nothing. `of_nodes(nodes, part, at)` returns
for each of these nodes an integer that is compared before everything nodes have left, least first; it is meaningful
only for nodes with room for the part. `of_devices(nodes, part, devices)` returns the same for devices of one node, for
a share; None stands for the device with the least left. LASTS is True if a node's score is constant until the node
changes, so that it can be cached. All results are integers, without clock or chance.
"""

from types import ModuleType
from typing import Final

from ganger.core.nodes.scores import best_fit, dot_product, drawn, fgd, gpu_clustering, gpu_packing, pack

SCORES: Final[dict[str, ModuleType]] = {
    score.NAME: score for score in (pack, fgd, best_fit, dot_product, gpu_packing, gpu_clustering, drawn)
}
