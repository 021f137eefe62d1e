"""A node is lost, not that of rank 0: time until the gang steps again elsewhere, beside a bare cold start."""

from collections.abc import Callable

from bench.measure import Figure
from bench.recovering import Hurt, measured


def run() -> list[Figure]:
    return measured("recover_node", lose)


def lose(hurt: Hurt) -> Callable[[], object]:
    """The other node goes with all that runs on it, and comes back when the job is at work again."""
    node = hurt.nodes()[-1]
    hurt.client.fail_node(node)
    return lambda: hurt.client.return_node(node)
