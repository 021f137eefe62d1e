"""Laws of the spec: it can be written and read again, nothing makes it crash, and its JSON Schema says the same."""

import json
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ganger.errors import RequestError
from ganger.model.affinity import Affinity, Expression, Operator, Preference, Term
from ganger.model.job import (
    After,
    Array,
    GitCode,
    GpuRequest,
    JobSpec,
    Parallel,
    Resources,
    Role,
    Volume,
)
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import BATCH_POLICIES, Batch, Elastic, Placement, Slice
from ganger.model.job_sections.pod_spec import PodMetadata, PodSection, RolePod
from ganger.model.job_sections.retry_spec import Limits, Retry, Rule
from ganger.model.watch.watch_rules import LogMarkers, Watch
from ganger.spec import json_schema, parse_spec, spec_from_dict, spec_to_dict
from ganger.spec.field_types import TABLES, forms
from ganger.spec.schema import by_key, inner

DAYS_3650_MS = 3650 * 86_400_000

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1).filter(str.strip)
texts = texts.filter(lambda text: "${{" not in text)
paths = texts.filter(lambda text: "$" not in text and not text.startswith("~"))
durations = st.integers(1, DAYS_3650_MS)
gpu_types = st.from_regex(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,39}", fullmatch=True)
gpus = st.one_of(
    st.builds(
        lambda count, types: GpuRequest(count=count, type=types[0], other_types=tuple(types[1:])),
        st.integers(1, 1024),
        st.lists(gpu_types, min_size=2, max_size=3, unique_by=str.lower),
    ),
    st.builds(GpuRequest, count=st.integers(0, 1024)),
    st.builds(
        GpuRequest, count=st.integers(1, 1024), type=st.from_regex(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,39}", fullmatch=True)
    ),
)
env = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True).map(lambda name: f"X{name}"), texts | st.just("")
)
checkpoints = st.builds(
    Checkpoint,
    dir=paths,
    local=st.none() | st.just("/nvme/fast"),
    peer=st.just(False),  # it needs nodes and local: tests/spec/test_reading.py
    pattern=st.none() | st.from_regex(r"[a-z0-9][a-z0-9.=_@+-]{0,39}\*?[a-z.]{0,9}", fullmatch=True),
    every_ms=st.none() | st.just(0) | durations,
    signal=st.sampled_from([None, "SIGUSR1", "SIGTERM"]),
    grace_ms=st.integers(0, DAYS_3650_MS),
    keep=st.integers(1, 10_000),
    keep_every=st.none() | st.integers(1, 1_000_000_000),
    in_place=st.booleans(),
    resume_from=st.sampled_from([None, "bert", "bert-7f3:12000", "sweep-ab12[3]:7"]),
)
reactions = st.none() | st.sampled_from(["ignore", "tell", "stop"])
markers = st.from_regex(r"[a-z]{1,5}( [a-z]{1,5})?[:=]", fullmatch=True)
log_markers = st.builds(LogMarkers, step=markers, loss=markers, nan_steps=st.none() | markers)
watches = st.builds(
    Watch,
    nan=reactions,
    spike=reactions,
    stall=reactions,
    slow=reactions,
    max_rollbacks=st.none() | st.integers(0, 1000),
    metric=st.sampled_from(["loss", "train/lm loss"]),
    log_format=st.none(),
    log=st.none() | log_markers,
) | st.builds(Watch, log_format=st.sampled_from(["megatron", "deepspeed", "torchtitan"]))
commands = texts | st.lists(texts, min_size=1).map(tuple)
resources = st.builds(
    Resources,
    gpu=gpus,
    cpu_milli=st.none() | st.integers(0, 65_536_000),
    memory_bytes=st.integers(0, 1 << 46),
    extended=st.dictionaries(st.sampled_from(["rdma/hca", "a.b/C_d", "ephemeral-storage"]), st.integers(1, 1 << 46)),
)
CLAIM = {"name": "gpus", "resourceClaimTemplateName": "one"}
roles = st.dictionaries(
    names.filter(lambda name: name != "worker"),
    st.builds(
        Role,
        count=st.integers(1, 65_536),
        max_count=st.none(),
        resources=resources,
        run=st.none() | commands,
        env=env,
        on_failure=st.sampled_from(["restart", "fail", "ignore"]),
        pod=st.none() | st.builds(RolePod, spec=st.just({"resourceClaims": [CLAIM]}) | st.just({})),
    ),
    max_size=3,
)
arrays = st.builds(
    Array,
    indices=st.sets(st.integers(0, 9_999_999) | st.integers(0, 20), min_size=1).map(lambda drawn: tuple(sorted(drawn))),
    limit=st.none() | st.integers(1, 9_999_999),
)
afters = st.lists(
    st.builds(After, job=names, when=st.sampled_from(["succeeded", "failed", "ended"])),
    unique_by=lambda after: after.job,
    max_size=3,
).map(tuple)
volumes = st.lists(
    st.builds(Volume, name=names, path=paths.map(lambda path: f"/{path}")),
    unique_by=lambda volume: volume.name,
    max_size=2,
).map(tuple)
rules = st.lists(
    st.builds(
        Rule,
        log=st.sampled_from(["ECC", r"^out of \w+$"]),
        cause=st.sampled_from([None, "rank_failed", "node_lost"]),
        do=st.sampled_from(["retry", "fail", "exclude_node"]),
    ),
    max_size=2,
).map(tuple)
retries = st.tuples(
    st.none() | st.integers(0, 1000), st.lists(st.integers(0, DAYS_3650_MS), min_size=2, max_size=2), rules
).map(lambda drawn: Retry(max=drawn[0], backoff_first_ms=min(drawn[1]), backoff_max_ms=max(drawn[1]), rules=drawn[2]))
keys = st.sampled_from(["zone", "example.org/a"])
values = st.lists(st.sampled_from(["a", "", "7", "B_2"]), min_size=1, unique=True).map(lambda v: tuple(sorted(v)))
expressions = (
    st.builds(Expression, keys, st.sampled_from([Operator.IN, Operator.NOT_IN]), values)
    | st.builds(Expression, keys, st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]))
    | st.builds(Expression, keys, st.sampled_from([Operator.GT, Operator.LT]), st.sampled_from([("0",), ("-12",)]))
)
terms = st.builds(Term, st.lists(expressions, min_size=1, max_size=3, unique=True).map(tuple))
affinities = st.builds(
    Affinity,
    required=st.lists(terms, max_size=2, unique=True).map(tuple),
    preferred=st.lists(st.builds(Preference, match=terms, weight=st.integers(1, 100)), max_size=2).map(tuple),
)
placements = st.builds(
    Placement,
    affinity=affinities,
    topology=st.just("rack"),
    mode=st.sampled_from(["preferred", "required"]),
    strategy=st.sampled_from(["pack", "spread", "balanced"]),
    slices=st.sampled_from([(), ("nvlink",), ("rack", "nvlink")]).map(
        lambda levels: tuple(Slice(level=level, nodes=1) for level in levels)
    ),
    sharing=st.sampled_from(["shared", "exclusive"]),
    node_selector=st.dictionaries(st.sampled_from(["zone", "example.org/a"]), st.sampled_from(["a", "", "7"])),
    tolerations=st.sampled_from([(), ("spot", "team=nlp"), ("*",)]),
    network=st.sampled_from([(), ("ib",), ("ib", "tcp")]),
)
pods = st.builds(
    PodSection,
    metadata=st.builds(PodMetadata, labels=st.just({"team": "nlp"}), annotations=st.dictionaries(keys, texts)),
    spec=st.dictionaries(st.just("hostPID"), st.booleans()),
    container=st.dictionaries(
        st.just("securityContext"), st.dictionaries(st.just("runAsUser"), st.integers(0, 1 << 31))
    ),
    shm_bytes=st.none() | st.integers(0, 1 << 46),
)
words = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True)
batches = st.builds(Batch, global_samples=st.just(1), policy=st.sampled_from(BATCH_POLICIES[1:]))
ranges = st.tuples(
    st.integers(1, 9),
    st.builds(Elastic, step=st.integers(1, 3), level=st.none() | st.just("rack"), batch=st.none() | batches),
)


