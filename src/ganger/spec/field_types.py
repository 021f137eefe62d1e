"""The forms of spec fields: for each a parser, a writer and a JSON Schema.

`model.job` names the form of each field; `spec.schema` combines them. A parser takes a value of YAML or JSON and raises
ValueError with a sentence that quotes it and names valid values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ganger.model.cluster import ATTACHMENTS, FABRICS, GDR_LEVELS
from ganger.model.decision import FAILURES
from ganger.model.idle.idle_rules import IDLE_ACTIONS
from ganger.model.job import MAX_PRIORITY, PRIORITIES
from ganger.model.job_sections.placement_spec import BATCH_POLICIES
from ganger.model.node_health.health_rules import DRAINS, HEALTH_MODES, HOOK_STEPS
from ganger.model.policy import ATOMIC_SCALE_UP, POD_SECURITY, POOL_KINDS, PRIORITY_SCOPES, RECLAIMS, TIES
from ganger.model.queue import MAX_FIGURE, MAX_WEIGHT
from ganger.model.units import DEVICE_MILLI, EPHEMERAL_STORAGE
from ganger.model.watch.watch_rules import LOG_FORMATS, REACTIONS
from ganger.registry import NAME_PATTERN as PLUGIN_PATTERN
from ganger.registry import frameworks
from ganger.spec.amounts import (
    GPU_TYPE_PATTERN,
    MAX_GPU_INDEX,
    MAX_GPUS,
    MAX_KEPT,
    MAX_MEMORY_BYTES,
    MAX_NODES,
    MAX_PROCESSES,
    MAX_RESERVED,
    MAX_RETRIES,
    MAX_SAMPLES,
    MAX_STEPS,
    NEVER,
    UNITS_PATTERN,
    duration,
    range_of,
    read_backoff,
    read_bytes,
    read_cpu,
    read_cpus,
    read_degree,
    read_gpu,
    read_gpu_memory,
    read_group_range,
    read_half_life,
    read_hang_time,
    read_jobs,
    read_lasting,
    read_longest,
    read_memory,
    read_moment,
    read_node_range,
    read_nproc,
    read_period,
    read_priority,
    read_priority_key,
    read_save_interval,
    units,
    whole,
    write_backoff,
    write_bytes,
    write_cpu,
    write_duration,
    write_gpu,
    write_hang_time,
    write_jobs,
    write_moment,
    write_priority,
    write_priority_key,
    write_range,
    write_save_interval,
)
from ganger.spec.array_elements import ARRAY_PATTERN, MAX_INDEX, read_array, write_array
from ganger.spec.placement_fields import (
    GPU_TYPES_PATTERN,
    INTERFACE_PATTERN,
    LEVEL_PATTERN,
    MAX_PREFERENCE,
    MODES,
    NETWORK_REF_PATTERN,
    NETWORKS,
    NODE_NAME_PATTERN,
    OBJECT_NAME_PATTERN,
    RAIL_PATTERN,
    SHARING,
    STRATEGIES,
    TAINT_PATTERN,
    read_cidr,
    read_devices,
    read_gpu_types,
    read_ip_address,
    read_level,
    read_networks,
    read_node_name,
    read_taint,
    read_term,
    read_terms,
    write_gpu_types,
    write_networks,
    write_terms,
)
from ganger.spec.policy_fields import (
    NAME_GLOB_PATTERN,
    QUEUE_PATTERN,
    read_gpu_type_key,
    read_label_keys,
    read_level_name,
    read_name_glob,
    read_order,
    read_queue_name,
    read_score,
)
from ganger.spec.spec_document import quote
from ganger.spec.text_fields import (
    ENV_NAME_PATTERN,
    FILE_PATTERN,
    IMAGE_PATTERN,
    JOB_PATTERN,
    LABEL_KEY_PATTERN,
    MAX_MARKER,
    MAX_NAME,
    MAX_PATTERN,
    METRIC_PATTERN,
    NAME_PATTERN,
    ON_FAILURE,
    REF_PATTERN,
    REMEDIES,
    RESOURCE_PATTERN,
    RESUME_FROM_PATTERN,
    SIGNALS,
    STOP_WHEN,
    WHEN,
    choice,
    matching,
    names,
    read_absolute_path,
    read_annotation,
    read_argv,
    read_code,
    read_command,
    read_env_name,
    read_env_value,
    read_extended_name,
    read_file_pattern,
    read_flag,
    read_framework,
    read_git_ref,
    read_git_url,
    read_image,
    read_job,
    read_label_key,
    read_label_value,
    read_log_marker,
    read_name,
    read_notes,
    read_param_value,
    read_path,
    read_pattern,
    read_quoted_value,
    read_resource_name,
    read_resume_from,
    read_shell,
    write_code,
    write_command,
)

SIZE_PATTERN: Final = r"\d+(\.\d+)?(k|M|G|T|Ki|Mi|Gi|Ti)?B?"
DURATION_PATTERN: Final = r"(\d+(\.\d+)?(ms|s|m|h|d))+|\d+(\.\d+)?|(\d+-)?\d+:\d\d:\d\d|\d+-\d+(:\d\d)?"
MAX_POINTS: Final = 1_000_000
MAX_GRADES: Final = 1_000_000
MAX_SEED: Final = 1_000_000
MIN_MTU, MAX_MTU = 576, 65_520
MAX_DSCP: Final = 63
MAX_SERVICE_LEVEL: Final = 15
MAX_TRAFFIC_PRIORITY: Final = 7
MAX_FUNCTIONS: Final = 256
MAX_VLAN: Final = 4094
HARDWARE_ADDRESS_PATTERN: Final = r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}"
MAX_QUEUE_PAIRS: Final = 128
"""NCCL's own limit."""
MOMENT_PATTERN: Final = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?"
PAUSES_PATTERN: Final = rf"({DURATION_PATTERN})(\.\.({DURATION_PATTERN}))?"

