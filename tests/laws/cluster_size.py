"""Run of a law on clusters that count as large, too, where a cycle considers one queue at a time."""

from collections.abc import Callable
from functools import wraps

import pytest
from hypothesis import strategies as st

from ganger.core.reservations import queue_rotation


def on_either_size(law: Callable[..., None]) -> Callable[..., None]:
    """Return the law as it draws in each example whether the cluster counts as large, if it draws `data`."""

    @wraps(law)
    def law_on_either_size(*args: object, **drawn: object) -> None:
        data = drawn.get("data")
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(data, st.DataObject) and data.draw(st.booleans(), label="counts as large"):
                patch.setattr(queue_rotation, "LARGE_CLUSTER_NODES", 0)
            law(*args, **drawn)

    law_on_either_size.draws_size = True  # type: ignore[attr-defined]
    return law_on_either_size
