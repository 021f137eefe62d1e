"""The names that programs depend on, what it costs to import them, and that nothing was said twice."""

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import ganger
from ganger import AsyncClient, AsyncJob, Client, Job
from ganger.launcher.build_archive import build
from ganger.model import affinity
from ganger.model import job as model
from ganger.model.job_sections import placement_spec, pod_spec, retry_spec
from ganger.model.watch import watch_rules
from ganger.sdk import job_fields as sdk_fields

PACKAGE = Path(ganger.__file__).parent
NAMES = {
    "AsyncClient",
    "AsyncJob",
    "BadRequest",
    "Client",
    "ClientError",
    "Job",
    "JobFailed",
    "JobFields",
    "JobFile",
    "LogLine",
    "NotFound",
    "Refused",
    "Report",
    "Task",
    "TimedOut",
    "Unreachable",
    "events",
    "explain",
    "logs",
    "run",
    "stop",
    "submit",
    "task",
    "wait",
}
CLIENT = {"call", "dry_run", "fit", "job", "list", "overview", "report", "run", "submit", "submit_all"} | {
    *("policy", "policy_versions", "diff_policy", "try_policy", "apply_policy"),
}
JOB = {
    "clone",
    "delete",
    "events",
    "explain",
    "get",
    "load",
    "logs",
    "metrics",
    "priority",
    "reports",
    "result",
    "results",
    "resume",
    "retry",
    "rollback",
    "scale",
    "stacks",
    "stop",
    "suspend",
    "wait",
}
HEAVY = {"asyncio", "click", "fastapi", "h11", "numpy", "pydantic", "rich", "ruamel"}


def _public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def _loaded(code: str) -> set[str]:
    said = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], check=True, capture_output=True, text=True
    )
    return set(said.stdout.split())


def test_public_names_are_these() -> None:
    assert set(ganger.__all__) == NAMES
    assert set(dir(ganger)) >= NAMES
    assert {
        name for name in NAMES if getattr(ganger, name).__module__.startswith(("ganger.sdk.", "ganger.client."))
    } == NAMES
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    assert {node.names[0].asname for node in stub.body if isinstance(node, ast.ImportFrom)} == NAMES
    with pytest.raises(AttributeError):
        ganger.nothing_of_the_kind  # type: ignore[attr-defined]  # noqa: B018


def test_both_kinds_have_the_same_methods() -> None:
    assert _public(Client) == _public(AsyncClient) == CLIENT
    assert _public(Job) == _public(AsyncJob) == JOB
    for one, other, names in ((Client, AsyncClient, CLIENT), (Job, AsyncJob, JOB)):
        for name in names:
            parameters = [inspect.signature(getattr(each, name)).parameters for each in (one, other)]
            assert parameters[0] == parameters[1], name
            assert "id" not in parameters[0] or name == "job", name
            assert getattr(one, name).__doc__, name
            assert getattr(other, name).__doc__, name


def test_the_package_costs_nothing_until_it_is_used() -> None:
    assert {name for name in _loaded("import ganger") if name.startswith("ganger.")} == set()
    assert _loaded("import ganger; ganger.Client(); ganger.task(print)") & HEAVY == set()
    assert _loaded("import ganger.train") & {"ganger.client", "ganger.sdk", *HEAVY} == set()


def test_the_package_is_python_3_8() -> None:
    ast.parse((PACKAGE / "__init__.py").read_text(), feature_version=(3, 8))


def test_a_task_without_ganger_reads_what_to_install(tmp_path: Path) -> None:
    """It has the part that training scripts need, from the launcher's zipapp, and no more."""
    code = "from ganger import train; train.report(step=1); import ganger; ganger.Client()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(build(tmp_path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: ganger.Client: this Python has no ganger of its own: pip install ganger"
    )


PARTS = [
    (sdk_fields.JobFields, model.JobSpec, {"gpu", "cpu", "memory"}, {"run", "templates"}),
    (sdk_fields.ResourceFields, model.Resources, set(), set()),
    (sdk_fields.PlacementFields, placement_spec.Placement, set(), set()),
    (sdk_fields.AffinityFields, affinity.Affinity, set(), set()),
    (sdk_fields.PreferenceFields, affinity.Preference, set(), set()),
    (sdk_fields.SliceFields, placement_spec.Slice, set(), set()),
    (sdk_fields.ElasticFields, placement_spec.Elastic, set(), set()),
    (sdk_fields.BatchFields, placement_spec.Batch, set(), set()),
    (sdk_fields.ParallelFields, model.Parallel, set(), set()),
    (sdk_fields.RoleFields, model.Role, set(), set()),
    (sdk_fields.GitCodeFields, model.GitCode, set(), set()),
    (sdk_fields.VolumeFields, model.Volume, set(), set()),
    (sdk_fields.PodFields, pod_spec.PodSection, set(), set()),
    (sdk_fields.PodMetadataFields, pod_spec.PodMetadata, set(), set()),
    (sdk_fields.RolePodFields, pod_spec.RolePod, set(), set()),
    (sdk_fields.CheckpointFields, model.Checkpoint, set(), set()),
    (sdk_fields.WatchFields, watch_rules.Watch, set(), set()),
    (sdk_fields.LogMarkerFields, watch_rules.LogMarkers, set(), set()),
    (sdk_fields.RuleFields, retry_spec.Rule, set(), set()),
    (sdk_fields.RetryFields, retry_spec.Retry, set(), set()),
    (sdk_fields.LimitFields, retry_spec.Limits, set(), set()),
    (sdk_fields.AfterFields, model.After, set(), set()),
]


@pytest.mark.parametrize(("typed", "described", "more", "less"), PARTS, ids=lambda each: getattr(each, "__name__", ""))
def test_keys_are_those_of_the_model(typed: type, described: type, more: set[str], less: set[str]) -> None:
    keys = {field.metadata.get("key") or field.name for field in dataclasses.fields(described)}
    assert set(get_type_hints(typed)) == (keys | more) - less


def test_every_part_of_a_job_is_held_against_the_model() -> None:
    """A class that a JobSpec comes to have is in the table above, or is written as text."""
    as_text = {model.Array, model.GpuRequest, affinity.Term, affinity.Expression}
    found: set[type] = set()
    todo: list[Any] = [model.JobSpec]
    while todo:
        kind = todo.pop()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind not in found:
            found.add(kind)
            todo += get_type_hints(kind).values()
        todo += get_args(kind)
    assert found - as_text == {described for _, described, _, _ in PARTS}
