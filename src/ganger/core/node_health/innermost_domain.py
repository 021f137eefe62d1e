"""The innermost topology domain of a node, such as its rack or leaf switch, as text."""

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import path


def domain_of(nodes: NodeTable, name: str) -> str:
    """Return the path of a node's innermost domain, `a/r1`; empty for a node in none."""
    parts = path(nodes.nodes[nodes.index[name]], nodes.topology.levels)
    return "/".join(parts) if parts and parts[-1] else ""
