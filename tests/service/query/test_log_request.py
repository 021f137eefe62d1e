"""Checks of log queries, and the errors for invalid ones."""

import pytest

from ganger.engine.query.output_service import check_log_query
from ganger.errors import RequestError
from ganger.model.job import JobSpec, Role
from ganger.model.views.service_views import JobRow
from ganger.ports import LogQuery

SPEC = JobSpec(run="x", nodes=2, nproc_per_node=2, roles={"ps": Role(count=2)})
ROW = JobRow(
    id="a-1", name="a", user="ada", queue="default", priority=0, state="running", shape="", submitted_ms=0,
    generation=2, nodes=("gone",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ({"generation": 3}, "no_such_attempt", "attempts 1 to 2, and no attempt 3"),
        ({"first": 3}, "no_such_attempt", "no attempt 3"),
        ({"ranks": (0, 6)}, "no_such_rank", "ranks 0 to 5, and no rank 6"),
        ({"role": "pss"}, "no_such_role", "roles worker and ps, and no role pss"),
        ({"node": "n9"}, "no_such_node", "no node n9"),
        ({"grep": "("}, "bad_pattern", "not a regular expression"),
        ({"grep": "(?<=loss )1"}, "bad_pattern", "no look-around"),
    ],
)
def test_refused(query: dict, code: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        check_log_query(LogQuery(job="a-1", **query), ROW, SPEC, ["n1"], may_come=False)
    assert refused.value.code == code
    assert refused.value.next


@pytest.mark.parametrize(
    "query",
    [
        {"ranks": (-1, 5)},
        {"role": "ps", "node": "gone"},
        {"node": "n1"},
        {"grep": "loss|acc"},
        {"grep": r"(loss|acc) .*[(+*)]+ \(x+\)* (a{2})+ (?i:b)?"},
        {"grep": "[]|(+]+"},
        {"grep": "(a+)+$"},
    ],
)
def test_accepted(query: dict) -> None:
    check_log_query(LogQuery(job="a-1", **query), ROW, SPEC, ["n1"], may_come=False)


def test_an_attempt_may_still_come_to_a_live_job() -> None:
    check_log_query(LogQuery(job="a-1", generation=3), ROW, SPEC, [], may_come=True)


def test_an_elastic_job_has_the_ranks_of_its_largest_size() -> None:
    spec = JobSpec(run="x", nodes=1, max_nodes=2, nproc_per_node=2)
    check_log_query(LogQuery(job="a-1", ranks=(3,)), ROW, spec, [], may_come=False)
    with pytest.raises(RequestError, match="ranks 0 to 3, and no rank 4"):
        check_log_query(LogQuery(job="a-1", ranks=(4,)), ROW, spec, [], may_come=False)
