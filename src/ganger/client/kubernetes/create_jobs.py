"""Creation of GangJobs: one, or all of a file, or none of them; or a dry run of one.

The file is parsed here, so that errors have their position. Objects are created one after the other, dependencies
first. Several are first validated by the API server in a dry run, and the created ones are deleted again if one is
refused all the same.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from ganger.backends.kubernetes.custom_resources import API_VERSION, GANG_JOBS
from ganger.backends.kubernetes.object_names import CODE
from ganger.client.kubernetes import controller_requests
from ganger.client.kubernetes.caller import REFUSED, USAGE, Caller, CannotError
from ganger.client.kubernetes.job_row import row
from ganger.client.kubernetes.upload_code import pack_code, upload
from ganger.engine.submit.submit_order import new_id, pending_dependencies, submission_order
from ganger.errors import RequestError
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.resources import ListOptions
from ganger.model.job import ENDED, After, GangState, JobSpec, split_element_id
from ganger.spec import parse_spec, parse_specs, spec_from_dict, spec_to_dict

Record = dict[str, Any]

_SUFFIX: Final = re.compile(r"-[a-z2-7]{4}")
"""Suffix that `new_id` adds to a name."""


@dataclass(frozen=True, slots=True)
class _NewJob:
    """A GangJob to create; directory: the caller's working directory."""

    name: str
    user: str
    spec: JobSpec
    directory: str

    @property
    def spec_record(self) -> Record:
        """Spec without the user."""
        return {key: value for key, value in spec_to_dict(self.spec).items() if key != "name"}


async def submit(caller: Caller, user: str, request: Record) -> list[Record]:
    """Create the jobs; return their rows, dependencies first. `user` is the API server's name of the caller.

    Raises ApiError, CannotError and RequestError; then no job is left, or the error says which.
    """
    jobs = await _new_jobs(caller, user, _specs(request), request["directory"])
    if len(jobs) > 1:
        await _validate(caller, jobs)
    created: list[CustomObject] = []
    for job in jobs:
        try:
            created.append(await _create(caller, job))
        except (ApiError, CannotError, RequestError) as error:
            if not created:
                raise
            raise await _delete_created(caller, created, job, error) from error
    return [row(gang_job) for gang_job in created]


async def dry_run(caller: Caller, user: str, request: Record) -> Record:
    """Return what the controller would do with the job now, as a standalone server does: {"status", "body"}.

    The API server validates the object first. Raises the same errors.
    """
    if "spec_text" in request:
        spec = parse_spec(request["spec_text"], request["filename"], request["overrides"])
    else:
        spec = spec_from_dict(request["spec"], "the command line")
    [job] = await _new_jobs(caller, user, (spec,), request["directory"])
    await _validate(caller, [job])
    body = {"spec": job.spec_record | {"name": job.spec.name}, "directory": "/", "namespace": caller.namespace}
    query = {"method": "POST", "target": f"/jobs?{controller_requests.DRY_RUN}=plan", "body": body}
    return await controller_requests.query_controller(caller, user, query)


def _specs(request: Record) -> tuple[JobSpec, ...]:
    if "spec_text" in request:
        return parse_specs(request["spec_text"], request["filename"], request["overrides"])
    return (spec_from_dict(request["spec"], "the command line"),)


async def _new_jobs(caller: Caller, user: str, specs: Sequence[JobSpec], directory: str) -> list[_NewJob]:
    """Return the jobs with their final names, also in `after`; dependencies first."""
    jobs: list[_NewJob] = []
    names: dict[str, str] = {}
    existing: list[CustomObject] = []
    file_names = {spec.name for spec in specs}
    if any(after.job not in file_names for spec in specs for after in spec.after):
        existing = await caller.api.list(GANG_JOBS, ListOptions(caller.namespace))
    for index in submission_order(specs):
        spec = _with_dependencies(caller, specs[index], names, existing)
        names[spec.name] = new_id(spec.name, lambda _: False)
        jobs.append(_NewJob(names[spec.name], user, spec, directory))
    return jobs


