"""Answers become the model's classes, and come whole."""

import json
from dataclasses import asdict

import pytest

from ganger import ClientError
from ganger.model.job import After, Array, GitCode, JobSpec, Parallel, Role, Volume
from ganger.model.job_sections.retry_spec import Retry, Rule
from ganger.model.views.service_views import AttemptView, EventRow, JobRow, JobView, Ledger
from ganger.sdk.decode import view

ROW = JobRow(
    id="a-1", name="a", user="u", queue="q", priority=0, state="running", shape="1x1 cpu", submitted_ms=1, nodes=("n",)
)
SPEC = JobSpec(
    run=("python", "train.py"),
    roles={"ps": Role(count=2, run="serve", env={"A": "b"})},
    parallel=Parallel(tp=2),
    code=GitCode(git="https://example.org/x"),
    volumes=(Volume(name="data", path="/data"),),
    retry=Retry(rules=(Rule(log="x", do="fail"),)),
    after=(After(job="b"),),
    array=Array(indices=(1, 3), limit=1),
    secrets=("TOKEN",),
)
JOB = JobView(
    row=ROW,
    spec=SPEC,
    directory="/d",
    git_commit=None,
    git_dirty=False,
    attempts=(AttemptView(generation=1, started_ms=1, ended_ms=None, outcome="running", nodes=("n",)),),
    ledger=Ledger(total_ms=5),
    progress={"step": 1, "metrics": {"loss": [1.5, None]}},
)


def test_a_job_comes_whole() -> None:
    assert view(JobView, json.loads(json.dumps(asdict(JOB)))) == JOB


def test_versions_of_a_server_differ() -> None:
    sent = asdict(ROW) | {"of_a_newer_server": 1}
    del sent["sentence"]
    assert view(JobRow, sent) == ROW


@pytest.mark.parametrize("sent", [{}, [], None, 5, asdict(ROW) | {"nodes": 5}])
def test_another_shape_is_an_error(sent: object) -> None:
    with pytest.raises(ClientError) as caught:
        view(JobRow, sent)
    assert caught.value.code == "bad_response"


def test_an_event_keeps_its_data() -> None:
    event = EventRow(seq=1, at_ms=2, kind="started", job="a", sentence="s", data={"deep": {"x": [1]}})
    assert view(EventRow, asdict(event)) == event
