"""`ganger explain-spec`: what a key of a job file means, how it is written, and what it is without being written.

Read off the classes of `ganger.model.job`, so that nothing is loaded that reads a file.
"""

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Final, get_args, get_origin, get_type_hints

import click

from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import Column, show, show_json, show_json_array, show_table
from ganger.model.job import PRIORITIES, JobSpec
from ganger.model.units import MINUTE_MS, SECOND_MS

FORMS: Final[dict[str, tuple[str, str]]] = {
    "absolute_path": ("a path from /", "/data/imagenet"),
    "array": ("indices and ranges, with a step after :, and how many at a time after %", "0-99%10"),
    "backoff": ("a duration, or two with .. between", "10s..5m"),
    "bytes": ("a size: 512Mi, 1.5Gi, 2G, or a number of bytes", "64Gi"),
    "cause": ("rank_failed, start_failed, port_busy, launcher_lost or node_lost", "node_lost"),
    "code": ("the path of a directory, or a mapping that names a repository", "."),
    "command": ("a line for a shell, or a list of words that is run as it is", "python train.py --lr 3e-4"),
    "cpu": ("a number of CPUs: 4, 0.5 or 500m", "4"),
    "degree": ("a whole number from 1, or a parameter", "2"),
    "duration": ("a duration: 90s, 30m, 1h30m, 2d, or a number of seconds", "30m"),
    "env": ("a mapping of names to values; one without a value is a secret", "{BATCH: 80, HF_TOKEN: }"),
    "framework": ("the name of a framework; `ganger init --help` lists templates", "torch"),
    "git_ref": ("a branch, a tag or a commit", "v1.2"),
    "git_url": ("https://, ssh://, git:// or file://, or USER@HOST:PATH", "https://example.org/team/model.git"),
    "devices": ("an index, or a list of them, from 0", "[0, 1]"),
    "gpu": ("a number, TYPE:NUMBER, TYPE,TYPE:NUMBER, or a mapping", "H100:8"),
    "gpu_count": ("a whole number", "8"),
    "gpu_memory": ("a size: 10Gi", "10Gi"),
    "gpu_milli": ("a whole number from 1 to 1000", "500"),
    "gpu_types": ("a type as `ganger node` shows it, or a list, the first that has room", "[H100, A100]"),
    "image": ("the name of a container image", "python:3.13-slim"),
    "job": ("a job's name or id", "prepare"),
    "kept": ("a whole number from 1", "3"),
    "kept_every": ("a whole number from 1", "1000"),
    "labels": ("a mapping of words, as labels of Kubernetes", "{team: nlp, stage: prod}"),
    "level": ("a level that `ganger node` has in its heading", "rack"),
    "mode": ("preferred or required", "required"),
    "name": ("lower-case letters, digits and - inside, at most 40", "bert-pretrain"),
    "networks": ("ib, roce or tcp, or a list, the first that has room", "[ib, roce]"),
    "node_names": ("a list of names, as `ganger node` shows them", "[n1, n2]"),
    "nodes": ("a whole number from 1", "2"),
    "notes": ("text", "the run for the report"),
    "nproc": ("auto, or a whole number from 1", "8"),
    "on_failure": ("restart, fail or ignore", "ignore"),
    "params": ("a mapping of names to values", "{lr: 3e-4}"),
    "path": ("a path, relative to the job's directory or from /", "checkpoints"),
    "pattern": ("a regular expression, in quotes", '"out of memory"'),
    "preference": ("a whole number from 1 to 100", "10"),
    "pause": ("a duration, 0 included", "30s"),
    "priority": ("low, normal, high, or an integer from -1000 to 1000", "high"),
    "processes": ("a whole number from 1", "4"),
    "remedy": ("retry, fail or exclude_node", "exclude_node"),
    "resume": ("auto or never", "never"),
    "retries": ("a whole number", "3"),
    "roles": ("a list of names of roles", "[ps, worker]"),
    "secrets": ("a list of names of variables", "[HF_TOKEN]"),
    "sharing": ("shared, exclusive or whole", "exclusive"),
    "shell": ("a line for a shell", "pip install -r requirements.txt"),
    "signal": ("SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGQUIT or SIGTERM", "SIGUSR1"),
    "strategy": ("pack, spread or balanced", "spread"),
    "stop_when": ("all or chief", "chief"),
    "taints": ("a list of KEY, KEY=VALUE or *", "[spot, team=nlp]"),
    "term": ("labels as `kubectl get -l` takes them, and KEY>5, KEY<5", "zone in (a, b), !broken"),
    "terms": ("labels as `kubectl get -l` takes them, and KEY>5; or a list, any one", '["zone in (a, b)", cores>32]'),
    "when": ("succeeded, failed or ended", "ended"),
}
"""How the text of each form is written, and one that is right."""