def with_range(spec: JobSpec, units: int, elastic: Elastic) -> JobSpec:
    """Return an elastic gang of a spec that needs no slices, with a range of its first role or of its nodes."""
    if spec.placement.slices:
        return spec
    if spec.roles:
        (name, role), count = next(iter(spec.roles.items())), 1 + spec.nodes % 4
        batch = elastic.batch and replace(elastic.batch, global_samples=count)
        role = replace(role, count=count, max_count=count + units * elastic.step)
        return replace(spec, roles=spec.roles | {name: role}, elastic=replace(elastic, level=None, batch=batch))
    nodes = elastic.step * (1 + spec.nodes % 4)
    batch = elastic.batch and replace(elastic.batch, global_samples=nodes * spec.processes_per_node)
    return replace(spec, nodes=nodes, max_nodes=nodes + units * elastic.step, elastic=replace(elastic, batch=batch))


def with_groups(spec: JobSpec, least: int, more: int) -> JobSpec:
    """Return a job of replica groups, where the spec can be one."""
    if spec.roles or spec.placement.nodes or spec.array:
        return spec
    array = Array(indices=tuple(range(least + more)))
    return replace(spec, replica_groups=least, max_replica_groups=least + more if more else None, array=array)


rigid_specs = st.builds(
    JobSpec,
    roles=roles,
    stop_when=st.just("all"),
    preemptible=st.booleans(),
    start_order=st.sampled_from([(), ("worker",)]),
    pod=st.none() | pods,
    volumes=volumes,
    secrets=st.lists(names.map(lambda name: f"S_{name.replace('-', '_')}"), unique=True, max_size=3).map(tuple),
    params=env,
    after=afters,
    array=st.none() | arrays,
    labels=st.dictionaries(words | words.map(lambda word: f"example.org/{word}"), words | st.just(""), max_size=3),
    notes=st.none() | texts,
    name=names,
    queue=names,
    priority=st.integers(-1000, 1000),
    framework=st.sampled_from(["plain", "torch"]),
    image=st.sampled_from([None, "python:3.13-slim"]),
    nodes=st.integers(1, 65_536),
    max_nodes=st.none(),
    elastic=st.none(),
    nproc_per_node=st.none() | st.integers(1, 1024),
    resources=resources,
    placement=st.just(Placement()) | placements,
    code=st.none() | paths | st.builds(GitCode, git=st.just("file:///a"), ref=st.sampled_from(["HEAD", "v1", "a/b"])),
    setup=st.none() | texts,
    run=commands,
    env=env,
    checkpoint=st.none() | checkpoints,
    watch=st.none() | watches,
    movable=st.booleans(),
    spares=st.none(),
    replica_groups=st.none(),
    max_replica_groups=st.none(),
    retry=retries,
    limits=st.builds(
        Limits,
        time_ms=st.none() | durations,
        queue_time_ms=st.none() | durations,
        hang_time_ms=st.none() | st.just(0) | durations,
    )
    | durations.map(lambda time_ms: Limits(time_ms=time_ms, time_min_ms=time_ms)),
)
specs = (
    rigid_specs
    | st.builds(lambda spec, drawn: with_range(spec, *drawn), rigid_specs, ranges)
    | st.builds(with_groups, rigid_specs, st.integers(1, 3), st.integers(0, 3))
)


