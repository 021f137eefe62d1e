"""The failure class of ends, and the next attempt: a stop needs proof, a faulty node is avoided at once."""

from dataclasses import replace

import pytest

from ganger.core.failure.end_diagnosis import diagnose_ends, is_certain_user_error, suspected_node
from ganger.core.failure.retry import GivenUp, decide_retry, retries_after
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import Checkpoints
from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.evidence import PythonError, RankEnd, RuleMatch
from tests.core.failure.test_retry import STEPPED, gang

KEY = PythonError(type="KeyError", message="'lr'", file="train.py", line=31)
PEER = PythonError(type="RuntimeError", message="Connection closed by peer [10.0.0.1]:4", file="train.py", line=40)
ECC = PythonError(type="RuntimeError", message="CUDA error: uncorrectable ECC error encountered", file="a.py", line=3)
MODULE = PythonError(type="ModuleNotFoundError", message="No module named 'flash_attn'", file="a.py", line=1)
SIZES = PythonError(type="RuntimeError", message="Error(s) in loading state_dict for M: size mismatch for a", line=2)


def failed(*errors: PythonError | int, ranks: int | None = None, step: int | None = 7, **more: object) -> Failed:
    """Return the failure of ranks, oldest first: each by an exception, or by a signal."""
    ends = tuple(
        RankEnd(
            rank=rank,
            node=f"n{rank + 1}",
            at_ms=1000 + rank,
            step=step,
            exit_code=None if isinstance(error, int) else 1,
            signal=error if isinstance(error, int) else None,
            error=None if isinstance(error, int) else error,
        )
        for rank, error in enumerate(errors)
    )
    return Failed(
        gang="j",
        generation=1,
        node="n1",
        cause=Cause.RANK_FAILED,
        rank=0,
        exit_code=1,
        ends=ends,
        ranks=len(ends) if ranks is None else ranks,
        **more,
    )


@pytest.mark.parametrize(
    ("failure", "failure_class", "rank"),
    [
        (failed(KEY), "python_error_user", 0),
        (failed(PEER, KEY), "python_error_user", 1),
        (failed(PEER, ECC), "gpu_ecc_uncorrectable", 1),
        (failed(PEER, 11), "process_segfault", 1),
        (failed(PEER, 9), "host_oom_or_external_kill", 1),
        (failed(PEER, PEER), "peer_connection_lost", 0),
        (failed(MODULE, MODULE), "missing_module", 0),
        (replace(failed(9), cause=Cause.OUT_OF_MEMORY), "host_oom_killed", 0),
        (replace(failed(), cause=Cause.NODE_LOST), "node_lost", 0),
        (failed(), "unknown_no_evidence", None),
    ],
)
def test_failure_class_of_ends(failure: Failed, failure_class: str, rank: int | None) -> None:
    diagnosis = diagnose_ends(failure)
    assert (diagnosis.failure_class.name, diagnosis.rank) == (failure_class, rank)


@pytest.mark.parametrize(
    ("failure", "is_certain"),
    [
        (failed(MODULE), True),
        (failed(SIZES), True),
        (failed(KEY, KEY), True),
        (failed(KEY), False),  # one rank of one: nothing to compare with
        (failed(KEY, KEY, ranks=3), False),
        (failed(KEY, replace(KEY, line=32)), False),
        (failed(ECC, ECC), False),
        (failed(PEER, PEER), False),
        (failed(11, 11), False),
    ],
)
def test_a_stop_needs_proof(failure: Failed, is_certain: bool) -> None:
    assert is_certain_user_error(failure) is is_certain
    decision = decide_retry(gang(None, attempt=STEPPED), failure, 0)
    assert decision.retries is not is_certain
    assert decision.given_up == (GivenUp.RECURS if is_certain else "")


def test_a_proved_error_of_the_program_ends_a_job_that_has_made_progress() -> None:
    owner = gang(None, attempt=STEPPED, checkpoints=Checkpoints(newest_step=6))
    assert not decide_retry(owner, failed(KEY, KEY), 0).retries
    assert decide_retry(owner, failed(KEY), 0).retries


def test_retry_max_and_rules_go_before_the_proof() -> None:
    assert decide_retry(gang(2, attempt=STEPPED), failed(MODULE), 0).retries
    match = RuleMatch(rule=0, do="retry", node="n1")
    assert decide_retry(gang(None, attempt=STEPPED), failed(MODULE, match=match), 0).retries


def avoided(owner: Gang, failure: Failed) -> tuple[str, ...]:
    owner.retries = retries_after(owner, failure, decide_retry(owner, failure, 0), 0)
    return owner.left_nodes


def test_a_node_with_a_proved_fault_is_avoided_at_once() -> None:
    assert suspected_node(failed(PEER, ECC)) == "n2"
    assert avoided(gang(None, attempt=STEPPED), failed(PEER, ECC)) == ("n2",)
    assert avoided(gang(None, attempt=STEPPED, checkpoints=Checkpoints(newest_step=6)), failed(PEER, ECC)) == ("n2",)


@pytest.mark.parametrize("failure", [failed(KEY), failed(PEER, PEER), failed(11), failed(9), failed(MODULE, MODULE)])
def test_no_other_failure_makes_a_node_suspect(failure: Failed) -> None:
    assert suspected_node(failure) == ""
    assert avoided(gang(None, attempt=STEPPED), failure) == ()


@pytest.mark.parametrize("message", ["\x00", "(" * 5000, "Xid " * 2000, "[Errno 99999999999999999999] x", "é" * 300])
def test_any_message_of_an_exception_is_judged(message: str) -> None:
    for name in ("RuntimeError", "OSError", "X", ""):
        failure = failed(PythonError(type=name, message=message))
        assert diagnose_ends(failure).failure_class.name
        assert suspected_node(failure) in ("", "n1")
