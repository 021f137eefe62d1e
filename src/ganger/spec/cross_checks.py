"""What is legal by itself but not together. Called by `spec` when every field has been read."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ganger.model.job import WORKER, JobSpec
from ganger.model.terms import REQUIRED, WHOLE
from ganger.model.units import format_duration
from ganger.registry import frameworks, plugin_attribute
from ganger.spec.placement_fields import MAX_TERMS
from ganger.spec.spec_document import Loc, SpecProblem
from ganger.spec.text_fields import did_you_mean, listed

CHIEF: Final = "chief"


def contradictions(spec: JobSpec, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """A problem for each. `data` tells what was written from what is a default."""
    yield from _commands(spec, data)
    yield from _workers(spec, data)
    yield from _known_roles(spec)
    yield from _endings(spec)
    yield from _parallel(spec)
    yield from _variables(spec)
    yield from _placement(spec)
    yield from _affinity(spec)
    yield from _devices(spec)
    yield from _times(spec)
    if spec.checkpoint is not None and spec.checkpoint.keep_every and not spec.checkpoint.keep:
        what = "checkpoint.keep_every: without keep all checkpoints stay: add keep: 3, or leave it out"
        yield SpecProblem(("checkpoint", "keep_every"), what, key=True)
    for index, rule in enumerate(spec.retry.rules):
        if rule.log is None and rule.cause is None:
            what = f"retry.rules[{index}]: it fits everything: write log, cause or both"
            yield SpecProblem(("retry", "rules", index), what)
    for index in _repeated(volume.name for volume in spec.volumes):
        what = f"volumes[{index}].name: {spec.volumes[index].name!r} is given twice: choose another name"
        yield SpecProblem(("volumes", index, "name"), what)
    for index in _repeated(after.job for after in spec.after):
        what = f"after[{index}].job: {spec.after[index].job!r} is given twice: remove one"
        yield SpecProblem(("after", index, "job"), what)


def _commands(spec: JobSpec, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Every process needs a command."""
    if spec.run:
        return
    for name, role in spec.roles.items():
        if role.run is None:
            yield SpecProblem(
                ("roles", name), f"roles.{name} has no command: write run in it, or for the whole job", key=True
            )
    if not spec.roles:
        yield SpecProblem((), "run is missing: a job needs it")
    if WORKER in spec.roles:
        return
    for key in _of_workers(data):
        yield SpecProblem(
            (key,), f"{key} is for workers, and they have no command: write run, or leave {key} out", key=True
        )


