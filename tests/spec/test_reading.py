"""Valid specs, and the jobs that they describe."""

from typing import Any

import pytest

from ganger.errors import RequestError
from ganger.model.affinity import Expression, Operator, Preference, Term
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import Placement, Slice
from ganger.model.job_sections.retry_spec import Limits, Retry
from ganger.model.terms import Slices
from ganger.spec import parse_spec, spec_from_dict, spec_to_dict

WHOLE = """\
# everything that there is
kind: job
name: bert-pretrain
queue: nlp
priority: high
framework: torch
nodes: 4
nproc_per_node: 8
resources: {gpu: H100:8, cpu: 96, memory: 1Ti}
code: .
setup: pip install -r requirements.txt
run: |
  python train.py \\
    --lr 0.1
env: {BS: 80, VERSION: 1.10, DEBUG: true, WORDS: "a: b"}
checkpoint:
  {dir: ckpt, local: /nvme, peer: true, pattern: "step-*", every: 30m, signal: SIGUSR1, grace: 120s, keep: 3,
   keep_every: 9, resume_from: 'bert-7f3:120'}
retry: {max: 3, backoff: 10s..5m}
limits: {time: 24h, time_min: 90m, queue_time: 2h, hang_time: 30m}
"""
WHOLE_SPEC = JobSpec(
    name="bert-pretrain",
    queue="nlp",
    priority=100,
    framework="torch",
    nodes=4,
    nproc_per_node=8,
    resources=Resources(gpu=GpuRequest(count=8, type="H100"), cpu_milli=96_000, memory_bytes=1 << 40),
    code=".",
    setup="pip install -r requirements.txt",
    run="python train.py \\\n  --lr 0.1\n",
    env={"BS": "80", "VERSION": "1.10", "DEBUG": "true", "WORDS": "a: b"},
    checkpoint=Checkpoint(
        dir="ckpt",
        local="/nvme",
        peer=True,
        pattern="step-*",
        every_ms=1_800_000,
        signal="SIGUSR1",
        grace_ms=120_000,
        keep=3,
        keep_every=9,
        resume_from="bert-7f3:120",
    ),
    retry=Retry(max=3, backoff_first_ms=10_000, backoff_max_ms=300_000),
    limits=Limits(time_ms=86_400_000, time_min_ms=5_400_000, queue_time_ms=7_200_000, hang_time_ms=1_800_000),
)


def test_the_whole_spec() -> None:
    assert parse_spec(WHOLE, "job.yaml") == WHOLE_SPEC


def test_the_smallest_spec() -> None:
    assert parse_spec("run: python train.py", "job.yaml") == JobSpec(run="python train.py")


def test_written_back_without_defaults_and_in_a_users_words() -> None:
    assert spec_to_dict(WHOLE_SPEC) == {
        "name": "bert-pretrain",
        "queue": "nlp",
        "priority": "high",
        "framework": "torch",
        "nodes": 4,
        "nproc_per_node": 8,
        "resources": {"gpu": "H100:8", "cpu": 96, "memory": "1024Gi"},
        "code": ".",
        "setup": "pip install -r requirements.txt",
        "run": "python train.py \\\n  --lr 0.1\n",
        "env": {"BS": "80", "VERSION": "1.10", "DEBUG": "true", "WORDS": "a: b"},
        "checkpoint": {
            "dir": "ckpt",
            "local": "/nvme",
            "peer": True,
            "pattern": "step-*",
            "every": "30m",
            "signal": "SIGUSR1",
            "grace": "2m",
            "keep": 3,
            "keep_every": 9,
            "resume_from": "bert-7f3:120",
        },
        "retry": {"max": 3, "backoff": "10s..5m"},
        "limits": {"time": "1d", "time_min": "1h30m", "queue_time": "2h", "hang_time": "30m"},
    }
    assert spec_to_dict(JobSpec(run=("python", "x.py"))) == {"run": ["python", "x.py"]}


