"""All-or-nothing binding on a real API server under faults."""

import pytest

from tests.kubernetes.pods.real_binding import run_lives
from tools.testcluster import Unavailable
from tools.testcluster.cluster import require_built

MEMBERS = 12
SEEDS = [0, 1]
"""Broken connections, lost responses, lost nodes, a killed controller."""


@pytest.mark.cluster
def test_none_or_all_are_bound_in_the_end() -> None:
    try:
        require_built()
    except Unavailable as error:
        pytest.skip(str(error))
    actual = list(run_lives(MEMBERS, SEEDS))
    assert all(end.holds for end in actual), actual
    assert [end.bound_late for end in actual] == [MEMBERS, MEMBERS]
    assert [end.kills for end in actual] == [1, 0]
    assert all(end.faults for end in actual)
