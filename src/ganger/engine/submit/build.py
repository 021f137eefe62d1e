"""From a request to a Job: read, checked, named, its code kept. Called by `engine.service`, for dry runs too.

Everything that can be found wrong is found here, before the job has an id that anybody waits for.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import ConfigDict

from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.start_check import StartRequest
from ganger.core.state.state import State
from ganger.engine.submit import quota_check
from ganger.engine.submit.code_snapshot import checkout, snapshot
from ganger.engine.submit.command_check import check_checkpoints, check_commands, check_directory
from ganger.engine.submit.git_info import git_state
from ganger.engine.submit.git_repository import fetch
from ganger.engine.submit.secret_store import SecretStore, check_value, keep_values, values_of
from ganger.errors import RequestError, unwritable
from ganger.model.job import GitCode, Job, JobSpec, Origin, Resources
from ganger.model.units import DEVICE_MILLI
from ganger.settings import Home
from ganger.spec import parse_spec, parse_specs, spec_from_dict

_SUFFIX_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_SUFFIX_LENGTH: Final = 4


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a face sends. Either `spec`, a mapping as a user would write it, or `spec_text`, a file's text with its name
    for errors; `overrides` is a mapping that goes over the text. `directory` is the caller's, absolute; `environment`
    what travels of theirs; `secrets` the values that their shell has for secrets of the spec. A repeat with the same
    `request_id` makes no second job. namespace: of a GangJob, for a controller."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    directory: str
    spec: dict[str, Any] | None = None
    spec_text: str | None = None
    filename: str = "job.yaml"
    overrides: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    request_id: str = ""
    namespace: str = ""


def check_text(submission: Submission) -> None:
    """Refused (bad_text) when what comes with the spec can be no path, no variable, or no text at all."""
    texts = {"the directory": submission.directory, "the request_id": submission.request_id}
    for name, value in submission.secrets.items():
        check_value(name, value)
    for name, value in submission.environment.items():
        if not name or "=" in name:
            raise RequestError(
                "bad_text", f"{name!r} cannot be the name of a variable", "leave it out of `environment`"
            )
        texts[f"the variable {name!r}"] = name + value
    for what, text in texts.items():
        if "\0" in text or not _is_unicode(text):
            why = f"{what} has a character that no program can be given: zero, or one that is no UTF-8"
            raise RequestError("bad_text", why, "change it, or leave it out")


def _is_unicode(text: str) -> bool:
    """False for text with half of a pair: a byte that was no UTF-8 where it came from."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_spec(submission: Submission) -> JobSpec:
    """The spec as it was sent. Refused (bad_spec) with everything that is wrong with it."""
    if (submission.spec is None) == (submission.spec_text is None):
        raise RequestError("bad_spec", "send either spec or spec_text", "see GET /api/v1/openapi.json")
    if submission.spec_text is None:
        return spec_from_dict(submission.spec or {}, "the job")
    return parse_spec(submission.spec_text, submission.filename, submission.overrides)


def read_specs(submission: Submission) -> tuple[JobSpec, ...]:
    """The specs of a file of several jobs. Refused (bad_spec) with everything that is wrong with them."""
    if submission.spec_text is None or submission.spec is not None:
        return (read_spec(submission),)
    return parse_specs(submission.spec_text, submission.filename, submission.overrides)


def origin_of(spec: JobSpec, submission: Submission, home: Home) -> Origin:
    """Where the job comes from. Code out of a repository is brought here."""
    origin = Origin(directory=submission.directory, environment=submission.environment)
    if not isinstance(spec.code, GitCode):
        return origin
    found = fetch(spec.code, home.git, home.code)
    return replace(origin, git_commit=found.commit, code_hash=found.digest)


def place_of(spec: JobSpec, origin: Origin, home: Home) -> Path:
    """The directory the job's command will find its files in: the caller's, or what `code:` names, which is copied."""
    directory = check_directory(origin.directory, "the directory")
    if spec.code is None:
        return directory
    if origin.code_hash is not None:
        return home.code / origin.code_hash
    # What is in a repository was fetched by `origin_of`.
    return check_directory(str(directory / Path(str(spec.code)).expanduser()), "code:")


