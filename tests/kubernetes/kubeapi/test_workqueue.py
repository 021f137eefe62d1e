"""The work queue: one key at a time, as often as needed, later after each failure."""

import asyncio
import itertools
import random
from collections import Counter

import pytest

from ganger.kubeapi.workqueue import MAX_BACKOFF_S, WorkQueue
from tests.kubernetes.scripted import run


class Doing:
    """Takes a second for each key, fails as often as scripted, and records its runs."""

    def __init__(self, failures: dict[str, int] | None = None) -> None:
        self.failures = failures or {}
        self.begun: list[tuple[str, float]] = []
        self.ended: list[str] = []
        self.now: Counter[str] = Counter()
        self.most = 0

    async def __call__(self, key: str) -> None:
        self.now[key] += 1
        assert self.now[key] == 1, "the same key twice at once"
        self.most = max(self.most, self.now.total())
        self.begun.append((key, asyncio.get_running_loop().time()))
        try:
            await asyncio.sleep(1)
        finally:
            self.now[key] -= 1
        if self.failures.get(key, 0):
            self.failures[key] -= 1
            raise ValueError("not yet")
        self.ended.append(key)

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.begun]


async def worked(work: WorkQueue[str], lasts_s: float) -> None:
    working = asyncio.ensure_future(work.run())
    await asyncio.sleep(lasts_s)
    work.shut_down()
    await working


def test_each_key_once_in_their_order() -> None:
    async def test() -> None:
        doing = Doing()
        work = WorkQueue(doing, workers=1)
        for key in "abcab":
            work.add(key)
        assert len(work) == 3
        await worked(work, 10)
        assert doing.ended == ["a", "b", "c"]
        assert len(work) == 0

    run(test())


def test_what_is_added_meanwhile_is_done_once_more() -> None:
    async def test() -> None:
        doing = Doing()
        work = WorkQueue(doing)
        work.add("a")
        working = asyncio.ensure_future(work.run())
        await asyncio.sleep(0.5)
        for _ in range(5):
            work.add("a")
        await asyncio.sleep(5)
        work.shut_down()
        await working
        assert doing.begun == [("a", 0.0), ("a", pytest.approx(1.0))]

    run(test())


def test_many_at_once_and_no_more() -> None:
    async def test() -> None:
        doing = Doing()
        work = WorkQueue(doing, workers=3)
        for key in "abcdefg":
            work.add(key)
        await worked(work, 10)
        assert sorted(doing.ended) == list("abcdefg")
        assert doing.most == 3

    run(test())


def test_what_fails_is_done_again_later_each_time_and_then_forgotten() -> None:
    async def test() -> None:
        doing = Doing({"a": 14})
        work = WorkQueue(doing)
        work.add("a")
        await worked(work, 2_000)
        at_s = [time_s for _, time_s in doing.begun]
        pauses = [after - before - 1 for before, after in itertools.pairwise(at_s)]
        assert len(pauses) == 14
        for turn, pause in enumerate(pauses):
            whole_s = min(0.1 * 2**turn, MAX_BACKOFF_S)
            assert whole_s / 2 <= pause <= whole_s + 0.001
        doing.failures["a"] = 1
        again = WorkQueue(doing)
        again.add("a")
        await worked(again, 10)
        assert doing.begun[-1][1] - doing.begun[-2][1] <= 1.2

    run(test())


def test_news_of_a_key_that_failed_is_not_kept_waiting() -> None:
    async def test() -> None:
        doing = Doing({"a": 1})
        work = WorkQueue(doing)
        work.add_after("a", 1_000)
        work.add_after("a", 500)
        work.add_after("a", 2_000)
        working = asyncio.ensure_future(work.run())
        await asyncio.sleep(501.0)
        assert doing.keys == ["a"]
        work.add("a")
        await asyncio.sleep(0.02)
        work.shut_down()
        await working
        assert [time_s for _, time_s in doing.begun] == pytest.approx([500.0, 501.0])

    run(test())


def test_it_ends_when_what_is_under_way_is_done() -> None:
    async def test() -> None:
        doing = Doing({"b": 1})
        work = WorkQueue(doing, workers=2)
        for key in "abc":
            work.add(key)
        work.add_after("d", 0.7)
        await worked(work, 0.5)
        assert doing.keys == ["a", "b"]
        assert doing.ended == ["a"]
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)
        await asyncio.sleep(10)
        assert doing.keys == ["a", "b"]

    run(test())


def test_cancelled_it_breaks_off() -> None:
    async def test() -> None:
        doing = Doing()
        work = WorkQueue(doing)
        work.add("a")
        working = asyncio.ensure_future(work.run())
        await asyncio.sleep(0.5)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert doing.now.total() == 0
        assert doing.ended == []

    run(test())


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_was_added_is_lost(seed: int) -> None:
    """Whenever keys are added: the last addition of each is followed by a whole, successful run."""
    chance = random.Random(seed)

    async def test() -> None:
        doing = Doing({key: chance.randrange(3) for key in "abcde"})
        work = WorkQueue(doing, workers=chance.randrange(1, 4))
        working = asyncio.ensure_future(work.run())
        added = {}
        for _ in range(60):
            key = chance.choice("abcde")
            work.add(key)
            added[key] = asyncio.get_running_loop().time()
            await asyncio.sleep(chance.choice((0, 0.3, 0.9, 1.0)))
        await asyncio.sleep(200)
        work.shut_down()
        await working
        assert sorted(set(doing.ended)) == sorted(added)
        for key, at_s in added.items():
            assert max(time_s for item, time_s in doing.begun if item == key) >= at_s
        assert len(work) == 0

    run(test())
