"""From a request to a Job: read, checked, named, its code kept.

Everything that can be checked is checked here, before the job has an id that a caller waits for.
"""

import hashlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from ganger.code.code_snapshot import checkout, code_directory, has_snapshot, snapshot, snapshot_whole
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.start_check import StartRequest
from ganger.core.state.state import State
from ganger.engine.submit import feasibility, quota_check
from ganger.engine.submit.command_check import check_checkpoints, check_commands
from ganger.engine.submit.git_info import git_state
from ganger.engine.submit.git_repository import fetch
from ganger.engine.submit.secret_store import SecretStore, check_value, keep_values, values_of
from ganger.errors import RequestError, write_error
from ganger.model.job import GitCode, Job, JobSpec, Origin, Resources
from ganger.model.units import DEVICE_MILLI
from ganger.settings import Home
from ganger.spec import parse_spec, parse_specs, spec_from_dict
from ganger.spec.submission_checks import check_directory


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A submission as sent by a client.

    spec: a mapping as a user would write it; or else spec_text, the text of a file, with its filename for errors.
    overrides: a mapping merged over the text.
    directory: the caller's, absolute; None for a caller on another machine, whose job runs in a directory of its own.
    environment: the part of the caller's environment that goes with the job; without a directory, the server's.
    codes: the hashes of copies that were sent before, by what `code:` says; without a directory.
    secrets: values from the caller's shell for secrets of the spec.
    request_id: a repeat with the same one makes no second job.
    namespace: of a GangJob, for a controller.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    directory: str | None = None
    spec: dict[str, Any] | None = None
    spec_text: str | None = None
    filename: str = "job.yaml"
    overrides: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    request_id: str = ""
    namespace: str = ""


def check_text(submission: Submission) -> None:
    """Raise RequestError (bad_text) for a part that cannot be a path, a variable, or valid text."""
    texts = {"the directory": submission.directory or "", "the request_id": submission.request_id}
    for name, value in submission.secrets.items():
        check_value(name, value)
    for name, value in submission.environment.items():
        if not name or "=" in name:
            raise RequestError(
                "bad_text", f"{name!r} cannot be the name of a variable", "leave it out of `environment`"
            )
        texts[f"the variable {name!r}"] = name + value
    for subject, text in texts.items():
        if "\0" in text or not _is_unicode(text):
            message = f"{subject} has a character that cannot be passed to a program: NUL, or invalid UTF-8"
            raise RequestError("bad_text", message, "change it, or leave it out")