TEXT, FLAG, MAPPING, MAPPINGS = "text", "true or false", "a mapping", "a list of mappings"
POD_SPEC_FIELDS: Final = {
    "automountServiceAccountToken": FLAG,
    "dnsConfig": MAPPING,
    "dnsPolicy": TEXT,
    "enableServiceLinks": FLAG,
    "hostAliases": MAPPINGS,
    "hostIPC": FLAG,
    "hostNetwork": FLAG,
    "hostPID": FLAG,
    "hostUsers": FLAG,
    "imagePullSecrets": MAPPINGS,
    "initContainers": MAPPINGS,
    "priorityClassName": TEXT,
    "resourceClaims": MAPPINGS,
    "runtimeClassName": TEXT,
    "securityContext": MAPPING,
    "serviceAccountName": TEXT,
    "tolerations": MAPPINGS,
    "volumes": MAPPINGS,
}
POD_CONTAINER_FIELDS: Final = {
    "env": MAPPINGS,
    "envFrom": MAPPINGS,
    "imagePullPolicy": TEXT,
    "securityContext": MAPPING,
    "volumeMounts": MAPPINGS,
}
"""Fields of a Pod and of its container that a job may have, with their types; Kubernetes documents them."""
ROLE_POD_FIELDS: Final = {"resourceClaims": MAPPINGS}
"""Those that each process of a role may have."""

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """Parser and writer of a field, and its JSON Schema."""

    read: Callable[[Any], Any]
    schema: Schema
    write: Callable[[Any], Any] = lambda value: value


@cache
def forms() -> dict[str, Form]:
    """Return all forms by name; computed on first use, because frameworks are looked up only when a spec is parsed."""
    return _of_jobs() | _of_checkpoints() | _of_watch() | _of_places() | _of_policies() | _of_networks()


