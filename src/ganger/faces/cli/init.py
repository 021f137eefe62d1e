"""`ganger init`: a job file to start from."""

from pathlib import Path
from typing import Final

import click

from ganger.faces.cli.problem import Problem
from ganger.faces.cli.render import show

REFUSED: Final = 4
FILE: Final = Path("job.yaml")

_HEAD: Final = """\
# A ganger job. Run it: ganger run -f job.yaml     Try it first: ganger run -f job.yaml --dry-run
# Every line but `run` may go; flags of `ganger run` override what is here.
name: {name}
queue: default
priority: normal                # low, normal, high, or -1000 to 1000
"""

_TAIL: Final = """\
# code: .                       # copy this directory and run there; without it the job runs in place
# setup: pip install -r requirements.txt    # once on each node, before the processes
# env:
#   BATCH: "80"                 # a variable of every process
# retry:
#   max: 3                      # forgiven attempts without a new checkpoint: a script that cannot even start, too
limits:
  time: 24h                     # over all attempts; it also tells others when they may start
"""

TEMPLATES: Final = {
    "torch": _HEAD.format(name="train")
    + """\
framework: torch                # every process gets RANK, WORLD_SIZE, MASTER_ADDR ...: no torchrun
nodes: 1                        # the gang: all of them or none
nproc_per_node: 2               # without it: one for each GPU
resources:
  # gpu: 8                      # GPUs on each node; H100:8 names the type
  cpu: 2                        # CPUs on each node
  memory: 2Gi
run: python train.py
checkpoint:
  dir: checkpoints              # ganger.train.checkpoint() writes here, ganger.train.latest() finds the newest
  every: 30m                    # when ganger.train.should_checkpoint() says so
  grace: 30s                    # time to save before it is stopped
"""
    + _TAIL,
    "plain": _HEAD.format(name="job")
    + """\
framework: plain                # every process gets GANGER_RANK, LOCAL_RANK, WORLD_SIZE
nodes: 1                        # the gang: all of them or none
nproc_per_node: 1
resources:
  cpu: 1                        # CPUs on each node
run: echo "process $GANGER_RANK of $WORLD_SIZE"
"""
    + _TAIL,
}


@click.command("init")
@click.argument("kind", type=click.Choice(list(TEMPLATES)), default="torch", metavar="[torch|plain]")
def init_command(kind: str) -> None:
    """Write a job.yaml to start from.

    An existing one is never overwritten.
    """
    try:
        with FILE.open("x") as file:
            file.write(TEMPLATES[kind])
    except FileExistsError:
        raise Problem(f"{FILE} exists already, and is left as it is", f"ganger run -f {FILE}", REFUSED) from None
    except OSError as error:
        raise Problem(f"cannot write {FILE} in {Path.cwd()}: {error.strerror}") from None
    show(f"wrote {FILE}")
    show(f"next: ganger run -f {FILE} --dry-run")
