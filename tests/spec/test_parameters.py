"""Parameters of an accepted job: inserted again with other values, and dropped with the fields that used them."""

from typing import Any

import pytest

from ganger.errors import RequestError
from ganger.model.job import JobSpec
from ganger.spec import change_spec, parse_spec, spec_from_dict, spec_to_dict

FILE = """
name: exp
run: [python, train.py, --lr, "${{ params.lr }}", "--wd=${{params.wd}}", --note, "$HOME ${{ not.one }}"]
setup: echo ${{ params.lr }}
env: {LR: "${{ params.lr }}", FIXED: "1.10"}
params: {lr: 0.5, wd: 1, unused: x, tp: 3, pp: 1}
parallel: {tp: "${{ params.tp }}", pp: "${{ params.pp }}"}
nodes: 2
roles:
  ps: {run: "serve ${{ params.wd }}", env: {WD: "${{ params.wd }}"}}
"""


def change(spec: JobSpec, **overrides: Any) -> JobSpec:
    return change_spec(spec_to_dict(spec), "exp-1", overrides, "ganger get exp-1")


def test_an_accepted_job_is_written_with_its_parameters() -> None:
    spec = parse_spec(FILE, "job.yaml", {"params": {"wd": "3"}})
    written = spec_to_dict(spec)
    assert spec.run[3:5] == ("0.5", "--wd=3")
    assert (written["run"][3], written["setup"]) == ("${{ params.lr }}", "echo ${{ params.lr }}")
    assert written["params"] == {"lr": "0.5", "wd": "3", "unused": "x", "tp": "3", "pp": "1"}
    assert written["parallel"] == {"tp": "${{ params.tp }}", "pp": "${{ params.pp }}"}, "also where it is the default"
    assert spec_from_dict(written, "again") == spec
    assert change(spec) == spec


def test_a_changed_parameter_is_inserted_wherever_it_occurs() -> None:
    spec = change(parse_spec(FILE, "job.yaml"), params={"lr": "0.03", "wd": "9", "tp": "1", "pp": "3"})
    assert spec.run == ("python", "train.py", "--lr", "0.03", "--wd=9", "--note", "$HOME ${{ not.one }}")
    assert (spec.setup, spec.env) == ("echo 0.03", {"LR": "0.03", "FIXED": "1.10"})
    assert (spec.roles["ps"].run, spec.roles["ps"].env) == ("serve 9", {"WD": "9"})
    assert (spec.parallel.tp, spec.parallel.pp) == (1, 3)
    assert spec.params == {"lr": "0.03", "wd": "9", "unused": "x", "tp": "1", "pp": "3"}
    again = change(spec, params={"lr": "7"})
    assert (again.setup, again.params["wd"]) == ("echo 7", "9"), "and again"


def test_an_inserted_text_that_looks_like_a_parameter_is_not_searched() -> None:
    spec = parse_spec("run: echo ${{ params.a }}\nparams: {a: x, b: y}", "job.yaml")
    changed = change(spec, params={"a": "$b"})
    assert (changed.run, change(changed).run) == ("echo $b", "echo $b")


def test_a_parameter_that_only_replaced_fields_used_is_dropped() -> None:
    spec = parse_spec(FILE, "job.yaml")
    changed = change(spec, run="other", setup="true", env={"LR": "5"})
    assert changed.params == {"wd": "1", "unused": "x", "tp": "3", "pp": "1"}, "the role still uses wd"
    kept = change(spec, run="other --lr ${{ params.lr }}", setup="true", env={"LR": "5"})
    assert (kept.run, kept.params["lr"]) == ("other --lr 0.5", "0.5")
    given = change(spec, run="other", setup="true", env={"LR": "5"}, params={"lr": "8"})
    assert given.params["lr"] == "8", "the program may read GANGER_TRIAL_PARAMS"


def test_sizes_that_a_parameter_of_the_command_implies_follow_it() -> None:
    text = "run: [torchrun, --nproc-per-node, '${{ params.n }}', train.py]\nparams: {n: 2}"
    spec = parse_spec(text, "job.yaml")
    changed = change(spec, params={"n": "4"})
    assert (spec.nproc_per_node, changed.nproc_per_node, changed.framework) == (2, 4, "torchrun")
    fixed = parse_spec(text + "\nnodes: 3", "job.yaml")
    assert change(fixed, params={"n": "4"}).nodes == 3


@pytest.mark.parametrize(
    ("text", "overrides", "code", "says"),
    [
        (FILE, {"params": {"lrr": "1"}}, "no_such_parameter", "exp-1 has no parameter lrr; its parameters: lr, pp, tp"),
        ("run: x", {"params": {"lr": "1"}}, "no_such_parameter", "exp-1 has no parameter lr: it has no parameters"),
        (FILE, {"params": {"tp": "many"}}, "bad_spec", "parallel.tp"),
        (FILE, {"run": "${{ params.new }}"}, "bad_spec", "run: there is no parameter new"),
        (FILE, {"params": ["lr"]}, "bad_spec", "params"),
        (FILE, {"params": {"lr": None}}, "bad_spec", "params.lr"),
        (FILE, {"templates": {}}, "bad_spec", "templates"),
    ],
)
def test_other_values_are_refused(text: str, overrides: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(RequestError) as refused:
        change(parse_spec(text, "job.yaml"), **overrides)
    assert (refused.value.code, says in refused.value.detail) == (code, True), refused.value.detail


def test_a_file_cannot_write_templates() -> None:
    with pytest.raises(RequestError, match="templates is not a valid key"):
        parse_spec("run: x\ntemplates: {run: y}", "job.yaml")
