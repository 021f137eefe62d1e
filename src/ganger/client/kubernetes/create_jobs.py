"""Creation of GangJobs: one, or all of a file, or none of them; or a dry run of one.

The file is parsed here, so that errors have their position. Objects are created one after the other, dependencies
first. Several are first validated by the API server in a dry run, and the created ones are deleted again if one is
refused all the same.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from ganger.client.client_errors import REFUSED, USAGE, ClientError, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.change_job import ended_job
from ganger.client.kubernetes.controller_requests import DRY_RUN, query_controller
from ganger.client.kubernetes.find_job import find_whole_job, newest_of_name
from ganger.client.kubernetes.job_detail import unsuccessful_elements
from ganger.client.kubernetes.job_row import in_full, read_spec, row, spec_of, status_of, submitted_name
from ganger.client.kubernetes.upload_code import PackedCode, is_kept, pack_code, upload
from ganger.errors import RequestError
from ganger.gang_jobs.code_archive import is_stored
from ganger.gang_jobs.custom_resources import API_VERSION, GANG_JOBS
from ganger.gang_jobs.object_names import CODE, CODE_LOCATION, CONTROL_FIELDS, IN_STORE, RETRY_OF
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.resources import ListOptions
from ganger.model.job import ENDED, GangState, JobSpec, split_element_id
from ganger.model.job_sections.checkpoint_spec import split_resume_from
from ganger.spec import change_spec, parse_spec, parse_specs, spec_from_dict, spec_to_dict
from ganger.spec.array_elements import array_without_successes
from ganger.spec.submission_checks import new_id, pending_dependencies, submission_order

Record = dict[str, Any]


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


async def submit(caller: Caller, request: Record) -> list[Record]:
    """Create the jobs; return them, dependencies first.

    Raises ApiError, ClientError and RequestError; then no job is left, or the error says which.
    """
    jobs = await _new_jobs(caller, _specs(request), request["directory"])
    if len(jobs) > 1:
        await _validate(caller, jobs)
    created: list[CustomObject] = []
    for job in jobs:
        try:
            created.append(await _create(caller, job))
        except (ApiError, ClientError, RequestError) as error:
            if not created:
                raise
            raise await _delete_created(caller, created, job, error) from error
    return [in_full(gang_job) for gang_job in created]


async def dry_run(caller: Caller, request: Record) -> bytes:
    """Return what the controller would do with the job now, as a standalone server does.

    The API server validates the object first. Raises the same errors.
    """
    if "spec_text" in request:
        spec = parse_spec(request["spec_text"], request["filename"], request["overrides"])
    else:
        spec = spec_from_dict(request["spec"], "the command line")
    [job] = await _new_jobs(caller, (spec,), request["directory"])
    await _validate(caller, [job])
    body = {"spec": job.spec_record | {"name": job.spec.name}, "directory": "/", "namespace": caller.namespace}
    return await query_controller(caller, "POST", f"/jobs?{DRY_RUN}=plan", body)


async def retry(caller: Caller, name: str, params: Mapping[str, str]) -> Record:
    """Create a job like an ended one, with the same copy of its code, that goes on where it ended; return it.

    Its parameters have the values of `params`, else those that they had. Of an array in which some elements have
    succeeded, the new one has the others, which only the controller knows. Raises the same errors.
    """
    gang_job = await ended_job(caller, name, "retried")
    spec, record = read_spec(gang_job), json.loads(status_of(gang_job).get("record") or "{}")
    overrides = {} if spec is None else spec.resumption_of(gang_job.metadata.name, record.get("checkpoint_step"))
    overrides |= {"params": dict(params)} if params else {}
    if spec is not None and spec.array is not None and not spec.replica_groups:
        overrides |= array_without_successes(spec.array, await unsuccessful_elements(caller, name))
    return await _again(caller, gang_job, _fields(gang_job), overrides, {RETRY_OF: gang_job.metadata.name})


async def clone(caller: Caller, name: str, overrides: Record) -> Record:
    """Create a job like another, with `overrides` over its spec; return it. Raises the same errors.

    It begins where the first of a row of retries began.
    """
    gang_job = await find_whole_job(caller, name, "cloned")
    fields = _fields(gang_job)
    retry_of, checkpoint = gang_job.metadata.annotations.get(RETRY_OF), fields.get("checkpoint")
    if retry_of and isinstance(checkpoint, dict):
        first = await _first_of_retries(caller, retry_of)
        before = _fields(first).get("checkpoint") or {} if first is not None else {}
        checkpoint = {key: value for key, value in checkpoint.items() if key != "resume_from"}
        fields["checkpoint"] = checkpoint | {key: before[key] for key in ("resume_from",) if key in before}
    return await _again(caller, gang_job, fields, overrides, {})


async def _first_of_retries(caller: Caller, name: str) -> CustomObject | None:
    """Return the first of a row of retries that ends with a job; None if it was deleted, or the row has no first."""
    seen = set[str]()
    while name not in seen:
        seen.add(name)
        try:
            gang_job = await caller.api.get(GANG_JOBS, name, caller.namespace)
        except ApiError as error:
            if error.missing:
                return None
            raise
        retry_of = gang_job.metadata.annotations.get(RETRY_OF)
        if not retry_of:
            return gang_job
        name = retry_of
    return None  # annotations that were written by hand


def _fields(gang_job: CustomObject) -> Record:
    """Return the job spec of an object as it is written."""
    return {key: value for key, value in spec_of(gang_job).items() if key not in CONTROL_FIELDS}


async def _again(
    caller: Caller, gang_job: CustomObject, fields: Record, overrides: Record, more_annotations: Mapping[str, str]
) -> Record:
    """Create a job like another one, by its object; the object of its code has to be there still."""
    fields = fields | {"name": submitted_name(gang_job)}
    spec = change_spec(fields, gang_job.metadata.name, overrides, caller.typed("get", gang_job.metadata.name))
    [job] = await _new_jobs(caller, (spec,), "/")
    annotations = gang_job.metadata.annotations
    digest = annotations.get(CODE)
    if digest is None or "code" in overrides:
        return in_full(await _create(caller, job, more_annotations))
    if not await is_kept(caller, digest, in_store=is_stored(gang_job.metadata)):
        detail = f"the copy of the code of {gang_job.metadata.name} was removed after its end"
        typed = caller.typed("clone", gang_job.metadata.name, "--code", ".")
        raise client_error("code_removed", detail, typed, REFUSED)
    named = {name: annotations[name] for name in (CODE, CODE_LOCATION) if name in annotations} | {**more_annotations}
    return in_full(await caller.api.create(GANG_JOBS, _body(caller, job, named)))


def _specs(request: Record) -> tuple[JobSpec, ...]:
    if "spec_text" in request:
        return parse_specs(request["spec_text"], request["filename"], request["overrides"])
    return (spec_from_dict(request["spec"], "the command line"),)


async def _new_jobs(caller: Caller, specs: Sequence[JobSpec], directory: str) -> list[_NewJob]:
    """Return the jobs with their final names, also in `after`; dependencies first."""
    jobs: list[_NewJob] = []
    user = await caller.user()
    names: dict[str, str] = {}
    existing: list[CustomObject] = []
    file_names = {spec.name for spec in specs}
    named = {after.job for spec in specs for after in spec.after}
    sources = (spec.checkpoint.resume_from for spec in specs if spec.checkpoint is not None)
    named |= {split_resume_from(source)[0] for source in sources if source is not None}
    if named - file_names:
        existing = await caller.api.list(GANG_JOBS, ListOptions(caller.namespace))
    for index in submission_order(specs):
        spec = _with_dependencies(caller, specs[index], names, existing)
        names[spec.name] = new_id(spec.name, lambda _: False)
        jobs.append(_NewJob(names[spec.name], user, spec, directory))
    return jobs


def _with_dependencies(
    caller: Caller, spec: JobSpec, of_file: Mapping[str, str], existing: Sequence[CustomObject]
) -> JobSpec:
    """Return the spec with names of GangJobs: of the same file, or existing ones by name or submitted name.

    Raises RequestError (no_such_dependency, dependency_failed).
    """
    checkpoint = spec.checkpoint
    if checkpoint is not None and checkpoint.resume_from is not None:
        job, colon, step = checkpoint.resume_from.partition(":")
        resume_from = _name_of("checkpoint.resume_from", job, caller, of_file, existing)[0] + colon + step
        spec = replace(spec, checkpoint=replace(checkpoint, resume_from=resume_from))
    dependencies = []
    states: dict[str, GangState | None] = dict.fromkeys(of_file.values(), GangState.PENDING)
    for after in spec.after:
        name, gang_job = _name_of("after", after.job, caller, of_file, existing)
        if gang_job is not None:
            state = row(gang_job)["state"]
            # The array's object does not have an element's state, nor has one that no controller has read any state.
            is_known = state in ENDED and split_element_id(name) is None
            states[name] = GangState(state) if is_known else GangState.PENDING
        dependencies.append(replace(after, job=name))
    try:
        pending_dependencies(dependencies, states.get)
    except RequestError as error:
        raise RequestError(error.code, error.detail, "remove it from `after`, or submit that job again") from None
    return replace(spec, after=tuple(dependencies))


def _name_of(
    key: str, job: str, caller: Caller, of_file: Mapping[str, str], existing: Sequence[CustomObject]
) -> tuple[str, CustomObject | None]:
    """Return the name of a job that a spec names, with its object if that exists. Raises RequestError."""
    if job in of_file:
        return of_file[job], None
    element = split_element_id(job)
    gang_job = newest_of_name(element[0] if element else job, existing)
    if gang_job is None:
        detail = f"{key}: there is no job {job} in namespace {caller.namespace}"
        raise RequestError("no_such_dependency", detail, caller.typed("ls"))
    name = gang_job.metadata.name
    return (f"{name}[{element[1]}]" if element else name), gang_job


async def _validate(caller: Caller, jobs: Iterable[_NewJob]) -> None:
    """Have the API server validate all objects."""
    async with caller.api.dry_run_client() as dry_run_api:
        for job in jobs:
            code = await pack_code(job.spec, job.directory)
            if code is not None and code.fits_object:
                await upload(replace(caller, api=dry_run_api), code)
            await dry_run_api.create(GANG_JOBS, _body(caller, job, _annotations(code)))


async def _create(
    caller: Caller, job: _NewJob, more_annotations: Mapping[str, str] = MappingProxyType({})
) -> CustomObject:
    code = await pack_code(job.spec, job.directory)
    body = _body(caller, job, {**_annotations(code), **more_annotations})
    if code is None:
        return await caller.api.create(GANG_JOBS, body)
    async with caller.api.dry_run_client() as dry_run_api:
        await dry_run_api.create(GANG_JOBS, body)  # the code of a refused job would stay: no controller knows of it
    await upload(caller, code)
    gang_job = await caller.api.create(GANG_JOBS, body)
    with suppress(ApiError, ClientError):  # it exists; that its code was removed in this moment is all but impossible
        await upload(caller, code)
    return gang_job


def _annotations(code: PackedCode | None) -> dict[str, str]:
    """Return the annotations that name a job's code."""
    if code is None:
        return {}
    return {CODE: code.digest} | ({} if code.fits_object else {CODE_LOCATION: IN_STORE})


def _body(caller: Caller, job: _NewJob, annotations: Mapping[str, str]) -> Record:
    """Return the object of a job."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GangJob",
        "metadata": {"name": job.name, "namespace": caller.namespace}
        | ({"annotations": annotations} if annotations else {}),
        "spec": job.spec_record | {"user": job.user},
    }


async def _delete_created(
    caller: Caller, created: Sequence[CustomObject], refused: _NewJob, error: Exception
) -> ClientError:
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
        return client_error("partly_submitted", f"{detail}\n{more}", caller.typed("stop", *reversed(left)), REFUSED)
    invalid = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
    if isinstance(error, ApiError) and error.status in invalid:
        next_step, exit_code = "kubectl explain gangjob.spec", USAGE
    else:
        next_step, exit_code = caller.typed("ls"), REFUSED
    return client_error("not_submitted", f"{detail}\nno job of the file was created", next_step, exit_code)
