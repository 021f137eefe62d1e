"""`ganger explain-spec`: meaning, format and default of the keys of a job file.

It reads them from the classes of `ganger.model.job`, so that the YAML reader need not be loaded.
"""

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Final, get_args, get_origin, get_type_hints

import click

from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import Column, show, show_json, show_rows
from ganger.model.job import PRIORITIES, JobSpec
from ganger.model.units import MINUTE_MS, SECOND_MS

FORMS: Final[dict[str, tuple[str, str]]] = {
    "absolute_path": ("a path from /", "/data/imagenet"),
    "annotations": ("a mapping of strings, as annotations of Kubernetes", "{example.org/team: nlp}"),
    "array": ("indices and ranges, with a step after :, and how many at a time after %", "0-99%10"),
    "batch_policy": ("constant_global, scale_lr_linear, scale_lr_sqrt or custom", "scale_lr_linear"),
    "backoff": ("a duration, or two separated by ..", "10s..5m"),
    "bytes": ("a size: 512Mi, 1.5Gi, 2G, or a number of bytes", "64Gi"),
    "cause": ("rank_failed, start_failed, port_busy, launcher_lost or node_lost", "node_lost"),
    "code": ("the path of a directory, or a mapping that names a repository", "."),
    "command": (
        "a command line of /bin/sh (bash: `[bash, -c, ...]`), or a list of arguments that is run without a shell",
        "python train.py --lr 3e-4",
    ),
    "cpu": ("a number of CPUs: 4, 0.5 or 500m", "4"),
    "degree": ("a positive integer, or a parameter", "2"),
    "duration": ("a duration: 90s, 30m, 1h30m, 2d, 4:00:00, or a number of seconds", "30m"),
    "env": ("a mapping of names to values; one without a value is a secret", "{BATCH: 80, HF_TOKEN: }"),
    "extended": ("a mapping of names of resources to numbers, or to sizes in bytes", "{rdma/hca: 1}"),
    "framework": ("the name of a framework; `ganger init --help` lists templates", "torch"),
    "git_ref": ("a branch, a tag or a commit", "v1.2"),
    "git_url": ("https://, ssh://, git:// or file://, or USER@HOST:PATH", "https://example.org/team/model.git"),
    "devices": ("an index, or a list of them, from 0", "[0, 1]"),
    "gpu": ("a number, TYPE:NUMBER, TYPE,TYPE:NUMBER, or a mapping", "H100:8"),
    "gpu_count": ("a non-negative integer", "8"),
    "gpu_memory": ("a size: 10Gi", "10Gi"),
    "gpu_milli": ("an integer from 1 to 1000", "500"),
    "gpu_types": (
        "a type as `ganger node` shows it, or a list, of which the first with free capacity is used",
        "[H100, A100]",
    ),
    "image": ("the name of a container image", "python:3.13-slim"),
    "hang_time": ("a duration: 90s, 30m, 1h30m, or a number of seconds; or never", "30m"),
    "job": ("a job's name or id", "prepare"),
    "save_interval": ("a duration: 90s, 30m, 1h30m, or a number of seconds; or auto", "30m"),
    "kept": ("a positive integer", "3"),
    "kept_every": ("a positive integer", "1000"),
    "labels": ("a mapping of strings, as labels of Kubernetes", "{team: nlp, stage: prod}"),
    "level": ("a topology level, as in the heading of `ganger node`", "rack"),
    "mode": ("preferred or required", "required"),
    "name": ("at most 40 lower-case letters and digits, and - inside", "bert-pretrain"),
    "networks": ("ib, roce or tcp, or a list, of which the first with free capacity is used", "[ib, roce]"),
    "node_names": ("a list of names, as `ganger node` shows them", "[n1, n2]"),
    "node_range": ("a positive integer, or two separated by ..", "2..8"),
    "group_range": ("a positive integer, or two separated by ..", "2..4"),
    "nodes": ("a positive integer", "2"),
    "notes": ("text", "the run for the report"),
    "nproc": ("auto, or a positive integer", "8"),
    "on_failure": ("restart, fail or ignore", "ignore"),
    "params": ("a mapping of names to values", "{lr: 3e-4}"),
    "path": ("a path, relative to the job's directory or from /", "checkpoints"),
    "file_pattern": ("a file name, with at most one *, which stands for a number", "checkpoint-*"),
    "pattern": ("a regular expression, in quotes", '"out of memory"'),
    "pod_container": (
        "env, envFrom, imagePullPolicy, securityContext and volumeMounts of a Container",
        "{imagePullPolicy: Always}",
    ),
    "role_pod_spec": ("resourceClaims alone", "{resourceClaims: [{name: gpus, resourceClaimTemplateName: one-gpu}]}"),
    "pod_spec": ("fields of a PodSpec that do not choose its node", "{imagePullSecrets: [{name: registry}]}"),
    "preference": ("an integer from 1 to 100", "10"),
    "pause": ("a duration, which may be 0", "30s"),
    "priority": ("low, normal, high, or an integer from -1000 to 1000", "high"),
    "process_range": ("a positive integer, or two separated by ..", "2..4"),
    "processes": ("a positive integer", "4"),
    "remedy": ("retry, fail or exclude_node", "exclude_node"),
    "resume_from": ("the name or id of a job, and a step behind it", "bert-7f3:12000"),
    "flag": ("true or false", "false"),
    "retries": ("a non-negative integer", "3"),
    "roles": ("a list of names of roles", "[ps, worker]"),
    "samples": ("a positive integer", "512"),
    "secrets": ("a list of names of variables", "[HF_TOKEN]"),
    "sharing": ("shared, exclusive or whole", "exclusive"),
    "shell": ("a shell command line", "pip install -r requirements.txt"),
    "signal": ("SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGQUIT or SIGTERM", "SIGUSR1"),
    "spares": ("a non-negative integer", "1"),
    "strategy": ("pack, spread or balanced", "spread"),
    "stop_when": ("all or chief", "chief"),
    "taints": ("a list of KEY, KEY=VALUE or *", "[spot, team=nlp]"),
    "term": ("a label selector as of `kubectl get -l`, also KEY>5, KEY<5", "zone in (a, b), !broken"),
    "terms": (
        "a label selector as of `kubectl get -l`, also KEY>5; or a list, of which one must match",
        '["zone in (a, b)", cores>32]',
    ),
    "watch_reaction": ("ignore, tell, stop or rollback", "stop"),
    "log_format": ("deepspeed, megatron or torchtitan", "megatron"),
    "log_marker": ("the text before a number in a log line", '"loss:"'),
    "metric_name": ("letters, digits and any of _./ -", "loss"),
    "when": ("succeeded, failed or ended", "ended"),
}
"""Form -> (description, example)."""


