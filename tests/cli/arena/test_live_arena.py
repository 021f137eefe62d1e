"""Arena's commands and et-operator's objects against a real server."""

import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.cli.live import Live, live, place
from tests.waiting import wait_until

__all__ = ["live", "place"]

TRAINING_JOB = f"""\
apiVersion: kai.alibabacloud.com/v1alpha1
kind: TrainingJob
metadata: {{name: elastic-training}}
spec:
  cleanPodPolicy: Running
  etReplicaSpecs:
    launcher:
      replicas: 1
      template:
        spec:
          containers:
            - name: main
              image: r/i:1
              command: [sh, -c, "{sys.executable} -c 'import time; time.sleep(600)' # horovodrun"]
    worker:
      replicas: 1
      minReplicas: 1
      maxReplicas: 2
      template:
        spec:
          nodeSelector: {{}}
          containers:
            - name: main
              image: r/i:1
              resources: {{limits: {{nvidia.com/gpu: "1"}}, requests: {{cpu: "1"}}}}
---
"""
SCALE = """\
apiVersion: kai.alibabacloud.com/v1alpha1
kind: {kind}
metadata: {{generateName: scale-}}
spec:
  selector: {{name: elastic-training}}
  {change}
  script: /etc/edl/run.sh
"""
DOWN = SCALE.format(kind="ScaleIn", change="toDelete: {podNames: [elastic-training-worker-1]}")


def test_a_job_in_the_words_of_arena(live: Live) -> None:
    submitted = live("arena", "submit", "pytorchjob", "--name", "bert", "--workers", "2", "--gang", "echo rank $RANK")
    assert submitted.code == 0, submitted.err
    assert "arena: --gang changes nothing: every job is placed as a gang" in submitted.err
    job = submitted.out.strip()
    live.until(job, "succeeded")
    assert live("arena", "logs", job, "-i", f"{job}-worker-1", "--tail", "5").out == "r1 | rank 1\n"
    assert job in live("arena", "list").out
    assert job in live("arena", "get", job, "-T", "pytorchjob").out
    assert "submitted" in live("arena", "get", "-e", job).out
    assert live("arena", "top", "node").code == 0
    assert live("arena", "delete", job).code == 0
    assert live("get", job).code == 3
    assert "--nproc-per-node" in live("arena", "submit", "pytorchjob", "--help").out
    dry = live("arena", "submit", "mj", "--dry-run", "--name", "m", "--workers", "2", "mpirun train")
    assert YAML(typ="safe").load(dry.out) == {"name": "m", "framework": "mpi", "run": "mpirun train", "nodes": 2}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("submit", "sparkjob"), "Spark places its own executors"),
        (("submit", "nojob"), "one of pytorchjob, tfjob"),
        (("submit", "tfjob", "--workers", "2", "x"), "--name is missing"),
        (("submit", "tfjob", "--name", "a"), "the command is missing"),
        (("serve", "list"), "ganger runs training jobs"),
        (("submit",), "the type of the job is missing"),
        (("frobnicate",), "arena has no subcommand 'frobnicate'"),
        (("top", "pods"), "write top node or top job"),
        (("get",), "the name of a job is missing"),
        (("scalein", "etjob"), "write --name JOB --count N"),
    ],
)
def test_what_is_not_there_is_named(live: Live, words: tuple[str, ...], sentence: str) -> None:
    result = live("arena", *words)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


def test_a_training_job_grows_and_shrinks_to_its_minimum_and_not_below(live: Live) -> None:
    Path("objects.yaml").write_text(TRAINING_JOB)
    submitted = live("apply", "-f", "objects.yaml")
    assert submitted.code == 0, submitted.err
    job = submitted.out.strip()
    wait_until(lambda: len(live.json("get", job)["row"]["nodes"]) == 2, f"{job} has two nodes")
    Path("down.yaml").write_text(DOWN.replace("elastic-training}", f"{job}}}", 1))
    down = live("apply", "-f", "down.yaml")
    assert "ScaleIn: script changes nothing" in down.err
    assert down.code == 0, down.err
    again = live("apply", "-f", "down.yaml")
    assert again.code != 0
    assert "cannot have 0 nodes: its job file allows 1 to 2 nodes; it has 1 now" in again.err
    assert live("arena", "scalein", "etjob", "--name", job, "--count", "1").code != 0
    up = SCALE.format(kind="ScaleOut", change="toAdd: {count: 1}").replace("elastic-training}", f"{job}}}", 1)
    Path("up.yaml").write_text(up)
    assert "its size is" in live("apply", "-f", "up.yaml").out
    assert live.json("get", job)["spec"]["resources"]["gpu"]["count"] == 1
    live("stop", job)
    Path("fpga.yaml").write_text(TRAINING_JOB.replace("nvidia.com/gpu", "example.com/fpga"))
    written = YAML(typ="safe").load(live("apply", "--dry-run", "-f", "fpga.yaml").out)
    assert written["resources"] == {"cpu": 1, "extended": {"example.com/fpga": 1}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: Job\n", "has no apiVersion, kind Job, and ganger apply takes TrainingJob, ScaleIn, ScaleOut"),
        ("a: [", "is not YAML"),
        ("a: " + "[" * 1_500, "is nested too deep"),
        ("---\n", "has no objects"),
        (SCALE.format(kind="ScaleIn", change="x: 1").replace("{generateName: scale-}", "5"), "'toDelete' is missing"),
        (TRAINING_JOB.replace("containers:", "containers: []\n          others:"), "TrainingJob"),
        (SCALE.format(kind="ScaleIn", change="toDelete: {count: 1, podNames: [a]}"), "write either count or podNames"),
        (SCALE.format(kind="ScaleIn", change="toDelete: {}"), "write either count or podNames"),
        (SCALE.format(kind="ScaleOut", change="toAdd: {count: 0}"), "count: 0 is not a number of workers"),
        (SCALE.format(kind="ScaleOut", change="other: 1"), "'toAdd' is missing"),
        (DOWN.replace("name: elastic-training", "name: ''"), "selector.name is missing"),
        (TRAINING_JOB.replace("minReplicas: 1", "minReplicas: 3"), "1 replicas are not between minReplicas 3"),
        (TRAINING_JOB.replace("nvidia.com/gpu", "hugepages-2Mi"), "hugepages-2Mi cannot be asked for"),
        (TRAINING_JOB.replace("command:", "arg:"), "the launcher's container has no command"),
    ],
)
def test_objects_that_are_none_are_refused(live: Live, text: str, sentence: str) -> None:
    Path("objects.yaml").write_text(text)
    result = live("apply", "--dry-run", "-f", "objects.yaml")
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
