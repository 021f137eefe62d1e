"""Checks across fields, made when every field has been parsed."""

from collections.abc import Iterable, Iterator
from itertools import islice
from posixpath import isabs
from typing import Any, Final

from ganger.model.job import WORKER, JobSpec
from ganger.model.job_sections.placement_spec import CONSTANT_GLOBAL, CUSTOM
from ganger.model.terms import REQUIRED, WHOLE
from ganger.model.units import format_duration
from ganger.model.watch.watch_rules import ROLLBACK, Finding
from ganger.registry import frameworks, plugin_attribute
from ganger.spec.infer_framework import command_words
from ganger.spec.placement_fields import MAX_TERMS
from ganger.spec.spec_document import Loc, SpecProblem, format_location
from ganger.spec.text_fields import did_you_mean, join_words

CHIEF: Final = "chief"
MAX_SHOWN: Final = 5
"""Sizes of an elastic gang that an error names."""


def find_contradictions(spec: JobSpec, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Yield a problem for each contradiction. `data` distinguishes what was written from default values."""
    yield from _commands(spec, data)
    yield from _workers(spec, data)
    yield from _known_roles(spec)
    yield from _endings(spec)
    yield from _elastic(spec)
    yield from _replica_groups(spec, data)
    yield from _spares(spec)
    yield from _parallel(spec)
    yield from _variables(spec)
    yield from _placement(spec)
    yield from _affinity(spec)
    yield from _devices(spec)
    yield from _times(spec)
    yield from _warm(spec)
    yield from _checkpoints(spec)
    yield from _watch(spec)
    if spec.pod is not None or any(role.pod is not None for role in spec.roles.values()):
        from ganger.spec.kubernetes.pod_fields import pod_problems

        yield from pod_problems(spec)
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


def _checkpoints(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check what is kept, and that the two places of checkpoints are apart."""
    checkpoint = spec.checkpoint
    if checkpoint is None:
        return
    if checkpoint.keep_every and not checkpoint.keep:
        what = "checkpoint.keep_every: without keep all checkpoints stay: add keep: 3, or leave it out"
        yield SpecProblem(("checkpoint", "keep_every"), what, key=True)
    if isabs(checkpoint.dir) and (overlap := checkpoint.overlap("/")):  # else it depends on where the job runs
        yield SpecProblem(("checkpoint", "local"), f"checkpoint.local: {overlap}")
    if checkpoint.peer and checkpoint.local is None:
        what = "checkpoint.peer: it copies what is saved on a node: add local: /nvme, or leave it out"
        yield SpecProblem(("checkpoint", "peer"), what, key=True)
    elif checkpoint.peer and not spec.roles and (spec.max_nodes or spec.nodes) == 1:
        what = "checkpoint.peer: the job has one node, and no other one to copy to: leave it out"
        yield SpecProblem(("checkpoint", "peer"), what, key=True)


def _watch(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that the loss is looked for in one way, and that a job that is to roll back can."""
    watch = spec.watch
    if watch is None:
        return
    if watch.log_format and watch.log:
        what = "watch.log: the lines have one format: leave out log or log_format"
        yield SpecProblem(("watch", "log"), what, key=True)
    for finding in Finding:
        if getattr(watch, finding) == ROLLBACK and not spec.has_steps:
            what = f"watch.{finding}: a rollback needs a checkpoint for each step: add checkpoint, or write stop"
            yield SpecProblem(("watch", finding.value), what)


def _commands(spec: JobSpec, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Check that every process has a command."""
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
    """Check that the workers are described once."""
    if WORKER in spec.roles:
        for key in _of_workers(data):
            instead = "roles.worker.resources" if key == "resources" else "roles.worker.count"
            yield SpecProblem((key,), f"{key}: roles.worker replaces it: write {instead}, or leave it out", key=True)


def _of_workers(data: dict[str, Any]) -> list[str]:
    return [key for key in ("nodes", "nproc_per_node", "resources") if key in data]


def _known_roles(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check the roles of a framework that has names of its own for them, and may need some of them."""
    module = frameworks().get(spec.framework)
    known: tuple[str, ...] = (plugin_attribute(module, "ROLES") if module else None) or ()
    for name in spec.roles if known else {}:
        if name not in known:
            what = f"roles.{name}: framework {spec.framework} has no such role: it knows {join_words(known)}"
            yield SpecProblem(("roles", name), what + did_you_mean(name, known), key=True)
    counts = {name: spec.role(name).count for name in spec.order}
    missing = (
        plugin_attribute(module, "lacks")(counts) if module and all(name in known for name in spec.roles) else None
    )
    if missing:
        place = "roles" if spec.roles else "framework"
        yield SpecProblem((place,), f"{place}: framework {spec.framework} {missing}", key=True)


def _endings(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that the roles that are named exist."""
    if spec.stop_when == CHIEF and spec.roles and CHIEF not in spec.roles:
        what = (
            f"stop_when: there is no role {CHIEF}: write roles.{CHIEF}, or all; the roles are {join_words(spec.order)}"
        )
        yield SpecProblem(("stop_when",), what)
    for index, name in enumerate(spec.start_order):
        if name not in spec.order:
            what = f"start_order: there is no role {name}: the roles are {join_words(spec.order)}"
            yield SpecProblem(("start_order", index), what + did_you_mean(name, spec.order))


def _replica_groups(spec: JobSpec, data: dict[str, Any]) -> Iterator[SpecProblem]:
    """Check that replica groups are alike, of one size, and numbered by themselves."""
    reasons = {
        "array": ("array" in data, "the groups are the elements of an array, from 0"),
        "a range": (spec.elastic_role, "a group has one size; write a range of groups, such as replica_groups: 2..4"),
        "roles": (spec.roles, "each group would have all of them"),
        "placement.nodes": (spec.placement.nodes, "it names the nodes of one gang"),
    }
    for other, (is_set, reason) in reasons.items():
        if is_set and spec.replica_groups:
            what = f"replica_groups: not with {other}: {reason}: leave one of them out"
            yield SpecProblem(("replica_groups",), what, key=True)


def _spares(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that spare nodes are like all others, so that any of them can be replaced by one."""
    reasons = {
        "the roles of a job may share nodes": spec.roles,
        "an elastic job goes on with the nodes that are left": spec.elastic_role,
        "slices have whole nodes of one domain": spec.placement.slices,
        "placement.nodes names the nodes": spec.placement.nodes,
    }
    for reason in (reason for reason, is_set in reasons.items() if is_set):
        if spec.spares:
            what = f"spares: {reason}: leave it out, or set it to 0"
            yield SpecProblem(("spares",), what, key=True)


def _elastic(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that a gang can have every size of its range, with its framework, its parallelism and its batch."""
    paths: list[Loc] = [("nodes",)] if spec.max_nodes else []
    paths += [("roles", name, "count") for name, role in spec.roles.items() if role.max_count]
    if not paths:
        if spec.elastic is not None:
            what = "elastic: the job has one size: write a range, such as nodes: 2..8, or leave elastic out"
            yield SpecProblem(("elastic",), what, key=True)
        return
    path, *others = paths
    for other in others:
        what = f"{format_location(other)}: {format_location(path)} is a range too: write one number in one of them"
        yield SpecProblem(other, what)
    least, most = spec.sizes.start, spec.sizes.stop - 1
    module = frameworks().get(spec.framework)
    if module and (reason := plugin_attribute(module, "fixed_size")(command_words(spec.run))):
        yield SpecProblem(path, f"{format_location(path)}: {least}..{most} is a range, and {reason}")
    step, level = (spec.elastic.step, spec.elastic.level) if spec.elastic else (1, None)
    noun = "nodes" if spec.max_nodes else "processes"
    if (most - least) % step:
        what = f"elastic.step: {step} does not lead from {least} to {most} {noun}: change one of them"
        yield SpecProblem(("elastic", "step"), what)
    elif level is not None and not spec.max_nodes:
        what = "elastic.level: the nodes of a step are within one domain, and a role has processes: leave it out"
        yield SpecProblem(("elastic", "level"), what)
    elif level is not None and spec.placement.slices:
        what = "elastic.level: placement.slices says what is within one domain: leave one of them out"
        yield SpecProblem(("elastic", "level"), what)
    elif level is not None and spec.nodes % step:
        what = (
            f"elastic.step: {step} nodes in one {level} do not divide the minimum of {spec.nodes}: change one of them"
        )
        yield SpecProblem(("elastic", "step"), what)
    else:
        yield from _batch(spec)
        # What divides two sizes divides all others.
        larger = spec.resized(least + step)
        yield from () if any(_parallel(spec)) else _parallel(larger)
        yield from () if any(_slices(spec)) else _slices(larger)


def _batch(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that the batch can be divided among the processes, at every size at which it is."""
    batch = spec.elastic.batch if spec.elastic else None
    if batch is None or batch.policy == CUSTOM:
        return
    divided = spec.sizes if batch.policy == CONSTANT_GLOBAL else spec.sizes[:1]
    failing = [size for size in divided if batch.global_samples % spec.elastic_ranks(size)]
    if failing:
        shown = join_words([*map(str, islice(failing, MAX_SHOWN)), *["..."] * (len(failing) > MAX_SHOWN)])
        among = f"the processes of {shown} nodes ({spec.processes_per_node} on each)"
        among = among if spec.max_nodes else f"{shown} processes of {spec.elastic_role}"
        what = (
            f"elastic.batch.global: {batch.global_samples} samples cannot be divided among {among}: "
            f"change it, the range or the step"
        )
        yield SpecProblem(("elastic", "batch", "global"), what)


def _parallel(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that tp x pp x dp is the number of processes."""
    if spec.parallel is None:
        return
    tp, pp, dp = spec.parallel.tp, spec.parallel.pp, spec.parallel.dp
    if dp is not None and spec.elastic_role is not None:
        what = "nodes" if spec.max_nodes else f"roles.{spec.elastic_role}.count"
        product = f"dp {dp} is one size, and {what} is a range: leave dp out"
        yield SpecProblem(("parallel", "dp"), f"parallel.dp: {product}")
        return
    if dp is not None and tp * pp * dp != spec.processes:
        product = f"tp {tp} x pp {pp} x dp {dp} is {tp * pp * dp}, and the job has {_processes(spec)}"
    elif spec.processes % (tp * pp):
        product = f"tp {tp} x pp {pp} is {tp * pp}, which does not divide the job's {_processes(spec)}"
    else:
        return
    yield SpecProblem(("parallel",), f"parallel: {product}: change one of them")


def _placement(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that a required level is named, and the slices."""
    constraints = spec.placement
    if constraints.mode == REQUIRED and constraints.topology is None:
        what = "placement.mode: required says nothing without a level: write topology: rack"
        yield SpecProblem(("placement", "mode"), what)
    if constraints.sharing == WHOLE and spec.roles:
        what = "placement.sharing: whole is for nodes that are all alike, and there are roles: write exclusive"
        yield SpecProblem(("placement", "sharing"), what)
    yield from _slices(spec)


def _slices(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that each slice divides what it is part of: the slice before it; for the first, the job."""
    path: Loc = ("placement", "slices")
    if spec.placement.slices and (WORKER in spec.roles or WORKER not in spec.order):
        yield SpecProblem(
            path, "placement.slices: slices divide the nodes of `nodes`, and there are none: leave them out"
        )
        return
    for index in _repeated(group.level for group in spec.placement.slices):
        what = f"placement.slices[{index}].level: {spec.placement.slices[index].level!r} is given twice: remove one"
        yield SpecProblem((*path, index, "level"), what)
    per_node = spec.processes_per_node
    outer_ranks, outer_text = spec.nodes * per_node, f"the job's {spec.nodes} nodes"
    for index, group in enumerate(spec.placement.slices):
        prefix = f"placement.slices[{index}]"
        if (group.nodes is None) == (group.ranks is None):
            yield SpecProblem((*path, index), f"{prefix}: write nodes or ranks, one of them")
            return
        if group.nodes is not None and outer_ranks % (group.nodes * per_node):
            yield SpecProblem(
                (*path, index, "nodes"), f"{prefix}.nodes: {group.nodes} does not divide {outer_text}: change one"
            )
            return
        if group.ranks is not None and not _fits(group.ranks, per_node, outer_ranks):
            ranks = f"{outer_ranks} processes of the slice around it" if index else f"job's {_processes(spec)}"
            yield SpecProblem(
                (*path, index, "ranks"), f"{prefix}.ranks: {group.ranks} does not fit the {ranks}: change one of them"
            )
            return
        outer_ranks = group.ranks if group.nodes is None and group.ranks else (group.nodes or 1) * per_node
        outer_text = f"the {outer_ranks // per_node} nodes of the slice around it"


def _fits(ranks: int, per_node: int, outer_ranks: int) -> bool:
    """Return whether the ranks fill whole nodes, or divide one, and divide the ranks of the slice around them."""
    return not ((ranks % per_node if ranks > per_node else per_node % ranks) or outer_ranks % ranks)


def _affinity(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check the number of preferences."""
    if len(spec.placement.affinity.preferred) > MAX_TERMS:
        what = f"placement.affinity.preferred: a list of more than {MAX_TERMS} preferences: write fewer"
        yield SpecProblem(("placement", "affinity", "preferred"), what)


def _times(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that the minimum time is at most the time limit."""
    min_ms, max_ms = spec.limits.time_min_ms, spec.limits.time_ms
    path = ("limits", "time_min")
    if min_ms is not None and max_ms is None:
        yield SpecProblem(path, "limits.time_min: it requires limits.time: write both, or leave it out")
    elif min_ms is not None and max_ms is not None and min_ms > max_ms:
        shortest, longest = format_duration(min_ms), format_duration(max_ms)
        yield SpecProblem(path, f"limits.time_min: {shortest} is more than limits.time, {longest}: write at most that")


def _devices(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that devices are named together with nodes, for processes with GPUs, and enough of them."""
    devices = spec.placement.devices
    if not devices:
        return
    path = ("placement", "devices")
    gpu_requests = [role.resources.gpu for role in map(spec.role, spec.order or (WORKER,))]
    max_gpus = max(max(gpu.count, int(gpu.is_share)) for gpu in gpu_requests)
    if not spec.placement.nodes:
        yield SpecProblem(path, "placement.devices: it requires placement.nodes: write placement.nodes: [n1]")
    elif not max_gpus and not any(map(spec.claims_of, spec.order or (WORKER,))):
        yield SpecProblem(path, "placement.devices: the job asks for no GPU: write resources.gpu, or leave it out")
    elif len(devices) < max_gpus:
        names = ", ".join(map(str, devices))
        what = f"placement.devices: {max_gpus} GPUs are requested on each node, and only {names} are allowed: add more"
        yield SpecProblem(path, what)


def _warm(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that the launcher itself starts every rank, by one plain call of Python."""
    if not spec.warm:
        return
    from ganger.framework_api.python_command import split_python_command  # rarely needed

    module = frameworks().get(spec.framework)
    own_command = next((name for name, role in spec.roles.items() if role.run is not None), None)
    reason = ""
    if spec.image is not None:
        reason = "every attempt in a container image begins in a new container"
    elif module is not None and (plugin_attribute(module, "PER") != "rank" or hasattr(module, "rank_command")):
        reason = f"framework {spec.framework} starts the ranks itself"
    elif own_command is not None:
        reason = f"roles.{own_command} has a command of its own"
    else:
        try:
            split_python_command(spec.run)
        except ValueError as error:
            reason = f"run: {error}"
    if reason:
        what = f"warm: only ranks of one command python SCRIPT can be forked, and {reason}: leave it out"
        yield SpecProblem(("warm",), what)


def _processes(spec: JobSpec) -> str:
    """Return the number of processes as text, and how it is computed."""
    text = f"{spec.processes} process" if spec.processes == 1 else f"{spec.processes} processes"
    return text if spec.roles else f"{text} ({spec.nodes} x {spec.processes_per_node}, nodes x nproc_per_node)"


def _variables(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that no secret has a value in the file."""
    for index, name in enumerate(spec.secrets):
        places = {"env": spec.env, **{f"roles.{role}.env": spec.roles[role].env for role in spec.roles}}
        for where in (where for where, env in places.items() if name in env):
            what = f"secrets: {name} has a value in {where}: leave it out of one of them"
            yield SpecProblem(("secrets", index), what)


def _repeated(names: Iterable[str]) -> list[int]:
    """Return the indices of names that occurred before."""
    all_names = list(names)
    return [index for index, name in enumerate(all_names) if name in all_names[:index]]
