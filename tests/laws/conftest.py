"""Run of every law on clusters that count as large, too, where a cycle considers one queue at a time.

Each example draws which (`core.reservations.queue_rotation`), so that the laws take no longer than on small clusters
alone. The few laws that draw nothing else are about parts of the core to which the size makes no difference.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path

import pytest
from hypothesis import strategies as st

from ganger.core.reservations import queue_rotation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Draw the size of the cluster in each example of each law."""
    for item in items:
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle is None or Path(__file__).parent not in item.path.parents:
            continue
        if not hasattr(handle.inner_test, "draws_size"):
            handle.inner_test = _on_either_size(handle.inner_test)


def _on_either_size(law: Callable[..., None]) -> Callable[..., None]:
    @wraps(law)
    def law_on_either_size(*args: object, **drawn: object) -> None:
        data = drawn.get("data")
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(data, st.DataObject) and data.draw(st.booleans(), label="counts as large"):
                patch.setattr(queue_rotation, "LARGE_CLUSTER_NODES", 0)
            law(*args, **drawn)

    law_on_either_size.draws_size = True  # type: ignore[attr-defined]
    return law_on_either_size
