"""Interface of placement scores: what a module of a score must have. `registry` finds these modules.

A score reads the nodes as they are, from the arrays of `NodeArrays`, and changes nothing. All results are integers,
without clock or chance: what is planned again comes out the same. `rules.gpu_shares` of the nodes has the policy's
`cut`, the number of grades that a score rounds to, and its `seed`.
"""

from typing import Protocol

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints
from ganger.model.shape import Shape


class Score(Protocol):
    """A placement score.

    NAME: the value of `gpu_shares.score`.
    LASTS: a node's score is constant until the node changes, so that it can be cached.
    SEEDED: results depend on `gpu_shares.seed`, so that simulations with several seeds differ.
    """

    NAME: str
    LASTS: bool
    SEEDED: bool

    def of_nodes(self, nodes: NodeArrays, part: Shape, indices: Ints, /) -> Ints:
        """Return (n,) what is compared of these nodes before everything they have left, least first.

        It is meaningful only for nodes with room for the part.
        """

    def of_devices(self, nodes: NodeArrays, part: Shape, devices: Ints, /) -> Ints | None:
        """Return (d,) the same for devices of one node, for a share; None: the device with the least left."""