def _of_jobs() -> dict[str, Form]:
    lasting = _pattern(DURATION_PATTERN)
    whole_or_range = _any_of(_integer(1, MAX_NODES), _pattern(r"\d{1,6}\.\.\d{1,6}"))
    return {
        "name": Form(read_name, _pattern(NAME_PATTERN) | {"maxLength": MAX_NAME}),
        "priority": Form(
            read_priority, _any_of({"enum": list(PRIORITIES)}, _integer(-MAX_PRIORITY, MAX_PRIORITY)), write_priority
        ),
        "framework": Form(read_framework, _pattern(PLUGIN_PATTERN) | {"enum": sorted(frameworks())}),
        "nodes": Form(whole("a number of nodes", 1, MAX_NODES), _integer(1, MAX_NODES)),
        "node_range": Form(read_node_range, whole_or_range, write_range),
        "group_range": Form(read_group_range, whole_or_range, write_range),
        "samples": Form(whole("a number of samples", 1, MAX_SAMPLES), _integer(1, MAX_SAMPLES)),
        "batch_policy": Form(choice("a batch policy", BATCH_POLICIES), {"enum": list(BATCH_POLICIES)}),
        "spares": Form(whole("a number of spare nodes", 0, MAX_NODES), _integer(0, MAX_NODES)),
        "nproc": Form(read_nproc, _any_of({"const": "auto"}, _integer(1, MAX_PROCESSES))),
        "gpu": Form(
            read_gpu, _any_of(_integer(0, MAX_GPUS), _pattern(rf"{GPU_TYPES_PATTERN}:[1-9]\d*")), write_gpu
        ),
        "gpu_count": Form(whole("a number of GPUs", 0, MAX_GPUS), _integer(0, MAX_GPUS)),
        "gpu_types": Form(
            read_gpu_types, _any_of(_pattern(GPU_TYPE_PATTERN), _list_of(_pattern(GPU_TYPE_PATTERN))), write_gpu_types
        ),
        "gpu_milli": Form(whole("thousandths of a GPU", 1, DEVICE_MILLI), _integer(1, DEVICE_MILLI)),
        "gpu_memory": Form(
            read_gpu_memory, _any_of(_integer(1, MAX_MEMORY_BYTES), _pattern(SIZE_PATTERN)), write_bytes
        ),
        "cpu": Form(
            read_cpu, _any_of({"type": "number", "minimum": 0}, _pattern(r"\d+m|\d+(\.\d+)?")), write_cpu
        ),
        "bytes": Form(
            read_bytes, _any_of(_integer(0, MAX_MEMORY_BYTES), _pattern(SIZE_PATTERN)), write_bytes
        ),
        "duration": Form(duration(1), _any_of({"type": "number", "exclusiveMinimum": 0}, lasting), write_duration),
        "pause": Form(duration(0), _any_of({"type": "number", "minimum": 0}, lasting), write_duration),
        "hang_time": Form(
            read_hang_time,
            _any_of({"type": "number", "exclusiveMinimum": 0}, _pattern(f"{NEVER}|{DURATION_PATTERN}")),
            write_hang_time,
        ),
        "backoff": Form(
            read_backoff, _any_of({"type": "number", "minimum": 0}, _pattern(PAUSES_PATTERN)), write_backoff
        ),
        "retries": Form(whole("a number of attempts", 0, MAX_RETRIES), _integer(0, MAX_RETRIES)),
        "path": Form(read_path, {"type": "string", "minLength": 1}),
        "shell": Form(read_shell, {"type": "string", "minLength": 1}),
        "command": Form(read_command, _any_of({"type": "string", "minLength": 1}, _ARGUMENTS), write_command),
        "env_name": Form(read_env_name, _pattern(ENV_NAME_PATTERN)),
        "env_value": Form(read_env_value, _OR_SECRET),
        "quoted_value": Form(read_quoted_value, {"type": "string"}),
        "flag": Form(read_flag, {"type": "boolean"}),
        "process_range": Form(range_of("processes"), whole_or_range, write_range),
        "processes": Form(whole("a number of processes", 1, MAX_NODES), _integer(1, MAX_NODES)),
        "degree": Form(read_degree, _any_of(_integer(1, MAX_NODES), _pattern(r"\d{1,6}|\$\{\{.*\}\}"))),
        "on_failure": Form(choice("what a failure leads to", ON_FAILURE), {"enum": list(ON_FAILURE)}),
        "stop_when": Form(choice("a way to end", STOP_WHEN), {"enum": list(STOP_WHEN)}),
        "when": Form(choice("what a job comes to", WHEN), {"enum": list(WHEN)}),
        "cause": Form(choice("a cause of a failure", FAILURES), {"enum": list(FAILURES)}),
        "remedy": Form(choice("something to do", REMEDIES), {"enum": list(REMEDIES)}),
        "pattern": Form(read_pattern, {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN}),
        "job": Form(read_job, _pattern(JOB_PATTERN)),
        "absolute_path": Form(read_absolute_path, {"type": "string", "pattern": "^/"}),
        "code": Form(read_code, _any_of({"type": "string", "minLength": 1}), write_code),
        "git_url": Form(read_git_url, {"type": "string", "minLength": 1}),
        "git_ref": Form(read_git_ref, _pattern(REF_PATTERN)),
        "array": Form(read_array, _any_of(_integer(0, MAX_INDEX), _pattern(ARRAY_PATTERN)), write_array),
        "roles": Form(names(read_name, "roles"), _list_of(_pattern(NAME_PATTERN)), list),
        "secrets": Form(names(read_env_name, "variables"), _list_of(_pattern(ENV_NAME_PATTERN)), list),
        "image": Form(read_image, _pattern(IMAGE_PATTERN)),
        "resource_name": Form(read_resource_name, _pattern(RESOURCE_PATTERN)),
        "extended_name": Form(read_extended_name, _pattern(f"{EPHEMERAL_STORAGE}|{RESOURCE_PATTERN}")),
        "resource_count": Form(
            units(1, MAX_MEMORY_BYTES), _any_of(_integer(1, MAX_MEMORY_BYTES), _pattern(UNITS_PATTERN))
        ),
        "annotation": Form(read_annotation, _WRITTEN),
        "pod_spec": _pod_part(POD_SPEC_FIELDS, "PodSpec"),
        "role_pod_spec": _pod_part(ROLE_POD_FIELDS, "PodSpec"),
        "pod_container": _pod_part(POD_CONTAINER_FIELDS, "Container"),
        "notes": Form(read_notes, {"type": "string"}),
        "param_value": Form(read_param_value, _WRITTEN),
    }  # fmt: skip


