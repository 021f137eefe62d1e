"""The generated blocks of pages, in Markdown.

A block reads the tables of the code, or the golden environments that the tests compare every framework with.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, get_args

from ganger.cli.exit_codes import EXIT_CODES
from ganger.cli.jobs.explain_spec import describe_key, keys
from ganger.cli.jobs.init_command import TEMPLATES
from ganger.core.failure.failure_classes import CLASSES
from ganger.engine.query.event_text import CAUSES
from ganger.error_codes import CODES
from ganger.model.event import Event
from ganger.model.network_profile import NetworkProfile
from ganger.model.pending_reason import REMEDY, PendingReason, ReasonCode, sentence
from ganger.model.units import DAY_MS, HOUR_MS
from ganger.networks.findings import MEANINGS
from ganger.registry import frameworks, plugin_attribute
from tools.chart import values as chart_values
from tools.generate import rest_routes, sdk_names
from tools.generate.environment_variables import travels, variables
from tools.generate.gang_kinds import gang_kinds
from tools.generate.markdown import code, table
from tools.generate.node_rules import node_checks, node_rules, severities
from tools.generate.other_commands import arena_commands, arena_flags, sbatch_options
from tools.generate.policy_keys import field_rows, policy_keys
from tools.generate.sharing_dialects import sharing_dialects

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "frameworks" / "golden"

_COMMAND: Final = "python train.py --lr 1e-3"
"""The command of the golden environments."""
_STARTED: Final = {
    "rank": "every process",
    "node": "one process on each node, which starts or stands for the others there",
    "gang": "one process, on the first node, which starts the others",
}
_EXAMPLES: Final = (
    PendingReason(
        code=ReasonCode.NO_CAPACITY,
        resource="nodes",
        need=2,
        have=1,
        limit=4,
        scope="8 free GPUs",
        holders=("bert-7f3a",),
    ),
    PendingReason(code=ReasonCode.MAINTENANCE, resource="nodes", need=2, have=1, scope="m42"),
    PendingReason(code=ReasonCode.NO_NODE, resource="nodes", need=4, have=2, scope="8 free GPUs"),
    PendingReason(code=ReasonCode.EXCLUDED, resource="nodes", need=2, have=1, scope="8 free GPUs", excluded=("n3",)),
    PendingReason(
        code=ReasonCode.OVER_QUOTA,
        resource="gpu_milli",
        need=8_000,
        have=4_000,
        limit=16_000,
        scope="nlp",
        holders=("bert-7f3a", "gpt-19c2"),
    ),
    PendingReason(
        code=ReasonCode.USER_GPUS,
        resource="gpu_milli",
        need=8_000,
        have=4_000,
        limit=16_000,
        scope="nlp",
        holders=("bert-7f3a",),
    ),
    PendingReason(
        code=ReasonCode.USER_JOBS,
        resource="jobs",
        need=1,
        have=0,
        limit=2,
        scope="nlp",
        holders=("bert-7f3a", "gpt-19c2"),
    ),
    PendingReason(code=ReasonCode.USER_TIME, resource="time_ms", need=48 * HOUR_MS, limit=24 * HOUR_MS, scope="nlp"),
    PendingReason(
        code=ReasonCode.USER_NODE_TIME,
        resource="node_ms",
        need=48 * HOUR_MS,
        have=10 * HOUR_MS,
        limit=100 * HOUR_MS,
        scope="nlp",
        holders=("bert-7f3a",),
    ),
    PendingReason(
        code=ReasonCode.USER_NODE_TIME_USED,
        resource="node_ms",
        need=48 * HOUR_MS,
        have=10 * HOUR_MS,
        limit=128 * HOUR_MS,
        per_ms=30 * DAY_MS,
        scope="nlp",
        holders=("bert-7f3a",),
    ),
    PendingReason(code=ReasonCode.RESERVED, holders=("bert-7f3a",)),
    PendingReason(code=ReasonCode.BACKOFF, need=2),
    PendingReason(
        code=ReasonCode.NAMESPACE_QUOTA,
        scope="namespace research, quota compute: requests.nvidia.com/gpu: 8 of 8 used, 8 asked by pod bert-7f3a-1-0",
    ),
    PendingReason(
        code=ReasonCode.WEBHOOK_UNREACHABLE,
        scope='failed calling webhook "images.example.com": ... connect: connection refused',
    ),
    PendingReason(
        code=ReasonCode.VOLUME_UNAVAILABLE,
        scope="the claim data is ReadWriteOnce and in use on n1",
    ),
    PendingReason(
        code=ReasonCode.DEVICES_UNAVAILABLE,
        scope="the pod bert-7f3a-1-0 on n1: request gpu: gpu.example.com: 1 of 2 devices are free: gpu-1 is in use",
    ),
    PendingReason(
        code=ReasonCode.INSTALLATION_FAULT,
        scope='the controller lacks a right: pods is forbidden: User "ganger" cannot create resource "pods" ...',
    ),
    PendingReason(code=ReasonCode.STOPPING_OTHERS, holders=("bert-7f3a",)),
    PendingReason(code=ReasonCode.NOT_LISTED),
    PendingReason(code=ReasonCode.DEPENDENCY, scope="succeeded", holders=("prepare-4b1d",)),
    PendingReason(code=ReasonCode.ARRAY_LIMIT, need=10),
)
"""One reason for each code, with the fields that the scheduler fills in, to show the sentence that it makes."""


def block(name: str, *words: str) -> str:
    """Return the block of that name. Raises KeyError for an unknown name."""
    return "\n".join(BLOCKS[name](*words))


def _frameworks() -> Iterator[str]:
    rows = ((f"[`{name}`](how-to/frameworks/{name}.md)", module.DOC) for name, module in sorted(frameworks().items()))
    return table(("framework", "what it is"), rows)


def _failure_classes() -> Iterator[str]:
    head = ("class", "what failed", "origin", "retry", "what to do")
    rows = ((code(one.name), one.title, one.origin, code(one.retry), one.remedy) for one in CLASSES.values())
    return table(head, rows)


def _network_findings() -> Iterator[str]:
    return table(("code", "what it means for jobs"), ((code(name), meaning) for name, meaning in MEANINGS.items()))


def _framework(name: str) -> Iterator[str]:
    """Yield a summary, then the variables and files of the golden environments."""
    module = frameworks()[name]
    needs, roles = plugin_attribute(module, "NEEDS"), plugin_attribute(module, "ROLES")
    yield f"- ganger starts {_STARTED[plugin_attribute(module, 'PER')]}."
    if needs:
        yield f"- `run` must be able to import `{needs}`: that is tried when the job is submitted."
    yield f"- Roles it knows: {', '.join(map(code, roles)) if roles else 'any'}."
    yield f"- Variables that only ganger may set: {', '.join(map(code, module.RESERVED))}, and `GANGER_*`."
    what = (
        "Every process gets"
        if name == "plain"
        else "Beside [what every process gets](../../reference/environment.md) there is"
    )
    yield f"\n{what}, in the third attempt of a job `bert` on `n1` and `n2` with two processes on each:\n"
    yield from _environment(GOLDEN / f"{name}.txt")
    if (more := GOLDEN / f"{name}-roles.txt").exists():
        yield "\nWith roles, on the same nodes:\n"
        yield from _environment(more)


def _environment(path: Path) -> Iterator[str]:
    """Yield a golden environment: variables, commands, and the names of its files."""
    rows, _, files = path.read_text().partition("\n---")
    split = [re.split(r"  +", line.rstrip(), maxsplit=2) for line in rows.strip().splitlines()]
    variables = [(name, ranks, "".join(value)) for name, ranks, *value in split if name not in ("command", "ends with")]
    if variables:
        yield from table(
            ("variable", "ranks", "value"),
            (
                (code(name), ranks.replace("*", "all"), "is not set" if value == "(none)" else code(value))
                for name, ranks, value in variables
            ),
        )
    else:
        yield "Nothing more."
    yield ""
    for name, ranks, *value in split:
        if name == "command" and (runs := "".join(value)) != _COMMAND:
            of = "" if ranks == "*" else f" at rank {ranks}"
            yield f"- `{_COMMAND}` runs{of} as `{runs}`."
        elif name == "ends with":
            yield f"- The job ends with rank {ranks}; what else runs is stopped then."
    if files:
        names = ", ".join(map(code, re.findall(r"^--- (.*)$", f"---{files}", re.MULTILINE)))
        yield f"- Files in `@GANGER_TASK_DIR@`, the attempt's directory on that node: {names}."


def _exit_codes() -> Iterator[str]:
    return table(("code", "in short", "meaning"), ((str(number), *texts) for number, texts in EXIT_CODES.items()))


def _reasons() -> Iterator[str]:
    samples = {reason.code: sentence(reason) for reason in _EXAMPLES}
    return table(
        ("code", "for instance", "what to do"),
        ((code(reason_code), samples[reason_code], _placeholders(REMEDY[reason_code])) for reason_code in ReasonCode),
    )


def _placeholders(remedy: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), remedy)


def _causes() -> Iterator[str]:
    return table(("code", "meaning"), ((code(cause), meaning) for cause, meaning in CAUSES.items()))


def _problems() -> Iterator[str]:
    rows = (
        (
            code(name),
            " or ".join(map(str, filter(None, (error_code.status, error_code.other_status)))),
            error_code.meaning,
        )
        for name, error_code in sorted(CODES.items())
    )
    return table(("code", "status", "meaning"), rows)


def _events() -> Iterator[str]:
    rows = (
        (code(kind.__dataclass_fields__["kind"].default), " ".join((kind.__doc__ or "").split("\n\n")[0].split()))
        for kind in get_args(Event)
    )
    return table(("kind", "meaning"), rows)


def _spec() -> Iterator[str]:
    """Yield a section for each mapping, the file's own first."""
    known = keys()
    mappings = ["", *(path for path, key in known.items() if key.nested)]
    for mapping in mappings:
        container = known[mapping].container if mapping else ""
        title = {"dict": f"{mapping}.NAME", "tuple": f"{mapping}[]"}.get(container, mapping) or "The file"
        yield f"\n### {title}\n" if mapping else ""
        rows = []
        for path, key in known.items():
            if path.rpartition(".")[0] == mapping:
                _, *lines = describe_key(key, known)
                details = dict(
                    re.split(r"  +", line.strip(), maxsplit=1) for line in lines[:3] if "   " in line.strip()
                )
                example = details.get("example", "").partition(": ")[2]
                name = path.rpartition(".")[2]
                rows.append((code(name), key.doc, details["written"], code(example), details["default"]))
        yield from table(("key", "meaning", "written as", "for instance", "without it"), rows)