@dataclass(frozen=True)
class Key:
    """One key of a job file.

    path: the dotted name.
    parts: the fields that it consists of.
    nested: the class of its value, if that is a mapping.
    container: `dict` or `tuple` if the value holds several of them.
    """

    path: str
    parts: tuple[Field[Any], ...]
    nested: type | None
    container: str

    @property
    def form(self) -> str:
        """The key of FORMS; empty for a mapping without a form of its own."""
        form: str = self.parts[0].metadata["form"]
        return form

    @property
    def doc(self) -> str:
        """The description of the key."""
        doc: str = self.parts[0].metadata["doc"]
        return doc


@click.command("explain-spec")
@click.argument(
    "field",
    required=False,
    shell_complete=lambda *arguments: [path for path in keys() if path.startswith(arguments[-1])],
)
@output_option
def explain_spec_command(field: str | None, output: str) -> None:
    """Explain a key of the job file: its meaning, format and default.

    Lists all keys without FIELD. The last part of a key is enough: `gpu` for resources.gpu.
    """
    all_keys = keys()
    if field is None:
        columns = Column("KEY"), Column("DESCRIPTION")
        show_rows(columns, map(record, all_keys.values()), lambda key: (key["key"] or "", key["doc"] or ""), "", output)
        return
    selected = all_keys.get(field) or next((key for key in all_keys.values() if key.path.endswith(f".{field}")), None)
    if selected is None:
        names = [*all_keys, *(path.rpartition(".")[2] for path in all_keys)]
        close = get_close_matches(field, names, n=1)
        raise Problem(
            f"{field} is not a key of the job file", f"ganger explain-spec {close[0] if close else ''}".strip()
        )
    if output == "json":
        show_json(record(selected))
        return
    for line in describe_key(selected, all_keys):
        show(line)


