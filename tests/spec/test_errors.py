"""What a spec may not say: every error with its place, what is legal, and what was probably meant."""

from typing import Any

import pytest

from ganger.engine.refusal import Refused
from ganger.engine.spec import parse_spec, spec_from_dict


def errors(text: str | bytes) -> list[str]:
    with pytest.raises(Refused) as refused:
        parse_spec(text, "job.yaml")
    assert (refused.value.code, refused.value.status) == ("bad_spec", 422)
    assert refused.value.next
    return refused.value.detail.splitlines()


ONE = {
    # what is written on line 2, after `run: x` -> place and parts of the only error
    "nodes: two": "2:8 'two' is not a number of nodes|from 1 to 65536",
    "nodes: '4'": "2:8 write a whole number from 1 to 65536 without quotes",
    "nodes: 0": "2:8 0 is not a number of nodes",
    "nodes: 65537": "2:8 65537 is not",
    "nodes: true": "2:8 true is not a number",
    "nodes: 2.0": "2:8 2.0 is not",
    "nodes: [1]": "2:8 [1] is not",
    "nodes:": "2:1 nodes: nothing is not a number of nodes",
    "node: 2": "2:1 node is not a key|legal here are name, queue|did you mean 'nodes'?",
    "Nodes: 2": "2:1 did you mean 'nodes'?",
    "nproc-per-node: 2": "2:1 did you mean 'nproc_per_node'?",
    "gpus: 2": "2:1 did you mean 'resources.gpu'?",
    "memory: 2": "2:1 did you mean 'resources.memory'?",
    "zzz: 2": "2:1 zzz is not a key",
    "nproc_per_node: many": "2:17 write auto, or a whole number from 1 to 1024",
    "name: My Job!": "2:7 'My Job!' is not a name|at most 40|for instance 'my-job'",
    "name: 5": "2:7 5 is not a name|for instance '5'",
    f"name: {'a' * 41}": f"2:7 for instance '{'a' * 40}'",
    "name: '!!!'": "2:7 '!!!' is not a name",
    "name: -a": "2:7 for instance 'a'",
    "queue: A/B": "2:8 queue: 'A/B' is not a name",
    "priority: urgent": "2:11 low, normal or high, or a whole number from -1000 to 1000",
    "priority: hihg": "2:11 did you mean 'high'?",
    "priority: 1001": "2:11 1001 is not a priority",
    "framework: pytorch": "2:12 'pytorch' is not a framework|plain or torch|did you mean 'torch'?",
    "framework: {}": "2:12 {} is not a framework",
    "kind: jbo": "2:7 'jbo' is not a kind of work|did you mean 'job'?",
    "kind: [job]": "2:7 ['job'] is not a kind",
    "resources: 8": "2:12 8 is not legal: write a mapping with keys of gpu, cpu, memory",
    "resources: {cpus: 8}": "2:13 resources.cpus is not a key|legal here are gpu, cpu, memory|did you mean 'cpu'?",
    "resources: {gpu: H100}": "2:18 'H100' is not a GPU request|did you mean H100:1?",
    "resources: {gpu: '8'}": "2:18 did you mean 8 without quotes?",
    "resources: {gpu: H100:0}": "2:18 'H100:0' is not a GPU request",
    "resources: {gpu: 8:H100}": "2:18 '8:H100' is not a GPU request",
    "resources: {gpu: 1025}": "2:18 resources.gpu.count: 1025 is not a number of GPUs",
    "resources: {gpu: 0.5}": "2:18 0.5 is not a GPU request",
    "resources: {gpu: {type: H100}}": "2:18 a GPU type without a number",
    "resources: {gpu: {cuont: 1}}": "2:19 did you mean 'count'?",
    "resources: {gpu: {count: 1, type: 'a b'}}": "2:35 'a b' is not a GPU type",
    "resources: {cpu: many}": "2:18 'many' is not a number of CPUs: write 2, 0.5 or 500m",
    "resources: {cpu: -1}": "2:18 -1 is not",
    "resources: {cpu: .nan}": "2:18 nan is not",
    "resources: {cpu: 1e9}": "2:18 is not a number of CPUs",
    "resources: {memory: 1GiB!}": "2:21 '1GiB!' is not a size|512Mi",
    "resources: {memory: 65Ti}": "2:21 up to 64Ti",
    "resources: {memory: yes}": "2:21 'yes' is not a size",
    "resources: {memory: true}": "2:21 true is not a size",
    "limits: {time: 1:30}": "2:16 '1:30' is not a duration|90s, 30m, 1h30m",
    "limits: {time: 0}": "2:16 more than 0",
    "limits: {time: 10000d}": "2:16 at most 3650d",
    "limits: {time: .inf}": "2:16 inf is not a duration",
    f"limits: {{time: {'9' * 5000}}}": "2:16 is not a number that can be read",
    f"limits: {{time: '{'9' * 5000}'}}": "2:16 is not a duration",
    "limits: {tiem: 1h}": "2:10 did you mean 'time'?",
    "checkpoint: ckpt": "2:13 'ckpt' is not legal: write a mapping with keys of dir, every",
    "checkpoint:": "2:1 checkpoint: nothing is not legal",
    "checkpoint: {signal: USR1}": "2:22 SIGUSR1, SIGUSR2|did you mean 'SIGUSR1'?",
    "checkpoint: {signal: SIGKILL}": "2:22 is not a signal that a script can wait for",
    "checkpoint: {resume: always}": "2:22 write auto or never",
    "checkpoint: {dir: ~/ckpt}": "2:19 '~' and '$' are a shell's",
    "checkpoint: {dir: $HOME}": "2:19 write the path out",
    "checkpoint: {dir: ''}": "2:19 '' is not a directory",
    "retry: {max: -1}": "2:14 from 0 to 1000",
    "retry: {backoff: 5m..10s}": "2:18 the second is not shorter than the first",
    "retry: {backoff: soon}": "2:18 'soon' is not a pause: write 10s, or 10s..5m",
    "retry: {backoff: ..5m}": "2:18 is not a pause",
    "setup: 5": "2:8 5 is not a command",
    "setup: ' '": "2:8 is not a command: write a shell line",
    "code: 5": "2:7 5 is not a directory",
    "env: [A]": "2:6 write a mapping, one `NAME: value` a line",
    "env: {1A: x}": "2:7 '1A' is not the name of a variable",
    "env: {a-b: x}": "2:7 'a-b' is not the name",
    "env: {A: [1]}": "2:10 env.A: [1] is not the value of a variable",
    "env: {GANGER_X: 1}": "2:7 env.GANGER_X: names that begin with GANGER_ are ganger's",
    "env: {LOCAL_RANK: 1}": "2:7 env.LOCAL_RANK: ganger sets it for framework plain",
    'env: {A: "\\0"}': "2:10 has a character that no program can be given",
    'env: {A: "\\ud800"}': "2:10 half of a pair",
    f"env: {{A: {'x' * 131_072}}}": "2:10 longer than a variable can be|128 KiB",
    "<<: {nodes: 2}": "2:1 '<<' is not supported",
    "? [a]\n: b": "2:3 a key is one word of text",
    "nodes: !foo 2": "2:8 the tag '!foo' is not supported",
    "nodes: !!int many": "2:8 'many' is not a number",
    "resources: !!set {gpu}": "2:12 the tag|is not supported",
    "run: y": "2:1 'run' is given twice, first on line 1",
    "resources:\n  cpu: 1\n  cpu: 2": "4:3 'cpu' is given twice, first on line 3",
}  # fmt: skip