def _of_checkpoints() -> dict[str, Form]:
    return {
        "save_interval": Form(
            read_save_interval,
            _any_of({"type": "number", "exclusiveMinimum": 0}, _pattern(f"auto|{DURATION_PATTERN}")),
            write_save_interval,
        ),
        "kept": Form(whole("a number of checkpoints", 1, MAX_KEPT), _integer(1, MAX_KEPT)),
        "kept_every": Form(whole("a number of steps", 1, MAX_STEPS), _integer(1, MAX_STEPS)),
        "file_pattern": Form(read_file_pattern, _pattern(FILE_PATTERN)),
        "signal": Form(choice("a signal that a script can wait for", SIGNALS), {"enum": list(SIGNALS)}),
        "resume_from": Form(read_resume_from, _pattern(RESUME_FROM_PATTERN)),
    }


def _of_watch() -> dict[str, Form]:
    return {
        "watch_reaction": Form(choice("a consequence of a finding", REACTIONS), {"enum": list(REACTIONS)}),
        "log_format": Form(choice("a program whose log is known", tuple(LOG_FORMATS)), {"enum": list(LOG_FORMATS)}),
        "log_marker": Form(read_log_marker, {"type": "string", "minLength": 1, "maxLength": MAX_MARKER}),
        "metric_name": Form(matching("a name of a metric", METRIC_PATTERN, "loss"), _pattern(METRIC_PATTERN)),
    }


def _of_places() -> dict[str, Form]:
    return {
        "node_names": Form(names(read_node_name, "nodes"), _list_of(_pattern(NODE_NAME_PATTERN)), list),
        "devices": Form(read_devices, _any_of(_integer(0, MAX_GPU_INDEX), _list_of(_integer(0, MAX_GPU_INDEX))), list),
        "level": Form(read_level, _pattern(LEVEL_PATTERN)),
        "mode": Form(choice("a mode", MODES), {"enum": list(MODES)}),
        "strategy": Form(choice("a strategy", STRATEGIES), {"enum": list(STRATEGIES)}),
        "sharing": Form(choice("a way to share nodes", SHARING), {"enum": list(SHARING)}),
        "taints": Form(names(read_taint, "taints"), _list_of(_pattern(TAINT_PATTERN)), list),
        "networks": Form(
            read_networks, _any_of({"enum": list(NETWORKS)}, _list_of({"enum": list(FABRICS)})), write_networks
        ),
        "label_key": Form(read_label_key, _pattern(LABEL_KEY_PATTERN)),
        "label_value": Form(read_label_value, _WRITTEN),
        "term": Form(read_term, {"type": "string", "minLength": 1}, str),
        "terms": Form(
            read_terms,
            _any_of({"type": "string", "minLength": 1}, _list_of({"type": "string", "minLength": 1}) | {"minItems": 1}),
            write_terms,
        ),
        "preference": Form(whole("a weight", 1, MAX_PREFERENCE), _integer(1, MAX_PREFERENCE)),
    }


