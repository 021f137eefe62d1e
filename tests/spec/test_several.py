"""Files of several jobs: which documents there are, what is wrong with which, in which order they come."""

import pytest

from ganger.errors import RequestError
from ganger.model.job import After, JobSpec
from ganger.spec import parse_specs
from ganger.spec.submission_checks import submission_order

FILE = """\
# what is prepared
---
name: prepare
run: echo ${{ params.size }}
params: {size: 1}
--- # then
name: train
run: |
  cat <<END
   ---
  END
after: [{job: prepare}]
---
# nothing more
...
"""


def test_each_document_is_a_job() -> None:
    prepare, train = parse_specs(FILE, "jobs.yaml", {"queue": "q", "params": {"size": 2}})
    assert (prepare.name, prepare.run, prepare.queue) == ("prepare", "echo 2", "q")
    assert (train.name, train.run, train.queue) == ("train", "cat <<END\n ---\nEND\n", "q")
    assert train.after == (After(job="prepare"),)


def test_errors_of_all_documents_have_the_lines_of_the_file() -> None:
    with pytest.raises(RequestError) as refused:
        parse_specs("run: x\nnodes: two\n---\nnaem: y\nrun: x\n---\r\nrun: [", "jobs.yaml")
    places = [line.split(": ")[0] for line in refused.value.detail.splitlines()]
    assert places == ["jobs.yaml:2:8", "jobs.yaml:4:1", "jobs.yaml:7:7"]


def test_a_parameter_that_no_document_knows_is_refused() -> None:
    with pytest.raises(RequestError, match=r"params\.sise: the file has no parameter sise; did you mean 'size'\?"):
        parse_specs(FILE, "jobs.yaml", {"params": {"sise": 2}})


def test_a_file_of_one_job_and_of_none() -> None:
    assert [spec.run for spec in parse_specs("---\nrun: x\n", "job.yaml")] == ["x"]
    with pytest.raises(RequestError, match="the file is empty"):
        parse_specs("# nothing\n", "job.yaml")


def jobs(**after: str) -> list[JobSpec]:
    return [
        JobSpec(name=name, run="x", after=tuple(After(job=job) for job in others.split()))
        for name, others in after.items()
    ]


def test_a_job_comes_behind_those_it_names() -> None:
    assert submission_order(jobs(d="b c", b="a", a="", c="a elsewhere")) == [2, 1, 3, 0]
    assert submission_order(jobs(a="", b="", c="")) == [0, 1, 2]
    chain = jobs(**{f"j{at}": f"j{at + 1}" for at in range(3000)})
    assert submission_order(chain) == [*reversed(range(3000))]


@pytest.mark.parametrize(
    ("after", "circle"), [({"a": "a"}, "a after a"), ({"x": "a", "a": "b", "b": "a"}, "a after b after a")]
)
def test_a_circle_is_named(after: dict[str, str], circle: str) -> None:
    with pytest.raises(RequestError) as refused:
        submission_order(jobs(**after))
    assert refused.value.code == "bad_spec"
    assert refused.value.detail.endswith(f": {circle}")


def test_a_name_that_two_jobs_have_is_no_name_to_come_after() -> None:
    twice = [*jobs(a="", b="a"), JobSpec(name="a", run="y")]
    with pytest.raises(RequestError, match="2 jobs of the file have the name a"):
        submission_order(twice)
