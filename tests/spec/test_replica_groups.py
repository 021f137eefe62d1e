"""A job of replica groups: what is written, what the scheduler sees, and what cannot be together."""

import pytest

from ganger.errors import RequestError
from ganger.model.terms import Slices
from ganger.spec import change_spec, parse_spec, spec_to_dict


@pytest.mark.parametrize(("written", "least", "groups"), [("3", 3, 3), ("2..4", 2, 4)])
def test_each_group_is_an_element_and_the_least_number_starts_together(written: str, least: int, groups: int) -> None:
    spec = parse_spec(f"run: x\nnodes: 2\nreplica_groups: {written}", "job.yaml")
    assert spec.array is not None
    assert spec.array.indices == tuple(range(groups))
    assert (spec.replica_groups, spec.shape.nodes) == (least, 2)
    assert spec.together(least).nodes == 2 * least
    assert "array" not in spec_to_dict(spec)
    fewer = change_spec(spec_to_dict(spec), "job", {"replica_groups": 1}, "clone it")
    assert fewer.array is not None
    assert fewer.array.indices == (0,)


def test_a_required_level_is_one_of_each_group() -> None:
    placement = "{topology: rack, mode: required, slices: [{level: nvlink, nodes: 2}]}"
    text = f"run: x\nnodes: 4\nreplica_groups: 2\nplacement: {placement}"
    whole = parse_spec(text, "job.yaml").together(2)
    assert not whole.layout.required
    assert whole.slices == Slices("rack", 4, (Slices("nvlink", 2),))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("array: 0-1", "replica_groups: not with array: the groups are the elements of an array, from 0"),
        ("nodes: 2..4", "replica_groups: not with a range: a group has one size"),
        ("roles: {ps: {count: 1}}", "replica_groups: not with roles: each group would have all of them"),
        ("placement: {nodes: [n1]}", "replica_groups: not with placement.nodes: it names the nodes of one gang"),
    ],
)
def test_what_cannot_be_together(more: str, said: str) -> None:
    with pytest.raises(RequestError, match="not with") as refused:
        parse_spec(f"run: x\nreplica_groups: 2\n{more}", "job.yaml")
    assert said in refused.value.detail
    assert refused.value.detail.startswith("job.yaml:2:")


@pytest.mark.parametrize("written", ["0", "4..2", "two", "1.5", "2..2", "-1", "[2]"])
def test_what_is_no_number_of_groups(written: str) -> None:
    with pytest.raises(RequestError, match="replica groups"):
        parse_spec(f"run: x\nreplica_groups: {written}", "job.yaml")
