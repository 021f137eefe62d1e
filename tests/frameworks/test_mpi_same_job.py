"""mpirun written by the user, and the same program left to ganger, are one job (J3).

They have the same gang, the same variables and files; tests/local/test_mpi.py shows that both run.
"""

from dataclasses import replace

import pytest

from ganger.engine.launch import launch_plans
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job, JobSpec, Origin
from ganger.ports import LaunchPlan
from ganger.spec import parse_spec

NODES = {name: Node(name=name, address=f"10.0.0.{at}", gpus=2) for at, name in enumerate(("n1", "n2"), 1)}
START = Start(
    gang="solver-7f3a",
    generation=1,
    shares=(NodeShare("n1", (0, 1), (0, 1)), NodeShare("n2", (2, 3), (0, 1))),
    host="10.0.0.1",
    port=20_000,
)
LEFT = parse_spec("{run: ./solver in.dat, framework: mpi, nodes: 2, nproc_per_node: 2}", "job.yaml")
WRITTEN = (
    "{run: mpirun -np 4 ./solver in.dat, nodes: 2}",
    "{run: mpirun -np 4 --npernode 2 ./solver in.dat}",
    "{run: mpiexec -n 4 -ppn 2 ./solver in.dat}",
    "{run: [mpirun, -np, 4, ./solver, in.dat], nodes: 2}",
    "{run: cd . && mpirun ./solver in.dat, nodes: 2, nproc_per_node: 2}",
)


def plans(spec: JobSpec) -> tuple[LaunchPlan, ...]:
    job = Job(id=START.gang, user="ann", spec=spec, origin=Origin(directory="/here", environment={"PATH": "/bin"}))
    return launch_plans(START, job, NODES, "/here")


def but_for_the_command(plan: LaunchPlan) -> LaunchPlan:
    return replace(plan, argv=(), ranks=tuple(replace(rank, argv=None) for rank in plan.ranks))


@pytest.mark.parametrize("text", WRITTEN)
def test_mpirun_of_the_user_is_the_same_job(text: str) -> None:
    spec = parse_spec(text, "job.yaml")
    assert replace(spec, run=LEFT.run) == LEFT
    written, left = plans(spec), plans(LEFT)
    assert [but_for_the_command(plan) for plan in written] == [but_for_the_command(plan) for plan in left]
    # ganger starts one process: theirs as it was written, or mpirun with their command, once for each of four.
    assert [len(plan.ranks) for plan in written] == [1, 0]
    assert written[0].ranks[0].argv is None
    assert left[0].ranks[0].argv == ("/bin/sh", "@GANGER_TASK_DIR@/mpirun", "4", "/bin/sh", "-c", "./solver in.dat")
