"""Loss of the node of rank 0: time until the gang steps again elsewhere, against a bare cold start in the same run."""

from collections.abc import Callable

from bench.measure import Figure
from bench.recovery.recovering import Victim, measure_recoveries


def run() -> list[Figure]:
    return measure_recoveries("recover_master", lose)


def lose(victim: Victim) -> Callable[[], object]:
    """Fail rank 0's node with all that runs on it; it returns when the job steps again."""
    node = victim.nodes()[0]
    victim.client.fail_node(node)
    return lambda: victim.client.return_node(node)
