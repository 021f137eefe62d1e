"""Everything that must be right before the launchers of a generation are started: its directory, its port, its plans.

Called by the supervisor. All or nothing: a gang of which one node cannot be prepared is not begun on the others.
"""

import os
import socket
from pathlib import Path

from ganger.backends.local.layout import Layout
from ganger.engine.ports import LaunchPlan
from ganger.model.decision import Cause, Start
from ganger.model.job import Job


class Unstartable(Exception):
    """A generation that cannot begin: why, in one sentence, and the node that showed it."""

    def __init__(self, cause: Cause, node: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.node = node
        self.detail = detail


def refuse_busy_port(start: Start) -> None:
    """Unstartable when somebody else listens where the ranks are to meet."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        # As the ranks will: a port whose last user left connections to die is free.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((start.host, start.port))
        except OSError as error:
            where = f"{start.host}:{start.port}"
            detail = f"the ranks cannot meet at {where}: {error.strerror}"
            raise Unstartable(Cause.PORT_BUSY, start.shares[0].node, detail) from None


def write_plans(layout: Layout, plans: tuple[LaunchPlan, ...]) -> None:
    """Make the task directories and put the plans there. Unstartable when the disk will not have them."""
    for plan in plans:
        task = layout.task(plan.gang, plan.node)
        try:
            task.make()
            task.write_plan(plan)
        except OSError as error:
            detail = f"the task directory {task.path} cannot be written: {error.strerror}"
            raise Unstartable(Cause.START_FAILED, plan.node, detail) from None


def working_directory(layout: Layout, start: Start, job: Job) -> str:
    """Where the ranks run: this job's copy of its code, else where it was submitted. Unstartable when it is no use."""
    path = layout.code(job.id) if job.spec.code else Path(job.origin.directory)
    if not path.exists():
        trouble = "does not exist"
    elif not path.is_dir():
        trouble = "is not a directory"
    elif not os.access(path, os.R_OK | os.X_OK):
        trouble = "may not be read"
    else:
        return str(path)
    raise Unstartable(Cause.START_FAILED, start.shares[0].node, f"the directory {path} {trouble}")
