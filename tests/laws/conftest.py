"""Run of every law on clusters that count as large, too, where a cycle considers one queue at a time.

Each example draws which (`core.reservations.queue_rotation`), so that the laws take no longer than on small clusters
alone. The few laws that draw nothing else are about parts of the core to which the size makes no difference.
"""

from pathlib import Path

import pytest

from tests.laws.cluster_size import on_either_size


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Draw the size of the cluster in each example of each law; `policies` does so for laws of every policy."""
    for item in items:
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle is None or Path(__file__).parent not in item.path.parents:
            continue
        if not hasattr(handle.inner_test, "draws_size"):
            handle.inner_test = on_either_size(handle.inner_test)
