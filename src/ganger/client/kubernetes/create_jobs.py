"""GangJobs of what a person typed: one, or all of a file, or none of them; or only what would become of one.

Called by `in_context`. The file is read here, so that what is wrong with it is said where it lies. Objects are made one
after the other, those that others come after first. Of several each is tried before (the API server checks it and keeps
nothing), and what was made is taken back when one is refused all the same.
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
from ganger.client.kubernetes.upload_code import bring, brought
from ganger.engine.submit.build import new_id
from ganger.engine.submit.submit_order import awaited, in_order
from ganger.errors import RequestError
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Custom
from ganger.kubeapi.resources import Selection
from ganger.model.job import ENDED, After, GangState, JobSpec, array_of
from ganger.spec import parse_spec, parse_specs, spec_from_dict, spec_to_dict

Record = dict[str, Any]

_SUFFIX: Final = re.compile(r"-[a-z2-7]{4}")
"""What `new_id` puts behind a name."""


@dataclass(frozen=True, slots=True)
class _ToBe:
    """A GangJob that is to be made; directory: where the person stands."""

    name: str
    user: str
    spec: JobSpec
    directory: str

    @property
    def written(self) -> Record:
        """Its spec but for whose it is."""
        return {key: value for key, value in spec_to_dict(self.spec).items() if key != "name"}


async def submit(who: Caller, user: str, request: Record) -> list[Record]:
    """Make them; gives the rows, in the order in which they come after each other. user: as the API server knows the
    person. Raises ApiError, CannotError and Refused: none is there then, or it is said which."""
    every = await _to_be(who, user, _specs(request), request["directory"])
    if len(every) > 1:
        await _tried(who, every)
    made: list[Custom] = []
    for each in every:
        try:
            made.append(await _made(who, each))
        except (ApiError, CannotError, RequestError) as error:
            if not made:
                raise
            raise await _taken_back(who, made, each, error) from error
    return [row(each) for each in made]


async def dry_run(who: Caller, user: str, request: Record) -> Record:
    """What the controller would do with the one job now, as a server of ganger's says it: {"status", "body"}. The API
    server checks the object first, and keeps nothing. Raises the same."""
    if "spec_text" in request:
        spec = parse_spec(request["spec_text"], request["filename"], request["overrides"])
    else:
        spec = spec_from_dict(request["spec"], "the command line")
    [one] = await _to_be(who, user, (spec,), request["directory"])
    await _tried(who, [one])
    body = {"spec": one.written | {"name": one.spec.name}, "directory": "/", "namespace": who.namespace}
    asked = {"method": "POST", "target": f"/jobs?{controller_requests.DRY_RUN}=plan", "body": body}
    return await controller_requests.ask(who, user, asked)


def _specs(request: Record) -> tuple[JobSpec, ...]:
    if "spec_text" in request:
        return parse_specs(request["spec_text"], request["filename"], request["overrides"])
    return (spec_from_dict(request["spec"], "the command line"),)


async def _to_be(who: Caller, user: str, specs: Sequence[JobSpec], directory: str) -> list[_ToBe]:
    """With the names that they will have, also in `after`; those that others come after first."""
    every: list[_ToBe] = []
    names: dict[str, str] = {}
    listed: list[Custom] = []
    if any(each.job not in {spec.name for spec in specs} for spec in specs for each in spec.after):
        listed = await who.api.list(GANG_JOBS, Selection(who.namespace))
    for index in in_order(specs):
        spec = _after(who, specs[index], names, listed)
        names[spec.name] = new_id(spec.name, lambda _: False)
        every.append(_ToBe(names[spec.name], user, spec, directory))
    return every


def _after(who: Caller, spec: JobSpec, of_file: Mapping[str, str], listed: Iterable[Custom]) -> JobSpec:
    """The spec with names of GangJobs in `after`: of the same file, else of those there are, by their name or the one
    that they were submitted by. Refused (no_such_dependency, cannot_come_true)."""
    found = []
    states: dict[str, GangState | None] = dict.fromkeys(of_file.values(), GangState.PENDING)
    for after in spec.after:
        name = of_file.get(after.job)
        if name is None:
            meant = _meant(after, listed)
            if meant is None:
                why = f"after: there is no job {after.job} in namespace {who.namespace}"
                raise RequestError("no_such_dependency", why, who.typed("ls"))
            name, element = meant.metadata.name, array_of(after.job)
            state = row(meant)["state"]
            # How an element is, its array does not say; nor is anything known of one that nobody has read.
            states[name] = GangState(state) if state in ENDED and element is None else GangState.PENDING
            name = f"{name}[{element[1]}]" if element else name
            states.setdefault(name, GangState.PENDING)
        found.append(replace(after, job=name))
    try:
        awaited(found, states.get)
    except RequestError as refused:
        raise RequestError(refused.code, refused.detail, "take it out of `after`, or submit that job again") from None
    return replace(spec, after=tuple(found))


def _meant(after: After, listed: Iterable[Custom]) -> Custom | None:
    element = array_of(after.job)
    name = element[0] if element else after.job
    of_name = [each for each in listed if each.metadata.name == name]
    of_name = of_name or [
        each
        for each in listed
        if each.metadata.name.startswith(name) and _SUFFIX.fullmatch(each.metadata.name[len(name) :])
    ]
    return max(of_name, key=lambda each: row(each)["submitted_ms"], default=None)


async def _tried(who: Caller, every: Iterable[_ToBe]) -> None:
    """Have the API server check all of them."""
    async with who.api.trying() as trial:
        for each in every:
            await _made(replace(who, api=trial), each)


async def _made(who: Caller, to_be: _ToBe) -> Custom:
    code = await brought(to_be.spec, to_be.directory)
    about: Record = {"name": to_be.name, "namespace": who.namespace}
    body = {
        "apiVersion": API_VERSION,
        "kind": "GangJob",
        "metadata": about | ({"annotations": {CODE: code.digest}} if code is not None else {}),
        "spec": to_be.written | {"user": to_be.user},
    }
    if code is None:
        return await who.api.create(GANG_JOBS, body)
    async with who.api.trying() as trial:
        await trial.create(GANG_JOBS, body)  # the code of a job that is refused would stay: nobody hears of it
    await bring(who, code)
    made = await who.api.create(GANG_JOBS, body)
    with suppress(ApiError):  # the job is made; that its code went in this very moment is all but impossible
        await bring(who, code)
    return made


async def _taken_back(who: Caller, made: Sequence[Custom], refused: _ToBe, why: Exception) -> CannotError:
    """Delete what was made before one was refused; says so, or what is left."""
    left = []
    for each in reversed(made):
        try:
            await who.api.delete(GANG_JOBS, each.metadata)
        except ApiError:
            left.append(each.metadata.name)
    said = f"{refused.spec.name} was not made: {why}"
    if left:
        more = f"{', '.join(reversed(left))} of the same file could not be taken back"
        return CannotError("partly_submitted", f"{said}\n{more}", who.typed("stop", *reversed(left)), REFUSED)
    is_wrong = isinstance(why, ApiError) and why.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
    next_ = "kubectl explain gangjob.spec" if is_wrong else who.typed("ls")
    return CannotError("not_submitted", f"{said}\nnone of the file is there", next_, USAGE if is_wrong else REFUSED)
