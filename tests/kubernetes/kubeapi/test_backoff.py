"""Pauses between tries."""

import random

from ganger.kubeapi.backoff import backoff_s


def test_pauses_double_up_to_a_limit_less_a_part_at_random() -> None:
    for failures, whole_s in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (10_000, 5.0)):
        pauses_s = [backoff_s(failures, 1.0, 5.0) for _ in range(200)]
        assert whole_s / 2 <= min(pauses_s) < max(pauses_s) <= whole_s


def test_the_random_numbers_of_the_program_stay_those_of_its_seed() -> None:
    before = random.getstate()
    backoff_s(1, 1.0, 5.0)
    assert random.getstate() == before