@dataclass(frozen=True)
class Key:
    """One key of a job file: `path` as a person names it, the parts that it is made of, the class inside it."""

    path: str
    parts: tuple[Field[Any], ...]
    inside: type | None
    many: str

    @property
    def form(self) -> str:
        """Which of FORMS it is written in; nothing for a mapping that is only that."""
        form: str = self.parts[0].metadata["form"]
        return form

    @property
    def doc(self) -> str:
        """The sentence about it."""
        doc: str = self.parts[0].metadata["doc"]
        return doc


@click.command("explain-spec")
@click.argument("field", required=False, shell_complete=lambda *given: _beginning(given[-1]))
@output_option
def explain_spec_command(field: str | None, output: str) -> None:
    """Say what a key of a job file means and how it is written.

    Without FIELD: all keys. A part is enough: `gpu` for resources.gpu.
    """
    known = keys()
    if field is None and output == "json":
        show_json_array(record(key) for key in known.values())
        return
    if field is None:
        show_table((Column("KEY"), Column("WHAT IT IS")), [(key.path, key.doc) for key in known.values()], "")
        return
    found = known.get(field) or next((key for key in known.values() if key.path.endswith(f".{field}")), None)
    if found is None:
        words = [*known, *(path.rpartition(".")[2] for path in known)]
        close = get_close_matches(field, words, n=1)
        raise Problem(f"{field} is no key of a job file", f"ganger explain-spec {close[0] if close else ''}".strip())
    if output == "json":
        show_json(record(found))
        return
    for line in described(found, known):
        show(line)


def keys() -> dict[str, Key]:
    """Every key, by its path, in the order of the classes."""
    return {key.path: key for key in _keys(JobSpec, "")}


def described(key: Key, known: dict[str, Key]) -> list[str]:
    """What is said of one key."""
    told = record(key)
    lines = [f"{key.path}  {key.doc}", f"  written   {told['written']}"]
    if told["example"] is not None:
        lines.append(f"  example   {told['example']}")
    lines.append(f"  default   {told['default']}")
    inside = [each for each in known.values() if each.path.rpartition(".")[0] == key.path]
    width = max((len(each.path) for each in inside), default=0)
    return [*lines, *(f"  {each.path:{width}}  {each.doc}" for each in inside)]


def record(key: Key) -> dict[str, str | None]:
    """The same, for programs."""
    if key.form:
        written, example = FORMS[key.form]
    elif key.many == "dict":
        written, example = "a mapping of names to mappings with the keys below", ""
    else:
        written, example = f"{'a list of mappings' if key.many else 'a mapping'} with the keys below", ""
    return {
        "key": key.path,
        "doc": key.doc,
        "written": written,
        "example": f"{key.path.rpartition('.')[2]}: {example}" if example else None,
        "default": _default(key),
    }


def _beginning(incomplete: str) -> list[str]:
    """Keys that a shell may offer."""
    return [path for path in keys() if path.startswith(incomplete)]


def _keys(noun: type, prefix: str) -> list[Key]:
    hints, parts, found = get_type_hints(noun), dict[str, tuple[Field[Any], ...]](), list[Key]()
    for part in fields(noun):
        name = part.metadata["key"] or part.name
        parts[name] = (*parts.get(name, ()), part)
    for name, these in parts.items():
        hint = hints[these[0].name]
        inside = next((each for each in (hint, *get_args(hint)) if _is_mapping(each)), None)
        origin = get_origin(hint)
        many = origin.__name__ if inside is not None and origin in (dict, tuple) else ""
        found.append(Key(f"{prefix}{name}", these, inside, many))
        found += _keys(inside, f"{prefix}{name}.") if inside is not None else []
    return found


def _is_mapping(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint) and all("doc" in part.metadata for part in fields(hint))


def _default(key: Key) -> str:
    """The default as it would be written."""
    values = [_value(part) for part in key.parts]
    if MISSING in values:
        return "none: it must be written"
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
    if value is None or value in ((), {}) or is_dataclass(value):
        return "auto" if key.form == "nproc" else "not written"
    return str(value)


def _duration(value_ms: int) -> str:
    """In the largest unit that is exact."""
    units = {"m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
    return next(f"{value_ms // size}{unit}" for unit, size in units.items() if value_ms % size == 0)


def _value(part: Field[Any]) -> Any:
    return part.default_factory() if part.default_factory is not MISSING else part.default
