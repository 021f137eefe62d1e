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
    "WORLD_SIZE": "how many processes the gang has",
    "LOCAL_RANK": "which process on this node, from 0, among those of its role",
    "GANGER_ROLE": "its role; `worker` for a job without roles",
    "GANGER_NODE_RANK": "which of the gang's nodes this is, from 0",
    "GANGER_NODES": "how many nodes the gang has",
    "GANGER_NODE_HOSTS": "their addresses, one on a line",
    "GANGER_HOSTFILE": "a file with a line `NAME slots=PROCESSES` for each node",
    "GANGER_MASTER_ADDR": "the address of the first node, where all may meet",
    "GANGER_MASTER_PORT": "a port there that is kept for that",
    "GANGER_GPUS_PER_NODE": "how many GPUs these processes have on this node",
    "GANGER_DEVICES": "which ones, by the node's own count",
    "GANGER_CHECKPOINT_DIR": "with `checkpoint:`, its directory, absolute",
    "GANGER_CHECKPOINT_EVERY_S": "with `checkpoint.every`, in seconds",
    "GANGER_RESUME": "with `checkpoint:`, `auto` or `never`",
    "PYTHONUNBUFFERED": "so that a line is seen when it is written",
}
_SOMETIMES: Final = {
    "GANGER_TP, GANGER_PP, GANGER_DP": "with `parallel:`, the sizes, what was left open worked out",
    "GANGER_VOLUME_NAME": "for each of `volumes:`, its path; NAME in capitals, with `_` for `-`",
    "GANGER_OUTPUT_DIR": "a directory for what the job makes, kept until it is deleted; the same for all its attempts",
    "GANGER_RESUME_FROM": "with `checkpoint:`, the directory of the newest whole checkpoint, if there is one",
    "GANGER_RESUME_SKIP": "steps of checkpoints that attempts failed on, with commas: the last ones to begin from",
    "GANGER_CHECKPOINT_KEEP, GANGER_CHECKPOINT_KEEP_EVERY": "with `checkpoint.keep`, and `keep_every`, what they say",
    "GANGER_ARRAY_ID, GANGER_ARRAY_INDEX": "in an element of an array, the id of the array and its index",
    "GANGER_TRIAL_PARAMS": "with `params:`, their values as JSON",
    "CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER": "on a node with real GPUs: those of the gang there, and none else",
    "GANGER_HOME": "the state directory, so that `ganger` in a job speaks to the server that runs it",
    "GANGER_TASK_DIR": "the attempt's own directory on this node: what comes with it, and where reports go",
    "GANGER_TASK": "the attempt, by which its processes are known",
    "PYTHONPATH": "the caller's, and at its end the file that `ganger.train` is imported from",
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
