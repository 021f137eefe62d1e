"""A job with a range of nodes: what it says of each size, and ranges, steps and batches that cannot be."""

from pathlib import Path

import pytest

from ganger.errors import RequestError
from ganger.model.terms import Slices
from ganger.registry import frameworks
from ganger.spec import parse_spec, spec_from_dict, spec_to_dict


@pytest.mark.parametrize(
    ("policy", "per_rank", "lr_scale"),
    [
        ("constant_global", {2: 12, 4: 6, 6: 4}, {2: 1, 4: 1, 6: 1}),
        ("scale_lr_linear", {2: 12, 4: 12, 6: 12}, {2: 1, 4: 2, 6: 3}),
        ("scale_lr_sqrt", {2: 12, 4: 12, 6: 12}, {2: 1, 4: 2**0.5, 6: 3**0.5}),
        ("custom", {2: None, 4: None, 6: None}, {2: 1, 4: 1, 6: 1}),
    ],
)
def test_each_size_has_its_batch(policy: str, per_rank: dict[int, int], lr_scale: dict[int, float]) -> None:
    batch = f"{{global: 48, policy: {policy}}}"
    text = f"run: x\nnodes: 2..6\nnproc_per_node: 2\nelastic: {{step: 2, batch: {batch}}}"
    spec = parse_spec(text, "job.yaml")
    assert list(spec.sizes) == [2, 4, 6]
    assert spec.shape.nodes == 2, "it waits, reserves and starts by its minimum"
    assert spec.elastic is not None
    assert (found := spec.elastic.batch) is not None
    assert {size: found.per_rank(2 * size, 4) for size in spec.sizes} == per_rank
    assert {size: found.lr_scale(2 * size, 4) for size in spec.sizes} == lr_scale


def test_a_role_has_a_range_and_the_batch_counts_its_processes() -> None:
    batch = "elastic: {step: 2, batch: {global: 48, policy: constant_global}}"
    text = f"run: x\nroles: {{chief: {{count: 1}}, worker: {{count: 2..6}}, ps: {{count: 3}}}}\n{batch}"
    spec = parse_spec(text, "job.yaml")
    assert (spec.elastic_role, spec.elastic_part, list(spec.sizes)) == ("worker", 1, [2, 4, 6])
    assert [part.nodes for part in spec.shape.parts] == [1, 2, 3], "it waits, reserves and starts by its minimum"
    assert [spec.resized(size).processes for size in spec.sizes] == [6, 8, 10]
    assert [spec.elastic_ranks(size) for size in spec.sizes] == [2, 4, 6]
    assert spec_to_dict(spec)["roles"]["worker"]["count"] == "2..6"
    assert spec_from_dict(spec_to_dict(spec), "job.yaml") == spec


def test_the_nodes_of_a_unit_are_within_one_domain() -> None:
    spec = parse_spec("run: x\nnodes: 4..8\nelastic: {step: 2, level: rack}", "job.yaml")
    assert spec.shape.slices == Slices("rack", 2)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "elastic.md"


def test_the_page_says_which_frameworks_can_be_resized() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    claims = {name.strip("` "): row for row in rows if len(row) == 4 for name in row[0].split(",") if "`" in name}
    claims = {name: row for name, row in claims.items() if name in frameworks()}
    assert claims.keys() == frameworks().keys()
    for name, (_, command, claim, _) in claims.items():
        assert claim.startswith("no") is not _is_elastic(f"nodes: 2..4\nrun: python t.py\nframework: {name}"), name
        if command:
            spec = parse_spec(f"run: {command.strip('`')}", "job.yaml")
            assert (spec.framework, spec.nodes, spec.max_nodes) == (name, 2, 4)
    assert _is_elastic("nodes: 2..4\nrun: mpirun ./solver")
    assert not _is_elastic("nodes: 2..4\nrun: mpirun -np 4 ./solver")
    assert [name for name, row in claims.items() if "a role" in row[2]] == ["tensorflow", "paddle", "mxnet"]
    for name, role in (("tensorflow", "ps"), ("paddle", "ps"), ("mxnet", "server")):
        others = ", scheduler: {count: 1}" * (name == "mxnet")
        job = f"run: python t.py\nframework: {name}\nroles: {{{role}: {{count: 1}}{others}, worker: {{count: 2..4}}}}"
        assert parse_spec(job, "job.yaml").sizes == range(2, 5)