FORMS: dict[str, tuple[Any, Any]] = {
    # key: what is written -> what it is
    "priority: low": ("priority", -100),
    "priority: -1000": ("priority", -1000),
    "nodes: 0x10": ("nodes", 16),
    "nodes: 65536": ("nodes", 65_536),
    "nproc_per_node: auto": ("nproc_per_node", None),
    "nproc_per_node: 1024": ("nproc_per_node", 1024),
    "resources: {gpu: 8}": ("resources.gpu", GpuRequest(count=8)),
    "resources: {gpu: 0}": ("resources.gpu", GpuRequest()),
    "resources: {gpu: 'A100-80GB:2'}": ("resources.gpu", GpuRequest(count=2, type="A100-80GB")),
    "resources: {gpu: {count: 3}}": ("resources.gpu", GpuRequest(count=3)),
    "resources: {gpu: {count: 3, type: h100}}": ("resources.gpu", GpuRequest(count=3, type="h100")),
    "resources: {gpu: {}}": ("resources.gpu", GpuRequest()),
    "resources: {gpu: 'H100,A100:8'}": ("resources.gpu", GpuRequest(count=8, type="H100", other_types=("A100",))),
    "resources: {gpu: {count: 8, type: [H100, A100]}}": (
        "resources.gpu",
        GpuRequest(count=8, type="H100", other_types=("A100",)),
    ),
    "placement: {topology: rack, mode: required}": ("placement", Placement(topology="rack", mode="required")),
    "placement: {slices: [{level: rack, nodes: 1}]}": ("placement.slices", (Slice(level="rack", nodes=1),)),
    "nodes: 8\nplacement: {slices: [{level: s, nodes: 8}, {level: r, ranks: 4}, {level: v, ranks: 1}]}": (
        "slices",
        Slices("s", 8, (Slices("r", 4), Slices("v", 1))),
    ),
    "nodes: 4\nnproc_per_node: 8\nplacement: {slices: [{level: nvlink, ranks: 16}]}": (
        "slices",
        Slices(level="nvlink", nodes=2),
    ),
    "nproc_per_node: 8\nplacement: {slices: [{level: nvlink, ranks: 4}]}": ("slices", Slices(level="nvlink", nodes=1)),
    "placement: {node_selector: {zone: a, size: 010, fast: on}}": (
        "placement.node_selector",
        {"zone": "a", "size": "010", "fast": "on"},
    ),
    "placement: {affinity: {required: 'zone in (b, a), size=010, !old'}}": (
        "placement.affinity.required",
        (
            Term(
                (
                    Expression("zone", Operator.IN, ("a", "b")),
                    Expression("size", Operator.IN, ("010",)),
                    Expression("old", Operator.DOES_NOT_EXIST),
                )
            ),
        ),
    ),
    "placement: {affinity: {required: ['a notin (x)', 'b!=,c>-1', d < 7, e==f, g]}}": (
        "placement.affinity.required",
        (
            Term((Expression("a", Operator.NOT_IN, ("x",)),)),
            Term((Expression("b", Operator.NOT_IN, ("",)), Expression("c", Operator.GT, ("-1",)))),
            Term((Expression("d", Operator.LT, ("7",)),)),
            Term((Expression("e", Operator.IN, ("f",)),)),
            Term((Expression("g", Operator.EXISTS),)),
        ),
    ),
    "placement: {affinity: {preferred: [{match: example.org/disk=ssd, weight: 10}, {match: a}]}}": (
        "placement.affinity.preferred",
        (
            Preference(match=Term((Expression("example.org/disk", Operator.IN, ("ssd",)),)), weight=10),
            Preference(match=Term((Expression("a", Operator.EXISTS),)), weight=1),
        ),
    ),
    "placement: {tolerations: [spot, team=nlp, '*']}": ("placement.tolerations", ("spot", "team=nlp", "*")),
    "placement: {network: ib}": ("placement.network", ("ib",)),
    "placement: {network: [ib, roce]}": ("placement.network", ("ib", "roce")),
    "placement: {network: rdma}": ("placement.network", ("ib", "roce")),
    "placement: {}": ("placement", Placement()),
    "resources: {cpu: 500m}": ("resources.cpu_milli", 500),
    "resources: {cpu: 0.5}": ("resources.cpu_milli", 500),
    "resources: {cpu: '2'}": ("resources.cpu_milli", 2000),
    "resources: {memory: 1.5Gi}": ("resources.memory_bytes", 1_610_612_736),
    "resources: {memory: 2G}": ("resources.memory_bytes", 2_000_000_000),
    "resources: {memory: 1024}": ("resources.memory_bytes", 1024),
    "limits: {time: 1h30m}": ("limits.time_ms", 5_400_000),
    "limits: {time: 90}": ("limits.time_ms", 90_000),
    "limits: {time: 0.25}": ("limits.time_ms", 250),
    "limits: {time: 2d}": ("limits.time_ms", 172_800_000),
    "checkpoint: {}": ("checkpoint", Checkpoint()),
    "checkpoint: {grace: 0}": ("checkpoint.grace_ms", 0),
    "retry: {backoff: 10s}": ("retry", Retry(backoff_first_ms=10_000, backoff_max_ms=10_000)),
    "retry: {backoff: 250ms..1.5s}": ("retry", Retry(backoff_first_ms=250, backoff_max_ms=1500)),
    "retry: {backoff: 5}": ("retry", Retry(backoff_first_ms=5000, backoff_max_ms=5000)),
    "retry: {max: 0}": ("retry.max", 0),
    "env: {}": ("env", {}),
    "env: {A: '', B: 1e-3, C: 007, D: off, E: 2026-01-01, F: 1_000, G: .inf}": (
        "env",
        {"A": "", "B": "1e-3", "C": "007", "D": "off", "E": "2026-01-01", "F": "1_000", "G": ".inf"},
    ),
    "env: {_a1: 'x\ty', É: x}": ("env", None),
    "code: ../other": ("code", "../other"),
    "resources: {}": ("resources", Resources()),
}


