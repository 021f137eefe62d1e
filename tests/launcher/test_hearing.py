"""What launchers in pods say becomes events, also for a server that has forgotten all it was told."""

import json
import os
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from ganger.engine.ports import LaunchPlan, RankPlan
from ganger.model.decision import NodeShare, Start
from ganger.model.event import Event, RuleMatch
from ganger.model.job import Checkpoint, Job, JobSpec, Origin, Retry, Rule
from ganger.tasks.generation import Generation, begun
from ganger.tasks.hearing import Hearing, World
from tests.launcher.afar import HOST, Controller, Listens, Pod, Starts, eventually
from tests.launcher.harness import GANG

NODES = ("n1", "n2", "n3")
ECC = "NVRM: Xid 48: uncorrectable ECC error"
UNTIL_GO = "while [ ! -e go ]; do sleep 0.01; done"
SH = ["/bin/sh", "-c"]


def job_of(pods: list[Pod], **spec: Any) -> Generation:
    """Of one rank in each pod, generation 1 of which is being begun."""
    origin = Origin(directory=str(pods[0].directory))
    job = Job(id=GANG, user="me", spec=JobSpec(run="true", **spec), origin=origin)
    shares = tuple(NodeShare(pod.node, (rank,)) for rank, pod in enumerate(pods))
    return begun(Start(gang=GANG, generation=1, shares=shares, host="127.0.0.1", port=29500), job)


class Ears:
    """What a controller is told, as events."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.events: list[Event] = []

    def attach(self, controller: Controller, *plans: LaunchPlan) -> None:
        """Listen there; the plans are known already."""
        for plan in plans:
            controller.plans[plan.node] = plan
            controller.told.plan(plan)
        world = World(
            generation=lambda gang: self.generation,
            connection=controller.door.connection,
            address=lambda gang, node: f"10.0.0.{node[1]}",
            records=controller.told,
        )
        controller.hearing = Hearing(world, self._report, controller.loop)

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]

    def wait(self, kind: str) -> Any:
        return eventually(lambda: self.of(kind), kind)[0]

    def _report(self, event: Event) -> "Future[int]":
        self.events.append(event)
        future: Future[int] = Future()
        future.set_result(len(self.events))
        return future


def test_job_is_done_though_the_server_forgot_whose_ranks_had_ended(listens: Listens, starts: Starts) -> None:
    first = listens()
    pods = [starts(first, node) for node in NODES]
    before = Ears(job_of(pods))
    before.attach(first)
    plans = [
        pods[0].plan([*SH, "exit 0"], (0,)),
        pods[1].plan([*SH, UNTIL_GO], (1,)),
        replace(pods[2].plan([*SH, "sleep 600"]), ranks=(RankPlan(rank=2),)),  # its end is not waited for
    ]
    first.run(*plans)
    for pod in pods:
        first.wait("started", pod.node)
    first.wait("ended", "n1", rank=0)
    first.close()
    assert before.of("done") == []
    (pods[1].directory / "work" / "go").touch()
    eventually((pods[1].task / "1" / "rank-1.exit").exists, "the second one ends")
    after = Ears(job_of(pods))
    second = listens(port=first.port, prepare=lambda controller: after.attach(controller, *plans))
    after.wait("done")
    second.wait_for_hello(3)
    second.stop("n3")
    second.wait("cleared", "n3")
    assert len(after.of("done")) == 1
    assert after.of("failed") == []


def test_failure_has_the_ends_of_all_pods_and_the_rule_that_a_log_decides(listens: Listens, starts: Starts) -> None:
    controller = listens()
    pods = [starts(controller, node) for node in NODES[:2]]
    rule = Rule(log="uncorrectable ECC", do="exclude_node")
    ears = Ears(job_of(pods, retry=Retry(rules=(rule,))))
    ears.attach(controller)
    controller.run(
        pods[0].plan([*SH, "exit 7"], (0,)),
        pods[1].plan([*SH, f"echo '{ECC}'; exit 8"], (1,)),
    )
    failed = ears.wait("failed")
    assert {(end.rank, end.node, end.exit_code) for end in failed.ends} == {(0, "n1", 7), (1, "n2", 8)}
    assert failed.match == RuleMatch(rule=0, do="exclude_node", node="n2", rank=1, line=ECC)
    eventually(lambda: {node for event in ears.of("cleared") for node in event.nodes} == {"n1", "n2"}, "both are over")
    assert ears.generation.left == []


def test_nodes_begin_the_next_stage_together(listens: Listens, starts: Starts) -> None:
    controller = listens()
    pods = [starts(controller, node) for node in NODES[:2]]
    ears = Ears(job_of(pods))
    ears.attach(controller)
    staged = [
        replace(
            pod.plan([*SH, "exit 0"]),
            stages=2,
            agent=True,
            agent_address=HOST,
            agent_token="shown to agents",
            ranks=(RankPlan(rank=rank, stage=1, ends=True),),
        )
        for rank, pod in enumerate(pods)
    ]
    controller.run(staged[0])
    controller.wait("ready", "n1", stage=0)
    assert not (pods[0].task / "1" / "agents.json").exists()
    controller.run(staged[1])
    ports = {pod.node: controller.wait("ready", pod.node, stage=0)["agent_port"] for pod in pods}
    for pod in pods:
        controller.wait("started", pod.node)
        told = json.loads((pod.task / "1" / "agents.json").read_text())
        assert told == {node: [f"10.0.0.{node[1]}", port] for node, port in ports.items()}


SAVES = """
import os, random, time
from ganger import train

rank, step = int(os.environ["GANGER_RANK"]), 0
with open("saves", "a", buffering=1) as out:
    while not os.path.exists("enough"):
        train.report(step=step)
        time.sleep(random.uniform(0, 0.02))
        if train.should_checkpoint():
            print(rank, step, file=out)
        step += 1
"""


def test_ranks_in_pods_save_at_the_same_steps_also_after_the_server_is_another(
    listens: Listens, starts: Starts
) -> None:
    first = listens()
    pods = [starts(first, node) for node in NODES[:2]]
    generation = job_of(pods, checkpoint=Checkpoint(every_ms=300))
    Ears(generation).attach(first)
    every = {"GANGER_CHECKPOINT_EVERY_S": "0.3"}
    plans = [
        replace(
            pod.plan([sys.executable, "-c", SAVES], (2 * at, 2 * at + 1)),
            environment={"PATH": os.environ["PATH"], **every},
        )
        for at, pod in enumerate(pods)
    ]
    first.run(*plans)

    def saves() -> dict[int, list[int]]:
        """The steps at which each rank was told to save."""
        lines = [line.split() for pod in pods for line in _read(pod.directory / "work" / "saves").splitlines()]
        return {rank: [int(step) for which, step in lines if int(which) == rank] for rank in range(4)}

    eventually(lambda: min(map(len, saves().values())) >= 2, "each saves twice")
    first.close()
    before = saves()
    second = listens(port=first.port, prepare=lambda controller: Ears(job_of(pods)).attach(controller, *plans))
    second.wait_for_hello(2)
    eventually(lambda: all(len(saves()[rank]) >= len(before[rank]) + 2 for rank in before), "they go on saving")
    for pod in pods:
        (pod.directory / "work" / "enough").touch()
    for pod in pods:
        second.wait("cleared", pod.node)
    fewest = min(map(len, saves().values()))
    assert len({tuple(steps[:fewest]) for steps in saves().values()}) == 1


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