def _of_policies() -> dict[str, Form]:
    lasting = _any_of({"type": "number", "minimum": 0}, _pattern(DURATION_PATTERN))
    return {
        "order": Form(read_order, _pattern(PLUGIN_PATTERN)),
        "points": Form(whole("a number of points", 0, MAX_POINTS), _integer(0, MAX_POINTS)),
        "some_points": Form(whole("a number of points", 1, MAX_POINTS), _integer(1, MAX_POINTS)),
        "idle_action": Form(choice("a consequence for idle jobs", IDLE_ACTIONS), {"enum": list(IDLE_ACTIONS)}),
        "moment": Form(read_moment, _pattern(MOMENT_PATTERN), write_moment),
        "half_life": Form(read_half_life, lasting, write_duration),
        "flag": Form(read_flag, {"type": "boolean"}),
        "jobs": Form(read_jobs, _any_of({"const": "all"}, _integer(0, MAX_RESERVED)), write_jobs),
        "priority_key": Form(read_priority_key, _pattern(r"low|normal|high|-?\d{1,4}"), write_priority_key),
        "pool_kind": Form(choice("a kind of pool", POOL_KINDS), {"enum": list(POOL_KINDS)}),
        "level_name": Form(read_level_name, _pattern(LEVEL_PATTERN)),
        "label_keys": Form(read_label_keys, _list_of(_pattern(LABEL_KEY_PATTERN)) | {"minItems": 1}, list),
        "pod_security": Form(choice("a Pod Security Standard of jobs", POD_SECURITY), {"enum": list(POD_SECURITY)}),
        "provisioning_class": Form(
            matching("the name of a provisioning class", OBJECT_NAME_PATTERN, ATOMIC_SCALE_UP),
            _pattern(OBJECT_NAME_PATTERN),
        ),
        "reclaim": Form(choice("a rule to reclaim by", RECLAIMS), {"enum": list(RECLAIMS)}),
        "priority_scope": Form(choice("a scope of preemption", PRIORITY_SCOPES), {"enum": list(PRIORITY_SCOPES)}),
        "patterns": Form(names(read_name_glob, "patterns"), _list_of(_pattern(NAME_GLOB_PATTERN)), list),
        "score": Form(read_score, _pattern(PLUGIN_PATTERN)),
        "grades": Form(whole("a number of grades", 0, MAX_GRADES), _integer(0, MAX_GRADES)),
        "seed": Form(whole("a seed", 0, MAX_SEED), _integer(0, MAX_SEED)),
        "percent": Form(whole("a share in percent", 0, 100), _integer(0, 100)),
        "argv": Form(read_argv, {"type": "array", "items": {"type": "string"}}, list),
        "repair_steps": Form(
            names(choice("a repair step", HOOK_STEPS), "repair steps"), _list_of({"enum": list(HOOK_STEPS)}), list
        ),
        "health_mode": Form(choice("a mode of node health", HEALTH_MODES), {"enum": list(HEALTH_MODES)}),
        "health_drain": Form(choice("a time to drain", DRAINS), {"enum": list(DRAINS)}),
        "ties": Form(choice("a rule for ties", TIES), {"enum": list(TIES)}),
        "queue_name": Form(read_queue_name, _pattern(QUEUE_PATTERN)),
        "weight": Form(whole("a weight", 1, MAX_WEIGHT), _integer(1, MAX_WEIGHT)),
        "figure": Form(whole("an amount", 0, MAX_FIGURE), _integer(0, MAX_FIGURE)),
        "resource_figure": Form(units(0, MAX_FIGURE), _any_of(_integer(0, MAX_FIGURE), _pattern(UNITS_PATTERN))),
        "gpu_type_key": Form(read_gpu_type_key, _pattern(GPU_TYPE_PATTERN)),
        "cpus": Form(read_cpus, _any_of({"type": "number", "minimum": 0}, _pattern(r"\d+m|\d+(\.\d+)?")), write_cpu),
        "memory": Form(read_memory, _any_of(_integer(0, MAX_FIGURE), _pattern(SIZE_PATTERN)), write_bytes),
        "lasting": Form(read_lasting, lasting, write_duration),
        "period": Form(read_period, lasting, write_duration),
        "longest": Form(
            read_longest,
            _any_of({"type": "number", "exclusiveMinimum": 0}, _pattern(DURATION_PATTERN)),
            write_duration,
        ),
    }


