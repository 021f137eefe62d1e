"""From a decision to start to what each launcher runs: variables, command and directory of every rank.

Pure but for the look-up of the framework. Backends get it as their `ports.LaunchPlanner`; a dry run shows its first
rank.
"""

import json
from collections.abc import Mapping
from string import Template
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
from ganger.model.job import Job, JobSpec
from ganger.model.watch.watch_rules import IGNORE, Watch
from ganger.ports import LaunchPlan, PreflightPlan, RankPlan, WarmPlan, WatchPlan
from ganger.registry import frameworks, plugin_attribute

if TYPE_CHECKING:
    from ganger.framework_api.srun import Srun

CHIEF: Final = "chief"
LIGHTHOUSE: Final = "TORCHFT_LIGHTHOUSE"
LIGHTHOUSE_OPTIONS: Final = ("--min_replicas", "1", "--join_timeout_ms", "10000")
"""How few groups may take a step is for the script to say (`Manager(min_replica_size)`). The groups that are there wait
10 s for one that began to join and was lost again; the default is a minute."""
PREFLIGHT: Final = "ganger.train.preflight"


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
    return _Composer(job, framework, place(start, job, nodes, directory), start.preflight_ms).plans(directory)


class _Composer:
    """The plans of one generation."""

    def __init__(self, job: Job, framework: ModuleType, placed: PlacedGang, preflight_ms: int | None) -> None:
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
        self._argv = argv_of(spec.run)
        self._warm: WarmPlan | None = None
        if spec.warm:
            from ganger.framework_api.python_command import split_python_command  # rarely needed

            self._argv, words = split_python_command(spec.run)
            self._warm = WarmPlan(words=words, without=framework.RESERVED)
        # Before the first ranks, agents must listen everywhere, or what is only on the nodes must be where all see it.
        is_local = placed.checkpoint_local is not None and len(placed.hosts) > 1
        self._has_peers = is_local and spec.checkpoint is not None and spec.checkpoint.peer
        # Each node's own copies come before those that it holds of others: no two nodes ever write the same.
        barriers = int(self._agent or is_local) + int(self._has_peers)
        # Nor does a rank start while the test of another node uses the address at which it would meet the others.
        self._preflight_ms = preflight_ms
        barriers = max(barriers, int(preflight_ms is not None))
        self._stages = {role: barriers + _start_stage(spec, role) for role in placed.roles}

    def plans(self, directory: str) -> tuple[LaunchPlan, ...]:
        """Return one plan for each node, in the order of their first rank."""
        files = {HOSTFILE: hostfile(self._placed)} | plugin_attribute(self._framework, "files")(self._placed)
        return tuple(self._plan(index, directory, files) for index in range(len(self._placed.hosts)))

    def _plan(self, index: int, directory: str, files: dict[str, str]) -> LaunchPlan:
        spec, placed = self._job.spec, self._placed
        node = placed.hosts[index]
        user_variables = self._user_variables(spec.env)
        environment = user_variables | _without_overridden(
            user_variables, node_environment(placed, index) | _spec_variables(spec, placed.world_size), RESERVED
        )
        return LaunchPlan(
            gang=self._job.id,
            node=node.name,
            generation=placed.generation,
            directory=directory,
            setup=spec.setup,
            argv=self._argv,
            environment=environment,
            ranks=tuple(self._rank(rank, environment) for rank in node.ranks if rank in self._started),
            signal=spec.checkpoint.signal if spec.checkpoint else None,
            files=files,
            stages=1 + max(self._stages.values()),
            agent=self._agent,
            peer=placed.hosts[(index + 1) % len(placed.hosts)].name if self._has_peers else "",
            warm=self._warm,
            watch=_watch_plan(spec.watch),
            preflight=None if self._preflight_ms is None else _preflight_plan(spec, placed, index, self._preflight_ms),
            lighthouse=_lighthouse(spec, environment) if LIGHTHOUSE not in user_variables else (),
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
            argv=None if argv == self._argv else argv,
            ends=rank in self._ends,
            on_failure=spec.role(role).on_failure,
            stage=self._stages[role],
        )

    def _command(self, rank: int, run: str | tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that is executed as `rank`."""
        rank_command = plugin_attribute(self._framework, "rank_command")
        if self._srun is None or run != self._job.spec.run:
            argv = self._argv if run == self._job.spec.run else argv_of(run)
            return tuple(rank_command(self._placed, rank, argv))
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


def _watch_plan(watch: Watch | None) -> WatchPlan | None:
    """Return what the loss watch follows, None if none of its findings matters to the job."""
    if watch is None:
        return WatchPlan(metric=Watch().metric)
    if {watch.nan, watch.spike, watch.stall, watch.slow} == {IGNORE}:
        return None
    texts = watch.markers
    markers = {"step": texts.step, "loss": texts.loss, "nan_steps": texts.nan_steps or ""} if texts else None
    return WatchPlan(metric=watch.metric, markers=markers)


def _lighthouse(spec: JobSpec, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command of torchft's lighthouse, from the environment of the job's Python; empty without groups.

    No shell will expand the path of a Python in a line such as `~/venv/bin/python train.py`. A variable that is not in
    `environment` stays: only a container's image may have it.
    """
    if not spec.replica_groups:
        return ()
    from ganger.framework_api.python_command import python_of  # rarely needed

    folder, slash, _ = python_of(spec.run)[0].rpartition("/")
    if isinstance(spec.run, str):
        folder = f"$HOME{folder[1:]}" if folder.partition("/")[0] == "~" else folder.lstrip('"')
        folder = Template(folder).safe_substitute(environment)
    return (f"{folder}{slash}torchft_lighthouse", *LIGHTHOUSE_OPTIONS)


def _preflight_plan(spec: JobSpec, placed: PlacedGang, index: int, timeout_ms: int) -> PreflightPlan:
    """Return the test of nodes, one process each, by the Python of the job."""
    from ganger.framework_api.python_command import python_of  # rarely needed

    environment = {"GANGER_RANK": str(index), "WORLD_SIZE": str(len(placed.hosts))}
    environment |= {"MASTER_ADDR": placed.host, "MASTER_PORT": str(placed.port)}
    argv = (*python_of(spec.run), "-m", PREFLIGHT)
    return PreflightPlan(argv=argv, environment=environment, timeout_s=max(1, timeout_ms // 1000))


def _spec_variables(spec: JobSpec, ranks: int) -> dict[str, str]:
    """Return the variables that every process gets from the spec, in a generation of that many ranks."""
    variables = _volume_variables(spec) | _parallel_variables(spec, ranks) | _param_variables(spec)
    return variables | (_elastic_variables(spec, ranks) if spec.elastic_role else {})


def _elastic_variables(spec: JobSpec, ranks: int) -> dict[str, str]:
    """Return the range of sizes of an elastic gang, and its batch at that size."""
    variables = {"GANGER_MIN_NODES": str(spec.sizes[0]), "GANGER_MAX_NODES": str(spec.sizes[-1])}
    batch, min_ranks = spec.elastic.batch if spec.elastic else None, spec.elastic_ranks(spec.sizes[0])
    if batch is None:
        return variables
    ranks -= spec.processes - min_ranks  # those of the other roles
    per_rank = batch.per_rank(ranks, min_ranks)
    return (
        variables
        | ({} if per_rank is None else {"GANGER_BATCH_PER_RANK": str(per_rank)})
        | {"GANGER_LR_SCALE": f"{batch.lr_scale(ranks, min_ranks):.6g}"}
    )


def _parallel_variables(spec: JobSpec, ranks: int) -> dict[str, str]:
    """Return the parallelism of the model, with the part left open computed."""
    if spec.parallel is None:
        return {}
    tp, pp = spec.parallel.tp, spec.parallel.pp
    dp = spec.parallel.dp or ranks // (tp * pp)
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
        checkpoint_directory=job.checkpoint_directory(directory),
        checkpoint_local=checkpoint.local if checkpoint else None,
        checkpoint_pattern=checkpoint.pattern if checkpoint else None,
        checkpoint_every_ms=start.save_interval_ms(checkpoint.every_ms) if checkpoint else None,
        checkpoints_kept=checkpoint.keep if checkpoint else None,
        checkpoints_kept_every=checkpoint.keep_every if checkpoint else None,
        checkpoints_in_place=checkpoint is not None and checkpoint.in_place,
        resumes=job.resumes,
        checkpoints_skipped=start.skipped,
        rollback=start.rollback,
        array=job.array,
        index=job.index,
        replica_groups=len(spec.array.indices) if spec.replica_groups and spec.array else None,
    )


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
