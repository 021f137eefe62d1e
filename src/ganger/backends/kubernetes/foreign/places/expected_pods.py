"""Pods that the first pod of a gang will create: they are placed with it before they exist.

The driver of a Spark application creates its executors once it runs. What they will request is read from the
SparkApplication, by the rules with which Spark itself computes it (its configuration documents them: "Running Spark on
Kubernetes", "Configuration"). An executor that requests something else is placed by itself.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Container, Pod, ResourceRequirements

MAX_COUNT: Final = 10_000
"""More executors than this are not placed together."""
_DEFAULT_INSTANCES: Final = 2
_DEFAULT_MEMORY: Final = "1g"
_MIN_OVERHEAD: Final = "384m"
_OVERHEAD_FACTORS: Final = {"Python": 0.4, "R": 0.4}
_OVERHEAD_FACTOR: Final = 0.1
_SIZE: Final = re.compile(r"([0-9]{1,12})([kmgtp]?)b?")
_NUMBER: Final = re.compile(r"[0-9]{1,6}")
_FACTOR: Final = re.compile(r"[0-9]{0,3}\.?[0-9]{1,9}")
_MIB: Final = {"k": 1 / 1024, "m": 1, "": 1, "g": 1024, "t": 1024**2, "p": 1024**3}
_PLACEMENT: Final = ("nodeSelector", "affinity", "tolerations")


class ExpectedPods(NamedTuple):
    """Equal pods that a pod of a gang will create. labels, annotations: those beside the ones of that pod."""

    size: int
    resources: ResourceRequirements
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def created_by(self, creator: Pod) -> tuple[Pod, ...]:
        """Return pods in the place of those that this one will create: on the same kinds of nodes, in its queue."""
        containers = (Container(resources=self.resources),)
        spec = msgspec.structs.replace(
            creator.spec, containers=containers, init_containers=(), resources=None, resource_claims=()
        )
        noted = creator.metadata.annotations.get(object_names.QUEUE)
        annotations = {**self.annotations, **({object_names.QUEUE: noted} if noted else {})}
        labels = {**creator.metadata.labels, **self.labels}
        name, uid = creator.metadata.name, creator.metadata.uid
        return tuple(
            Pod(
                msgspec.structs.replace(
                    creator.metadata,
                    name=f"{name}.{index}",
                    uid=f"{uid}.{index}",
                    labels=labels,
                    annotations=annotations,
                ),
                spec,
            )
            for index in range(self.size)
        )


def spark_executors(spec: Mapping[str, Any]) -> ExpectedPods | None:
    """Return the executors with which a SparkApplication starts; None where they cannot be placed with the driver.

    With dynamic allocation they are the fewest. Fields that make no sense are Spark's to refuse: None.
    """
    driver, executor, conf = (_mapping(spec.get(field)) for field in ("driver", "executor", "sparkConf"))
    template = _mapping(_mapping(executor.get("template")).get("spec"))
    of_driver = _mapping(_mapping(driver.get("template")).get("spec"))
    if any(_set(driver, of_driver, field) != _set(executor, template, field) for field in _PLACEMENT):
        return None
    listed = template.get("containers")
    containers = listed if isinstance(listed, list) and listed else [{}]
    if len(containers) > 1 or template.get("initContainers") or template.get("resourceClaims"):
        return None
    count, memory_mib = _count(spec, executor, conf), _memory_mib(spec, executor, conf)
    if not 0 < count <= MAX_COUNT or memory_mib is None:
        return None
    cores = executor.get("coreRequest") or conf.get("spark.kubernetes.executor.request.cores")
    cores = cores or executor.get("cores") or conf.get("spark.executor.cores") or 1
    given = _mapping(_mapping(containers[0]).get("resources"))
    requests = {**_texts(given.get("requests")), "cpu": str(cores), "memory": f"{memory_mib}Mi"}
    limits = {name: text for name, text in _texts(given.get("limits")).items() if name not in requests}
    gpu = _mapping(executor.get("gpu"))
    if gpu:
        limits[str(gpu.get("name"))] = str(gpu.get("quantity"))
    resources = ResourceRequirements(requests=requests, limits=limits)
    return ExpectedPods(count, resources, _texts(executor.get("labels")), _texts(executor.get("annotations")))


def _count(spec: Mapping[str, Any], executor: Mapping[str, Any], conf: Mapping[str, Any]) -> int:
    dynamic = _mapping(spec.get("dynamicAllocation"))
    is_dynamic = dynamic.get("enabled") or conf.get("spark.dynamicAllocation.enabled") == "true"
    count = executor.get("instances") or conf.get("spark.executor.instances") or _DEFAULT_INSTANCES
    if is_dynamic:
        count = dynamic.get("minExecutors") or conf.get("spark.dynamicAllocation.minExecutors") or 0
    return int(count) if _NUMBER.fullmatch(str(count)) else 0


def _memory_mib(spec: Mapping[str, Any], executor: Mapping[str, Any], conf: Mapping[str, Any]) -> int | None:
    """Return the memory that an executor requests; None if it cannot be known."""
    memory = _mib(executor.get("memory") or conf.get("spark.executor.memory") or _DEFAULT_MEMORY)
    overhead = _mib(executor.get("memoryOverhead") or conf.get("spark.executor.memoryOverhead") or 0)
    least = _mib(conf.get("spark.executor.minMemoryOverhead") or _MIN_OVERHEAD)
    python = _mib(conf.get("spark.executor.pyspark.memory") or 0)
    factor = conf.get("spark.executor.memoryOverheadFactor") or spec.get("memoryOverheadFactor")
    factor = factor or conf.get("spark.kubernetes.memoryOverheadFactor")
    factor = factor or _OVERHEAD_FACTORS.get(str(spec.get("type")), _OVERHEAD_FACTOR)
    is_known = conf.get("spark.memory.offHeap.enabled") != "true" and _FACTOR.fullmatch(str(factor))
    if memory is None or overhead is None or least is None or python is None or not is_known:
        return None
    return memory + (overhead or max(int(memory * float(factor)), least)) + python


def _mib(size: object) -> int | None:
    """Return a size of the JVM, such as 512m or 4g, in MiB; one without a unit is in MiB."""
    match = _SIZE.fullmatch(str(size).strip().lower())
    return int(int(match[1]) * _MIB[match[2]]) if match else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(text) for key, text in _mapping(value).items()}


def _set(role: Mapping[str, Any], template: Mapping[str, Any], field: str) -> object:
    """Return a field of a role, or of its pod template."""
    return role.get(field) or template.get(field) or None
