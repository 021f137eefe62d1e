"""Jobs: the specification that a user writes (JobSpec), the job that the server makes of it (Job), and its states.

The metadata of each field of a spec carries the key that the user writes where it differs, the form of its text (`spec`
has one parser for each form) and one sentence of documentation. Validation, the JSON Schema and the schema of the
custom resource are derived from these classes, so that a field is described once. Terms follow Slurm, torch and
Kubernetes: nodes, nproc_per_node, queue, priority.
"""

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from pathlib import PurePosixPath
from typing import Any, Final

from ganger.model.described import described as _spec
from ganger.model.job_sections.checkpoint_spec import Checkpoint, ResumeSource
from ganger.model.job_sections.placement_spec import Elastic, Placement
from ganger.model.job_sections.pod_spec import PodSection, RolePod
from ganger.model.job_sections.retry_spec import Limits, Retry
from ganger.model.shape import Shape
from ganger.model.terms import REQUIRED, Layout, Selector, Slices
from ganger.model.watch.watch_rules import Watch

PRIORITIES: Final = {"low": -100, "normal": 0, "high": 100}
"""Names of common priorities; any integer from -1000 to 1000 is valid."""
MAX_PRIORITY: Final = 1000

WORKER: Final = "worker"
"""The role of the processes that `nodes` and `run` describe."""
FIRST_ROLES: Final = ("chief", "master", "head", "scheduler")
"""Roles that get the first ranks, in whatever order the spec lists them."""
MIN_EVICTION_S: Final = 30
"""The least time of an eviction: the default of Kubernetes for a pod."""
STOP_S: Final = 7
"""Part of that time that remains after the notice of the ranks: 5 s between SIGTERM and SIGKILL, 2 s for the report."""
UID_DIGITS: Final = 8
"""Of a uid, in the name of a directory: of jobs of one id there are few."""
_ELEMENT: Final = re.compile(r"(?P<array>[^\[\]]*)\[(?P<index>0|[1-9][0-9]{0,17})\]")
"""The id of an array element; SQLite integers have a little more than 18 digits."""


class GangState(StrEnum):
    """The lifecycle state of a gang; `core.state.lifecycle` has the table of transitions."""

    PENDING = "pending"
    SUSPENDED = "suspended"
    STARTING = "starting"
    RUNNING = "running"
    RESIZING = "resizing"
    REQUEUEING = "requeueing"
    SUSPENDING = "suspending"
    FINISHING = "finishing"
    FAILING = "failing"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