@pytest.mark.parametrize(("text", "want"), ONE.items(), ids=lambda value: value[:40])
def test_one_error_at_its_place(text: str, want: str) -> None:
    (error,) = errors(f"run: x\n{text}")
    place, _, parts = want.partition(" ")
    assert error.startswith(f"job.yaml:{place}: ")
    for part in parts.split("|"):
        assert part in error


RUNS = {
    "nodes: 1": "1:1 run is missing",
    "run:": "1:1 run: nothing is not a command",
    "run: []": "1:6 write a list of words",
    "run: ['']": "1:6 the program first",
    "run: [[a]]": "1:6 write a list of words",
    "run: ' '": "1:6 write a shell line, or a list of words",
    "run: 5": "1:6 5 is not a command",
    "run: {a: b}": "1:6 is not a command",
    "[run]": "1:1 a job is a mapping of keys",
    "run": "1:1 a job is a mapping of keys such as `run: python train.py`, not 'run'",
    "5": "1:1 a job is a mapping",
    "": "1:1 the file is empty",
    "# nothing\n": "1:1 the file is empty",
    "run: a: b": "1:7 put text that contains ': ' in quotes",
    "run: x\n\tnodes: 2": "2:1 a tab: YAML is indented with spaces",
    "run: [a": "1:8 this is not YAML",
    "run: 'a": "1:8 this is not YAML",
    "run: *a": "1:6 begins with '*' in quotes",
    "run: @a": "1:6 begins with '@'",
    "run: `a`": "1:6 begins with '`'",
    "run: %a": "1:6 begins with '%'",
    "run: x\n---\nrun: y": "2:1 one file is one job",
    "run: x\nname: a\x01b": "2:8 character 0x1 cannot be in a text file",
    'run: "\\U99999999"': "1:1 a character code that does not exist",
    'run: "\\q"': "1:8 this is not YAML",
    "a: &a [*a]": "it is nested more than 32 deep",
    "[" * 100_000: "1:33 it is nested more than 32 deep",
    "- " * 100_000: "1:65 it is nested more than 32 deep",
    "a: [" + "1," * 50_000: "it has more than 10000 values",
    "x" * (1 << 20) + "x": "1:1 the file is longer than 1 MiB",
}


