"""The suspect in a hanging gang: examples of its ranks, and the rank to blame."""

import pytest

from ganger.launcher_server.health.hang_suspect import find_suspect, waits_for_others
from ganger.launcher_server.health.stall_messages import RankDetail

WAITS = ("recv (net.py:9)", "reduce (net.py:4)", "<module> (train.py:3)")
LEADS = ("recv (net.py:9)", "lead (net.py:7)", "<module> (train.py:3)")
REDUCES = (
    "all_reduce (/lib/torch/distributed/distributed_c10d.py:3157)",
    "wrapper (/lib/torch/distributed/c10d_logger.py:81)",
    "<module> (/home/me/train.py:9)",
)
AGENT = ("run (/lib/torch/distributed/elastic/agent/server/api.py:9)", *REDUCES)
LOOPS = ("spin (data.py:2)", "<module> (train.py:2)")


def gang(steps: list[int | None], states: str = "SSSS", busy: tuple[int, ...] = (0, 0, 0, 0)) -> list[RankDetail]:
    ranks = zip(range(4), steps, states, busy, strict=True)
    return [
        RankDetail(rank=rank, node="n1", step=step, state=state, busy_permille=work)
        for rank, step, state, work in ranks
    ]


@pytest.mark.parametrize(
    ("ranks", "places", "expected", "reason"),
    [
        (gang([5, 5, 5, 5], "SSTS"), [WAITS] * 4, 2, "is stopped"),
        (gang([5, 4, 5, 5]), [LOOPS] + [WAITS] * 3, 1, "has done step 4"),
        (gang([5, 5, 5, 5]), [LEADS, WAITS, WAITS, LOOPS], 3, "elsewhere than the others: spin (data.py:2)"),
        (gang([5, None, None, None]), [WAITS, LOOPS, WAITS, WAITS], 1, "elsewhere"),
        (gang([5, 5, 5, 5], busy=(990, 0, 3, 40)), [()] * 4, 0, "is at work while the others sleep"),
        (gang([5, 5, 5, 5], busy=(990, 990, 990, 990)), [WAITS] * 4, None, ""),
        (gang([5, 5, 5, 5]), [WAITS, WAITS, LOOPS, LOOPS], None, ""),
        (
            gang([None] * 4),
            [REDUCES, REDUCES, REDUCES, LOOPS],
            3,
            "not in the collective operation in which",
        ),
        (gang([None] * 4)[:2], [(), REDUCES], 0, "not in the collective operation"),
        (gang([5, 5, 5, 5])[1:2], [(), LOOPS], 1, "has not ended, all others have: spin (data.py:2)"),
        ([], [], None, ""),
    ],
)
def test_the_rank_that_differs_is_the_suspect(
    ranks: list[RankDetail], places: list[tuple[str, ...]], expected: int | None, reason: str
) -> None:
    result = find_suspect(ranks, {rank: frames for rank, frames in enumerate(places) if frames}, 4)
    assert (result.detail.rank if result else None) == expected
    assert result is None or reason in result.reason


@pytest.mark.parametrize(("frames", "expected"), [(REDUCES, True), (AGENT, False), (LOOPS, False), ((), False)])
def test_a_rank_in_a_collective_operation_waits_for_others(frames: tuple[str, ...], expected: bool) -> None:
    assert waits_for_others(frames) is expected