@pytest.mark.parametrize(("text", "want"), FORMS.items(), ids=FORMS)
def test_forms(text: str, want: tuple[str, Any]) -> None:
    path, value = want
    if value is None and path == "env":
        with pytest.raises(RequestError, match="'É' is not the name of a variable"):
            parse_spec(f"run: x\n{text}", "job.yaml")
        return
    spec: Any = parse_spec(f"run: x\n{text}", "job.yaml")
    for name in path.split("."):
        spec = getattr(spec, name)
    assert spec == value


RUNS = {
    "a line": ("run: python train.py --lr 0.1", "python train.py --lr 0.1"),
    "words": ("run: [python, train.py]", ("python", "train.py")),
    "words that are numbers": ("run: [python, -c, 1.10, true, 0x10]", ("python", "-c", "1.10", "true", "0x10")),
    "an empty word": ("run: [echo, '']", ("echo", "")),
    "one word": ("run:\n- hostname", ("hostname",)),
    "two lines": ("run: |-\n  a\n  b", "a\nb"),
    "folded": ("run: >-\n  a\n  b", "a b"),
    "braces of a shell": ("run: echo ${HOME} $(date)", "echo ${HOME} $(date)"),
}


@pytest.mark.parametrize(("text", "want"), RUNS.values(), ids=RUNS)
def test_run(text: str, want: str | tuple[str, ...]) -> None:
    assert parse_spec(text, "job.yaml").run == want


