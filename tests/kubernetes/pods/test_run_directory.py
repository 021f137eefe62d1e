"""GANGER_RUN_DIR of jobs on Kubernetes: in the volume `runs`, or in the pod."""

from dataclasses import replace
from typing import cast

import pytest

from ganger.backends.kubernetes.runtime.pod_place import PodPlace
from ganger.model.job import Job, JobSpec, Origin, Volume
from ganger.ports import LaunchPlan

PLAN = LaunchPlan(
    gang="a", node="n", generation=1, directory="/", setup=None, argv=("true",), environment={"A": "1"}, ranks=()
)
JOB = Job(id="train.team", user="ada", spec=JobSpec(run="true"), origin=Origin(directory="/"), uid="1a2b3c4d-5e6f")
IN_PODS = cast("PodPlace", None)
"""Nothing of the place is asked."""


@pytest.mark.parametrize(
    ("volumes", "job", "expected"),
    [
        ((), JOB, "/ganger/work/runs/train.team-1a2b3c4d"),
        ((Volume(name="data", path="/d"),), JOB, "/ganger/work/runs/train.team-1a2b3c4d"),
        ((Volume(name="runs", path="/r"),), JOB, "/r/train.team-1a2b3c4d"),
        ((Volume(name="runs", path="/r"),), JOB.element(3), "/r/train.team-1a2b3c4d/3"),
    ],
)
def test_each_job_has_a_run_directory_of_its_own(volumes: tuple[Volume, ...], job: Job, expected: str) -> None:
    job = replace(job, spec=replace(job.spec, volumes=volumes))
    assert PodPlace.complete(IN_PODS, PLAN, job).environment == {"A": "1", "GANGER_RUN_DIR": expected}
