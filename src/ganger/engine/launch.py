"""From a decision to start to what each launcher runs: variables, command and directory of every rank.

Pure but for the look-up of the framework. Backends get it as their `ports.LaunchPlanner`; a dry run shows its first
rank.
"""

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Final

from ganger.core.failure.retry import DEFAULT_RETRIES
from ganger.errors import RequestError
from ganger.framework_api.rank_environment import (
    HOSTFILE,
    PREFIX,
    RESERVED,
    PlacedGang,
    PlacedNode,
    hostfile,
    node_environment,
)
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Start
from ganger.model.job import Checkpoint, Job, JobSpec
from ganger.ports import LaunchPlan, RankPlan
from ganger.registry import frameworks, plugin_attribute

if TYPE_CHECKING:
    from ganger.framework_api.srun import Srun

CHIEF: Final = "chief"


def launch_plans(start: Start, job: Job, nodes: Mapping[str, Node], directory: str) -> tuple[LaunchPlan, ...]:
    """Return one plan for each node of `start`, in rank order. `directory` is absolute: where the job runs.

    Nothing is inherited: a rank gets what was submitted with the job, over it the job's `env`, over both what ganger
    sets. What ganger sets for all ranks of a node is in the plan's environment, and so reaches `setup` too. A variable
    that the framework reserves comes from ganger or not at all.

    Raise KeyError for a node that is not in `nodes`, and RequestError (unknown_framework) when the framework was
    uninstalled after submission.
    """
    spec = job.spec
    framework = frameworks().get(spec.framework)
    if framework is None:
        raise RequestError(
            "unknown_framework",
            f"framework {spec.framework} is not installed any more",
            next=f"install it again, or resubmit with one of {', '.join(sorted(frameworks()))}",
        )
    return _Composer(job, framework, place(start, job, nodes, directory)).plans(directory)


