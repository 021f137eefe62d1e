"""Everything that must be right before the launchers of a generation are started: its directory, its port, its plans.

Called by the supervisor. All or nothing: a gang of which one node cannot be prepared is not begun on the others.
"""

import hmac
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ganger.backends.local.job_files import JobFiles, TaskDirectory
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Start
from ganger.model.job import Job
from ganger.ports import LaunchPlan


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


def complete(
    layout: JobFiles, plans: tuple[LaunchPlan, ...], job: Job, nodes: Mapping[str, Node]
) -> tuple[LaunchPlan, ...]:
    """The plans of a whole generation with what only this backend knows: where the job's output goes, where the secrets
    are, how large a log may grow, where the agents listen, and what is to be shown to them. Unstartable when the disk
    will not have the directory of the output, or the token it all begins with."""
    output = {"GANGER_OUTPUT_DIR": _output(layout, job, plans[0])}
    secrets = str(layout.secrets(job.id)) if job.spec.secrets else None
    plans = tuple(
        replace(plan, environment=plan.environment | output, secrets=secrets, log_bytes=layout.log_bytes)
        for plan in plans
    )
    if not any(plan.agent for plan in plans):
        return plans
    token = _agent_token(layout, plans[0])
    return tuple(replace(plan, agent_address=nodes[plan.node].address, agent_token=token) for plan in plans)


def write_plans(layout: JobFiles, plans: tuple[LaunchPlan, ...]) -> None:
    """Make the task directories and put the plans there. Unstartable when the disk will not have them."""
    for plan in plans:
        try:
            _made(layout, plan).write_plan(plan)
        except OSError as error:
            raise _unwritable(layout, plan, error) from None


def working_directory(layout: JobFiles, start: Start, job: Job) -> str:
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


def _output(layout: JobFiles, job: Job, first: LaunchPlan) -> str:
    """A directory that is kept as long as the job is, the same for all its attempts."""
    path = layout.output(job.id)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        detail = f"the directory of its output {path} cannot be made: {error.strerror}"
        raise Unstartable(Cause.START_FAILED, first.node, detail) from None
    return str(path)


def _agent_token(layout: JobFiles, first: LaunchPlan) -> str:
    """The same for all nodes of a generation, also when plans are made again; told to nobody, since it is made of the
    first node's own."""
    try:
        key = _made(layout, first).token() or ""
    except OSError as error:
        raise _unwritable(layout, first, error) from None
    return hmac.digest(key.encode(), f"agent of {first.gang}.{first.generation}".encode(), "sha256").hex()


def _made(layout: JobFiles, plan: LaunchPlan) -> TaskDirectory:
    task = layout.task(plan.gang, plan.node)
    task.make()
    return task


def _unwritable(layout: JobFiles, plan: LaunchPlan, error: OSError) -> Unstartable:
    path = layout.task(plan.gang, plan.node).path
    return Unstartable(Cause.START_FAILED, plan.node, f"the task directory {path} cannot be written: {error.strerror}")
