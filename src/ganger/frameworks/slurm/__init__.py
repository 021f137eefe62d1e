"""Batch scripts of Slurm: the script runs once, on the first node, and `srun` in it starts tasks on all nodes.

`srun` and `scontrol` are on the script's PATH: small programs that know what such scripts ask of them. A task is
started through ganger's agent on its node, in the script's directory and with the variables that the script has set
(slurm.schedmd.com, "sbatch", "srun").
"""

from typing import Final

from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import TASK_DIRECTORY, PlacedGang, shared_environment
from ganger.framework_api.srun import srun_environment
from ganger.frameworks.slurm.programs import BATCH, SCONTROL, SRUN

NAME: Final = "slurm"
DOC: Final = "batch script of Slurm: runs once, and srun in it starts the tasks on all nodes (`ganger sbatch`)"
PER: Final = "gang"
AGENT: Final = True
RESERVED: Final = (
    *SHARED,
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NODELIST"),
    *("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID"),
    *("SLURM_NODEID", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_CPUS_PER_TASK", "SLURM_RESTART_COUNT"),
    *("SLURM_GPUS_ON_NODE", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
)
_OWN: Final = ("GANGER_RANK", "LOCAL_RANK", "WORLD_SIZE")
"""Variables of a rank: the script is none, and programs in it would take them for theirs."""


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the script, on the node of rank 0."""
    environment = shared_environment(placed, rank) | srun_environment(placed, rank, "rank")
    return {name: value for name, value in environment.items() if name not in _OWN}


def rank_command(_placed: PlacedGang, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the script with `srun` on its PATH."""
    return ("/bin/sh", f"{TASK_DIRECTORY}/batch", *argv)


def files(_placed: PlacedGang) -> dict[str, str]:
    """Return the programs that the script finds, and the one that starts it."""
    return {"batch": BATCH, "srun": SRUN, "scontrol": SCONTROL}