@given(specs)
def test_what_is_written_reads_the_same(spec: JobSpec) -> None:
    assert spec_from_dict(spec_to_dict(spec), "again") == spec


@given(nodes=st.integers(1, 64), tp=st.integers(1, 8), pp=st.integers(1, 8), whole=st.booleans())
def test_a_layout_whose_product_is_the_number_of_processes(nodes: int, tp: int, pp: int, *, whole: bool) -> None:
    parallel = Parallel(tp=tp, pp=pp, dp=nodes if whole else None)
    spec = JobSpec(run="x", nodes=nodes, nproc_per_node=tp * pp, parallel=parallel)
    assert spec_from_dict(spec_to_dict(spec), "again") == spec


@given(specs)
def test_through_json_it_reads_the_same(spec: JobSpec) -> None:
    assert parse_spec(json.dumps(spec_to_dict(spec)), "job.json") == spec


def job_or_refused(read: Any, *arguments: Any) -> None:
    try:
        answer = read(*arguments)
    except RequestError as refused:
        answer = refused
    if isinstance(answer, RequestError):
        assert answer.code == "bad_spec"
        assert answer.detail
        assert answer.detail.encode()
    else:
        assert isinstance(answer, JobSpec)


@given(st.text() | st.text("{}[]:,&*!|>'\"%@`#-?\n\t \\0aru"))
@example('"\\U00110000"')
@example("!!float a")
@example("!!bool a")
@example("!!timestamp a")
@example("!!merge a: b")
@example("%YAML 1.1\n---\nrun: yes")
@example("%YAML 9.9\n---\nrun: yes")
@example("%TAG ! x:\n---\nrun: !y z")
@example("run: x\n? \n: y")
@example("run: x\n!!binary a: b")
@example("{[]: 1}")
@example("{{a: b}: 1}")
@example("run: 0b2")
@example("nodes: 0o9\nrun: x")
@example("nodes: 1e400\nrun: x")
@example("env: {A: &a x, *a : y}\nrun: x")
@example("run: x\nenv: &e {A: *e}")
@example("...")
@example("\x85")
@example("\u2028a: b")
def test_any_text_is_a_job_or_refused(text: str) -> None:
    job_or_refused(parse_spec, text, "job.yaml")


