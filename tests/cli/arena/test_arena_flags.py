"""Arena's commands: every flag becomes a key of the job, is named, or is refused with what to write instead."""

from typing import Any

import pytest

from ganger.cli.arena.arena_flags import COMMON, JOB_TYPES, UNSUPPORTED, VERBS, JobType, job_type
from ganger.cli.arena.arena_jobs import spec_of
from ganger.cli.arena.parse_flags import parse
from ganger.spec import spec_from_dict

OF_ALL = """
name image image-pull-policy image-pull-secret gpus device workers retry working-dir env data data-dir annotation label
rdma gang queue priority toleration selector config-file shell scheduler hostNetwork hostIPC hostPID model-name
model-source sync-mode sync-source sync-image tensorboard tensorboard-image logdir
"""
OF_TYPE = {
    "pytorchjob": "cpu memory share-memory nproc-per-node clean-task-policy running-timeout ttl-after-finished",
    "tfjob": "ps chief evaluator role-sequence success-policy starting-timeout running-timeout ps-image worker-image "
    + " ".join(
        f"{role}-{key}"
        for role in ("ps", "worker", "chief", "evaluator")
        for key in [
            "gpus",
            "cpu",
            "cpu-limit",
            "memory",
            "memory-limit",
            "port",
            "selector",
            "affinity-policy",
            "affinity-constraint",
        ]
    ),
    "mpijob": "cpu memory gputopology mounts-on-launcher clean-task-policy",
    "horovodjob": "ssh-port",
    "deepspeedjob": "launcher-selector launcher-annotation worker-annotation job-restart-policy "
    "job-backoff-limit ssh-secret",
    "etjob": "min-workers max-workers spot-instance max-wait-time worker-restart-policy job-backoff-limit",
    "rayjob": "head-cpu head-gpus worker-replicas worker-min-replicas worker-max-replicas worker-num-of-hosts "
    "enable-autoscaling autoscaler-cpu ray-version shutdown-after-finished active-deadline-seconds suspend",
    "volcanojob": "min-available queue scheduler-name task-name task-images task-replicas task-cpu "
    "task-memory task-port",
}
"""Flags of `arena submit`, as its documentation lists them."""
SAMPLES = {
    **dict.fromkeys(("device",), "nvidia.com/gpu=2"),
    **dict.fromkeys(("env", "label", "selector", "annotation", "worker-annotation"), "a=b"),
    "data": "claim:/data",
    "data-dir": "/data",
    "priority": "high",
    "toleration": "spot",
    "shell": "bash",
    "sync-mode": "git",
    "sync-source": "https://example.org/a.git",
    "role-sequence": "PS,Worker",
    "success-policy": "ChiefWorker",
    "worker-affinity-policy": "spread",
    "running-timeout": "1h",
    "starting-timeout": "1h",
    **dict.fromkeys(("memory", "ps-memory", "worker-memory", "task-memory", "chief-memory", "evaluator-memory"), "2Gi"),
    **dict.fromkeys(("image", "worker-image", "task-images"), "r/i:1"),
    "queue": "nlp",
}


def submitted(kind: JobType, *words: str) -> tuple[dict[str, Any], Any]:
    command = "horovodrun -np 1 x" if kind.framework == "horovod" else "x"
    parsed = parse(["--name", "a", *words, command], COMMON | kind.flags, "submit")
    return spec_of(kind, parsed), parsed


@pytest.mark.parametrize("kind", JOB_TYPES, ids=lambda kind: kind.names[0])
def test_every_flag_of_a_type_is_taken_named_or_refused(kind: JobType) -> None:
    flags = COMMON | kind.flags
    names = {option.partition(":")[2] for table in (flags.taken, flags.noted, flags.refused) for option in table}
    known = {name.rstrip("!") for name in names}
    families = tuple(name[:-1] for name in known if name.endswith("*"))
    for name in f"{OF_ALL} {OF_TYPE[kind.names[0]]}".split():
        assert name in known or (families and name.startswith(families)), name
    for option in flags.noted:
        name = option.partition(":")[2]
        words = [f"--{name[:-1]}"] if name.endswith("!") else [f"--{name.replace('*', 'x')}", "1"]
        assert len(submitted(kind, *words)[1].notes) == 1, name
    for option in flags.refused:
        name = option.partition(":")[2]
        with pytest.raises(ValueError, match="is not taken over: "):
            submitted(kind, *([f"--{name[:-1]}"] if name.endswith("!") else [f"--{name}", "1"]))


NEEDS = {
    "worker-min-replicas": ("--enable-autoscaling", "--worker-max-replicas", "3"),
    "worker-max-replicas": ("--enable-autoscaling",),
    "enable-autoscaling": ("--worker-min-replicas", "1", "--worker-max-replicas", "3"),
    "role-sequence": ("--ps", "1", "--workers", "1"),
    "success-policy": ("--chief",),
    "min-workers": ("--max-workers", "9"),
    "min-available": ("--task-replicas", "5"),
    "nproc-per-node": (),
    "sync-mode": ("--sync-source", "https://example.org/a.git"),
    **{f"{role}-{key}": (f"--{role}",) for role in ("chief", "evaluator") for key in ("gpus", "cpu", "memory")},
    **{f"ps-{key}": ("--ps", "1") for key in ("gpus", "cpu", "memory")},
}
"""Flags that mean something only beside others."""


