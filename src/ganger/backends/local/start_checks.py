"""Preparation of a generation before its launchers start: directory, port, plans.

All or nothing: if one node of a gang cannot be prepared, the gang does not start on the others.
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


class CannotStartError(Exception):
    """A generation cannot start: the reason in one sentence, and the node on which it showed."""

    def __init__(self, cause: Cause, node: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.node = node
        self.detail = detail


def check_port(start: Start) -> None:
    """Raise CannotStartError if the port of the ranks' rendezvous is in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the ranks do: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((start.host, start.port))
        except OSError as error:
            address = f"{start.host}:{start.port}"
            detail = f"the ranks cannot meet at {address}: {error.strerror}"
            raise CannotStartError(Cause.PORT_BUSY, start.shares[0].node, detail) from None


def complete(
    files: JobFiles, plans: tuple[LaunchPlan, ...], job: Job, nodes: Mapping[str, Node]
) -> tuple[LaunchPlan, ...]:
    """Complete the plans of a generation with what only this backend knows: output, secrets, log limit, agents.

    CannotStartError if the first node's token cannot be written.
    """
    output = {"GANGER_RUN_DIR": str(files.output(job.id))}
    secrets = str(files.secrets(job.id)) if job.spec.secrets else None
    plans = tuple(
        replace(plan, environment=plan.environment | output, secrets=secrets, log_bytes=files.log_bytes)
        for plan in plans
    )
    if not any(plan.agent or plan.peer for plan in plans):
        return plans
    token = _agent_token(files, plans[0])
    return tuple(replace(plan, agent_address=nodes[plan.node].address, agent_token=token) for plan in plans)


def write_plans(files: JobFiles, plans: tuple[LaunchPlan, ...]) -> None:
    """Create the task directories and write the plans. CannotStartError if the disk is full."""
    for plan in plans:
        try:
            _task(files, plan).write_plan(plan)
        except OSError as error:
            raise _unwritable(files, plan, error) from None


def working_directory(files: JobFiles, start: Start, job: Job) -> str:
    """Return the ranks' working directory: the job's copy of its code, or the directory of submission.

    CannotStartError if it is unusable.
    """
    path = files.code(job.id) if job.spec.code else Path(job.origin.directory)
    if not path.exists():
        problem = "does not exist"
    elif not path.is_dir():
        problem = "is not a directory"
    elif not os.access(path, os.R_OK | os.X_OK):
        problem = "is not readable"
    else:
        return str(path)
    raise CannotStartError(Cause.START_FAILED, start.shares[0].node, f"the directory {path} {problem}")


def _agent_token(files: JobFiles, first: LaunchPlan) -> str:
    """Return the token of a generation's agents, derived from the first node's token.

    It is the same on all nodes and when plans are made again, and need not be stored.
    """
    try:
        key = _task(files, first).token() or ""
    except OSError as error:
        raise _unwritable(files, first, error) from None
    return hmac.digest(key.encode(), f"agent of {first.gang}.{first.generation}".encode(), "sha256").hex()


def _task(files: JobFiles, plan: LaunchPlan) -> TaskDirectory:
    task = files.task(plan.gang, plan.node)
    task.make()
    return task


def _unwritable(files: JobFiles, plan: LaunchPlan, error: OSError) -> CannotStartError:
    path = files.task(plan.gang, plan.node).path
    return CannotStartError(Cause.START_FAILED, plan.node, f"cannot write the task directory {path}: {error.strerror}")
