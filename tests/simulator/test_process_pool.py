"""The process pool: progress and results, killed and crashed processes, and leaving early."""

import os
import pickle
import signal
from typing import Never

import psutil
import pytest

from ganger.errors import RequestError
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.compare.process_pool import ReportProgress, RunFailure, RunProgress, RunResult, run_in_processes
from ganger.simulation.traces.trace import Flaw, UnreadableTrace
from ganger.simulation.traces.trace_row import BadRow


def doubled(asked: int, tell: ReportProgress) -> int:
    tell(0.5)
    return 2 * asked


def killed_if_odd(asked: int, _tell: ReportProgress) -> int:
    if asked % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return asked


def breaks_down(_asked: int, _tell: ReportProgress) -> Never:
    raise ValueError("no such thing")


def stays(_asked: int, tell: ReportProgress) -> None:
    tell(os.getpid())
    signal.pause()


def test_each_run_sends_progress_and_result() -> None:
    messages = list(run_in_processes(doubled, [1, 2, 3], processes=2))
    assert {each for each in messages if isinstance(each, RunProgress)} == {
        RunProgress(0, 0.5),
        RunProgress(1, 0.5),
        RunProgress(2, 0.5),
    }
    assert {(each.index, each.result) for each in messages if isinstance(each, RunResult)} == {(0, 2), (1, 4), (2, 6)}


def test_a_killed_run_is_named_and_the_others_go_on() -> None:
    result_of = {each.index: each for each in run_in_processes(killed_if_odd, [0, 1, 2, 3], processes=2)}
    assert result_of[0] == RunResult(0, 0)
    assert result_of[2] == RunResult(2, 2)
    for at in (1, 3):
        assert result_of[at] == RunFailure(at, "its process was killed by SIGKILL: possibly out of memory")


def test_a_crashed_run_gives_its_reason() -> None:
    assert list(run_in_processes(breaks_down, [0])) == [RunFailure(0, "ValueError: no such thing")]


def test_leaving_early_ends_all_processes() -> None:
    running = run_in_processes(stays, [0, 1], processes=2)
    pids = [int(progress.fraction) for progress in (next(running), next(running)) if isinstance(progress, RunProgress)]
    assert len(pids) == 2
    running.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    "error",
    [
        UnreadableTrace("jobs.csv:1", "is empty", "fetch it again"),
        InvalidArgument("no such order", "name one of easy"),
        BadRow(Flaw.NEGATIVE, "gpus: -1 is less than zero"),
        RequestError("bad_policy", "it has errors", "ganger policy", 422),
    ],
)
def test_an_error_leaves_a_process_as_it_is(error: Exception) -> None:
    """None of them could be unpickled: a pool whose process read a broken trace hung or showed a TypeError."""
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
