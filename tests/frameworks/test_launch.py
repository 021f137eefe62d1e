"""Launch plans: which variable wins, the command that is executed, and the directory of checkpoints."""

import json
from dataclasses import replace

import pytest

from ganger.engine.launch import launch_plans
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Job, JobSpec, Origin, Resources
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import Batch, Elastic
from ganger.model.job_sections.retry_spec import Retry
from ganger.ports import LaunchPlan

NODES = {
    "n1": Node(name="n1", address="10.0.0.1", gpus=2, gpu_type="h100", device_ids=(5, 7)),
    "n2": Node(name="n2", address="10.0.0.2", gpus=4),
}
START = Start(
    gang="bert-7f3a",
    generation=2,
    shares=(NodeShare("n1", (0, 1), (0, 1)), NodeShare("n2", (2, 3), (0, 3))),
    host="10.0.0.1",
    port=29511,
)
SPEC = JobSpec(
    name="bert",
    framework="torch",
    nodes=2,
    nproc_per_node=2,
    resources=Resources(cpu_milli=8000),
    setup="pip list",
    run="python train.py",
    env={"BS": "80", "PATH": "/mine"},
    checkpoint=Checkpoint(dir="ckpt", signal="SIGUSR1"),
    retry=Retry(max=7),
)
ORIGIN = Origin(directory="/here", environment={"PATH": "/usr/bin", "HOME": "/home/a"})


def plans(spec: JobSpec = SPEC, origin: Origin = ORIGIN) -> tuple[LaunchPlan, ...]:
    return launch_plans(START, Job(id="bert-7f3a", user="a", spec=spec, origin=origin), NODES, "/run/in")


def environment(plan: LaunchPlan, index: int) -> dict[str, str]:
    return plan.environment | plan.ranks[index].environment


def test_one_plan_for_each_node_in_rank_order() -> None:
    made = plans()
    assert [(plan.gang, plan.node, plan.generation) for plan in made] == [
        ("bert-7f3a", "n1", 2),
        ("bert-7f3a", "n2", 2),
    ]
    assert [[rank.rank for rank in plan.ranks] for plan in made] == [[0, 1], [2, 3]]
    assert {(plan.directory, plan.setup, plan.signal) for plan in made} == {("/run/in", "pip list", "SIGUSR1")}


def test_each_rank_knows_its_place() -> None:
    got = [environment(plan, index) for plan in plans() for index in range(2)]
    assert [each["RANK"] for each in got] == ["0", "1", "2", "3"]
    assert [each["LOCAL_RANK"] for each in got] == ["0", "1", "0", "1"]
    assert {each["TORCHELASTIC_MAX_RESTARTS"] for each in got} == {"7"}
    assert {each["OMP_NUM_THREADS"] for each in got} == {"4"}


def test_a_job_has_a_uid_though_its_id_is_one() -> None:
    job = Job(id="bert.lab", user="a", spec=SPEC, origin=ORIGIN)
    given = [launch_plans(START, each, NODES, "/run/in")[0].environment for each in (job, replace(job, uid="8f1c"))]
    assert [(each["GANGER_JOB_ID"], each["GANGER_JOB_UID"]) for each in given] == [
        ("bert.lab", "bert.lab"),
        ("bert.lab", "8f1c"),
    ]


def test_devices_are_slots_and_real_gpus_are_numbers_of_the_driver() -> None:
    real, virtual = plans()
    assert real.environment["GANGER_DEVICES"] == "0,1"
    assert real.environment["CUDA_VISIBLE_DEVICES"] == "5,7"
    assert virtual.environment["GANGER_DEVICES"] == "0,3"
    assert "CUDA_VISIBLE_DEVICES" not in environment(virtual, 0)


def test_nothing_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "x")
    assert "SECRET_OF_THE_SERVER" not in environment(plans()[0], 0)
    assert environment(plans()[0], 0)["HOME"] == "/home/a"


def test_the_jobs_variable_goes_over_the_travelled_one() -> None:
    assert environment(plans()[0], 0)["PATH"] == "/mine"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONUNBUFFERED", "TORCH_NCCL_ASYNC_ERROR_HANDLING"])
def test_a_default_gives_way_to_the_user(name: str) -> None:
    assert environment(plans(replace(SPEC, env={name: "mine"}))[0], 0)[name] == "mine"
    assert environment(plans(origin=replace(ORIGIN, environment={name: "mine"}))[0], 0)[name] == "mine"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "GANGER_RANK", "GANGER_NODE_RANK", "CUDA_VISIBLE_DEVICES"])
def test_the_identity_of_a_rank_gives_way_to_no_variable(name: str) -> None:
    assert environment(plans(replace(SPEC, env={name: "mine"}))[0], 0)[name] != "mine"
    assert environment(plans(origin=replace(ORIGIN, environment={name: "mine"}))[0], 0)[name] != "mine"