def _is_unicode(text: str) -> bool:
    """Return whether the text encodes; a lone surrogate stands for a byte that was not UTF-8 at its origin."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_spec(submission: Submission) -> JobSpec:
    """Return the spec as sent. Raise RequestError (bad_spec) with all errors in it."""
    if (submission.spec is None) == (submission.spec_text is None):
        raise RequestError("bad_spec", "send either spec or spec_text", "see GET /api/v1/openapi.json")
    if submission.spec_text is None:
        return spec_from_dict(submission.spec or {}, "the job")
    return parse_spec(submission.spec_text, submission.filename, submission.overrides)


def read_specs(submission: Submission) -> tuple[JobSpec, ...]:
    """Return the specs of a file of several jobs. Raise RequestError (bad_spec) with all errors in them."""
    if submission.spec_text is None or submission.spec is not None:
        return (read_spec(submission),)
    return parse_specs(submission.spec_text, submission.filename, submission.overrides)


def origin_of(spec: JobSpec, submission: Submission, home: Home) -> Origin:
    """Return the origin of the job. Code from a repository is fetched here."""
    origin = Origin(directory=submission.directory or "", environment=submission.environment)
    if isinstance(spec.code, GitCode):
        fetched = fetch(spec.code, home.git, home.code)
        return replace(origin, git_commit=fetched.commit, code_hash=fetched.digest)
    if submission.directory is not None:
        return origin
    return replace(origin, code_hash=_sent_code(spec.code, submission, home))


def _sent_code(code: str | None, submission: Submission, home: Home) -> str:
    """Return the hash of the copy that a caller on another machine has sent; that of nothing for a job without code."""
    if code is None:
        with tempfile.TemporaryDirectory(prefix="ganger-code-") as empty:
            return snapshot_whole(Path(empty), home.code)
    digest = submission.codes.get(code)
    if digest is None:
        message = f"code: {code} is a directory of another machine, and was not sent"
        raise RequestError("no_snapshot", message, "submit it with `ganger submit` on that machine")
    if not has_snapshot(home.code, digest):
        raise RequestError("no_snapshot", f"there is no copy of the code {digest}", "submit the job again")
    return digest


def source_directory(spec: JobSpec, origin: Origin, home: Home) -> Path:
    """Return the working directory of the job's command: the caller's, or the one named by `code:`, which is copied."""
    directory = check_directory(origin.directory, "the directory") if origin.directory else Path("/")
    if spec.code is None:
        return directory
    if origin.code_hash is not None:
        return home.code / origin.code_hash
    # Code in a repository was fetched by `origin_of`.
    return check_directory(str(code_directory(directory, str(spec.code))), "code:")


def limited(
    spec: JobSpec, state: State, user: str, *, waits_for_nodes: bool = False, is_administrator: bool = True
) -> JobSpec:
    """Return the spec with its queue's defaults. Raise RequestError when it could never have room.

    waits_for_nodes: a job that the nodes could not hold is to wait for others that can.
    """
    spec = _with_gpu_compute(state.nodes, quota_check.limited(state, spec, is_administrator=is_administrator))
    quota_check.check_pending(state, spec, user)
    spared = _with_spares(state, spec, waits_for_nodes=waits_for_nodes)
    check_room = partial(quota_check.check, state, waits_for_nodes=waits_for_nodes, is_administrator=is_administrator)
    try:
        check_room(_request(spared, user))
    except RequestError:
        if spared is spec:
            raise
        spared = spec
        check_room(_request(spec, user))
    if (groups := spec.replica_groups or 1) > 1:
        try:
            check_room(_request(spared, user, groups))
        except RequestError as error:
            fewer = f"submit with fewer groups to start with: --replica-groups 1..{spec.max_replica_groups or groups}"
            raise RequestError(error.code, f"{groups} replica groups: {error.detail}", fewer) from None
    return spared


def _request(spec: JobSpec, user: str, groups: int = 1) -> StartRequest:
    """Return the request of a job, or of so many of its replica groups together."""
    shape, limit_ms = spec.together(groups), spec.limits.time_ms
    return StartRequest(queue=spec.queue, user=user, shape=shape, time_ms=limit_ms, jobs=groups)


def _with_spares(state: State, spec: JobSpec, *, waits_for_nodes: bool) -> JobSpec:
    """Return the spec, or another one with the spares that the policy gives it, if the nodes have room for them.

    Raise RequestError for spares of its own that they have no room for, unless it waits for nodes.
    """
    rules, shape = state.document.spares, spec.shape
    if spec.spares and not waits_for_nodes and feasibility.impossible_on(state.nodes, shape) is not None:
        feasibility.check_nodes(state.nodes, replace(shape, nodes=spec.nodes))
        where = f"one {shape.layout.level}" if shape.layout.required else "the cluster"
        message = f"{spec.nodes} nodes and {spec.spares} spare are more than {where} has, even if nothing else ran"
        raise RequestError("too_few_nodes", message, f"submit with fewer spares; {feasibility.SEE_NODES}")
    is_plain = not (spec.roles or spec.max_nodes or spec.placement.slices or spec.placement.nodes)
    if spec.spares is not None or rules.from_nodes is None or spec.nodes < rules.from_nodes or not is_plain:
        return spec
    spared = replace(spec, spares=rules.count)
    return spec if feasibility.impossible_on(state.nodes, spared.shape) else spared


def check(spec: JobSpec, submission: Submission, origin: Origin, home: Home) -> None:
    """Raise RequestError when the job could never run: no program, no script, a secret that is not set."""
    if spec.pod is not None or any(role.pod is not None for role in spec.roles.values()):
        message = "pod: it describes pods of Kubernetes, and this server starts processes on machines"
        raise RequestError("bad_spec", message, "leave it out here; volumes:, env: and resources: are for both")
    values_of(spec.secrets, submission.secrets, SecretStore(home.secrets))
    for volume in spec.volumes:
        check_directory(volume.path, f"volume {volume.name}:")
    directory = source_directory(spec, origin, home)
    try:
        check_commands(spec, directory, submission.environment)
    except RequestError as error:
        if submission.directory is None and not submission.codes and error.code in ("no_script", "no_program"):
            detail = f"a job without code: from another machine runs in an empty directory\n{error.detail}"
            raise RequestError(error.code, detail, "send the directory with the job: --code .") from None
        raise
    if spec.checkpoint and spec.code is None:
        check_checkpoints(spec.checkpoint, directory)


def keep(job: Job, submission: Submission, home: Home) -> Job:
    """Store what the job will run and its secrets, and return the job with a record of it.

    With `code:` that is its own copy of the code, else the commit and the diff from it. Raise RequestError when there
    is no space.
    """
    directory = home.jobs / job.id
    values = values_of(job.spec.secrets, submission.secrets, SecretStore(home.secrets))
    try:
        directory.mkdir(mode=0o700, parents=True)
        keep_values(values, directory / "secrets.json")
        return replace(job, origin=_keep_code(job, directory, home))
    except OSError as error:
        raise write_error(directory, error) from None


def _keep_code(job: Job, directory: Path, home: Home) -> Origin:
    source, origin = source_directory(job.spec, job.origin, home), job.origin
    if job.spec.code is None:
        git = git_state(source)
        if git.diff:
            (directory / "git.diff").write_bytes(git.diff)
        diff_hash = hashlib.sha256(git.diff).hexdigest() if git.diff else None
        return replace(origin, git_commit=git.commit, git_dirty=git.dirty, git_diff_hash=diff_hash)
    digest = origin.code_hash or snapshot(source, home.code)
    checkout(home.code, digest, directory / "code")
    return replace(origin, code_hash=digest)


class RequestLocks:
    """Serialises requests with the same id, so that a repeat finds the job of the first."""

    def __init__(self) -> None:
        """Begin without requests."""
        self._active: set[str] = set()
        self._finished = threading.Condition()

    @contextmanager
    def alone(self, request_id: str) -> Iterator[None]:
        """Hold the id of a request; a request without an id is not held up."""
        if not request_id:
            yield
            return
        with self._finished:
            self._finished.wait_for(lambda: request_id not in self._active)
            self._active.add(request_id)
        try:
            yield
        finally:
            with self._finished:
                self._active.remove(request_id)
                self._finished.notify_all()


def _with_gpu_compute(nodes: NodeTable, spec: JobSpec) -> JobSpec:
    """Return the spec with a compute part for each GPU share that asks for memory alone.

    The part is that of the memory of the smallest GPU that could hold the share, rounded up, so that it is no less of
    any other GPU. Compute and memory of a device are counted separately, and quota counts compute: a share of memory
    alone would cost nothing, and could slow down all others on its device.
    """
    roles = {
        name: replace(role, resources=_resources_with_compute(nodes, role.resources))
        for name, role in spec.roles.items()
    }
    return replace(spec, resources=_resources_with_compute(nodes, spec.resources), roles=roles)


def _resources_with_compute(nodes: NodeTable, resources: Resources) -> Resources:
    gpu = resources.gpu
    if gpu.memory_bytes is None or gpu.milli is not None:
        return resources
    gpu_sizes = nodes.devices.memory_bytes[nodes.total.gpus > 0]
    large_enough = gpu_sizes[gpu_sizes >= gpu.memory_bytes]
    if not large_enough.size:
        return resources  # the feasibility check refuses it, with the sizes there are
    milli = -(-DEVICE_MILLI * gpu.memory_bytes // int(np.min(large_enough)))
    return replace(resources, gpu=replace(gpu, milli=milli))