def _is_elastic(text: str) -> bool:
    try:
        return parse_spec(text, "job.yaml").max_nodes == 4
    except RequestError:
        return False


WRONG = {
    "nodes: 8..2": "2:8 the second number must be the larger one: write 2..8",
    "nodes: 4..4": "2:8 the second number must be the larger one: write 4",
    "nodes: 0..4": "2:8 is not a range of nodes: write two whole numbers from 1 to 65536",
    "nodes: 2-4": "2:8 is not a number of nodes",
    "elastic: {step: 2}": "2:1 the job has one size: write a range, such as nodes: 2..8",
    "nodes: 2..7\nelastic: {step: 2}": "3:17 elastic.step: 2 does not lead from 2 to 7 nodes",
    "nodes: 2..8\nelastic: {step: 0}": "3:17 0 is not a number of nodes",
    "nodes: 3..9\nelastic: {step: 2, level: rack}": "3:17 2 nodes in one rack do not divide the minimum of 3",
    "nodes: 2..8\nelastic: {batch: {policy: custom}}": "3:18 global is missing",
    "nodes: 2..8\nelastic: {batch: {global: 0}}": "3:27 0 is not a number of samples",
    "nodes: 2..8\nelastic: {batch: {global: 8, policy: fixed}}": "3:38 'fixed' is not a batch policy|constant_global",
    "nodes: 2..6\nelastic: {batch: {global: 12}}": "3:27 12 samples cannot be divided|5 nodes (1 on each)",
    "nodes: 2..99\nelastic: {batch: {global: 2}}": "3:27 processes of 3, 4, 5, 6, 7 or ... nodes",
    "nodes: 2..4\nelastic: {batch: {global: 3, policy: scale_lr_linear}}": "3:27 processes of 2 nodes",
    "roles: {ps: {count: 4..2}}": "2:21 is not a range of processes: the second number must be the larger one",
    "nodes: 2..4\nroles: {ps: {count: 1..2}}": "3:21 nodes is a range too: write one number in one of them",
    "roles: {ps: {count: 1..2}, worker: {count: 1..2}}": "2:44 roles.ps.count is a range too",
    "roles: {worker: {count: 2..5}}\nelastic: {step: 2}": "3:17 2 does not lead from 2 to 5 processes",
    "roles: {worker: {count: 2..4}}\nelastic: {level: rack}": "3:18 a role has processes: leave it out",
    "roles: {ps: {count: 2}, worker: {count: 2..4}}\nelastic: {batch: {global: 8}}": "3:27 3 processes of worker",
    "roles: {worker: {count: 2..4}}\nparallel: {dp: 2}": "3:16 dp 2 is one size, and roles.worker.count is a range",
    "nodes: 2..4\nparallel: {tp: 2}": "3:11 tp 2 x pp 1 is 2, which does not divide the job's 3 processes",
    "nodes: 2..4\nparallel: {dp: 2}": "3:16 dp 2 is one size, and nodes is a range",
    "nodes: 2..4\nplacement: {slices: [{level: rack, nodes: 2}]}": "3:43 2 does not divide the job's 3 nodes",
    "nodes: 2..4\nelastic: {level: rack}\nplacement: {slices: [{level: rack, nodes: 1}]}": "3:18 leave one of them out",
}


def test_an_mpirun_with_a_number_of_processes_is_refused_with_what_to_leave_out() -> None:
    with pytest.raises(RequestError) as refused:
        parse_spec("run: mpirun -np 4 ./solver\nnodes: 2..4", "job.yaml")
    assert refused.value.detail == (
        "job.yaml:2:8: nodes: 2..4 is a range, and mpirun has the number of processes, -np 4: "
        "leave that out, or write one number"
    )


@pytest.mark.parametrize(("text", "want"), WRONG.items(), ids=WRONG)
def test_what_cannot_be_resized_is_refused_with_the_place(text: str, want: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_spec(f"run: x\n{text}", "job.yaml")
    (line,) = refused.value.detail.splitlines()
    place, _, parts = want.partition(" ")
    assert line.startswith(f"job.yaml:{place}: "), line
    assert all(part in line for part in parts.split("|")), line
