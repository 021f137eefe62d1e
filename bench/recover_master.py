"""The node of rank 0 is lost: time until the gang steps again elsewhere, beside a bare cold start, in the same run."""

from collections.abc import Callable

from bench.measure import Figure
from bench.recovering import Hurt, measured


def run() -> list[Figure]:
    return measured("recover_master", lose)


def lose(hurt: Hurt) -> Callable[[], object]:
    """Rank 0's node goes with all that runs on it, and comes back when the job is at work again."""
    node = hurt.nodes()[0]
    hurt.client.fail_node(node)
    return lambda: hurt.client.return_node(node)
