"""Placement scores, by the names that `gpu_shares.score` of the policy has for them; one file each.

A file gives two functions, which look at nodes as they stand and change nothing. `of_nodes(nodes, part, at)`: for each
of these nodes a number that is compared before all that nodes have left, the least first; only that of a node with room
for the part means anything. `of_devices(nodes, part, devices)`: the same of devices of one node, for a share; None: the
one with the least left. LASTS says whether a node's number stays the same until the node changes, so that it need not
be found anew. All are asked by `core.nodes.score_cache` alone, and are integers, with no clock and no chance in them.
"""

from types import ModuleType
from typing import Final

from ganger.core.nodes.scores import best_fit, dot_product, drawn, fgd, gpu_clustering, gpu_packing, pack

SCORES: Final[dict[str, ModuleType]] = {
    score.NAME: score for score in (pack, fgd, best_fit, dot_product, gpu_packing, gpu_clustering, drawn)
}
