"""Pools of nodes in the order in which they are filled and given back; placement with the least fragmentation."""

from tests.pictures.play import scenarios

POOLS = "pools reserved=pay:r spot=pay:s on-demand=pay:o cpu=pay:c"

test_pools_are_filled_in_order = scenarios(
    {
        "the first pool with capacity, though another is tighter": (
            "n1:.. n2:.,label=pay:s n3:..,label=pay:r",
            "",
            f"{POOLS}; C:1x1 -> .. . C.",
        ),
        "then the next": (
            "n1:..,label=pay:o n2:..,label=pay:s n3:..,label=pay:r",
            "",
            f"{POOLS}; C:1x2 D:1x2 E:1x2 -> EE DD CC",
        ),
        "nodes of no pool come last": (
            "n1:.. n2:..,label=pay:o",
            "",
            f"{POOLS}; C:1x2 D:1x2 -> DD CC",
        ),
        "a gang is in one pool if possible": (
            "n1:..,label=pay:r n2:..,label=pay:s n3:..,label=pay:s",
            "",
            f"{POOLS}; C:2x2 -> .. CC CC",
        ),
        "and otherwise in the fewest first pools": (
            "n1:..,label=pay:r n2:..,label=pay:s n3:..,label=pay:o",
            "",
            f"{POOLS}; C:2x2 -> CC CC ..",
        ),
        "a job without GPUs goes to a CPU pool": (
            "n1:..,label=pay:r n2:-,label=pay:c",
            "",
            f"{POOLS}; C:1x0 -> .. c",
        ),
        "and elsewhere when that is full": (
            "n1:..,label=pay:r n2:-,label=pay:c,cpu=1",
            "",
            f"{POOLS}; C:1x0 D:1x0 -> ..d c",
        ),
        "the first requested type comes before a pool": (
            "n1:..,a100,label=pay:r n2:..,h100,label=pay:s",
            "",
            f"{POOLS}; C:1x2h100,else=a100 -> .. CC",
        ),
        "as jobs end the last pools become idle first, and what comes goes to the first again": (
            "n1:..,label=pay:o n2:..,label=pay:s n3:..,label=pay:r",
            "",
            f"""
            {POOLS}; C:1x2 D:1x2 E:1x2 -> EE DD CC
            done C; F:1x2 -> EE DD FF | C succeeded
            done E -> .. DD FF | E succeeded
            done D -> .. .. FF | D succeeded
            G:1x2 -> .. GG FF
            """,
        ),
        "a job in a later pool stays there when one before it becomes idle": (
            "n1:..,label=pay:o n2:..,label=pay:r",
            "",
            f"""
            {POOLS}; C:1x2 D:1x2 -> DD CC
            done C -> DD .. | C succeeded
            """,
        ),
        "another policy, other pools": (
            "n1:..,label=pay:r n2:..,label=pay:s",
            "",
            """
            pools reserved=pay:r spot=pay:s; C:1x1 -> C. ..
            pools spot=pay:s; D:1x1 -> C. D.
            """,
        ),
    }
)


DEMAND = "X:9x2 Y:9x2 Z:9x0,milli=600"
"""The typical demand: mostly two GPUs, and shares of one; nothing of it fits anywhere."""
REST = "X no_node, Y no_node, Z no_node"

test_fragments = scenarios(
    {
        "a share goes to the node without a free pair": (
            "n1:.. n2:.A n3:.A",
            "",
            f"score fgd; {DEMAND}; C:1x0,milli=500,prio=9 -> .. (C)A .A | {REST}",
        ),
        "the rest matches other requests": (
            "n1:..",
            "",
            """
            score fgd; C:1x0,milli=400 D:1x0,milli=600 -> (CD).
            E:1x0,milli=100 -> (CD)(E)
            """,
        ),
        "of equal nodes the first in topology order": (
            "n1:.. n2:.A",
            "",
            "score fgd 1 order; C:1x1 -> C. .A",
        ),
        "or the one with the least left": (
            "n1:.. n2:.A",
            "",
            "score fgd 1 least; C:1x1 -> .. CA",
        ),
    }
)
