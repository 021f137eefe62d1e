"""What a user asks for (JobSpec), what the server makes of it (Job), and the states it passes through.

Every field of a spec carries, in its metadata, the key the user writes when it differs, the form its text takes
(`spec` has one parser per form) and one sentence of documentation. Validation, the JSON Schema and, later,
the CRD schema are derived from these classes, so a field is described once.
Terms follow Slurm, torch and Kubernetes: nodes, nproc_per_node, queue, priority.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ganger.model.affinity import Affinity
from ganger.model.described import described as _spec
from ganger.model.shape import Shape
from ganger.model.terms import PACK, PREFERRED, REQUIRED, SHARED, Layout, Selector, Slices

PRIORITIES: Final = {"low": -100, "normal": 0, "high": 100}
"""Names for common priorities; any integer from -1000 to 1000 is legal."""

WORKER: Final = "worker"
"""The role of the processes that `nodes` and `run` describe."""
FIRST_ROLES: Final = ("chief", "master", "head", "scheduler")
"""Roles that have the first ranks, whatever the order they are written in."""
_ELEMENT: Final = re.compile(r"(?P<array>[^\[\]]*)\[(?P<index>0|[1-9][0-9]{0,17})\]")
"""The id of an element; SQLite counts a little further."""


class GangState(StrEnum):
    """Where a gang is in its life; `core.state.lifecycle` has the table of what leads where."""

    PENDING = "pending"
    SUSPENDED = "suspended"
    STARTING = "starting"
    RUNNING = "running"
    REQUEUEING = "requeueing"
    SUSPENDING = "suspending"
    FINISHING = "finishing"
    FAILING = "failing"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


ENDED: Final = (GangState.SUCCEEDED, GangState.FAILED, GangState.STOPPED)
"""States that nothing leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """GPUs wanted on each node: so many whole ones, or a share of one. `type` is compared without regard to case; None
    takes any."""

    count: int = _spec("how many: 8", form="gpu_count", default=0)
    type: str | None = _spec(
        "which: H100; [H100, A100] for all nodes of the first, or else of the second; unset: any",
        form="gpu_types",
        key="type",
        default=None,
    )
    other_types: tuple[str, ...] = _spec("the types after the first", form="gpu_types", key="type", default=())
    milli: int | None = _spec(
        "instead of whole GPUs a share of one: thousandths of its compute; unset, with memory: the same part of it",
        form="gpu_milli",
        default=None,
    )
    memory_bytes: int | None = _spec(
        "memory of the GPU that the share has: 10Gi; unset: not counted", form="gpu_memory", key="memory", default=None
    )

    @property
    def is_share(self) -> bool:
        """Whether it is of a part of one GPU."""
        return self.milli is not None or self.memory_bytes is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one node of the gang needs. Unset CPU means one CPU for each process."""

    gpu: GpuRequest = _spec(
        "GPUs per node: 8, H100:8 to name the type, H100,A100:8 for the first of several types, or a share of one: "
        "{milli: 500, memory: 10Gi}",
        form="gpu",
        factory=GpuRequest,
    )
    cpu_milli: int | None = _spec("CPUs per node: 4, 0.5 or 500m", form="cpu", key="cpu", default=None)
    memory_bytes: int = _spec("memory per node: 64Gi", form="bytes", key="memory", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a job keeps its progress and how it is asked to save it."""

    dir: str = _spec(
        "directory of the checkpoints, relative to the job's directory", form="path", default="checkpoints"
    )
    every_ms: int | None = _spec(
        "how often should_checkpoint() turns true: 30m", form="duration", key="every", default=None
    )
    signal: str | None = _spec("signal sent with a notice, for scripts that wait for one", form="signal", default=None)
    grace_ms: int = _spec("time to save before the job is stopped", form="pause", key="grace", default=30_000)
    keep: int | None = _spec(
        "how many of the last checkpoints stay when another one is complete; unset: all", form="kept", default=None
    )
    keep_every: int | None = _spec(
        "besides them those stay whose step this divides: 1000", form="kept_every", default=None
    )
    resume: str = _spec(
        "auto: start from the newest valid checkpoint; never: from the beginning", form="resume", default="auto"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of failure, and what it leads to. With both `log` and `cause`, both must fit."""

    log: str | None = _spec(
        "a regular expression (RE2) found in a line that a process of the attempt wrote", form="pattern", default=None
    )
    cause: str | None = _spec("the cause of the failure, as `ganger get` names it", form="cause", default=None)
    do: str = _spec(
        "retry: again, within max; fail: no more; exclude_node: again, within max, and never on that node",
        form="remedy",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a failing job is started again. An attempt that saved a new checkpoint spends nothing."""

    max: int | None = _spec(
        "attempts without progress that are forgiven; unset: 3, but 0 when a rank exits by itself before any step, and "
        "after the same error of the program at the same step",
        form="retries",
        default=None,
    )
    backoff_first_ms: int = _spec(
        "pause before the next attempt, doubling up to the second: 10s..5m; 10s alone does not grow",
        form="backoff",
        key="backoff",
        default=1_000,
    )
    backoff_max_ms: int = _spec("the longest such pause", form="backoff", key="backoff", default=300_000)
    rules: tuple[Rule, ...] = _spec("what certain failures lead to instead; the first that fits decides", default=())

    def rule_for(self, cause: str, found: Collection[int]) -> int | None:
        """Index of the first rule that fits a failure, `found` being those whose pattern is in the log."""
        fits = (index for index, rule in enumerate(self.rules) if rule.cause in (None, cause))
        return next((index for index in fits if self.rules[index].log is None or index in found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When ganger ends a job by itself."""

    time_ms: int | None = _spec(
        "time the job may hold its nodes, over all attempts", form="duration", key="time", default=None
    )
    time_min_ms: int | None = _spec(
        "the least it may be granted at a start, if it then ends before a promised one or maintenance; unset: as time",
        form="duration",
        key="time_min",
        default=None,
    )
    queue_time_ms: int | None = _spec("time it may wait; then it ends", form="duration", key="queue_time", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Processes that differ from the workers: `count` of them, each with these resources, which may share nodes."""

    count: int = _spec("how many processes", form="processes", default=1)
    resources: Resources = _spec("what each of them needs", factory=Resources)
    run: str | tuple[str, ...] | None = _spec("their command; unset: the job's", form="command", default=None)
    env: dict[str, str] = _spec("variables of theirs, over the job's", form="env", factory=dict)
    on_failure: str = _spec(
        "restart: of the whole job, by its retry; fail: the job fails at once; ignore: the others go on",
        form="on_failure",
        default="restart",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How a large model is spread over the processes. The product must be their number."""

    tp: int = _spec("tensor parallel size", form="degree", default=1)
    pp: int = _spec("pipeline parallel size", form="degree", default=1)
    dp: int | None = _spec("data parallel size; unset: what the others leave", form="degree", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Nodes that stay together within the job, for instance those of one tensor-parallel group, or within the slice
    around them."""

    level: str = _spec("the level of the domain that each slice is in: nvlink", form="level")
    nodes: int | None = _spec("nodes in each slice", form="nodes", default=None)
    ranks: int | None = _spec("or its processes: a multiple of those on a node", form="processes", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """On which nodes the job may run, and how they lie to each other."""

    topology: str | None = _spec(
        "the level of the network that the job stays in: rack; unset: the lowest that holds it",
        form="level",
        default=None,
    )
    mode: str = _spec("preferred: beyond that level where it must be; required: never", form="mode", default=PREFERRED)
    strategy: str = _spec(
        "pack: on few domains; spread: over as many as can be; balanced: on few, in equal parts",
        form="strategy",
        default=PACK,
    )
    slices: tuple[Slice, ...] = _spec(
        "groups of its nodes, each in one domain: [{level: nvlink, nodes: 4}]; of several each is made of the next, on "
        "an inner level: [{level: rack, nodes: 16}, {level: nvlink, nodes: 4}]",
        default=(),
    )
    sharing: str = _spec(
        "shared: other jobs may be on its nodes; exclusive: none may; whole: nor may a GPU be left over",
        form="sharing",
        default=SHARED,
    )
    node_selector: dict[str, str] = _spec("labels that each of its nodes has", form="labels", factory=dict)
    affinity: Affinity = _spec("labels that its nodes must have, beyond equality, or had better", factory=Affinity)
    nodes: tuple[str, ...] = _spec("the nodes that it may have, by name; unset: any", form="node_names", default=())
    devices: tuple[int, ...] = _spec(
        "the GPUs of a node that it may have, by index: [0, 1]; unset: any", form="devices", default=()
    )
    tolerations: tuple[str, ...] = _spec(
        "taints that keep others away, but not it: spot, team=nlp, or * for all", form="taints", default=()
    )
    network: tuple[str, ...] = _spec(
        "what all its nodes are connected by: ib; [ib, roce] for the first that has room; unset: anything",
        form="networks",
        default=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """Another job that must have come to something before this one may start."""

    job: str = _spec("its name or id; a name: the newest job of that name at submission", form="job")
    when: str = _spec(
        "succeeded, failed (ended in any other way, stopped ones too) or ended", form="when", default="succeeded"
    )

    def holds(self, state: GangState) -> bool:
        """Whether a job that ended in that state has come to what is asked."""
        return self.when == "ended" or (state is GangState.SUCCEEDED) == (self.when == "succeeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """The elements of an array job, rising; `limit`: so many at a time. Written as text: 0-99%10."""

    indices: tuple[int, ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitCode:
    """Code out of a repository."""

    git: str = _spec("URL of the repository: https, ssh, git or file", form="git_url")
    ref: str = _spec("branch, tag or commit", form="git_ref", default="HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A directory that processes find in GANGER_VOLUME_NAME, the name in capitals, with _ for -."""

    name: str = _spec("what it is called", form="name")
    path: str = _spec("where it is: an absolute path that exists", form="absolute_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as the user describes it, parsed. `run` is a shell line, or a tuple of arguments run as they are; empty
    when every role has its own."""

    name: str = _spec("a label; the id is the name and a suffix", form="name", default="job")
    queue: str = _spec("the queue it waits in", form="name", default="default")
    priority: int = _spec("low, normal, high, or an integer from -1000 to 1000", form="priority", default=0)
    framework: str = _spec("which variables each process gets, and who starts it", form="framework", default="plain")
    nodes: int = _spec("nodes the gang needs, all or none", form="nodes", default=1)
    nproc_per_node: int | None = _spec(
        "processes on each node; auto: one for each GPU, or 1", form="nproc", default=None
    )
    resources: Resources = _spec("what each node of the gang needs", factory=Resources)
    placement: Placement = _spec("on which nodes, and how they lie to each other", factory=Placement)
    parallel: Parallel | None = _spec("how a large model is spread over the processes", default=None)
    roles: dict[str, Role] = _spec(
        "processes beside the workers, by role: chief, ps, evaluator ...; roles.worker replaces nodes", factory=dict
    )
    stop_when: str = _spec(
        "all: the job ends when all processes have; chief: with the role chief, without roles with rank 0",
        form="stop_when",
        default="all",
    )
    start_order: tuple[str, ...] = _spec(
        "roles that are started one after the other, before the rest", form="roles", default=()
    )
    code: str | GitCode | None = _spec(
        "what to copy at submission: a directory, or a repository; unset: run in place", form="code", default=None
    )
    image: str | None = _spec(
        "what its containers are made of on Kubernetes; elsewhere it runs with the programs of the machine",
        form="image",
        default=None,
    )
    volumes: tuple[Volume, ...] = _spec("directories that the processes are told of", default=())
    setup: str | None = _spec("shell line run once on each node before the processes start", form="shell", default=None)
    run: str | tuple[str, ...] = _spec("the command of every process", form="command", default=())
    env: dict[str, str] = _spec("environment variables of every process", form="env", factory=dict)
    secrets: tuple[str, ...] = _spec(
        "variables whose values are never shown: from this shell, else from `ganger secret set`",
        form="secrets",
        default=(),
    )
    params: dict[str, str] = _spec(
        "values for ${{ params.NAME }} in run, setup, env and parallel; --param NAME=VALUE replaces one",
        form="params",
        factory=dict,
    )
    checkpoint: Checkpoint | None = _spec("how progress is kept", default=None)
    retry: Retry = _spec("what happens when it fails", factory=Retry)
    limits: Limits = _spec("when it is ended", factory=Limits)
    after: tuple[After, ...] = _spec("jobs that come first", default=())
    array: Array | None = _spec(
        "one job for each index: 0-99, 1,3,5-9:2; 0-99%10 for ten at a time", form="array", default=None
    )
    labels: dict[str, str] = _spec("words to find jobs by, as in Kubernetes", form="labels", factory=dict)
    notes: str | None = _spec("anything to remember", form="notes", default=None)

    @property
    def processes_per_node(self) -> int:
        """Workers on each node, with `auto` resolved: one for each GPU asked for, or one."""
        return self.nproc_per_node or self.resources.gpu.count or 1

    @property
    def order(self) -> tuple[str, ...]:
        """The roles there are in the order of their ranks: chief and its like, the workers, the others as written."""
        first = [name for name in FIRST_ROLES if name in self.roles]
        workers = [WORKER] if self.run or WORKER in self.roles else []
        return (*first, *workers, *(name for name in self.roles if name not in (*first, WORKER)))

    def role(self, name: str) -> Role:
        """What is said of a role of `order`; of the workers that `nodes` describes, too, with resources of a node."""
        if name in self.roles:
            return self.roles[name]
        return Role(count=self.nodes * self.processes_per_node, resources=self.resources)

    @property
    def processes(self) -> int:
        """Processes in the whole gang: its world size."""
        return sum(self.role(name).count for name in self.order)

    def command_of(self, name: str) -> str | tuple[str, ...]:
        """The command of the processes of a role."""
        return self.role(name).run or self.run

    def environment_of(self, name: str) -> dict[str, str]:
        """The variables that the user gives the processes of a role."""
        return self.env | self.role(name).env

    @property
    def shape(self) -> Shape:
        """What the scheduler needs to know of the job's size: a part for each role, in the order of the ranks."""
        first, *more = (self._part(name) for name in self.order or (WORKER,))
        said = self.placement
        layout = Layout(said.topology or "", said.mode == REQUIRED, said.strategy)
        return replace(first, layout=layout, more=tuple(more))

    @property
    def selector(self) -> Selector:
        """Which nodes it may have."""
        said = self.placement
        labels = tuple(sorted(said.node_selector.items()))
        return Selector(
            labels,
            said.tolerations,
            said.network,
            said.sharing,
            said.nodes,
            said.devices,
            said.affinity.required,
            said.affinity.preferred,
        )

    @property
    def slices(self) -> Slices:
        """The groups that the nodes of its workers are in: a slice of fewer processes than a node has is no group."""
        each = self.processes_per_node
        found = [Slices(of.level, of.nodes or max(1, (of.ranks or 1) // each)) for of in self.placement.slices]
        return replace(found[0], inner=tuple(found[1:])) if found else Slices()

    def _part(self, name: str) -> Shape:
        alike = name not in self.roles
        count, asked = (self.nodes, self.resources) if alike else (self.roles[name].count, self.roles[name].resources)
        ranks = self.processes_per_node if alike else 1
        return Shape(
            nodes=count,
            gpus=asked.gpu.count,
            gpu_type=asked.gpu.type.lower() if asked.gpu.type else None,
            gpu_milli=asked.gpu.milli or 0,
            gpu_memory_bytes=asked.gpu.memory_bytes or 0,
            cpu_milli=asked.cpu_milli if asked.cpu_milli is not None else 1000 * ranks,
            memory_bytes=asked.memory_bytes,
            ranks=ranks,
            stacked=not alike,
            other_types=tuple(kind.lower() for kind in asked.gpu.other_types),
            selector=self.selector,
            slices=self.slices if alike else Slices(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a job came from: enough to run it as its owner would have, and to say later what was run."""

    directory: str
    environment: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    git_dirty: bool = False
    git_diff_hash: str | None = None
    """Of what differs from the commit, as far as it is kept."""
    code_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A spec that was accepted: with its id, its owner and where it came from. `request_id` makes a repeat harmless."""

    id: str
    user: str
    spec: JobSpec
    origin: Origin
    request_id: str = ""
    request_digest: str = ""
    """Of the request with that id, so that another one under the same id is told from a repeat."""
    awaits: tuple[After, ...] = ()
    """Those of `spec.after` that had not come to anything when the job was submitted, by id."""
    array: str | None = None
    index: int | None = None
    """Of an element: the id of its array, and which one it is."""
    uid: str = ""
    """Of a job whose id may be given to another one later: what is given to none. Empty where ids are not."""

    def element(self, index: int) -> "Job":
        """One element of an array job."""
        return replace(self, id=f"{self.id}[{index}]", array=self.id, index=index)


def typed(id: str) -> str:
    """An id as a person types it: an element's has brackets, which shells take for a pattern."""
    return f"'{id}'" if "[" in id else id


def array_of(id: str) -> tuple[str, int] | None:
    """The array and the index of an element, by its id; None for what is no element's."""
    found = _ELEMENT.fullmatch(id)
    return (found["array"], int(found["index"])) if found else None
