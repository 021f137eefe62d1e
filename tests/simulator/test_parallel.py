"""Runs in processes of their own: what they tell, one that is killed, one that breaks down, and leaving early."""

import os
import signal
from typing import Never

import psutil

from ganger.simulation.process_pool import Broke, Came, Far, Tell, in_parallel


def doubled(asked: int, tell: Tell) -> int:
    tell(0.5)
    return 2 * asked


def killed_if_odd(asked: int, _tell: Tell) -> int:
    if asked % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return asked


def breaks_down(_asked: int, _tell: Tell) -> Never:
    raise ValueError("no such thing")


def stays(_asked: int, tell: Tell) -> None:
    tell(os.getpid())
    signal.pause()


def test_each_tells_how_far_it_is_and_what_came_of_it() -> None:
    told = list(in_parallel(doubled, [1, 2, 3], processes=2))
    assert {each for each in told if isinstance(each, Far)} == {Far(0, 0.5), Far(1, 0.5), Far(2, 0.5)}
    assert {(each.at, each.result) for each in told if isinstance(each, Came)} == {(0, 2), (1, 4), (2, 6)}


def test_one_that_is_killed_is_named_and_takes_nobody_with_it() -> None:
    told = {each.at: each for each in in_parallel(killed_if_odd, [0, 1, 2, 3], processes=2)}
    assert told[0] == Came(0, 0)
    assert told[2] == Came(2, 2)
    for at in (1, 3):
        assert told[at] == Broke(at, "its process was killed by SIGKILL: out of memory, it may be")


def test_one_that_breaks_down_says_why() -> None:
    assert list(in_parallel(breaks_down, [0])) == [Broke(0, "ValueError: no such thing")]


def test_who_leaves_early_leaves_no_process_behind() -> None:
    running = in_parallel(stays, [0, 1], processes=2)
    pids = [int(told.part) for told in (next(running), next(running)) if isinstance(told, Far)]
    assert len(pids) == 2
    running.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