@given(st.binary())
def test_any_bytes_are_a_job_or_refused(text: bytes) -> None:
    job_or_refused(parse_spec, text, "job.yaml")


KEYS = sorted({*json_schema()["properties"], "gpu", "cpu", "memory", "count", "type", "dir", "every", "max", "backoff"})
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.sampled_from(["auto", "1h"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS) | st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(KEYS), anything))
def test_any_mapping_is_a_job_or_refused(data: dict[str, Any]) -> None:
    job_or_refused(spec_from_dict, data, "fuzz")
    job_or_refused(parse_spec, "run: x\nenv: {A: 1}\nresources: {gpu: 1}", "job.yaml", data)


@given(specs, st.data())
def test_a_spec_with_one_thing_changed_is_a_job_or_refused(spec: JobSpec, data: st.DataObject) -> None:
    written = spec_to_dict(spec)
    at = written
    while True:
        key = data.draw(st.sampled_from(sorted(at)))
        if not isinstance(at[key], dict) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(anything)
    job_or_refused(spec_from_dict, written, "fuzz")


KINDS = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
REMARKS = ("$schema", "$defs", "title", "description", "default")
Schema = dict[str, Any]


def is_kind(value: Any, kind: str) -> bool:
    return isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


OF_ANYTHING = {
    "type": lambda value, kinds: any(is_kind(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)),
    "enum": lambda value, legal: value in legal,
    "const": lambda value, legal: value == legal,
}
OF_TEXT = {
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "minLength": lambda value, least: len(value) >= least,
    "maxLength": lambda value, most: len(value) <= most,
}
OF_NUMBERS = {
    "minimum": lambda value, least: value >= least,
    "maximum": lambda value, most: value <= most,
    "exclusiveMinimum": lambda value, least: value > least,
}


def conforms(value: Any, schema: Schema, root: Schema) -> bool:
    """Validate a value against a JSON Schema of the few keywords that are used; an unknown one is an error."""
    return all(keeps(value, keyword, schema, root) for keyword in schema if keyword not in REMARKS)


def keeps(value: Any, keyword: str, schema: Schema, root: Schema) -> bool:
    """Return whether a value keeps to one keyword of a schema; a keyword for another type accepts it."""
    argument = schema[keyword]
    if keyword == "$ref":
        return conforms(value, root["$defs"][argument.removeprefix("#/$defs/")], root)
    if keyword == "anyOf":
        return any(conforms(value, each, root) for each in argument)
    for rules, kind in ((OF_ANYTHING, object), (OF_TEXT, str), (OF_NUMBERS, (int, float))):
        if keyword in rules:
            return not isinstance(value, kind) or rules[keyword](value, argument)
    if keyword in ("minItems", "items"):
        return not isinstance(value, list) or keeps_as_list(value, keyword, argument, root)
    return not isinstance(value, dict) or keeps_as_object(value, keyword, schema, root)