ELSEWHERE: Final = "a job of another namespace"
"""Stands for the id of a job that a reader of objects of a cluster, or of an answer, may not know."""
ENDED: Final = (GangState.SUCCEEDED, GangState.FAILED, GangState.STOPPED)
"""Final states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """GPUs of each node: a number of whole GPUs, or a share of one.

    `type` is compared without regard to case; None: any type.
    """

    count: int = _spec("number of GPUs: 8", form="gpu_count", default=0)
    type: str | None = _spec(
        "GPU type: H100; [H100, A100]: all nodes of the first type, or else all of the second; unset: any",
        form="gpu_types",
        key="type",
        default=None,
    )
    other_types: tuple[str, ...] = _spec("the types after the first", form="gpu_types", key="type", default=())
    milli: int | None = _spec(
        "a share of one GPU instead of whole GPUs: thousandths of its compute; unset, with memory: in proportion "
        "to the memory",
        form="gpu_milli",
        default=None,
    )
    memory_bytes: int | None = _spec(
        "GPU memory of the share: 10Gi; unset: not counted", form="gpu_memory", key="memory", default=None
    )
    resources: tuple[str, ...] = ()
    """Extended resources by which pods may ask for these GPUs, all of a gang for the same; empty: any."""

    @property
    def is_share(self) -> bool:
        """True if a share of one GPU is requested."""
        return self.milli is not None or self.memory_bytes is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of each node of the gang. Unset CPU means one CPU for each process."""

    gpu: GpuRequest = _spec(
        "GPUs per node: 8, H100:8 to name the type, H100,A100:8 for the first of several types, or a share of "
        "one: {milli: 500, memory: 10Gi}",
        form="gpu",
        factory=GpuRequest,
    )
    cpu_milli: int | None = _spec("CPUs per node: 4, 0.5 or 500m", form="cpu", key="cpu", default=None)
    memory_bytes: int = _spec(
        "memory per node: 64Gi; a limit on Kubernetes, elsewhere only counted", form="bytes", key="memory", default=0
    )
    extended: dict[str, int] = _spec(
        "other resources per node, by the names that nodes have for them: {rdma/hca: 1, ephemeral-storage: 50Gi}",
        form="extended",
        factory=dict,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Processes besides the workers: `count` of them, each with its own resources; they may share nodes."""

    count: int = _spec(
        "number of processes; 2..8: elastic, the job starts with as few as 2 of them", form="process_range", default=1
    )
    max_count: int | None = _spec(
        "the most processes of an elastic role", form="process_range", key="count", default=None
    )
    resources: Resources = _spec("resources of each process", factory=Resources)
    run: str | tuple[str, ...] | None = _spec(
        "command of these processes; unset: that of the job", form="command", default=None
    )
    env: dict[str, str] = _spec(
        "environment variables of these processes, in addition to the job's; they override those of the same name",
        form="env",
        factory=dict,
    )
    on_failure: str = _spec(
        "restart: the whole job restarts, subject to its retry; fail: the job fails at once; ignore: the other "
        "processes continue",
        form="on_failure",
        default="restart",
    )
    pod: RolePod | None = _spec("on Kubernetes, what each process needs of its pod", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Parallelism of a large model. The product of the sizes must be the number of processes."""

    tp: int = _spec("tensor parallel size", form="degree", default=1)
    pp: int = _spec("pipeline parallel size", form="degree", default=1)
    dp: int | None = _spec(
        "data parallel size; unset: the number of processes divided by the other sizes", form="degree", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """A dependency: the outcome that another job must have before this one may start."""

    job: str = _spec("name or id of the other job; a name: the newest job of that name at submission", form="job")
    when: str = _spec(
        "succeeded, failed (ended in any other way, including stopped) or ended", form="when", default="succeeded"
    )

    def holds(self, state: GangState) -> bool:
        """Return whether a job that ended in this state satisfies the dependency."""
        return self.when == "ended" or (state is GangState.SUCCEEDED) == (self.when == "succeeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """The elements of an array job, ascending; `limit`: how many run at a time. Written as text: 0-99%10."""

    indices: tuple[int, ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitCode:
    """Code from a Git repository."""

    git: str = _spec("URL of the repository: https, ssh, git or file", form="git_url")
    ref: str = _spec("branch, tag or commit", form="git_ref", default="HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A directory whose path processes get in GANGER_VOLUME_NAME, with NAME in capitals and _ for -."""

    name: str = _spec("name of the volume", form="name")
    path: str = _spec("absolute path of an existing directory", form="absolute_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as the user describes it, parsed.

    Attributes:
        run: A shell line, or a tuple of arguments that is executed as it is; empty when every role has its own.
        templates: The keys that have parameters as they were written, before `params` were inserted; no key of a file.
    """

    name: str = _spec("name of the job; its id is the name and a suffix", form="name", default="job")
    queue: str = _spec("queue that the job is submitted to", form="name", default="default")
    priority: int = _spec("low, normal, high, or an integer from -1000 to 1000", form="priority", default=0)
    framework: str = _spec(
        "framework plug-in: which environment variables each process gets, and who starts the processes",
        form="framework",
        default="plain",
    )
    nodes: int = _spec(
        "number of nodes of the gang: all start together, or none; 2..8: elastic, it starts with as few as 2 and grows "
        "into idle nodes",
        form="node_range",
        default=1,
    )
    max_nodes: int | None = _spec("the most nodes of an elastic gang", form="node_range", key="nodes", default=None)
    spares: int | None = _spec(
        "nodes that the job holds beside its own, in the same domain: when it loses a node, it goes on at once with "
        "one of them; unset: as the policy says",
        form="spares",
        default=None,
    )
    replica_groups: int | None = _spec(
        "replica groups, each of `nodes` nodes: the unit of failure of a framework that trains on without one, such as "
        "torchft; all start together, each comes back alone; 2..4: starts with as few as 2, the others as they fit",
        form="group_range",
        default=None,
    )
    max_replica_groups: int | None = _spec(
        "the most replica groups", form="group_range", key="replica_groups", default=None
    )
    elastic: Elastic | None = _spec("how a gang with a range of nodes, or of a role, is resized", default=None)
    nproc_per_node: int | None = _spec(
        "processes per node; auto: one per GPU, or 1 without GPUs", form="nproc", default=None
    )
    resources: Resources = _spec("resources of each node of the gang", factory=Resources)
    placement: Placement = _spec("constraints and preferences on nodes and topology", factory=Placement)
    parallel: Parallel | None = _spec("parallelism of a large model over the processes", default=None)
    roles: dict[str, Role] = _spec(
        "processes besides the workers, by role: chief, ps, evaluator ...; roles.worker replaces nodes", factory=dict
    )
    stop_when: str = _spec(
        "all: the job ends when all processes have ended; chief: when the role chief has ended, or rank 0 of a "
        "job without roles",
        form="stop_when",
        default="all",
    )
    start_order: tuple[str, ...] = _spec(
        "roles that start one after the other, before all others", form="roles", default=()
    )
    code: str | GitCode | None = _spec(
        "code copied at submission: a directory, or a repository; unset: run in place", form="code", default=None
    )
    image: str | None = _spec(
        "container image on Kubernetes; on other backends the job uses the programs of the node",
        form="image",
        default=None,
    )
    pod: PodSection | None = _spec(
        "fields of the pods on Kubernetes, in its own keys, which ganger merges onto the pods that it makes; other "
        "backends refuse it",
        default=None,
    )
    volumes: tuple[Volume, ...] = _spec(
        "directories whose paths the processes get in environment variables", default=()
    )
    setup: str | None = _spec("shell line run once on each node before the processes start", form="shell", default=None)
    run: str | tuple[str, ...] = _spec("command of every process", form="command", default=())
    env: dict[str, str] = _spec("environment variables of every process", form="env", factory=dict)
    secrets: tuple[str, ...] = _spec(
        "variables whose values are never shown: taken from the submitting shell, else from `ganger secret set`",
        form="secrets",
        default=(),
    )
    warm: bool = _spec(
        "true: ranks are forked from a process that has imported the installed modules of the script, after failures "
        "too, which takes a fraction of the time; for Python scripts",
        form="flag",
        default=False,
    )
    params: dict[str, str] = _spec(
        "values for ${{ params.NAME }} in run, setup, env and parallel; --param NAME=VALUE overrides one",
        form="params",
        factory=dict,
    )
    templates: dict[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint | None = _spec("checkpointing", default=None)
    watch: Watch | None = _spec("watching loss and step time, and the consequences", default=None)
    movable: bool = _spec(
        "true: the job may be stopped, with the notice of its checkpoint section, and started again at once on other "
        "nodes so that a larger job fits (`ganger defrag`)",
        form="flag",
        default=False,
    )
    retry: Retry = _spec("retries after failures", factory=Retry)
    preemptible: bool = _spec(
        "false: never preempted for another job; the queue must allow it (allow_non_preemptible)",
        form="flag",
        default=True,
    )
    limits: Limits = _spec("limits after which the job is ended", factory=Limits)
    after: tuple[After, ...] = _spec("dependencies on other jobs", default=())
    array: Array | None = _spec(
        "array job, one element for each index: 0-99, 1,3,5-9:2; 0-99%10: at most ten at a time",
        form="array",
        default=None,
    )
    labels: dict[str, str] = _spec("labels for selecting jobs, as in Kubernetes", form="labels", factory=dict)
    notes: str | None = _spec("free text", form="notes", default=None)

    @property
    def processes_per_node(self) -> int:
        """The workers on each node, with `auto` resolved: one for each requested GPU, or one."""
        return self.nproc_per_node or self.resources.gpu.count or 1

    @property
    def has_steps(self) -> bool:
        """True if its checkpoints are identified by their steps, so that it can return to an older one."""
        return self.checkpoint is not None and (self.checkpoint.pattern is None or "*" in self.checkpoint.pattern)

    def resumption_of(self, job: str, newest_step: int | None) -> dict[str, Any]:
        """Return the overrides with which a new job goes on where a job of this spec ended.

        job: the name or id of that.
        newest_step: of its newest checkpoint, None if it has saved none; of an array, each element has its own.
        """
        if newest_step is None and (self.array is None or split_element_id(job) is not None):
            return {}
        # A job without the section has no grace period.
        return {"checkpoint": {"resume_from": job} | ({} if self.checkpoint else {"grace": 0})}

    def resuming_like(self, other: "JobSpec | None") -> "JobSpec":
        """Return the spec with the `resume_from` of another one; without it, if that is None."""
        if self.checkpoint is None:
            return self
        resume_from = other.checkpoint.resume_from if other is not None and other.checkpoint is not None else None
        return replace(self, checkpoint=replace(self.checkpoint, resume_from=resume_from))

    @property
    def elastic_role(self) -> str | None:
        """The role whose size is a range; None for a job of one size."""
        if self.max_nodes is not None:
            return WORKER
        return next((name for name, role in self.roles.items() if role.max_count is not None), None)

    @property
    def elastic_part(self) -> int:
        """The part of the shape that the elastic role is; the first one for a job of one size."""
        role = self.elastic_role if self.roles else None
        return self.order.index(role) if role else 0

    @property
    def sizes(self) -> range:
        """The numbers of nodes that the gang may have, or of processes of its elastic role, ascending."""
        role = self.roles.get(self.elastic_role or "") if self.roles else None
        low, high = (role.count, role.max_count) if role else (self.nodes, self.max_nodes)
        return range(low, (high or low) + 1, self.elastic.step if self.elastic else 1)

    def elastic_ranks(self, size: int) -> int:
        """Return the number of processes that the elastic part has at a size."""
        return size if self.elastic_role in self.roles else size * self.processes_per_node

    def resized(self, size: int) -> "JobSpec":
        """Return the spec of the same job with one size."""
        name = self.elastic_role or WORKER
        if name not in self.roles:
            return replace(self, nodes=size, max_nodes=None, elastic=None)
        roles = self.roles | {name: replace(self.roles[name], count=size, max_count=None)}
        return replace(self, roles=roles, elastic=None)

    @property
    def order(self) -> tuple[str, ...]:
        """The roles in the order of their ranks: chief and its synonyms, the workers, the others as written."""
        first = [name for name in FIRST_ROLES if name in self.roles]
        workers = [WORKER] if self.run or WORKER in self.roles else []
        return (*first, *workers, *(name for name in self.roles if name not in (*first, WORKER)))

    @property
    def has_node_workers(self) -> bool:
        """True if there are workers that `nodes` describes."""
        return WORKER not in self.roles and (bool(self.run) or not self.roles)

    @property
    def eviction_s(self) -> int:
        """The seconds between SIGTERM for a launcher and SIGKILL when another program ends it.

        They suffice for the job's notice and for what follows it.
        """
        notice_ms = self.checkpoint.grace_ms if self.checkpoint else 0
        return max(MIN_EVICTION_S, ceil(notice_ms / 1000) + STOP_S)

    def role(self, name: str) -> Role:
        """Return a role of `order`; for the workers that `nodes` describes, one with the resources of a node."""
        if name in self.roles:
            return self.roles[name]
        return Role(count=self.nodes * self.processes_per_node, resources=self.resources)

    @property
    def processes(self) -> int:
        """The number of processes of the gang: its world size."""
        return sum(self.role(name).count for name in self.order)

    def command_of(self, name: str) -> str | tuple[str, ...]:
        """Return the command of the processes of a role."""
        return self.role(name).run or self.run

    def environment_of(self, name: str) -> dict[str, str]:
        """Return the variables that the user sets for the processes of a role."""
        return self.env | self.role(name).env

    def claims_of(self, name: str) -> list[dict[str, Any]]:
        """Return the ResourceClaims of each process of a role on Kubernetes; of each node for those of `nodes`."""
        role = self.roles.get(name)
        section = self.pod if role is None or role.pod is None else role.pod
        claims: list[dict[str, Any]] = [] if section is None else section.spec.get("resourceClaims", [])
        return claims

    @property
    def shape(self) -> Shape:
        """The size of the job as the scheduler sees it: a part for each role, in the order of the ranks."""
        first, *more = (self._part(name) for name in self.order or (WORKER,))
        placement = self.placement
        layout = Layout(placement.topology or "", placement.mode == REQUIRED, placement.strategy)
        return replace(first, layout=layout, more=tuple(more))

    def together(self, groups: int) -> Shape:
        """Return the shape of so many replica groups that start together; each may need a domain of its own.

        They start on nodes of their own, so that one that is lost costs one group.
        """
        shape = self.shape
        if groups == 1:
            return shape
        layout, slices = shape.layout, shape.slices
        if layout.required:
            inner = (replace(slices, inner=()), *slices.inner) if slices.level else ()
            layout, slices = Layout(strategy=layout.strategy), Slices(layout.level, shape.nodes, inner)
        return replace(shape, nodes=groups * shape.nodes, layout=layout, slices=slices)

    @property
    def selector(self) -> Selector:
        """The nodes that the job may use."""
        placement = self.placement
        labels = tuple(sorted(placement.node_selector.items()))
        return Selector(
            labels,
            placement.tolerations,
            placement.network,
            placement.sharing,
            placement.nodes,
            placement.devices,
            placement.affinity.required,
            placement.affinity.preferred,
        )

    @property
    def slices(self) -> Slices:
        """The slices of the workers' nodes; a slice of fewer processes than a node has groups nothing."""
        if self.elastic and self.elastic.level:
            return Slices(self.elastic.level, self.elastic.step)
        per_node = self.processes_per_node
        layers = [
            Slices(group.level, group.nodes or max(1, (group.ranks or 1) // per_node))
            for group in self.placement.slices
        ]
        return replace(layers[0], inner=tuple(layers[1:])) if layers else Slices()

    def _part(self, name: str) -> Shape:
        role = self.roles.get(name)
        nodes = self.nodes + (self.spares or 0)
        count, resources = (role.count, role.resources) if role else (nodes, self.resources)
        ranks = 1 if role else self.processes_per_node
        return Shape(
            nodes=count,
            gpus=resources.gpu.count,
            gpu_type=resources.gpu.type.lower() if resources.gpu.type else None,
            gpu_milli=resources.gpu.milli or 0,
            gpu_memory_bytes=resources.gpu.memory_bytes or 0,
            cpu_milli=resources.cpu_milli if resources.cpu_milli is not None else 1000 * ranks,
            memory_bytes=resources.memory_bytes,
            ranks=ranks,
            stacked=role is not None,
            other_types=tuple(kind.lower() for kind in resources.gpu.other_types),
            gpu_resources=resources.gpu.resources,
            selector=self.selector,
            slices=Slices() if role else self.slices,
            extended=tuple(sorted(resources.extended.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Place from which a job was submitted: the environment it runs in, and what code it ran."""

    directory: str
    environment: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    git_dirty: bool = False
    git_diff_hash: str | None = None
    """Hash of the difference from the commit, as far as it is stored."""
    code_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An accepted spec with its id, its owner and its origin.

    Attributes:
        request_id: Makes a repeated submission idempotent.
        request_digest: Of the request with that id, which distinguishes a repetition from another request.
        awaits: The dependencies of `spec.after` that were not yet satisfied at submission, by id.
        array, index: Of an array element: the id of its array, and its index.
        uid: Of a job whose id may be reused: an identifier that is not; empty where ids are not reused.
        resumes: Where its first checkpoint comes from, the first choice first: `checkpoint.resume_from`, resolved.
        retry_of: The job that it goes on with (`ganger retry`), which is why it resumes from that one; empty for none.
    """

    id: str
    user: str
    spec: JobSpec
    origin: Origin
    request_id: str = ""
    request_digest: str = ""
    awaits: tuple[After, ...] = ()
    array: str | None = None
    index: int | None = None
    uid: str = ""
    resumes: tuple[ResumeSource, ...] = ()
    retry_of: str = ""

    def element(self, index: int) -> "Job":
        """Return one element of an array job."""
        resumes = tuple(source.of_element(index) for source in self.resumes)
        return replace(self, id=f"{self.id}[{index}]", array=self.id, index=index, resumes=resumes)

    def checkpoint_directory(self, directory: str) -> str:
        """Return its checkpoint directory, if it runs in `directory`, absolute.

        It is the job's own, because a script that looks for the newest checkpoint must not find that of another job.
        Elements of an array have a subdirectory each.
        """
        checkpoint = self.spec.checkpoint or Checkpoint()
        own = self.own_path
        if checkpoint.in_place:
            own = "" if self.index is None else str(self.index)
        return str(PurePosixPath(directory, checkpoint.dir, own))

    @property
    def own_path(self) -> str:
        """The path of a directory of its own in one that jobs share; that of an array's element is in the array's."""
        name = self.array or self.id
        own = f"{name}-{self.uid[:UID_DIGITS]}" if self.uid else name
        return own if self.index is None else f"{own}/{self.index}"


def shell_quoted_id(id: str) -> str:
    """Return an id quoted for a shell: that of an array element has brackets, which shells take for a pattern."""
    return f"'{id}'" if "[" in id else id


def split_element_id(id: str) -> tuple[str, int] | None:
    """Return the array and the index of an element by its id, None for an id of another form."""
    match = _ELEMENT.fullmatch(id)
    return (match["array"], int(match["index"])) if match else None