def _templates() -> Iterator[str]:
    return iter([", ".join(map(code, TEMPLATES))])


def _variables() -> Iterator[str]:
    rows = ((", ".join(map(code, names.split(", "))), meaning) for names, meaning in variables())
    return table(("variable", "meaning"), rows)


def _travels() -> Iterator[str]:
    return iter([", ".join(map(code, travels()))])


def _sdk() -> Iterator[str]:
    return table(
        ("name", "kind", "meaning"), ((code(call), kind, summary) for kind, call, summary in sdk_names.names())
    )


def _train() -> Iterator[str]:
    return table(("name", "meaning"), ((code(call), summary) for call, summary in sdk_names.in_training()))


def _methods(name: str) -> Iterator[str]:
    return table(("method", "meaning"), ((code(call), summary) for call, summary in sdk_names.methods(name)))


BLOCKS: Final[dict[str, Callable[..., Iterator[str]]]] = {
    "arena-commands": arena_commands,
    "arena-flags": arena_flags,
    "causes": _causes,
    "chart-values": chart_values.rows,
    "events": _events,
    "failure-classes": _failure_classes,
    "exit-codes": _exit_codes,
    "framework": _framework,
    "frameworks": _frameworks,
    "gang-kinds": gang_kinds,
    "network-findings": _network_findings,
    "network-profile": lambda: field_rows(NetworkProfile),
    "methods": _methods,
    "node-checks": node_checks,
    "node-rules": node_rules,
    "policy": policy_keys,
    "problems": _problems,
    "reasons": _reasons,
    "rest": rest_routes.routes,
    "sharing-dialects": sharing_dialects,
    "sbatch-options": sbatch_options,
    "schemas": rest_routes.bodies,
    "sdk": _sdk,
    "severities": severities,
    "spec": _spec,
    "templates": _templates,
    "train": _train,
    "travels": _travels,
    "variables": _variables,
}
