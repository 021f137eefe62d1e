"""A trial restores everything, however it nests and however it ends."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.undo import Undo

KEYS = st.integers(0, 3)
PUTS = st.tuples(st.just("put"), st.sampled_from(("list", "dict", "array")), KEYS, st.integers(-9, 9))
MANY = st.tuples(st.just("many"), st.lists(KEYS, unique=True), st.just(0), st.integers(-9, 9))
SLICES = st.tuples(st.just("slice"), st.just(""), KEYS, st.integers(-9, 9))
DROPS = st.tuples(st.just("drop"), st.just("dict"), KEYS, st.just(0))
ACTIONS = st.recursive(
    st.lists(PUTS | MANY | SLICES | DROPS, max_size=4),
    lambda inner: st.lists(st.tuples(st.sampled_from(("trial", "back")), inner), max_size=3),
    max_leaves=6,
)


class World:
    def __init__(self) -> None:
        self.undo = Undo()
        self.list, self.dict, self.array = [1, 2, 3, 4], {0: 1, 1: 2}, np.arange(4)

    def snapshot(self) -> Any:
        return deepcopy((self.list, self.dict, self.array.tolist()))

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case ("trial", inner):
                    before = self.snapshot()
                    with self.undo.trial():
                        self.act(inner)
                    assert self.snapshot() == before
                case ("back", inner):
                    before = self.snapshot()
                    with self.undo.trial():
                        mark = self.undo.mark()
                        self.act(inner)
                        self.undo.roll_back(mark)
                        assert self.snapshot() == before
                case ("put", container, key, value):
                    self.undo.put(getattr(self, container), key, value)
                case ("many", keys, _, value):
                    self.undo.put(self.array, np.array(keys, dtype=np.int64), value)
                case ("slice", _, key, value):
                    self.undo.put(self.array, slice(key, None), value)
                case ("drop", _, key, _) if key in self.dict:
                    self.undo.drop(self.dict, key)


@given(actions=ACTIONS)
def test_trials_leave_nothing_behind(actions: list[Any]) -> None:
    world = World()
    world.act([("trial", actions)])
    world.act(actions)


def test_outside_a_trial_changes_stay_and_nothing_is_remembered() -> None:
    world = World()
    world.undo.put(world.list, 0, 9)
    world.undo.drop(world.dict, 0)
    with world.undo.trial():
        world.undo.put(world.list, 0, 8)
    assert (world.list[0], world.dict) == (9, {1: 2})
    assert world.undo.mark() == 0


def test_an_error_ends_the_trial_too() -> None:
    world = World()
    before = world.snapshot()

    def fail() -> None:
        with world.undo.trial():
            world.undo.put(world.array, slice(None), 7)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert world.snapshot() == before
