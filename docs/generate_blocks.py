"""What the pages say of the code, block by block, in Markdown: called by `generate.py`.

A block reads the code's own tables, or the golden environments that the tests hold every framework to.
"""
# ruff: noqa: INP001 - a script's part, found by its path

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast, get_args

import generate_sdk
from generate_environment import travels, variables

from ganger.engine.codes import CODES
from ganger.engine.registry import frameworks, trait
from ganger.engine.sentences import CAUSES
from ganger.faces.cli.exit_codes import EXIT_CODES
from ganger.faces.cli.explain_spec import described, keys
from ganger.faces.cli.init import TEMPLATES
from ganger.faces.rest.app import make_app
from ganger.model.event import Event
from ganger.model.reason import REMEDY, Reason, Why, sentence
from ganger.model.units import HOUR_MS

ROOT: Final = Path(__file__).parents[1]
GOLDEN: Final = ROOT / "tests" / "frameworks" / "golden"

_COMMAND: Final = "python train.py --lr 1e-3"
"""What the golden environments run."""
_ALWAYS: Final = ("401", "403", "500", "503")
"""Statuses that every route may answer; rest.md says so once."""
_STARTED: Final = {
    "rank": "every process",
    "node": "one process on each node, which starts or stands for the others there",
    "gang": "one process, on the first node, which starts the others",
}
_EXAMPLES: Final[dict[Why, Reason]] = {
    Why.NO_CAPACITY: Reason(
        why=Why.NO_CAPACITY, resource="nodes", need=2, have=1, scope="8 free GPUs", holders=("bert-7f3a",)
    ),
    Why.NO_NODE: Reason(why=Why.NO_NODE, resource="nodes", need=4, have=2, scope="8 GPUs"),
    Why.OVER_QUOTA: Reason(why=Why.OVER_QUOTA, resource="gpus", need=8, have=4, limit=16, scope="nlp"),
    Why.USER_GPUS: Reason(why=Why.USER_GPUS, resource="gpus", need=8, have=4, limit=16, scope="nlp"),
    Why.USER_TIME: Reason(why=Why.USER_TIME, resource="time_ms", need=48 * HOUR_MS, limit=24 * HOUR_MS, scope="nlp"),
    Why.USER_NODE_TIME: Reason(
        why=Why.USER_NODE_TIME,
        resource="node_ms",
        need=48 * HOUR_MS,
        have=10 * HOUR_MS,
        limit=100 * HOUR_MS,
        scope="nlp",
    ),
    Why.DEPENDENCY: Reason(why=Why.DEPENDENCY, scope="succeeded", holders=("bert-7f3a",)),
}
"""Reasons with numbers, to show their sentences; the others need none."""


def block(name: str, *words: str) -> str:
    """The block of that name. KeyError: there is none."""
    return "\n".join(BLOCKS[name](*words))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table."""
    head = tuple(head)
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _frameworks() -> Iterator[str]:
    rows = ((f"[`{name}`](frameworks/{name}.md)", each.DOC) for name, each in sorted(frameworks().items()))
    return table(("framework", "what it is"), rows)


def _framework(name: str) -> Iterator[str]:
    """At a glance, then what the golden environments have."""
    module = frameworks()[name]
    needs, roles = trait(module, "NEEDS"), trait(module, "ROLES")
    yield f"- ganger starts {_STARTED[trait(module, 'PER')]}."
    if needs:
        yield f"- `run` must be able to import `{needs}`: that is tried when the job is submitted."
    yield f"- Roles it knows: {', '.join(map(_code, roles)) if roles else 'any'}."
    yield f"- Variables that only ganger may set: {', '.join(map(_code, module.RESERVED))}, and `GANGER_*`."
    what = "Every process gets" if name == "plain" else "Beside [what every process gets](../environment.md) there is"
    yield f"\n{what}, in the third attempt of a job `bert` on `n1` and `n2` with two processes on each:\n"
    yield from _environment(GOLDEN / f"{name}.txt")
    if (more := GOLDEN / f"{name}-roles.txt").exists():
        yield "\nWith roles, on the same nodes:\n"
        yield from _environment(more)


def _environment(path: Path) -> Iterator[str]:
    """A golden environment: variables, commands, and the names of the files that come with them."""
    rows, _, files = path.read_text().partition("\n---")
    split = [re.split(r"  +", line.rstrip(), maxsplit=2) for line in rows.strip().splitlines()]
    variables = [(name, ranks, "".join(value)) for name, ranks, *value in split if name not in ("command", "ends with")]
    if variables:
        yield from table(
            ("variable", "ranks", "value"),
            (
                (_code(name), ranks.replace("*", "all"), "is not set" if value == "(none)" else _code(value))
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
        names = ", ".join(map(_code, re.findall(r"^--- (.*)$", f"---{files}", re.MULTILINE)))
        yield f"- Files in `@GANGER_TASK_DIR@`, the attempt's directory on that node: {names}."


def _exit_codes() -> Iterator[str]:
    return table(("code", "in short", "meaning"), ((str(code), *told) for code, told in EXIT_CODES.items()))


def _reasons() -> Iterator[str]:
    def sample(why: Why) -> str:
        other = Reason(why=why, need=2, have=1, limit=4, resource="", scope="", holders=("bert-7f3a",))
        return sentence(_EXAMPLES.get(why, other))

    return table(
        ("code", "for instance", "what to do"), ((_code(why), sample(why), _placeholders(REMEDY[why])) for why in Why)
    )


def _placeholders(remedy: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), remedy)


def _causes() -> Iterator[str]:
    return table(("code", "meaning"), ((_code(cause), meaning) for cause, meaning in CAUSES.items()))


def _problems() -> Iterator[str]:
    rows = (
        (_code(name), " or ".join(map(str, filter(None, (code.status, code.other_status)))), code.meaning)
        for name, code in sorted(CODES.items())
    )
    return table(("code", "status", "meaning"), rows)


def _events() -> Iterator[str]:
    rows = (
        (_code(kind.__dataclass_fields__["kind"].default), " ".join((kind.__doc__ or "").split("\n\n")[0].split()))
        for kind in get_args(Event)
    )
    return table(("kind", "meaning"), rows)


def _spec() -> Iterator[str]:
    """A section for each mapping, the file's own first."""
    known = keys()
    mappings = ["", *(path for path, key in known.items() if key.inside)]
    for above in mappings:
        of = known[above].many if above else ""
        title = {"dict": f"{above}.NAME", "tuple": f"{above}[]"}.get(of, above) or "The file"
        yield f"\n### {title}\n" if above else ""
        rows = []
        for path, key in known.items():
            if path.rpartition(".")[0] == above:
                _, *lines = described(key, known)
                told = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines[:3] if "   " in line.strip())
                example = told.get("example", "").partition(": ")[2]
                name = path.rpartition(".")[2]
                rows.append((_code(name), key.doc, told["written"], _code(example), told["default"]))
        yield from table(("key", "meaning", "written as", "for instance", "without it"), rows)