@pytest.mark.parametrize(("text", "want"), RUNS.items(), ids=lambda value: value[:40])
def test_a_text_that_is_no_job(text: str, want: str) -> None:
    (error,) = errors(text)
    place, _, what = want.partition(" ")
    if place[0].isdigit():
        assert error.startswith(f"job.yaml:{place}: ")
        assert what in error
    else:
        assert want in error


def test_aliases_do_not_explode() -> None:
    lines = ["run: x", "a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "more than 10000 values" in errors("\n".join(lines))[0]


def test_bytes_that_are_not_text() -> None:
    assert errors(b"run: x\nname: \xc3\x28") == ["job.yaml:2:7: byte 0xc3 is not UTF-8: save it as UTF-8"]


def test_all_errors_in_the_order_of_the_file() -> None:
    text = """\
nodes: two
resources:
  gpu: {count: -1, kount: 1}
  shm: 1Gi
env:
  RANK: 1
  TOKEN:
  1x: y
framework: torch
imagee: x
limits: {time: soon, idle: 5m}
nodes: 3
name: A
"""
    places = [error.split(": ")[0].removeprefix("job.yaml:") for error in errors(text)]
    want = "1:1 1:8 3:16 3:20 4:3 6:3 7:3 8:3 10:1 11:16 11:22 12:1 13:7"
    assert places == want.split()


def test_one_error_is_one_line() -> None:
    text = 'run: x\n"a\\nb": 1\nenv: {"c\\nd": 1, "GANGER_\\n": 2}\nname: "x\\ny"\nframework: "\\n"'
    assert len(errors(text)) == 6
    assert all(error.startswith("job.yaml:") for error in errors(text))


def test_a_long_value_is_quoted_short() -> None:
    assert all(len(error) < 300 for error in errors(f"run: x\nname: {'A' * 9999}\nnodes: {'B' * 9999}"))


LATER = {
    "kind: service": "write job, or leave it out",
    "image: x": "uses the programs of this machine",
    "data: [{name: a, path: /b}]": "by its path",
    "volumes: {}": "paths on this machine",
    "placement: {topology: rack}": "leave it out",
    "roles: {ps: {count: 2}}": "branch on GANGER_RANK",
    "services: {ssh: {}}": "by hand",
    "after: [{job: prep}]": "ganger wait",
    "array: 0-99": "shell loop",
    "sweep: {lr: [1]}": "shell loop",
    "params: {lr: 1}": "into run or env",
    "stop_when: chief": "let the others exit",
    "notify: []": "ganger wait",
    "secrets: [TOKEN]": "in a file",
    "labels: {a: b}": "use the name",
    "notes: hello": "a comment",
    "resources: {shm: 64Gi}": "resources.shm",
    "resources: {rdma: true}": "resources.rdma",
    "resources: {gpu: {fraction: 0.5}}": "whole GPUs",
    "resources: {gpu: {memory: 8Gi}}": "whole GPUs",
    "limits: {idle: 30m}": "set time",
    "limits: {cost: 500}": "set time",
    "retry: {on: [hang]}": "set max",
    "retry: {rules: []}": "set max",
    "nodes: 2..4": "write one number",
    "code: {git: https://example.org/a}": "clone it",
    "env: {TOKEN: }": "write one, or leave it out",
    "env: {LR: '${{ params.lr }}'}": "write the value out",
    "setup: echo ${{params.lr}}": "write the value out",
    **{f"framework: {name}": "write " for name in (
        "torchrun", "mpi", "horovod", "deepspeed", "tensorflow", "jax", "paddle", "mxnet", "xgboost", "ray",
    )},
}  # fmt: skip


@pytest.mark.parametrize(("text", "instead"), LATER.items(), ids=LATER)
def test_what_comes_later_is_refused_by_name(text: str, instead: str) -> None:
    (error,) = errors(f"run: x\n{text}")
    assert error.startswith("job.yaml:2:")
    assert "not yet supported" in error
    assert instead in error


@pytest.mark.parametrize("text", ["run: python --lr ${{ params.lr }}", "run: [python, '${{ params.lr }}']"])
def test_a_parameter_in_the_command_is_refused(text: str) -> None:
    (error,) = errors(text)
    assert "${{ params.lr }} is not yet supported: write the value out" in error


@pytest.mark.parametrize(
    ("framework", "name", "legal"),
    [
        ("plain", "RANK", True),
        ("torch", "RANK", False),
        ("torch", "MASTER_PORT", False),
        ("plain", "MASTER_PORT", True),
        ("torch", "OMP_NUM_THREADS", True),
        ("plain", "CUDA_VISIBLE_DEVICES", False),
        ("plain", "WORLD_SIZE", False),
        ("plain", "PYTHONUNBUFFERED", True),
    ],
)
def test_variables_of_the_framework_are_its_own(framework: str, name: str, *, legal: bool) -> None:
    text = f"run: x\nframework: {framework}\nenv: {{{name}: 1}}"
    if legal:
        assert parse_spec(text, "job.yaml").env == {name: "1"}
    else:
        assert errors(text) == [f"job.yaml:3:7: env.{name}: ganger sets it for framework {framework}: leave it out"]


MAPPINGS: dict[str, tuple[Any, str]] = {
    "a wrong value": ({"run": "x", "nodes": "two"}, "flags: nodes: 'two' is not a number of nodes"),
    "nothing": ({}, "flags: run is missing"),
    "a key that is no text": ({"run": "x", 5: 1}, "flags: a key of it is not text"),
    "a value that is nothing known": ({"run": "x", "name": b"x"}, "flags: name: b'x' is not a name"),
    "null": ({"run": "x", "name": None}, "flags: name: nothing is not a name"),
    "half of a pair": ({"run": "x\ud800"}, "half of a pair"),
    "a huge number": ({"run": "x", "nodes": 10**5000}, "about 5000 digits"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "want"), MAPPINGS.values(), ids=MAPPINGS)
def test_a_mapping_that_is_no_job(data: Any, want: str) -> None:
    with pytest.raises(Refused) as refused:
        spec_from_dict(data, "flags")
    assert want in refused.value.detail


def test_errors_of_file_and_command_line_are_told_together() -> None:
    with pytest.raises(Refused) as refused:
        parse_spec("run: x\nnodes: two", "job.yaml", {"retry": {"max": -1}, "naem": "x"})
    file, *flags = refused.value.detail.splitlines()
    assert file.startswith("job.yaml:2:8: nodes:")
    assert [line.split(": ")[0] for line in flags] == ["the command line"] * 2
