"""A small part of the bench `random_schedules`: faults that overlap, on gangs of gloo ranks."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.faults.schedules import KINDS, World

pytestmark = pytest.mark.long

GANGS, SCHEDULES = 2, 2


def test_one_world_one_writer_and_each_sample_once(tmp_path: Path, torch_python: str) -> None:
    with World(tmp_path) as world, ThreadPoolExecutor(GANGS) as pool:
        results = list(pool.map(lambda seed: world.run(seed, SCHEDULES), range(GANGS)))
    assert [error for result in results for error in result.errors] == []
    assert [result.schedules for result in results] == [SCHEDULES] * GANGS
    assert {*sum((Counter(result.faults) for result in results), Counter())} == {*KINDS}