def _rest() -> Iterator[str]:
    """Every route with its parameters, from the OpenAPI document."""
    # Nothing is asked of it here but what it would take.
    document = make_app(cast("Any", None), cast("Any", None)).openapi()
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            yield f"\n### {method.upper()} {path}\n"
            yield route.get("description", route["summary"])
            parameters = [each for each in route.get("parameters", ()) if each["in"] in ("query", "header")]
            if parameters:
                yield ""
                yield from table(
                    ("parameter", "in", "meaning"),
                    ((_code(each["name"]), each["in"], _told(each)) for each in parameters),
                )
            yield ""
            if body := _named(route.get("requestBody", {}).get("content", {})):
                yield f"Takes {body}."
            yield f"Answers {', '.join(_answers(route['responses']))}."


def _told(parameter: dict[str, Any]) -> str:
    text = parameter.get("description") or parameter["schema"].get("description", "")
    return " ".join(text.split())


def _answers(responses: dict[str, Any]) -> Iterator[str]:
    for status, answer in sorted(responses.items()):
        if status in _ALWAYS:
            continue
        named = _named(answer.get("content", {}))
        yield f"{status} {named}" if named and "problem+json" not in named else status


def _named(content: dict[str, Any]) -> str:
    """The name of the schema of a body, and its kind where that is not JSON."""
    for kind, body in content.items():
        schema = body.get("schema", {})
        items = schema.get("items", {}).get("$ref", "")
        name = schema.get("$ref", items).rpartition("/")[2]
        listed = f"a list of `{name}`" if items else f"`{name}`"
        return (listed if name else "") + (f" ({kind})" if kind != "application/json" else "")
    return ""


def _schemas() -> Iterator[str]:
    """The fields of every body, from the OpenAPI document."""
    document = make_app(cast("Any", None), cast("Any", None)).openapi()
    for name, schema in sorted(document["components"]["schemas"].items()):
        if schema.get("properties"):
            needed = schema.get("required", ())
            rows = (
                (_code(key), _type(each), "yes" if key in needed else "", " ".join(each.get("description", "").split()))
                for key, each in schema["properties"].items()
            )
            yield f"\n### {name}\n"
            yield from table(("field", "type", "needed", "meaning"), rows)


def _type(schema: dict[str, Any]) -> str:
    """A schema in a word or two."""
    if "$ref" in schema:
        return _code(schema["$ref"].rpartition("/")[2])
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in kinds))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(_code(str(each)) for each in values) if len(values) < 6 else "one word of a list"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _templates() -> Iterator[str]:
    return iter([", ".join(map(_code, TEMPLATES))])


def _variables() -> Iterator[str]:
    rows = ((", ".join(map(_code, names.split(", "))), meaning) for names, meaning in variables())
    return table(("variable", "meaning"), rows)


def _travels() -> Iterator[str]:
    return iter([", ".join(map(_code, travels()))])


def _sdk() -> Iterator[str]:
    return table(("name", "kind", "meaning"), ((_code(call), kind, said) for kind, call, said in generate_sdk.names()))


def _train() -> Iterator[str]:
    return table(("name", "meaning"), ((_code(call), said) for call, said in generate_sdk.in_training()))


def _methods(name: str) -> Iterator[str]:
    return table(("method", "meaning"), ((_code(call), said) for call, said in generate_sdk.methods(name)))


BLOCKS: Final[dict[str, Callable[..., Iterator[str]]]] = {
    "causes": _causes,
    "events": _events,
    "exit-codes": _exit_codes,
    "framework": _framework,
    "frameworks": _frameworks,
    "methods": _methods,
    "problems": _problems,
    "reasons": _reasons,
    "rest": _rest,
    "schemas": _schemas,
    "sdk": _sdk,
    "spec": _spec,
    "templates": _templates,
    "train": _train,
    "travels": _travels,
    "variables": _variables,
}
