"""Jobs that are submitted in the words of Arena: from parsed flags to the keys of a job."""

import re
from typing import Any, Final

from ganger.cli.arena.arena_flags import HOST_NAMESPACES, JobType
from ganger.cli.arena.parse_flags import Parsed, name_of_flag
from ganger.cli.jobs.submit_request import command_of_arguments
from ganger.model.job import PRIORITIES
from ganger.registry import gpu_resources

_ROLES: Final = ("ps", "chief", "evaluator")
_LAUNCHER: Final = re.compile(r"\b(?:torchrun|accelerate|deepspeed|torch\.distributed\.(?:run|launch))\b")
"""Launchers in commands of PyTorchJobs: they choose the framework, and the processes of a node."""


def spec_of(kind: JobType, parsed: Parsed) -> dict[str, Any]:
    """Return the keys of a job; raise ValueError with a sentence for a value that cannot be taken over."""
    if not parsed.last("name"):
        raise ValueError("--name is missing")
    if not parsed.rest:
        raise ValueError("the command is missing: arena submit TYPE --name NAME ... 'python train.py'")
    spec = {
        "name": parsed.last("name"),
        "queue": parsed.last("queue"),
        "priority": _priority(parsed.last("priority")),
        "framework": kind.framework,
        "image": parsed.last("worker-image") or parsed.last("task-images") or parsed.last("image"),
        "resources": _resources(parsed, "", "task-", "worker-"),
        "placement": _placement(parsed),
        "env": dict(_pair(text, "env") for text in parsed.all("env")),
        "labels": dict(_pair(text, "label") for text in parsed.all("label")),
        "volumes": [_volume(text) for text in parsed.all("data")]
        + [_directory(text) for text in parsed.all("data-dir")],
        "pod": _pod(parsed),
        "code": _code(parsed),
        "run": _run(parsed),
        "retry": _given(max=_number(parsed, "job-backoff-limit") or _number(parsed, "retry")),
        "limits": _limits(parsed),
    }
    spec |= _sizes(kind, parsed)
    return {key: value for key, value in spec.items() if value not in ("", None, {}, [])}


def _sizes(kind: JobType, parsed: Parsed) -> dict[str, Any]:
    """Return the keys that say how many processes of which roles there are."""
    workers = _number(parsed, "workers")
    match kind.names[0]:
        case "tfjob":
            return _tensorflow(parsed, 1 if workers is None else workers)
        case "pytorchjob":
            starts_ranks = _LAUNCHER.search(" ".join(parsed.rest)) is not None
            per_node = parsed.last("nproc-per-node", "" if starts_ranks else "1")
            sizes = {"nodes": workers, "nproc_per_node": int(per_node) if per_node.isdigit() else per_node and "auto"}
            return sizes | ({"framework": None} if starts_ranks else {})
        case "etjob":
            low = _number(parsed, "min-workers") or 1
            return {"nodes": _range(low, _number(parsed, "max-workers") or workers or low)}
        case "rayjob":
            workers = _number(parsed, "worker-replicas")
            low, high = (_number(parsed, f"worker-{end}-replicas") or workers or 0 for end in ("min", "max"))
            low, high = (low, high) if parsed.last("enable-autoscaling") else (workers or 0, workers or 0)
            return {"nodes": _range(1 + low, 1 + high)}
        case "volcanojob":
            replicas = _number(parsed, "task-replicas") or 1
            return {"nodes": _range(_number(parsed, "min-available") or replicas, replicas), "nproc_per_node": 1}
        case _:
            return {"nodes": workers}


def _tensorflow(parsed: Parsed, workers: int) -> dict[str, Any]:
    counts = {
        "ps": _number(parsed, "ps") or 0,
        **{role: int(bool(parsed.last(role))) for role in ("chief", "evaluator")},
    }
    roles = {
        role: _given(count=counts[role], resources=_resources(parsed, f"{role}-")) for role in _ROLES if counts[role]
    }
    if not roles:
        return {"nodes": workers, "nproc_per_node": 1}
    if workers:
        roles["worker"] = _given(count=workers, resources=_resources(parsed, "", "worker-"))
    sequence = [role.strip().lower() for role in parsed.last("role-sequence").split(",") if role.strip()]
    policies = {"": None, "chiefworker": "chief", "allworkers": "all"}
    policy = parsed.last("success-policy")
    if policy.lower() not in policies:
        raise ValueError(f"--success-policy={policy}: write ChiefWorker or AllWorkers")
    # The last one starts after all others by itself.
    order = [role for role in sequence if role in roles][:-1] or None
    return {"roles": roles, "resources": None, "start_order": order, "stop_when": policies[policy.lower()]}