def _of_networks() -> dict[str, Form]:
    names_of = {
        "hardware_address": ("a hardware address", HARDWARE_ADDRESS_PATTERN, "02:00:00:00:00:01"),
        "rail_name": ("a name of a rail", RAIL_PATTERN, "rail0"),
        "network_ref": ("a NetworkAttachmentDefinition", NETWORK_REF_PATTERN, "NAMESPACE/NAME"),
        "object_name": ("a name of an object", OBJECT_NAME_PATTERN, "rail0"),
        "interface_name": ("a name of a network interface or RDMA device", INTERFACE_PATTERN, "net1 or mlx5_0"),
    }
    numbers = {
        "mtu": ("an MTU", MIN_MTU, MAX_MTU),
        "dscp": ("a DSCP", 0, MAX_DSCP),
        "traffic_priority": ("a priority of packets", 0, MAX_TRAFFIC_PRIORITY),
        "service_level": ("a service level", 0, MAX_SERVICE_LEVEL),
        "queue_pair_count": ("a number of queue pairs", 1, MAX_QUEUE_PAIRS),
        "vlan": ("a VLAN", 1, MAX_VLAN),
        "function_count": ("a number of virtual functions", 1, MAX_FUNCTIONS),
    }
    return {
        **{form: Form(matching(*of_form), _pattern(of_form[1])) for form, of_form in names_of.items()},
        **{form: Form(whole(*of_form), _integer(*of_form[1:])) for form, of_form in numbers.items()},
        "fabric": Form(choice("a kind of fabric", FABRICS), {"enum": list(FABRICS)}),
        "gdr_level": Form(choice("a way between GPU and network card", GDR_LEVELS), {"enum": list(GDR_LEVELS)}),
        "attachment": Form(choice("a way to attach pods", ATTACHMENTS), {"enum": list(ATTACHMENTS)}),
        "cidr": Form(read_cidr, {"type": "string", "minLength": 1}),
        "ip_address": Form(read_ip_address, {"type": "string", "minLength": 1}),
    }


TABLES: Final = {
    "env": ("env_name", "env_value"),
    "variables": ("env_name", "quoted_value"),
    "neighbours": ("ip_address", "hardware_address"),
    "params": ("env_name", "param_value"),
    "labels": ("label_key", "label_value"),
    "annotations": ("label_key", "annotation"),
    "extended": ("extended_name", "resource_count"),
    "ages": ("priority_key", "duration"),
    "gpu_figures": ("gpu_type_key", "figure"),
    "extended_figures": ("extended_name", "resource_figure"),
}
"""Forms that are mappings of names to values, with the forms of both."""
_WRITTEN: Final[Schema] = {"type": ["string", "number", "boolean"]}
"""Text, or a number or boolean whose text is used as written."""
_OR_SECRET: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}
"""The same, or nothing: a secret."""
_ARGUMENTS: Final[Schema] = {"type": "array", "items": _WRITTEN, "minItems": 1}


def _pod_part(fields: dict[str, str], kind: str) -> Form:
    """Return the form of a part of a Pod, of that kind; what is inside is checked when the whole job has been read."""

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{quote(value)} is not a mapping: write keys of {', '.join(fields)}")  # noqa: TRY004
        return value

    types: dict[str, Schema] = {
        TEXT: {"type": "string"},
        FLAG: {"type": "boolean"},
        MAPPING: {"type": "object"},
        MAPPINGS: {"type": "array", "items": {"type": "object"}},
    }
    properties = {
        name: types[written] | {"description": f"{name} of a {kind} of Kubernetes"} for name, written in fields.items()
    }
    return Form(read, {"type": "object", "properties": properties, "additionalProperties": False})


def _integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _pattern(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^({pattern})$"}


def _list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema, "uniqueItems": True}


def _any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}
