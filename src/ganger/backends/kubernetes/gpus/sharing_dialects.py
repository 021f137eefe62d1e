"""Dialects in which pods of other programs ask for shares of GPUs, and what the device plugin of each expects.

A row of `DIALECTS` says how a pod asks, how a placed pod names its devices, and which annotations it gets with its
binding; `share_request`, `placed_devices` and `binding_annotations` read every row. A share is one part of one device:
thousandths of its compute, bytes of its memory, or both. Sources: aliyun/gpushare-scheduler-extender and
-device-plugin, Project-HAMi/HAMi, kai-scheduler/KAI-Scheduler, hkust-adsl/kubernetes-scheduler-simulator (openb).
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Final, NamedTuple

from ganger.backends.kubernetes.gpus.hami_devices import hami_gpus
from ganger.backends.kubernetes.gpus.hami_lock import ALLOCATING, BIND_PHASE, LOCK
from ganger.backends.kubernetes.gpus.node_gpus import (
    GPUSHARE,
    GPUSHARE_MEMORY,
    OPENB_COUNT,
    gpushare_units,
    plugin_of,
)
from ganger.kubeapi.objects import Container, Node, Pod
from ganger.kubeapi.quantity import parse_quantity
from ganger.model.cluster import gpu_type
from ganger.model.units import DEVICE_MILLI, GIB_BYTES, MIB_BYTES
from ganger.registry import gpu_resources

HAMI, KAI, OPENB = "hami", "kai", "openb"
NVIDIA_GPU: Final = "nvidia.com/gpu"
MIB_FROM: Final = 512
"""The amount of `aliyun.com/gpu-mem` of a pod from which it is in MiB: no GPU has as many GiB."""
MAX_DEVICES: Final = 64
MAX_NUMBER: Final = 1 << 24
"""More MiB than any GPU has."""
_MAX_TYPES_LENGTH: Final = 1000
_MAX_DIGITS: Final = 100
"""More than any quantity has; longer texts are cut, so that messages about them stay short."""


class ShareRequest(NamedTuple):
    """Request of a pod in a dialect.

    Attributes:
        milli: thousandths of one GPU's compute, 0 for none.
        memory_bytes: of one GPU, 0 for none.
        devices: how many GPUs it asks for, whole where it `is_whole`.
        gpu_types: those that it accepts, empty for any.
        plugin: of the nodes on which it can be placed, by `node_gpus.plugin_of`.
        error: why it cannot be placed.
    """

    dialect: str
    milli: int = 0
    memory_bytes: int = 0
    devices: int = 1
    is_whole: bool = False
    gpu_types: tuple[str, ...] = ()
    plugin: str = ""
    error: str = ""


class ShareError(Exception):
    """A share that cannot be placed. The message says why, and what to ask for."""


class Binding(NamedTuple):
    """A pod that is bound to devices of a node, by their indices, at a time."""

    pod: Pod
    node: Node
    devices: tuple[int, ...]
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingDialect:
    """One dialect.

    Attributes:
        program: the program whose dialect it is.
        asks_with: resources, or else annotations, with which a pod asks.
        resources: those of them that the model counts as a share, and no more as extended resources.
        plugin: of the nodes that serve it, by `node_gpus.plugin_of`.
        writes: annotations that a pod gets with its binding.
        lock: annotation of a node with the pod that gets its devices now; empty where several may at a time.
        reads: annotation, or label, of placed pods with their devices.
        is_reserved: a pod of the program holds each shared device, so that its other pods do not count.
        request: returns what a pod asks for. Raises ShareError.
        placed: returns the indices or UUIDs of a placed pod's devices. Raises ValueError.
        annotations: returns the values of `writes`.
    """

    name: str
    program: str
    asks_with: tuple[str, ...]
    plugin: str
    writes: tuple[str, ...]
    reads: str
    request: Callable[[Pod], ShareRequest]
    placed: Callable[[str], tuple[int | str, ...]]
    annotations: Callable[[Binding], dict[str, str]]
    resources: tuple[str, ...] = ()
    lock: str = ""
    is_reserved: bool = False


# -- gpushare ---------------------------------------------------------------------------------------------------------


def _gpushare_request(pod: Pod) -> ShareRequest:
    amount = _requested(pod, GPUSHARE_MEMORY)
    unit_bytes = MIB_BYTES if amount >= MIB_FROM else GIB_BYTES
    return ShareRequest(GPUSHARE, memory_bytes=amount * unit_bytes, gpu_types=(GPUSHARE,))


def _gpushare_annotations(binding: Binding) -> dict[str, str]:
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(binding.devices[0]),
        "ALIYUN_COM_GPU_MEM_POD": str(_requested(binding.pod, GPUSHARE_MEMORY)),
        "ALIYUN_COM_GPU_MEM_DEV": str(gpushare_units(binding.node)),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(binding.time_ns),
    }


# -- HAMi -------------------------------------------------------------------------------------------------------------

_HAMI_MEMORY, _HAMI_CORES, _HAMI_PERCENT = "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"
_HAMI_REFUSED: Final = (
    "nvidia.com/nouse-gputype",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/numa-bind",
)
_ALL_CORES: Final = 100


def _hami_request(pod: Pod) -> ShareRequest:
    if (refused := [key for key in _HAMI_REFUSED if key in pod.metadata.annotations]) != []:
        raise ShareError(f"the annotation {refused[0]} is not supported; leave it out, or use nvidia.com/use-gputype")
    percent, memory_mib = _requested(pod, _HAMI_PERCENT), _requested(pod, _HAMI_MEMORY)
    cores, devices = _requested(pod, _HAMI_CORES), _requested(pod, NVIDIA_GPU) or 1
    if len(_containers_with(pod, (NVIDIA_GPU, _HAMI_MEMORY, _HAMI_CORES, _HAMI_PERCENT))) > 1:
        raise ShareError("more than one of its containers asks for GPUs; let one do so")
    if cores > _ALL_CORES * devices:
        raise ShareError(f"{_HAMI_CORES} is {cores}: a share is at most one GPU, {_ALL_CORES}")
    if percent and percent != _ALL_CORES:
        raise ShareError(f"{_HAMI_PERCENT} depends on the node; ask for MiB with {_HAMI_MEMORY}")
    is_whole = not memory_mib or cores == _ALL_CORES
    return ShareRequest(
        HAMI,
        milli=cores * 10,
        memory_bytes=memory_mib * MIB_BYTES,
        devices=devices,
        is_whole=is_whole,
        gpu_types=_types(pod.metadata.annotations, "nvidia.com/use-gputype", ","),
    )


def _hami_annotations(binding: Binding) -> dict[str, str]:
    """Return the annotations of HAMi's protocol, as its scheduler writes them when it filters and binds."""
    registered, seconds = hami_gpus(binding.node.metadata.annotations), str(binding.time_ns // 1_000_000_000)
    memory_mib, cores = _requested(binding.pod, _HAMI_MEMORY), _requested(binding.pod, _HAMI_CORES)
    gpus = (registered[device] for device in binding.devices if device < len(registered))
    rows = (f"{gpu.uuid},NVIDIA,{memory_mib or gpu.memory_mib},{cores}:" for gpu in gpus)
    text = "".join("".join(islice(rows, count)) + ";" for count in _hami_counts(binding.pod))
    return {
        "hami.io/vgpu-node": binding.node.metadata.name,
        "hami.io/vgpu-time": seconds,
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/vgpu-devices-allocated": text,
        BIND_PHASE: ALLOCATING,
        "hami.io/bind-time": seconds,
    }


def _hami_counts(pod: Pod) -> list[int]:
    """Return the number of devices of each container. One that asks for a share without a number has one."""
    asking = _containers_with(pod, (_HAMI_MEMORY, _HAMI_CORES))
    counts = [_requested_by(container, NVIDIA_GPU) for container in pod.spec.containers]
    return [count or int(index in asking) for index, count in enumerate(counts)]


def _hami_placed(text: str) -> tuple[int | str, ...]:
    """Return the devices of each container; two containers may have shares of one."""
    containers = ([row.partition(",")[0] for row in part.split(":") if row] for part in text.split(";"))
    return tuple(uuid for uuids in containers for uuid in dict.fromkeys(uuids))


# -- KAI --------------------------------------------------------------------------------------------------------------

_KAI_FRACTION, _KAI_MEMORY, _KAI_DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"


def _kai_request(pod: Pod) -> ShareRequest:
    annotations = pod.metadata.annotations
    if _KAI_FRACTION in annotations and _KAI_MEMORY in annotations:
        raise ShareError(f"it has both {_KAI_FRACTION} and {_KAI_MEMORY}; leave one of them out")
    if whole := _whole_gpus(pod):
        raise ShareError(f"it asks for {whole} and for a share of a GPU; leave one of them out")
    devices = _whole_number(annotations, _KAI_DEVICES, 1)
    if _KAI_MEMORY in annotations:
        return ShareRequest(KAI, memory_bytes=_whole_number(annotations, _KAI_MEMORY) * MIB_BYTES, devices=devices)
    milli = _parsed(annotations[_KAI_FRACTION], _KAI_FRACTION) * DEVICE_MILLI
    return ShareRequest(KAI, milli=-(-milli.numerator // milli.denominator), devices=devices)


# -- openb ------------------------------------------------------------------------------------------------------------

_OPENB_MILLI, _OPENB_INDEX, _OPENB_MODEL = (f"alibabacloud.com/gpu-{key}" for key in ("milli", "index", "card-model"))


def _openb_request(pod: Pod) -> ShareRequest:
    annotations = pod.metadata.annotations
    milli, devices = _whole_number(annotations, _OPENB_MILLI), _whole_number(annotations, OPENB_COUNT, 1)
    models = _types(annotations, _OPENB_MODEL, "|")
    return ShareRequest(OPENB, milli=milli, devices=devices, is_whole=milli == DEVICE_MILLI, gpu_types=models)


def _openb_annotations(binding: Binding) -> dict[str, str]:
    return {
        _OPENB_INDEX: "-".join(map(str, binding.devices)),
        "alibabacloud.com/assume-time": str(binding.time_ns),
    }


# -- the table --------------------------------------------------------------------------------------------------------


def _index_list(text: str) -> tuple[int | str, ...]:
    """Return the indices of `0-1` or `3`. Raises ValueError; a negative one stands for none."""
    return () if text.startswith("-") else tuple(dict.fromkeys(int(index) for index in text.split("-")))


DIALECTS: Final = (
    SharingDialect(
        name=GPUSHARE,
        program="aliyun gpushare",
        asks_with=(GPUSHARE_MEMORY,),
        resources=(GPUSHARE_MEMORY,),
        plugin=GPUSHARE,
        writes=tuple(f"ALIYUN_COM_GPU_MEM_{key}" for key in ("IDX", "POD", "DEV", "ASSIGNED", "ASSUME_TIME")),
        reads="ALIYUN_COM_GPU_MEM_IDX",
        request=_gpushare_request,
        placed=_index_list,
        annotations=_gpushare_annotations,
    ),
    SharingDialect(
        name=HAMI,
        program="HAMi",
        asks_with=(_HAMI_MEMORY, _HAMI_CORES, _HAMI_PERCENT),
        resources=(_HAMI_MEMORY, _HAMI_CORES, _HAMI_PERCENT),
        plugin=HAMI,
        writes=(
            *(f"hami.io/vgpu-{key}" for key in ("node", "time", "devices-to-allocate", "devices-allocated")),
            *(f"hami.io/bind-{key}" for key in ("phase", "time")),
        ),
        lock=LOCK,
        reads="hami.io/vgpu-devices-allocated",
        request=_hami_request,
        placed=_hami_placed,
        annotations=_hami_annotations,
    ),
    SharingDialect(
        name=KAI,
        program="KAI Scheduler",
        asks_with=(_KAI_FRACTION, _KAI_MEMORY),
        plugin="nvidia",
        writes=("received-resource-type",),
        reads="",
        request=_kai_request,
        placed=lambda _: (),
        annotations=lambda _: {"received-resource-type": "Fraction"},
        is_reserved=True,
    ),
    SharingDialect(
        name=OPENB,
        program="openb (the simulator of Alibaba's GPU trace)",
        asks_with=(_OPENB_MILLI,),
        plugin=OPENB,
        writes=(_OPENB_INDEX, "alibabacloud.com/assume-time"),
        reads=_OPENB_INDEX,
        request=_openb_request,
        placed=_index_list,
        annotations=_openb_annotations,
    ),
)
_BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
_ASKING_ANNOTATIONS: Final = frozenset(
    key for dialect in DIALECTS if not dialect.resources for key in dialect.asks_with
)
SHARE_RESOURCES: Final = frozenset(name for dialect in DIALECTS for name in dialect.resources)


def share_request(pod: Pod) -> ShareRequest | None:
    """Return what a pod asks for in a dialect, with an `error` if that cannot be placed; None if it does not."""
    if not _may_speak(pod):
        return None
    dialects = [dialect for dialect in DIALECTS if _speaks(pod, dialect)]
    first = dialects[0]
    if len(dialects) > 1:
        names = " and ".join(dialect.program for dialect in dialects)
        return ShareRequest(first.name, error=f"it asks for GPUs in the dialects of {names}; leave one of them out")
    try:
        request = first.request(pod)
        _check(request)
    except ShareError as error:
        return ShareRequest(first.name, error=str(error))
    return request._replace(plugin=first.plugin)


def placed_devices(pod: Pod) -> tuple[int | str, ...] | None:
    """Return the indices or UUIDs of the devices of a pod that another program placed by a dialect; None if unknown.

    It has none where a pod of the program holds the device. Only the dialect in which it asks counts, if any.
    """
    annotations = pod.metadata.annotations
    asked = [dialect for dialect in DIALECTS if _speaks(pod, dialect)] if _may_speak(pod) else []
    for dialect in asked or [dialect for dialect in DIALECTS if dialect.reads in annotations]:
        if dialect.is_reserved:
            return ()
        try:
            return dialect.placed(annotations[dialect.reads])[:MAX_DEVICES] or None
        except (KeyError, ValueError):
            return None
    return None


def binding_annotations(binding: Binding) -> dict[str, str]:
    """Return the annotations that the device plugin of a node expects on a pod that gets GPUs of it."""
    if not binding.devices:
        return {}
    request = share_request(binding.pod)
    name = request.dialect if request is not None else plugin_of(binding.node)
    if request.error if request is not None else name != HAMI:
        return {}
    try:
        return _BY_NAME[name].annotations(binding)
    except ShareError:
        return {}


def _may_speak(pod: Pod) -> bool:
    """Return whether a pod asks in any dialect; fast, because all pods of a cluster are asked."""
    if not _ASKING_ANNOTATIONS.isdisjoint(pod.metadata.annotations):
        return True
    for container in pod.spec.containers:
        resources = container.resources
        if not (SHARE_RESOURCES.isdisjoint(resources.limits) and SHARE_RESOURCES.isdisjoint(resources.requests)):
            return True
    return False


def _speaks(pod: Pod, dialect: SharingDialect) -> bool:
    if dialect.resources:
        return bool(_containers_with(pod, dialect.asks_with))
    return any(key in pod.metadata.annotations for key in dialect.asks_with)


def _check(request: ShareRequest) -> None:
    """Raise ShareError for a share that is none of one device."""
    if request.is_whole:
        if not 1 <= request.devices <= MAX_DEVICES:
            raise ShareError(f"it asks for {request.devices} GPUs; ask for 1 to {MAX_DEVICES}")
        return
    if request.devices != 1:
        raise ShareError(f"it asks for shares of {request.devices} GPUs; a share is of one, or ask for whole GPUs")
    if request.milli > DEVICE_MILLI:
        part = f"{request.milli / DEVICE_MILLI:g}"
        raise ShareError(f"it asks for {part} of a GPU's compute; a share is at most one GPU, or ask for whole GPUs")
    if not request.milli and not request.memory_bytes:
        raise ShareError("it asks for a share of nothing; say how much of a GPU it needs")


def _containers_with(pod: Pod, resources: tuple[str, ...]) -> list[int]:
    """Return the indices of the containers that ask for any of these resources."""
    return [
        index
        for index, container in enumerate(pod.spec.containers)
        if any(name in container.resources.limits or name in container.resources.requests for name in resources)
    ]


def _requested(pod: Pod, resource: str) -> int:
    """Return the whole number of units of a resource that the containers of a pod ask for. Raises ShareError."""
    return sum(_requested_by(container, resource) for container in pod.spec.containers)


def _requested_by(container: Container, resource: str) -> int:
    requirements = container.resources
    text = requirements.limits.get(resource) or requirements.requests.get(resource, "0")
    return _whole(_parsed(text, resource), resource)


def _whole_gpus(pod: Pod) -> str:
    """Return the resource of whole GPUs that a container of a pod asks for; empty if none does."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    amounts = ({**container.resources.limits, **container.resources.requests} for container in containers)
    return next(
        (name for each in amounts for name, text in each.items() if name in gpu_resources() and text != "0"), ""
    )


def _types(annotations: dict[str, str], key: str, separator: str) -> tuple[str, ...]:
    """Return the GPU types of an annotation. Raises ShareError if no real list is as long."""
    text = annotations.get(key, "")
    if len(text) > _MAX_TYPES_LENGTH:
        raise ShareError(f"{key} has {len(text)} characters; write at most {_MAX_TYPES_LENGTH}")
    types = (gpu_type(name) for name in text.split(separator) if name.strip())
    return tuple(dict.fromkeys(filter(None, types)))


def _whole_number(annotations: dict[str, str], key: str, default: int | None = None) -> int:
    """Return the whole number of an annotation. Raises ShareError."""
    if default is not None and key not in annotations:
        return default
    return _whole(_parsed(annotations.get(key, ""), key), key)


def _whole(number: Fraction, key: str) -> int:
    """Return a whole number. Raises ShareError if it is none."""
    if number.denominator != 1:
        raise ShareError(f"{key} is {float(number):g}; write a whole number")
    return number.numerator


def _parsed(text: str, key: str) -> Fraction:
    """Return the number that a text says. Raises ShareError if it is none, or larger than any share."""
    try:
        number = parse_quantity(text.strip()[:_MAX_DIGITS])
    except ValueError as error:
        raise ShareError(f"{key}: {error}") from None
    if number > MAX_NUMBER:
        raise ShareError(f"{key} is {text.strip()}, more than any GPU has; write less")
    return number