def _workers(spec: JobSpec, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """The workers are described once."""
    if WORKER in spec.roles:
        for key in _of_workers(data):
            instead = "roles.worker.resources" if key == "resources" else "roles.worker.count"
            yield SpecProblem((key,), f"{key}: roles.worker replaces it: write {instead}, or leave it out", key=True)


def _of_workers(data: dict[str, Any]) -> list[str]:
    return [key for key in ("nodes", "nproc_per_node", "resources") if key in data]


def _known_roles(spec: JobSpec) -> Iterator[SpecProblem]:
    """A framework that tells each process its role has words of its own for them, and may need some of them."""
    module = frameworks().get(spec.framework)
    known: tuple[str, ...] = (plugin_attribute(module, "ROLES") if module else None) or ()
    for name in spec.roles if known else {}:
        if name not in known:
            what = f"roles.{name}: framework {spec.framework} has no such role: it knows {listed(known)}"
            yield SpecProblem(("roles", name), what + did_you_mean(name, known), key=True)
    counts = {name: spec.role(name).count for name in spec.order}
    missing = (
        plugin_attribute(module, "lacks")(counts) if module and all(name in known for name in spec.roles) else None
    )
    if missing:
        place = "roles" if spec.roles else "framework"
        yield SpecProblem((place,), f"{place}: framework {spec.framework} {missing}", key=True)


def _endings(spec: JobSpec) -> Iterator[SpecProblem]:
    """Roles that are named must be there."""
    if spec.stop_when == CHIEF and spec.roles and CHIEF not in spec.roles:
        what = f"stop_when: there is no role {CHIEF}: write roles.{CHIEF}, or all; the roles are {listed(spec.order)}"
        yield SpecProblem(("stop_when",), what)
    for index, name in enumerate(spec.start_order):
        if name not in spec.order:
            what = f"start_order: there is no role {name}: the roles are {listed(spec.order)}"
            yield SpecProblem(("start_order", index), what + did_you_mean(name, spec.order))


def _parallel(spec: JobSpec) -> Iterator[SpecProblem]:
    """The product tp x pp x dp is the number of processes."""
    if spec.parallel is None:
        return
    tp, pp, dp = spec.parallel.tp, spec.parallel.pp, spec.parallel.dp
    if dp is not None and tp * pp * dp != spec.processes:
        product = f"tp {tp} x pp {pp} x dp {dp} is {tp * pp * dp}, and the job has {_processes(spec)}"
    elif spec.processes % (tp * pp):
        product = f"tp {tp} x pp {pp} is {tp * pp}, which does not divide the job's {_processes(spec)}"
    else:
        return
    yield SpecProblem(("parallel",), f"parallel: {product}: change one of them")


def _placement(spec: JobSpec) -> Iterator[SpecProblem]:
    """A level that is required has a name; slices divide what they are of."""
    said = spec.placement
    if said.mode == REQUIRED and said.topology is None:
        what = "placement.mode: required says nothing without a level: write topology: rack"
        yield SpecProblem(("placement", "mode"), what)
    if said.sharing == WHOLE and spec.roles:
        what = "placement.sharing: whole is for nodes that are all alike, and there are roles: write exclusive"
        yield SpecProblem(("placement", "sharing"), what)
    yield from _slices(spec)


def _slices(spec: JobSpec) -> Iterator[SpecProblem]:
    """Each divides what is around it: the one before, the first the job."""
    at: Loc = ("placement", "slices")
    if spec.placement.slices and (WORKER in spec.roles or WORKER not in spec.order):
        yield SpecProblem(
            at, "placement.slices: they are of the nodes that `nodes` counts, and there are none: leave them out"
        )
        return
    for index in _repeated(said.level for said in spec.placement.slices):
        what = f"placement.slices[{index}].level: {spec.placement.slices[index].level!r} is given twice: remove one"
        yield SpecProblem((*at, index, "level"), what)
    each = spec.processes_per_node
    around, whole = spec.nodes * each, f"the job's {spec.nodes} nodes"
    for index, said in enumerate(spec.placement.slices):
        here = f"placement.slices[{index}]"
        if (said.nodes is None) == (said.ranks is None):
            yield SpecProblem((*at, index), f"{here}: write nodes or ranks, one of them")
            return
        if said.nodes is not None and around % (said.nodes * each):
            yield SpecProblem((*at, index, "nodes"), f"{here}.nodes: {said.nodes} does not divide {whole}: change one")
            return
        if said.ranks is not None and not _fits(said.ranks, each, around):
            ranks = f"{around} processes of the slice around it" if index else f"job's {_processes(spec)}"
            yield SpecProblem(
                (*at, index, "ranks"), f"{here}.ranks: {said.ranks} does not fit the {ranks}: change one of them"
            )
            return
        around = said.ranks if said.nodes is None and said.ranks else (said.nodes or 1) * each
        whole = f"the {around // each} nodes of the slice around it"


def _fits(ranks: int, each: int, around: int) -> bool:
    """Whether they are whole nodes, or a part of one, and divide what is around them."""
    return not ((ranks % each if ranks > each else each % ranks) or around % ranks)


def _affinity(spec: JobSpec) -> Iterator[SpecProblem]:
    """Not more preferences than anybody weighs."""
    if len(spec.placement.affinity.preferred) > MAX_TERMS:
        what = f"placement.affinity.preferred: a list of more than {MAX_TERMS} preferences: write fewer"
        yield SpecProblem(("placement", "affinity", "preferred"), what)


def _times(spec: JobSpec) -> Iterator[SpecProblem]:
    """The least time is less than all of it."""
    least_ms, most_ms = spec.limits.time_min_ms, spec.limits.time_ms
    at = ("limits", "time_min")
    if least_ms is not None and most_ms is None:
        yield SpecProblem(at, "limits.time_min: less than which time? write limits.time too, or leave it out")
    elif least_ms is not None and most_ms is not None and least_ms > most_ms:
        least, most = format_duration(least_ms), format_duration(most_ms)
        yield SpecProblem(at, f"limits.time_min: {least} is more than limits.time, {most}: write at most that")


def _devices(spec: JobSpec) -> Iterator[SpecProblem]:
    """Devices are named on nodes that are named, for processes that have any, and enough of them."""
    devices = spec.placement.devices
    if not devices:
        return
    at = ("placement", "devices")
    asked = [role.resources.gpu for role in map(spec.role, spec.order or (WORKER,))]
    most = max(max(gpu.count, int(gpu.is_share)) for gpu in asked)
    if not spec.placement.nodes:
        yield SpecProblem(at, "placement.devices: of which node? write placement.nodes: [n1]")
    elif not most:
        yield SpecProblem(at, "placement.devices: the job asks for no GPU: write resources.gpu, or leave it out")
    elif len(devices) < most:
        names = ", ".join(map(str, devices))
        what = f"placement.devices: {most} GPUs are asked of each node, and only {names} may be had: name more"
        yield SpecProblem(at, what)


def _processes(spec: JobSpec) -> str:
    """How many there are, and where that comes from."""
    said = f"{spec.processes} process" if spec.processes == 1 else f"{spec.processes} processes"
    return said if spec.roles else f"{said} ({spec.nodes} x {spec.processes_per_node}, nodes x nproc_per_node)"


def _variables(spec: JobSpec) -> Iterator[SpecProblem]:
    """A secret has no value in the file."""
    for index, name in enumerate(spec.secrets):
        places = {"env": spec.env, **{f"roles.{role}.env": spec.roles[role].env for role in spec.roles}}
        for where in (where for where, env in places.items() if name in env):
            what = f"secrets: {name} has a value in {where}: leave it out of one of them"
            yield SpecProblem(("secrets", index), what)


def _repeated(names: Iterable[str]) -> list[int]:
    """Indices of the names that are there before."""
    found = list(names)
    return [index for index, name in enumerate(found) if name in found[:index]]