def keeps_as_list(value: list[Any], keyword: str, argument: Any, root: Schema) -> bool:
    return len(value) >= argument if keyword == "minItems" else all(conforms(each, argument, root) for each in value)


def keeps_as_object(value: dict[str, Any], keyword: str, schema: Schema, root: Schema) -> bool:
    argument = schema[keyword]
    match keyword:
        case "required":
            return all(name in value for name in argument)
        case "properties":
            return all(conforms(value[name], each, root) for name, each in argument.items() if name in value)
        case "propertyNames":
            return all(conforms(name, argument, root) for name in value)
        case "additionalProperties":
            others = sorted(set(value) - set(schema.get("properties", {})))
            return not others if argument is False else all(conforms(value[name], argument, root) for name in others)
    raise AssertionError(keyword)


@given(specs)
def test_what_is_written_conforms_to_the_schema(spec: JobSpec) -> None:
    schema = json_schema()
    assert conforms(spec_to_dict(spec), schema, schema)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"run": 5},
        {"run": "x", "nodes": 0},
        {"run": "x", "nodse": 1},
        {"run": "x", "name": "My Job"},
        {"run": "x", "resources": {"gpu": "H100"}},
        {"run": "x", "resources": {"gpu": {"kount": 1}}},
        {"run": "x", "limits": {"time": "soon"}},
        {"run": "x", "env": {"a b": "c"}},
        {"run": "x", "env": {"A": []}},
        {"run": "x", "roles": {"ps": {"kount": 1}}},
        {"run": "x", "roles": {"P S": {}}},
        {"run": "x", "after": [{"when": "ended"}]},
        {"run": "x", "after": {"job": "a"}},
        {"run": "x", "array": "a-b"},
        {"run": "x", "code": {"ref": "main"}},
        {"run": "x", "volumes": [{"name": "a", "path": "b"}]},
        {"run": "x", "retry": {"rules": [{"log": "x", "do": "nothing"}]}},
        {"run": "x", "labels": {"-": "b"}},
        {"run": "x", "secrets": ["a-b"]},
        {"run": "x", "framework": "pytorch"},
        {"run": "x", "checkpoint": {"signal": "SIGKILL"}},
        {"run": "x", "kind": "service"},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(data: dict[str, Any]) -> None:
    schema = json_schema()
    assert not conforms(data, schema, schema)
    with pytest.raises(RequestError):
        spec_from_dict(data, "x")


def nouns(noun: type) -> list[type]:
    within = [found for key in by_key(noun) if (found := inner(noun, key))]
    return [noun, *(deeper for each in within for deeper in nouns(each))]


def test_every_field_has_a_doc_and_a_form_and_is_in_the_schema() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert {Role, After, GitCode, Volume, Rule, Parallel} < set(nouns(JobSpec))
    for noun in nouns(JobSpec):
        properties = schema["properties"] if noun is JobSpec else schema["$defs"][noun.__name__]["properties"]
        undescribed = [each.name for each in fields(noun) if "doc" not in each.metadata]
        # What a server adds, and no user writes, has no form.
        assert undescribed == {JobSpec: ["templates"], GpuRequest: ["resources"]}.get(noun, [])
        for each in (each for each in fields(noun) if each.name not in undescribed):
            form, key = each.metadata["form"], each.metadata["key"] or each.name
            assert each.metadata["doc"]
            assert form in forms() or form in TABLES or inner(noun, key)
            assert properties[key]["description"]


def test_defaults_in_the_schema_are_the_defaults() -> None:
    schema = json_schema()
    defaults = {key: each["default"] for key, each in schema["properties"].items() if "default" in each}
    assert spec_from_dict({"run": "x"} | defaults, "x") == JobSpec(run="x")
    for key, noun in (("checkpoint", "Checkpoint"), ("retry", "Retry"), ("resources", "Resources")):
        inside = schema["$defs"][noun]["properties"]
        written = {name: each["default"] for name, each in inside.items() if "default" in each}
        assert written
        empty: dict[str, Any] = {"run": "x", key: {}}
        assert spec_from_dict({"run": "x", key: written}, "x") == spec_from_dict(empty, "x")