def test_parameters_reach_every_rank_as_json() -> None:
    made = plans(replace(SPEC, params={"lr": "1e-3", "name": 'a "b"'}))
    assert [json.loads(plan.environment["GANGER_TRIAL_PARAMS"]) for plan in made] == [
        {"lr": "1e-3", "name": 'a "b"'}
    ] * 2
    assert "GANGER_TRIAL_PARAMS" not in environment(plans()[0], 0)


def test_an_elastic_rank_knows_its_range_and_its_batch_at_this_size() -> None:
    batch = Batch(global_samples=64, policy="scale_lr_linear")
    spec = replace(SPEC, nodes=1, max_nodes=4, elastic=Elastic(batch=batch))
    got = environment(plans(spec)[1], 0)
    wanted = {"MIN_NODES": "1", "MAX_NODES": "4", "BATCH_PER_RANK": "32", "LR_SCALE": "2"}
    assert {name: got[f"GANGER_{name}"] for name in wanted} == wanted, "two processes at the minimum, four now"
    assert not wanted.keys() & {name.removeprefix("GANGER_") for name in environment(plans()[0], 0)}


@pytest.mark.parametrize("framework", ["torch", "deepspeed"])
def test_an_attempt_of_another_size_has_a_world_of_that_size(framework: str) -> None:
    job = Job(id="a", user="a", spec=replace(SPEC, framework=framework, nodes=1, max_nodes=2), origin=ORIGIN)
    smaller = replace(START, generation=3, shares=(NodeShare("n2", (0, 1), (0, 3)),), host="10.0.0.2")
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT", "GANGER_NODE_RANK")

    def worlds(start: Start) -> list[str]:
        made = launch_plans(start, job, NODES, "/run/in")
        return [" ".join(environment(plan, index)[name] for name in names) for plan in made for index in range(2)]

    assert worlds(START) == [f"{rank} 4 {rank // 2} 10.0.0.1 1 {rank // 2}" for rank in range(4)]
    assert worlds(smaller) == ["0 2 0 10.0.0.2 2 0", "1 2 0 10.0.0.2 2 0"], "n2 was the second node, and is the first"


def test_setup_knows_the_node_but_no_rank() -> None:
    node = plans()[1].environment
    assert node["GANGER_NODE_RANK"] == "1"
    assert not {"RANK", "GANGER_RANK", "LOCAL_RANK"} & node.keys()


@pytest.mark.parametrize(
    ("run", "argv"),
    [
        ("python train.py | tee log", ("/bin/sh", "-c", "python train.py | tee log")),
        (("python", "train.py", "$HOME"), ("python", "train.py", "$HOME")),
    ],
)
def test_a_shell_line_has_a_shell_and_words_have_none(run: str | tuple[str, ...], argv: tuple[str, ...]) -> None:
    assert plans(replace(SPEC, run=run))[0].argv == argv


def test_warm_ranks_need_no_shell_and_leave_out_what_differs() -> None:
    (plan, _) = plans(replace(SPEC, run="python -u train.py", warm=True))
    assert plan.argv == ("python", "-u", "train.py")
    assert [rank.argv for rank in plan.ranks] == [None, None]
    assert plan.warm is not None
    assert plan.warm.words == 2
    assert {"RANK", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"} <= {*plan.warm.without}
    assert plans(SPEC)[0].warm is None


@pytest.mark.parametrize(
    ("checkpoint", "directory"),
    [
        (Checkpoint(dir="ckpt"), "/run/in/ckpt/bert-7f3a"),
        (Checkpoint(dir="/data/ckpt"), "/data/ckpt/bert-7f3a"),
        (Checkpoint(dir="/data/ckpt", in_place=True), "/data/ckpt"),
        (None, "/run/in/checkpoints/bert-7f3a"),
    ],
)
def test_each_job_has_a_checkpoint_directory_of_its_own(checkpoint: Checkpoint | None, directory: str) -> None:
    assert plans(replace(SPEC, checkpoint=checkpoint))[0].environment["GANGER_CHECKPOINT_DIR"] == directory


def test_a_framework_that_went_away_is_named() -> None:
    with pytest.raises(RequestError, match="framework gone is not installed") as refused:
        plans(replace(SPEC, framework="gone"))
    assert "plain" in refused.value.next


def test_a_node_that_went_away_is_a_key_error() -> None:
    job = Job(id="bert-7f3a", user="a", spec=SPEC, origin=ORIGIN)
    with pytest.raises(KeyError, match="n2"):
        launch_plans(START, job, {"n1": NODES["n1"]}, "/run/in")