def limited(spec: JobSpec, state: State, user: str) -> JobSpec:
    """The spec with what its queue adds to it. Refused when there could never be room for it."""
    spec = _with_compute(state.nodes, quota_check.limited(state, spec))
    wanted = StartRequest(
        queue=spec.queue,
        user=user,
        shape=spec.shape,
        time_ms=spec.limits.time_ms,
    )
    quota_check.check(state, wanted)
    quota_check.check_waiting(state, spec, user)
    return spec


def check(spec: JobSpec, submission: Submission, origin: Origin, home: Home) -> None:
    """Refused when the job could never run: no program, no script, a secret that is not set."""
    values_of(spec.secrets, submission.secrets, SecretStore(home.secrets))
    for volume in spec.volumes:
        check_directory(volume.path, f"volume {volume.name}:")
    place = place_of(spec, origin, home)
    check_commands(spec, place, submission.environment)
    if spec.checkpoint and spec.code is None:
        check_checkpoints(spec.checkpoint.dir, place)


def new_id(name: str, taken: Callable[[str], object]) -> str:
    """The name and a suffix that nobody has."""
    while True:
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
        if not taken(f"{name}-{suffix}"):
            return f"{name}-{suffix}"


def keep(job: Job, submission: Submission, home: Home) -> Job:
    """The job with a record of what it will run: its own copy of the code, with `code:`; else the commit and what
    differs from it. Its secrets are kept beside. Refused when there is no room for it."""
    directory = home.jobs / job.id
    values = values_of(job.spec.secrets, submission.secrets, SecretStore(home.secrets))
    try:
        directory.mkdir(mode=0o700, parents=True)
        keep_values(values, directory / "secrets.json")
        return replace(job, origin=_kept_code(job, directory, home))
    except OSError as error:
        raise unwritable(directory, error) from None


def _kept_code(job: Job, directory: Path, home: Home) -> Origin:
    place, origin = place_of(job.spec, job.origin, home), job.origin
    if job.spec.code is None:
        found = git_state(place)
        if found.diff:
            (directory / "git.diff").write_bytes(found.diff)
        diff_hash = hashlib.sha256(found.diff).hexdigest() if found.diff else None
        return replace(origin, git_commit=found.commit, git_dirty=found.dirty, git_diff_hash=diff_hash)
    digest = origin.code_hash or snapshot(place, home.code)
    checkout(home.code, digest, directory / "code")
    return replace(origin, code_hash=digest)


class Requests:
    """Lets requests with the same id through one at a time, so that a repeat finds what the first has made."""

    def __init__(self) -> None:
        """None is under way."""
        self._under_way: set[str] = set()
        self._over = threading.Condition()

    @contextmanager
    def alone(self, request_id: str) -> Iterator[None]:
        """Inside it no other request has this id; one without an id is alone anyway."""
        if not request_id:
            yield
            return
        with self._over:
            self._over.wait_for(lambda: request_id not in self._under_way)
            self._under_way.add(request_id)
        try:
            yield
        finally:
            with self._over:
                self._under_way.remove(request_id)
                self._over.notify_all()


def _with_compute(nodes: NodeTable, spec: JobSpec) -> JobSpec:
    """Return the spec with a GPU share's compute set to its part of the memory of the smallest GPU that could hold it,
    rounded up, so that it is no less of any other.

    Compute and memory of a device are counted separately, and quota counts compute: a share that asked for memory
    alone would cost nothing, and could slow down all others on its device.
    """
    roles = {name: replace(role, resources=_with_milli(nodes, role.resources)) for name, role in spec.roles.items()}
    return replace(spec, resources=_with_milli(nodes, spec.resources), roles=roles)


def _with_milli(nodes: NodeTable, resources: Resources) -> Resources:
    gpu = resources.gpu
    if gpu.memory_bytes is None or gpu.milli is not None:
        return resources
    sizes = nodes.devices.memory_bytes[nodes.gpus > 0]
    able = sizes[sizes >= gpu.memory_bytes]
    if not able.size:
        return resources  # refused a moment later, with what there is
    milli = -(-DEVICE_MILLI * gpu.memory_bytes // int(np.min(able)))
    return replace(resources, gpu=replace(gpu, milli=milli))