def keys() -> dict[str, Key]:
    """Return every key by its path, in the order of the classes."""
    return {key.path: key for key in _keys(JobSpec, "")}


def describe_key(key: Key, all_keys: dict[str, Key]) -> list[str]:
    """Return the explanation of one key as lines."""
    description = record(key)
    lines = [f"{key.path}  {key.doc}", f"  written   {description['written']}"]
    if description["example"] is not None:
        lines.append(f"  example   {description['example']}")
    lines.append(f"  default   {description['default']}")
    nested = [child for child in all_keys.values() if child.path.rpartition(".")[0] == key.path]
    width = max((len(child.path) for child in nested), default=0)
    return [*lines, *(f"  {child.path:{width}}  {child.doc}" for child in nested)]


def record(key: Key) -> dict[str, str | None]:
    """Return the explanation of one key as a record."""
    if key.form:
        form, example = FORMS[key.form]
    elif key.container == "dict":
        form, example = "a mapping of names to mappings with the keys below", ""
    else:
        form, example = f"{'a list of mappings' if key.container else 'a mapping'} with the keys below", ""
    return {
        "key": key.path,
        "doc": key.doc,
        "written": form,
        "example": f"{key.path.rpartition('.')[2]}: {example}" if example else None,
        "default": _default(key),
    }


def _keys(spec_class: type, prefix: str) -> list[Key]:
    hints, parts, result = get_type_hints(spec_class), dict[str, tuple[Field[Any], ...]](), list[Key]()
    for part in (part for part in fields(spec_class) if "doc" in part.metadata):
        name = part.metadata["key"] or part.name
        parts[name] = (*parts.get(name, ()), part)
    for name, key_parts in parts.items():
        hint = hints[key_parts[0].name]
        nested = next((option for option in (hint, *get_args(hint)) if _is_mapping(option)), None)
        origin = get_origin(hint)
        container = origin.__name__ if nested is not None and origin in (dict, tuple) else ""
        result.append(Key(f"{prefix}{name}", key_parts, nested, container))
        result += _keys(nested, f"{prefix}{name}.") if nested is not None else []
    return result


def _is_mapping(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint) and all("doc" in part.metadata for part in fields(hint))


def _default(key: Key) -> str:
    """Return the default as it would be written in a job file."""
    values = [_value(part) for part in key.parts]
    if MISSING in values:
        return "none: required"
    value = values[0]
    match key.form:
        case "backoff":
            return "..".join(map(_duration, values))
        case "pause":
            return _duration(value)
        case "gpu":
            return "0"
        case "priority":
            return next(name for name, number in PRIORITIES.items() if number == value)
        case _:
            pass
    if value is None or value in ((), {}) or is_dataclass(value):
        return "auto" if key.form == "nproc" else "unset"
    return str(value)


def _duration(value_ms: int) -> str:
    """Format a duration in the largest unit that is exact."""
    units = {"m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
    return next(f"{value_ms // size}{unit}" for unit, size in units.items() if value_ms % size == 0)


def _value(part: Field[Any]) -> Any:
    return part.default_factory() if part.default_factory is not MISSING else part.default
