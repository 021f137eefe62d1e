"""Variables that ganger sets and reads, for environment.md.

A variable without a meaning here is a KeyError, so that a new one cannot stay undocumented.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ganger import settings

PLAIN: Final = Path(__file__).parents[2] / "tests" / "frameworks" / "golden" / "plain.txt"

_MEANINGS: Final = {
    "GANGER_JOB_ID": "the job: `bert-7f3a`",
    "GANGER_JOB_UID": "the job and no other: where ids are names, which come again, the uid of its object; else its id",
    "GANGER_JOB_NAME": "its name",
    "GANGER_ATTEMPT": "which attempt this is; 1 is the first",
    "GANGER_RANK": "which process this is, from 0, over the whole gang",
    "WORLD_SIZE": "number of processes of the gang",
    "LOCAL_RANK": "index of the process on this node among those of its role, from 0",
    "GANGER_ROLE": "its role; `worker` for a job without roles",
    "GANGER_NODE_RANK": "index of this node in the gang, from 0",
    "GANGER_NODES": "number of nodes of the gang",
    "GANGER_NODE_HOSTS": "addresses of the nodes, one a line",
    "GANGER_HOSTFILE": "a file with a line `NAME slots=PROCESSES` for each node",
    "GANGER_MASTER_ADDR": "address of the first node, for rendezvous",
    "GANGER_MASTER_PORT": "port for rendezvous on the first node, reserved for the gang",
    "GANGER_GPUS_PER_NODE": "number of GPUs of the gang on this node",
    "GANGER_DEVICES": "indices of these GPUs on the node",
    "GANGER_CHECKPOINT_DIR": "with `checkpoint:`, the job's checkpoint directory, absolute",
    "GANGER_CHECKPOINT_EVERY_S": "with `checkpoint.every`, in seconds",
    "PYTHONUNBUFFERED": "`1`, so that output appears without delay",
}
_SOMETIMES: Final = {
    "GANGER_TP, GANGER_PP, GANGER_DP": "with `parallel:`, the sizes; an unset one is computed from the others",
    "GANGER_MIN_NODES, GANGER_MAX_NODES": "with a range of `nodes:`, its limits",
    "GANGER_BATCH_PER_RANK": "with `elastic.batch`, the samples of each process in an optimizer step",
    "GANGER_LR_SCALE": "with `elastic.batch`, the factor of the learning rate at this size",
    "GANGER_VOLUME_NAME": "for each of `volumes:`, its path; NAME in capitals, with `_` for `-`",
    "GANGER_RUN_DIR": "a directory of the job's own for what it writes, the same for all attempts: on one machine kept "
    "until the job is deleted, on Kubernetes in the volume `runs` if the job has one, else in the pod",
    "GANGER_RESUME_FROM": "with `checkpoint:`, the directory of the newest complete checkpoint, if there is one; with "
    "`resume_from`, as long as the job has saved none, that of the other job",
    "GANGER_RESUME_SOURCES": "with `checkpoint.resume_from`, where the checkpoints of the other job are, as JSON",
    "GANGER_CHECKPOINT_IN_PLACE": "with `checkpoint.in_place`, `1`",
    "GANGER_RESUME_SKIP": "steps of checkpoints from which attempts failed, with commas: they are tried last",
    "GANGER_ROLLBACK_STEP, GANGER_ROLLBACK_ATTEMPT": "after a rollback, its step and the first attempt after it, until "
    "another checkpoint is saved",
    "GANGER_CHECKPOINT_KEEP, GANGER_CHECKPOINT_KEEP_EVERY": "values of `checkpoint.keep` and `keep_every`",
    "GANGER_ARRAY_ID, GANGER_ARRAY_INDEX": "in an element of an array, the id of the array and its index",
    "GANGER_TRIAL_PARAMS": "with `params:`, their values as JSON",
    "CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER": "on a node with real GPUs: only the GPUs of the gang on it",
    "GANGER_HOME": "the state directory, so that `ganger` in a job reaches the server that runs it",
    "GANGER_TASK_DIR": "directory of the attempt on this node, with its files and reports",
    "GANGER_TASK": "identifier of the attempt, which marks its processes",
    "PYTHONPATH": "the caller's, followed by the file from which `ganger.train` is imported",
}


def variables() -> Iterator[tuple[str, str]]:
    """Yield the variables of every process and then those of some, each with its meaning."""
    given = dict.fromkeys(line.split()[0] for line in PLAIN.read_text().splitlines())
    given.pop("command")
    yield from (
        (name, _MEANINGS[name]) for name in [*(n for n in _MEANINGS if n in given), *(given.keys() - _MEANINGS)]
    )
    yield from _SOMETIMES.items()


def travels() -> tuple[str, ...]:
    """Return the variables of the caller's environment that travel with a job."""
    return (*sorted(settings.JOB_VARIABLES), *(f"{prefix}*" for prefix in settings.JOB_VARIABLE_PREFIXES))
