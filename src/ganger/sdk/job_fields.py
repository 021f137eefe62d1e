"""The keys of a job as Python types: the keyword arguments of `run`, `submit`, `clone` and `@task`.

`model.job.JobSpec` defines their meaning (`ganger explain-spec KEY`) and the server parses the values; a test compares
the keys. Times are seconds or text ("30m"), sizes bytes or text ("64Gi").
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

Command = str | Sequence[str]
"""A shell line, or the words of a command that is executed as it is."""
Duration = int | float | str
Size = int | str
Cpus = int | float | str
Reaction = Literal["ignore", "tell", "stop", "rollback"]

_NEEDS: Final = ("gpu", "cpu", "memory")
"""Keys of `resources` that may also be given beside the others."""


class GpuFields(TypedDict, total=False):
    """`resources.gpu`: a number of whole GPUs, or a share of one."""

    count: int
    type: str | Sequence[str]
    milli: int
    memory: Size


Gpus = int | str | GpuFields
"""8, "H100:8" to name the type, "H100,A100:8" for the first of several types, or {"milli": 500} for a share of one."""


class ResourceFields(TypedDict, total=False):
    """`resources`."""

    gpu: Gpus
    cpu: Cpus
    memory: Size
    extended: Mapping[str, int]


class SliceFields(TypedDict, total=False):
    """One of `placement.slices`."""

    level: str
    nodes: int
    ranks: int


class PreferenceFields(TypedDict, total=False):
    """One of `placement.affinity.preferred`."""

    match: str
    weight: int


class AffinityFields(TypedDict, total=False):
    """`placement.affinity`."""

    required: str | Sequence[str]
    preferred: Sequence[PreferenceFields]


class PlacementFields(TypedDict, total=False):
    """`placement`."""

    topology: str
    mode: Literal["preferred", "required"]
    strategy: Literal["pack", "spread", "balanced"]
    slices: Sequence[SliceFields]
    sharing: Literal["shared", "exclusive", "whole"]
    node_selector: Mapping[str, str]
    affinity: AffinityFields
    nodes: Sequence[str]
    devices: int | Sequence[int]
    tolerations: Sequence[str]
    network: str | Sequence[str]


class ParallelFields(TypedDict, total=False):
    """`parallel`."""

    tp: int | str
    pp: int | str
    dp: int | str


class RolePodFields(TypedDict, total=False):
    """`pod` of a role."""

    spec: Mapping[str, Any]


class RoleFields(TypedDict, total=False):
    """One of `roles`."""

    count: int | str
    resources: ResourceFields
    run: Command
    env: Mapping[str, str | int | float | bool | None]
    on_failure: Literal["restart", "fail", "ignore"]
    pod: RolePodFields


class GitCodeFields(TypedDict, total=False):
    """`code` from a Git repository."""

    git: str
    ref: str


class VolumeFields(TypedDict):
    """One of `volumes`."""

    name: str
    path: str


class CheckpointFields(TypedDict, total=False):
    """`checkpoint`."""

    dir: str
    in_place: bool
    every: Duration
    local: str
    peer: bool
    pattern: str
    signal: str
    grace: Duration
    keep: int
    keep_every: int
    resume_from: str


class LogMarkerFields(TypedDict, total=False):
    """`watch.log`."""

    step: str
    loss: str
    nan_steps: str


class WatchFields(TypedDict, total=False):
    """`watch`."""

    nan: Reaction
    spike: Reaction
    stall: Reaction
    slow: Reaction
    max_rollbacks: int
    metric: str
    log_format: Literal["deepspeed", "megatron", "torchtitan"]
    log: LogMarkerFields


class RuleFields(TypedDict, total=False):
    """One of `retry.rules`."""

    log: str
    cause: str
    do: Literal["retry", "fail", "exclude_node"]


class RetryFields(TypedDict, total=False):
    """`retry`."""

    max: int
    backoff: Duration
    rules: Sequence[RuleFields]


class LimitFields(TypedDict, total=False):
    """`limits`."""

    time: Duration
    time_min: Duration
    queue_time: Duration
    hang_time: Duration


class AfterFields(TypedDict, total=False):
    """One of `after`."""

    job: str
    when: Literal["succeeded", "failed", "ended"]


BatchFields = TypedDict(
    "BatchFields",
    {"global": int, "policy": Literal["constant_global", "scale_lr_linear", "scale_lr_sqrt", "custom"]},
    total=False,
)
"""`elastic.batch`; `global` is a word of Python, so that it is no attribute."""


class ElasticFields(TypedDict, total=False):
    """`elastic`."""

    step: int
    level: str
    batch: BatchFields


class PodMetadataFields(TypedDict, total=False):
    """`pod.metadata`."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class PodFields(TypedDict, total=False):
    """`pod`; what is in `spec` and `container` has the keys of Kubernetes."""

    metadata: PodMetadataFields
    spec: Mapping[str, Any]
    container: Mapping[str, Any]
    shm: Size


class JobFields(TypedDict, total=False):
    """Every key of a job but its command; `gpu`, `cpu` and `memory` may be given here or in `resources`."""

    name: str
    queue: str
    priority: int | Literal["low", "normal", "high"]
    framework: str
    nodes: int | str
    elastic: ElasticFields
    nproc_per_node: int | Literal["auto"]
    gpu: Gpus
    cpu: Cpus
    memory: Size
    resources: ResourceFields
    placement: PlacementFields
    parallel: ParallelFields
    roles: Mapping[str, RoleFields]
    stop_when: Literal["all", "chief"]
    start_order: Sequence[str]
    code: str | os.PathLike[str] | GitCodeFields
    image: str
    volumes: Sequence[VolumeFields]
    pod: PodFields
    setup: str
    env: Mapping[str, str | int | float | bool | None]
    secrets: Sequence[str]
    warm: bool
    params: Mapping[str, str | int | float | bool]
    checkpoint: CheckpointFields
    watch: WatchFields
    movable: bool
    preemptible: bool
    spares: int
    replica_groups: int | str
    retry: RetryFields
    limits: LimitFields
    after: Sequence[AfterFields]
    array: str
    labels: Mapping[str, str]
    notes: str


def spec_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as a job file has them; those that are None are left out."""
    spec = {key: value for key, value in fields.items() if value is not None}
    needs = {key: spec.pop(key) for key in _NEEDS if key in spec}
    if needs:
        spec["resources"] = {**spec.get("resources", {}), **needs}
    if isinstance(spec.get("code"), os.PathLike):
        spec["code"] = os.fspath(spec["code"])
    return spec