def _with_dependencies(
    caller: Caller, spec: JobSpec, of_file: Mapping[str, str], existing: Sequence[CustomObject]
) -> JobSpec:
    """Return the spec with names of GangJobs in `after`: of the same file, or existing ones by name or submitted name.

    Raises RequestError (no_such_dependency, dependency_failed).
    """
    dependencies = []
    states: dict[str, GangState | None] = dict.fromkeys(of_file.values(), GangState.PENDING)
    for after in spec.after:
        name = of_file.get(after.job)
        if name is None:
            gang_job = _find_dependency(after, existing)
            if gang_job is None:
                detail = f"after: there is no job {after.job} in namespace {caller.namespace}"
                raise RequestError("no_such_dependency", detail, caller.typed("ls"))
            name, element = gang_job.metadata.name, split_element_id(after.job)
            state = row(gang_job)["state"]
            # The array's object does not have an element's state, nor has one that no controller has read any state.
            states[name] = GangState(state) if state in ENDED and element is None else GangState.PENDING
            name = f"{name}[{element[1]}]" if element else name
            states.setdefault(name, GangState.PENDING)
        dependencies.append(replace(after, job=name))
    try:
        pending_dependencies(dependencies, states.get)
    except RequestError as error:
        raise RequestError(error.code, error.detail, "remove it from `after`, or submit that job again") from None
    return replace(spec, after=tuple(dependencies))


def _find_dependency(after: After, existing: Sequence[CustomObject]) -> CustomObject | None:
    element = split_element_id(after.job)
    name = element[0] if element else after.job
    matching = [job for job in existing if job.metadata.name == name]
    matching = matching or [
        job
        for job in existing
        if job.metadata.name.startswith(name) and _SUFFIX.fullmatch(job.metadata.name[len(name) :])
    ]
    return max(matching, key=lambda job: row(job)["submitted_ms"], default=None)


async def _validate(caller: Caller, jobs: Iterable[_NewJob]) -> None:
    """Have the API server validate all objects."""
    async with caller.api.dry_run_client() as dry_run_api:
        for job in jobs:
            await _create(replace(caller, api=dry_run_api), job)


async def _create(caller: Caller, job: _NewJob) -> CustomObject:
    code = await pack_code(job.spec, job.directory)
    metadata: Record = {"name": job.name, "namespace": caller.namespace}
    if code is not None:
        metadata["annotations"] = {CODE: code.digest}
    body = {
        "apiVersion": API_VERSION,
        "kind": "GangJob",
        "metadata": metadata,
        "spec": job.spec_record | {"user": job.user},
    }
    if code is None:
        return await caller.api.create(GANG_JOBS, body)
    async with caller.api.dry_run_client() as dry_run_api:
        await dry_run_api.create(GANG_JOBS, body)  # the code of a refused job would stay: no controller knows of it
    await upload(caller, code)
    gang_job = await caller.api.create(GANG_JOBS, body)
    with suppress(ApiError):  # the job exists; that its code was removed in this moment is all but impossible
        await upload(caller, code)
    return gang_job


async def _delete_created(
    caller: Caller, created: Sequence[CustomObject], refused: _NewJob, error: Exception
) -> CannotError:
    """Delete what was created before one was refused; return an error that says so, or what is left."""
    left = []
    for gang_job in reversed(created):
        try:
            await caller.api.delete(GANG_JOBS, gang_job.metadata)
        except ApiError:
            left.append(gang_job.metadata.name)
    detail = f"{refused.spec.name} was not created: {error}"
    if left:
        more = f"{', '.join(reversed(left))} of the same file could not be deleted again"
        return CannotError("partly_submitted", f"{detail}\n{more}", caller.typed("stop", *reversed(left)), REFUSED)
    invalid = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
    if isinstance(error, ApiError) and error.status in invalid:
        next_step, exit_code = "kubectl explain gangjob.spec", USAGE
    else:
        next_step, exit_code = caller.typed("ls"), REFUSED
    return CannotError("not_submitted", f"{detail}\nno job of the file was created", next_step, exit_code)