class _Composer:
    """The plans of one generation."""

    def __init__(self, job: Job, framework: ModuleType, placed: PlacedGang) -> None:
        self._job, self._framework, self._placed = job, framework, placed
        spec = job.spec
        self._agent = bool(plugin_attribute(framework, "AGENT"))
        per = plugin_attribute(framework, "PER")
        self._started = frozenset(placed.started_by(per))
        self._ends = (
            _chief_ranks(placed)
            if spec.stop_when == CHIEF or per == "gang"
            else plugin_attribute(framework, "ends")(placed)
        )
        self._per = per
        self._srun = _find_srun(spec.run)
        self._stages = {role: int(self._agent) + _start_stage(spec, role) for role in placed.roles}

    def plans(self, directory: str) -> tuple[LaunchPlan, ...]:
        """Return one plan for each node, in the order of their first rank."""
        files = {HOSTFILE: hostfile(self._placed)} | plugin_attribute(self._framework, "files")(self._placed)
        return tuple(self._plan(index, directory, files) for index in range(len(self._placed.hosts)))

    def _plan(self, index: int, directory: str, files: dict[str, str]) -> LaunchPlan:
        spec, placed = self._job.spec, self._placed
        node = placed.hosts[index]
        user_variables = self._user_variables(spec.env)
        environment = user_variables | _without_overridden(
            user_variables, node_environment(placed, index) | _spec_variables(spec), RESERVED
        )
        return LaunchPlan(
            gang=self._job.id,
            node=node.name,
            generation=placed.generation,
            directory=directory,
            setup=spec.setup,
            argv=argv_of(spec.run),
            environment=environment,
            ranks=tuple(self._rank(rank, environment) for rank in node.ranks if rank in self._started),
            checkpoint_directory=placed.checkpoint_directory,
            signal=spec.checkpoint.signal if spec.checkpoint else None,
            files=files,
            stages=1 + max(self._stages.values()),
            agent=self._agent,
        )

    def _rank(self, rank: int, environment: dict[str, str]) -> RankPlan:
        """Return the plan of a rank: what differs from the rest of the node."""
        spec, framework = self._job.spec, self._framework
        role = self._placed.share_of(rank).role
        user_variables = self._user_variables(spec.environment_of(role))
        set_variables = _without_overridden(
            user_variables,
            self._srun_variables(rank) | framework.rank_environment(self._placed, rank),
            framework.RESERVED,
        )
        differing = {
            name: value for name, value in (user_variables | set_variables).items() if environment.get(name) != value
        }
        argv = self._command(rank, spec.command_of(role))
        return RankPlan(
            rank=rank,
            environment=differing,
            argv=None if argv == argv_of(spec.run) else argv,
            ends=rank in self._ends,
            on_failure=spec.role(role).on_failure,
            stage=self._stages[role],
        )

    def _command(self, rank: int, run: str | tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that is executed as `rank`."""
        rank_command = plugin_attribute(self._framework, "rank_command")
        if self._srun is None or run != self._job.spec.run:
            return tuple(rank_command(self._placed, rank, argv_of(run)))
        return self._srun.in_directory(rank_command(self._placed, rank, self._srun.command))

    def _srun_variables(self, rank: int) -> dict[str, str]:
        """Return the variables of a task of Slurm, for a command that was written with srun."""
        if self._srun is None:
            return {}
        from ganger.framework_api.srun import srun_environment

        return srun_environment(self._placed, rank, self._per)

    def _user_variables(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables of the submission and of the spec, without those that are reserved for ganger."""
        both = self._job.origin.environment | env
        return {name: value for name, value in both.items() if not _is_reserved(name, self._framework.RESERVED)}


def _spec_variables(spec: JobSpec) -> dict[str, str]:
    """Return the variables that every process gets from the spec."""
    return _volume_variables(spec) | _parallel_variables(spec) | _param_variables(spec)


def _parallel_variables(spec: JobSpec) -> dict[str, str]:
    """Return the parallelism of the model, with the part left open computed."""
    if spec.parallel is None:
        return {}
    tp, pp = spec.parallel.tp, spec.parallel.pp
    dp = spec.parallel.dp or spec.processes // (tp * pp)
    return {"GANGER_TP": str(tp), "GANGER_PP": str(pp), "GANGER_DP": str(dp)}


def _param_variables(spec: JobSpec) -> dict[str, str]:
    """Return the parameter values of a template."""
    return {"GANGER_TRIAL_PARAMS": json.dumps(spec.params)} if spec.params else {}


def _find_srun(run: str | tuple[str, ...]) -> "Srun | None":
    if "srun" not in str(run):
        return None
    from ganger.framework_api.srun import find_srun

    return find_srun(argv_of(run))


def argv_of(run: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the command to execute for each rank: a shell line becomes an argument of /bin/sh."""
    return ("/bin/sh", "-c", run) if isinstance(run, str) else run


def place(start: Start, job: Job, nodes: Mapping[str, Node], directory: str) -> PlacedGang:
    """Return what the framework may know of a generation."""
    spec, checkpoint = job.spec, job.spec.checkpoint
    return PlacedGang(
        job_id=job.id,
        job_uid=job.uid or job.id,
        job_name=spec.name,
        generation=start.generation,
        nodes=tuple(_placed_node(share, spec, nodes[share.node]) for share in start.shares),
        host=start.host,
        port=start.port,
        max_restarts=DEFAULT_RETRIES if spec.retry.max is None else spec.retry.max,
        checkpoint_directory=_checkpoint_directory(checkpoint, directory, job.index) if checkpoint else None,
        checkpoint_every_ms=checkpoint.every_ms if checkpoint else None,
        checkpoints_kept=checkpoint.keep if checkpoint else None,
        checkpoints_kept_every=checkpoint.keep_every if checkpoint else None,
        resume=checkpoint.resume if checkpoint else "auto",
        checkpoints_skipped=start.skipped,
        array=job.array,
        index=job.index,
    )


def _checkpoint_directory(checkpoint: Checkpoint, directory: str, index: int | None) -> str:
    """Return the checkpoint directory. Elements of an array share a directory, so each gets a subdirectory."""
    path = PurePosixPath(directory) / checkpoint.dir
    return str(path if index is None else path / str(index))


def _placed_node(share: NodeShare, spec: JobSpec, node: Node) -> PlacedNode:
    role = spec.order[share.part]
    gpu = spec.role(role).resources.gpu
    return PlacedNode(
        name=node.name,
        address=node.address,
        ranks=share.ranks,
        devices=share.devices,
        gpus=tuple(node.device_ids[device] for device in share.devices) if node.device_ids else None,
        role=role,
        cpu_milli=_cpu_milli(spec, role, len(share.ranks)),
        gpu_milli=gpu.milli or 0,
        gpu_memory_bytes=gpu.memory_bytes or 0,
    )


def _cpu_milli(spec: JobSpec, role: str, ranks: int) -> int:
    """Return the CPUs of a share: one for each process unless the spec sets them."""
    requested = spec.role(role).resources.cpu_milli
    if requested is None:
        return 1000 * ranks
    return requested * ranks if role in spec.roles else requested


def _chief_ranks(placed: PlacedGang) -> tuple[int, ...]:
    """Return the ranks of the role chief; without one, rank 0."""
    return placed.roles.get(CHIEF, (0,))


def _start_stage(spec: JobSpec, role: str) -> int:
    """Return the stage in which the ranks of a role are started: by `start_order`, roles left out of it last."""
    order = spec.start_order
    return order.index(role) if role in order else len(order)


def _volume_variables(spec: JobSpec) -> dict[str, str]:
    return {f"{PREFIX}VOLUME_{volume.name.upper().replace('-', '_')}": volume.path for volume in spec.volumes}


def _is_reserved(name: str, reserved: tuple[str, ...]) -> bool:
    return name in reserved or name.startswith(PREFIX)


def _without_overridden(
    user_variables: Mapping[str, str], set_variables: Mapping[str, str], reserved: tuple[str, ...]
) -> dict[str, str]:
    """Return the variables that ganger sets, without the defaults for which the user has set a value."""
    return {
        name: value
        for name, value in set_variables.items()
        if name not in user_variables or _is_reserved(name, reserved)
    }