@pytest.mark.parametrize("kind", JOB_TYPES, ids=lambda kind: kind.names[0])
def test_every_flag_that_is_taken_changes_the_job(kind: JobType) -> None:
    for option in (COMMON | kind.flags).taken:
        name = option.partition(":")[2].rstrip("!")
        without = submitted(kind, *NEEDS.get(name, ()))[0]
        words = [f"--{name}"] if option.endswith("!") else [f"--{name}={SAMPLES.get(name, '2')}"]
        actual = submitted(kind, *NEEDS.get(name, ()), *words)[0]
        spec_from_dict(actual, "the job")
        ignored = ("sync-mode",) if name == "sync-mode" else ("name",)
        sized_otherwise = kind.names[0] in ("rayjob", "volcanojob") and name == "workers"
        assert actual != without or name in ignored or sized_otherwise, name


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        (
            "pytorchjob --workers 2 --gpus 8 --cpu 4 --memory 8Gi",
            {"nodes": 2, "nproc_per_node": 1, "resources": {"gpu": 8, "cpu": 4, "memory": "8Gi"}},
        ),
        (
            "pytorch --workers=2 --nproc-per-node gpu --runningTimeout 2h",
            {"nodes": 2, "nproc_per_node": "auto", "limits": {"time": "2h"}},
        ),
        ("tf --workers 2 --worker-gpus 1", {"nodes": 2, "nproc_per_node": 1, "resources": {"gpu": 1}}),
        (
            "tf --workers 2 --worker-cpu 2 --ps=1 --chief --roleSequence PS,Chief --successPolicy=ChiefWorker",
            {
                "roles": {
                    "ps": {"count": 1},
                    "chief": {"count": 1},
                    "worker": {"count": 2, "resources": {"cpu": 2}},
                },
                "start_order": ["ps"],
                "stop_when": "chief",
            },
        ),
        (
            "mj --annotation a.b/c=d --image-pull-secret r --hostIPC=true --image-pull-policy Always",
            {
                "pod": {
                    "metadata": {"annotations": {"a.b/c": "d"}},
                    "spec": {"imagePullSecrets": [{"name": "r"}], "hostIPC": True},
                    "container": {"imagePullPolicy": "Always"},
                }
            },
        ),
        ("mj --workers 4 --device amd.com/gpu=2", {"nodes": 4, "resources": {"gpu": 2}}),
        (
            "et --workers 2 --min-workers 1 --max-workers 9 --max-wait-time 60",
            {"nodes": "1..9", "limits": {"queue_time": "60s"}},
        ),
        ("rj --worker-replicas 3 --worker-gpus 1", {"nodes": 4, "resources": {"gpu": 1}}),
        ("rj --enable-autoscaling=true --worker-min-replicas 1 --worker-max-replicas 3", {"nodes": "2..4"}),
        ("vj --task-replicas 4 --min-available 2", {"nodes": "2..4", "nproc_per_node": 1}),
        (
            "mpi --gang=false --rdma --toleration key=value:NoSchedule,Equal --toleration all --selector a=b,c=d",
            {
                "placement": {
                    "node_selector": {"a": "b", "c": "d"},
                    "tolerations": ["key=value", "*"],
                    "network": ["ib", "roce"],
                }
            },
        ),
        (
            "mpi --syncMode git --syncSource https://e.org/a.git -e GIT_SYNC_BRANCH=v2",
            {"code": {"git": "https://e.org/a.git", "ref": "v2"}, "env": {"GIT_SYNC_BRANCH": "v2"}},
        ),
    ],
)
def test_a_command_line_becomes_a_job(line: str, keys: dict[str, Any]) -> None:
    name, *words = line.split()
    kind = job_type(name)
    assert kind is not None
    spec, _ = submitted(kind, *words)
    assert {key: value for key, value in spec.items() if key not in ("name", "framework", "run")} == keys
    spec_from_dict(spec, "the job")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--no-such", "1"], "arena submit: option --no-such not recognized"),
        (["--data", "claim"], "--data claim: write PVC:/PATH"),
        (["--data-dir", "/host:/inside"], "a directory keeps its path"),
        (["--device", "example.com/fpga=1"], "it is no resource of a GPU vendor"),
        (["--priority", "my-class"], "a priority class is not taken over"),
        (["--workers", "two"], "--workers=two: write a whole number"),
        (["--sync-mode", "rsync"], "only git is taken over"),
        (["--env", "A"], "--env A: write NAME=VALUE"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        submitted(JOB_TYPES[2], *words)
    assert sentence in str(refused.value)


def test_every_command_is_there_or_named() -> None:
    documented = (
        "list get logs logviewer attach delete prune top scaleout scalein serve cron model data evaluate sparkjob"
    )
    assert set(documented.split()) <= {*VERBS, *UNSUPPORTED}


def test_a_launcher_in_the_command_chooses_the_processes_of_a_node() -> None:
    parsed = parse(
        ["--name", "a", "--workers", "2", "torchrun --nproc-per-node 4 t.py"], COMMON | JOB_TYPES[0].flags, ""
    )
    spec = spec_of(JOB_TYPES[0], parsed)
    assert spec == {"name": "a", "nodes": 2, "run": "torchrun --nproc-per-node 4 t.py"}
    read = spec_from_dict(spec, "the job")
    assert (read.framework, read.nproc_per_node) == ("torchrun", 4)