def _range(low: int, high: int) -> int | str:
    if low > high:
        raise ValueError(f"the smallest size, {low}, is above the largest, {high}")
    return low if low == high else f"{low}..{high}"


def _resources(parsed: Parsed, *prefixes: str) -> dict[str, Any]:
    """Return the resources that flags with one of these prefixes ask for; the last prefix that has one counts."""
    values: dict[str, Any] = {}
    for prefix in prefixes:
        gpus = _number(parsed, f"{prefix}gpus")
        values |= _given(gpu=gpus, cpu=_cpu(parsed.last(f"{prefix}cpu")), memory=parsed.last(f"{prefix}memory"))
    if "" in prefixes:
        for text in parsed.all("device"):
            name, count = _pair(text, "device")
            if name not in gpu_resources() or not count.isdigit():
                raise ValueError(f"--device {text}: it is no resource of a GPU vendor that ganger knows, with a number")
            values["gpu"] = int(count)
    return values


def _cpu(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _placement(parsed: Parsed) -> dict[str, Any]:
    strategies = {"spread": "spread", "binpack": "pack"}
    policy = parsed.last("worker-affinity-policy")
    return _given(
        node_selector=dict(_pair(text, "selector") for item in parsed.all("selector") for text in item.split(",")),
        tolerations=[_toleration(text) for text in parsed.all("toleration")],
        network=["ib", "roce"] if parsed.last("rdma") else None,
        strategy=strategies.get(policy),
    )


def _toleration(text: str) -> str:
    """Return KEY=VALUE:EFFECT,OPERATOR as a taint that is tolerated."""
    name = re.split(r"[:,]", text)[0]
    return "*" if name == "all" else name


def _volume(text: str) -> dict[str, str]:
    claim, colon, path = text.partition(":")
    if not colon or not path.startswith("/"):
        raise ValueError(f"--data {text}: write PVC:/PATH")
    return {"name": claim, "path": path}


def _directory(text: str) -> dict[str, str]:
    host, _, path = text.partition(":")
    if path not in ("", host):
        raise ValueError(f"--data-dir {text}: a directory keeps its path: write {host}, or a claim: --data PVC:{path}")
    name = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")[:40].strip("-")
    return {"name": name or "data", "path": host}


def _pod(parsed: Parsed) -> dict[str, Any]:
    """Return what the pods have beyond those that ganger makes, which a server on one machine refuses."""
    annotations = dict(
        _pair(text, "annotation") for text in (*parsed.all("annotation"), *parsed.all("worker-annotation"))
    )
    secrets = [{"name": name} for text in parsed.all("image-pull-secret") for name in text.split(",")]
    shared = {name: True for name in HOST_NAMESPACES if parsed.last(name_of_flag(name))}
    return _given(
        metadata=_given(annotations=annotations),
        spec=_given(imagePullSecrets=secrets, **shared),
        container=_given(imagePullPolicy=parsed.last("image-pull-policy")),
        shm=parsed.last("share-memory"),
    )


def _code(parsed: Parsed) -> dict[str, str] | None:
    mode, source = parsed.last("sync-mode"), parsed.last("sync-source")
    if not mode and not source:
        return None
    if mode not in ("", "git"):
        raise ValueError(f"--sync-mode={mode}: only git is taken over: or write `code: .` in a job file")
    branch = next((value for key, value in map(_raw_pair, parsed.all("env")) if key == "GIT_SYNC_BRANCH"), "")
    return _given(git=source, ref=branch)


def _run(parsed: Parsed) -> str | list[str]:
    shell = parsed.last("shell")
    command = command_of_arguments(parsed.rest)
    if shell in ("", "sh"):
        return command
    line = command if isinstance(command, str) else " ".join(parsed.rest)
    return [shell, "-c", line]


def _limits(parsed: Parsed) -> dict[str, str]:
    deadline, wait = _number(parsed, "active-deadline-seconds"), _number(parsed, "max-wait-time")
    return _given(
        time=f"{deadline}s" if deadline else parsed.last("running-timeout"),
        queue_time=f"{wait}s" if wait else parsed.last("starting-timeout"),
    )


def _priority(text: str) -> str | int | None:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if text and text not in PRIORITIES:
        raise ValueError(f"--priority={text}: a priority class is not taken over: write low, normal, high or a number")
    return text


def _number(parsed: Parsed, name: str) -> int | None:
    text = parsed.last(name)
    if text and not (text.isascii() and text.isdigit() and len(text) < 7):
        raise ValueError(f"--{name}={text}: write a whole number")
    return int(text) if text else None


def _pair(text: str, flag: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--{flag} {text}: write NAME=VALUE")
    return name, value


def _raw_pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", {}, [])}
