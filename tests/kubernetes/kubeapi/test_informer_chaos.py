"""An informer under an hour of random faults and changes: in the end its cache equals the server, without duplicates.

The schedules are those of `bench/kubeapi/watch_chaos`, with other seeds.
"""

import pytest

from bench.kubeapi.watch_chaos import BAR_S, schedule
from tests.kubernetes.scripted import run


@pytest.mark.parametrize("seed", range(1_000, 1_005))
def test_the_store_equals_the_server(seed: int) -> None:
    took_s, repeated = run(schedule(seed))
    assert took_s <= BAR_S  # of a loop on which waiting takes no time
    assert repeated == 0