TEXTS = {
    "JSON": '{"run": ["python", "x.py"], "nodes": 2}',
    "JSON with tabs": '{\n\t"run":\t[\n\t\t"python", "x.py"],\n\t"nodes": 2\n}\n',
    "a byte order mark": "\ufeffrun: [python, x.py]\nnodes: 2",
    "bytes": b"run: [python, x.py]\nnodes: 2",
    "MaintenanceWindows lines": "run: [python, x.py]\r\nnodes: 2\r\n",
    "a document marker": "---\nrun: [python, x.py]\nnodes: 2\n...\n",
    "an alias": "name: job\nrun: &a [python, x.py]\nnodes: 2",
    "a standard tag": "run: !!seq [!!str python, x.py]\nnodes: !!int 2",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_ways_to_write_it(text: str | bytes) -> None:
    assert parse_spec(text, "job.yaml") == JobSpec(run=("python", "x.py"), nodes=2)


def test_characters_beyond_the_basic_plane() -> None:
    want = JobSpec(run="echo 😀", env={"A": "😀"})
    assert parse_spec("run: echo 😀\nenv: {A: 😀}", "job.yaml") == want
    assert parse_spec(r'{"run": "echo \ud83d\ude00", "env": {"A": "\ud83d\ude00"}}', "job.json") == want


def test_an_anchor_may_be_used_twice() -> None:
    assert parse_spec("run: &x [a]\nenv: {A: &x b, C: *x}", "job.yaml").env == {"A": "b", "C": "b"}


def test_a_mapping_reads_as_the_text_does() -> None:
    data = {"run": ["x", 1, 0.5, True], "env": {"A": 1, "B": False, "C": 1.5}, "resources": {"gpu": 2}}
    spec = spec_from_dict(data, "the command line")
    assert spec.run == ("x", "1", "0.5", "true")
    assert spec.env == {"A": "1", "B": "false", "C": "1.5"}
    assert data["env"] == {"A": 1, "B": False, "C": 1.5}, "what was passed in is left alone"


OVER = {
    "a value": ({"nodes": 4}, JobSpec(run=("a", "1"), nodes=4, env={"A": "1.10"})),
    "into a mapping": ({"env": {"B": 2}}, JobSpec(run=("a", "1"), nodes=2, env={"A": "1.10", "B": "2"})),
    "one of a mapping": ({"env": {"A": 2}}, JobSpec(run=("a", "1"), nodes=2, env={"A": "2"})),
    "words by a line": ({"run": "b"}, JobSpec(run="b", nodes=2, env={"A": "1.10"})),
    "nothing": ({}, JobSpec(run=("a", "1"), nodes=2, env={"A": "1.10"})),
}


@pytest.mark.parametrize(("over", "want"), OVER.values(), ids=OVER)
def test_the_command_line_goes_over_the_file(over: dict[str, Any], want: JobSpec) -> None:
    assert parse_spec("run: [a, 1]\nnodes: 2\nenv: {A: 1.10}", "job.yaml", over) == want


def test_what_is_replaced_is_not_complained_of() -> None:
    text = "run: x\nnodes: many\nresources: {gpu: {count: -1}}"
    spec = parse_spec(text, "job.yaml", {"nodes": 2, "resources": {"gpu": "H100:4"}})
    assert (spec.nodes, spec.resources.gpu) == (2, GpuRequest(count=4, type="H100"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"watch": {"nan": "explode"}}, "'explode' is not a consequence of a finding: write ignore, tell, stop or rol"),
        ({"watch": {"nan": "rollback"}}, "watch.nan: a rollback needs a checkpoint for each step: add checkpoint"),
        ({"watch": {"spike": "rollback"}, "checkpoint": {"pattern": "m.pt"}}, "watch.spike: a rollback needs"),
        ({"watch": {"log_format": "megatorn"}}, "did you mean 'megatron'?"),
        ({"watch": {"log_format": "megatron", "log": {"step": "s", "loss": "l"}}}, "leave out log or log_format"),
        ({"watch": {"log": {"step": "s"}}}, "loss"),
        ({"watch": {"log": {"step": " ", "loss": "l"}}}, "is not a part of a log line"),
        ({"watch": {"log": {"step": "s\n", "loss": 3}}}, "is not a part of a log line"),
        ({"watch": {"max_rollbacks": -1}}, "-1"),
        ({"watch": []}, "watch"),
    ],
)
def test_a_wrong_watch_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        spec_from_dict({"run": "x"} | fields, "job")
    assert message in refused.value.detail
