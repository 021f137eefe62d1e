"""Records of other schedulers, as their commands print them: every job with what it asked for, and when it ran."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model.units import GIB_BYTES, HOUR_MS, MINUTE_MS
from ganger.simulation.traces.ganger_format import write_jobs
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import Flaw, RecordedJob, Trace, UnreadableTrace

SAMPLES = Path(__file__).parent / "samples"


def at_ms(clock: str) -> int:
    """Return the time of the day of the samples in Unix ms."""
    return int(datetime.fromisoformat(f"2026-01-05T{clock}").replace(tzinfo=UTC).timestamp()) * 1000


def flaws(trace: Trace[RecordedJob]) -> dict[Flaw, list[int]]:
    return {finding.flaw: [line for line, _ in finding.examples] for finding in trace.findings}


SACCT = (
    RecordedJob(name="9101", submitted_ms=at_ms("10:00:00"), started_ms=at_ms("10:05:00"), duration_ms=2 * HOUR_MS,
                gpus=16, nodes=2, cpu_milli=64_000, memory_bytes=512 * GIB_BYTES, gpu_types=("h100",), user="ada",
                queue="gpu", limit_ms=24 * HOUR_MS, extra=("nlp", "COMPLETED")),
    RecordedJob(name="9102_3", submitted_ms=at_ms("10:01:00"), started_ms=at_ms("10:02:00"), duration_ms=630_000,
                gpus=1, nodes=1, cpu_milli=8_000, memory_bytes=3 * GIB_BYTES // 2, user="ben", queue="gpu",
                extra=("cv", "CANCELLED by 1000")),
    # Elapsed leaves out the time for which it was suspended.
    RecordedJob(name="9102_4", submitted_ms=at_ms("10:01:00"), started_ms=at_ms("10:02:00"),
                duration_ms=47 * HOUR_MS, gpus=1, nodes=1, cpu_milli=8_000, memory_bytes=3 * GIB_BYTES // 2,
                user="ben", queue="gpu", limit_ms=72 * HOUR_MS, extra=("cv", "TIMEOUT")),
    RecordedJob(name="9102_[5-10%2]", submitted_ms=at_ms("10:01:00"), duration_ms=None, gpus=1, nodes=1,
                cpu_milli=8_000, memory_bytes=3 * GIB_BYTES // 2, user="ben", queue="gpu", extra=("cv", "PENDING")),
    # Two components of unequal nodes are one gang, until the last of them has ended.
    RecordedJob(name="9103", submitted_ms=at_ms("10:03:00"), started_ms=at_ms("10:04:00"), duration_ms=90 * MINUTE_MS,
                gpus=32, cpu_milli=48_000, memory_bytes=320 * GIB_BYTES, user="cyd", queue="cpu",
                limit_ms=2 * HOUR_MS, extra=("sim", "COMPLETED")),
    # It runs, on nodes with unequal numbers of GPUs, of a type that it did not ask for.
    RecordedJob(name="9104", submitted_ms=at_ms("10:06:00"), started_ms=at_ms("10:07:00"), duration_ms=None, gpus=10,
                nodes=2, cpu_milli=16_000, memory_bytes=100 * GIB_BYTES, user="ada", queue="gpu",
                extra=("nlp", "RUNNING")),
)  # fmt: skip
PODS = (
    RecordedJob(name="nlp/bert", submitted_ms=at_ms("10:00:00"), started_ms=at_ms("10:06:00"),
                duration_ms=at_ms("12:05:10") - at_ms("10:06:00"), gpus=16, nodes=2, cpu_milli=8_000,
                memory_bytes=64 * GIB_BYTES, gpu_types=("h100",), user="nlp", queue="research"),
    # The second pod took the place of the first: one GPU, from the first start to the last end.
    RecordedJob(name="cv/eval", submitted_ms=at_ms("10:10:00"), started_ms=at_ms("10:10:05"),
                duration_ms=at_ms("10:50:15") - at_ms("10:10:05"), gpus=1, nodes=1, cpu_milli=500,
                memory_bytes=GIB_BYTES, user="cv"),
    RecordedJob(name="nlp/tune", submitted_ms=at_ms("10:30:00"), started_ms=at_ms("10:30:30"),
                duration_ms=at_ms("11:30:10") - at_ms("10:30:30"), gpus=8, nodes=1, cpu_milli=12_000,
                memory_bytes=96 * GIB_BYTES, user="nlp"),
    RecordedJob(name="nlp/podgroup-7", submitted_ms=at_ms("10:40:00"), duration_ms=None, gpus=16, cpu_milli=8_000,
                memory_bytes=64 * GIB_BYTES, user="nlp"),
    # Its events say when it was scheduled and killed.
    RecordedJob(name="cv/notebook", submitted_ms=at_ms("10:45:00"), started_ms=at_ms("10:45:20"),
                duration_ms=15 * MINUTE_MS, gpus=2, nodes=1, cpu_milli=4_000, memory_bytes=32 * GIB_BYTES, user="cv"),
)  # fmt: skip


def test_jobs_of_slurms_accounting() -> None:
    trace = read_jobs(SAMPLES / "sacct.txt")
    assert (trace.format, trace.records, trace.extra_columns) == ("sacct", SACCT, ("Account", "State"))
    assert flaws(trace) == {
        Flaw.FIELDS: [20],
        Flaw.NOT_A_NUMBER: [13, 15, 19],
        Flaw.NOT_LEGAL: [16, 18],
        Flaw.DUPLICATE: [17],
        Flaw.CONTRADICTION: [14],
        Flaw.PART_OF_A_JOB: [3, 4, 5, 10, 11],
        Flaw.NO_DURATION: [8, 12],
    }
    assert trace.rows == len(trace.records) + trace.dropped


def test_jobs_of_pods_and_their_events() -> None:
    trace = read_jobs(SAMPLES / "pods_and_events.json")
    assert (trace.format, trace.records) == ("kubernetes", PODS)
    assert flaws(trace) == {
        Flaw.NOT_A_NUMBER: [12, 13],
        Flaw.CONTRADICTION: [14],
        Flaw.PART_OF_A_JOB: [2, 4, 6, 7, 9],
        Flaw.NO_GPU: [11],
        Flaw.NO_DURATION: [8],
    }
    assert trace.rows == 14 == len(trace.records) + trace.dropped


def test_the_last_state_of_a_pod_counts(tmp_path: Path) -> None:
    """Lists of different days, packed one after the other; the second knows the end of a pod that ran."""
    items = json.loads((SAMPLES / "pods_and_events.json").read_text())["items"][:2]
    before = json.loads(json.dumps(items))
    for pod in before:
        pod["status"] = {"phase": "Running"}
    watched = "\n".join(json.dumps({"type": "MODIFIED", "object": pod}) for pod in items)
    path = tmp_path / "pods.json.gz"
    path.write_bytes(gzip.compress(f"{json.dumps({'kind': 'PodList', 'items': before})}\n{watched}\n".encode()))
    assert read_jobs(path).records == PODS[:1]


@pytest.mark.parametrize("name", ["sacct.txt", "pods_and_events.json"])
def test_they_survive_ganger_s_own_format(name: str, tmp_path: Path) -> None:
    trace, path = read_jobs(SAMPLES / name), tmp_path / "jobs.csv"
    write_jobs(trace, path)
    assert (again := read_jobs(path)).records == trace.records
    assert again.extra_columns == trace.extra_columns


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("JobID|Submit|Start|State\n1|2|3|4\n", "for sacct there is no column End"),
        ("JobID|Submit|Start|End\n1.batch|2026-01-05T10:00:00|Unknown|Unknown\n", "1.batch is a step of job 1"),
        ('{"kind": "List",\n "items": [}\n', r"trace:2: is not JSON: .*; kubectl get pods,events"),
        ('{"kind": "EventList", "items": [{"reason": "Killing"}]}', "has 1 objects, and no pods"),
        (
            '{"kind": "PodList", "items": [{"metadata": {"name": "a"}}]}',
            "1 x missing: default/a has no creationTimestamp",
        ),
        ("{" * 100_000, "is not JSON"),
    ],
)
def test_a_file_without_jobs_is_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UnreadableTrace, match=what):
        read_jobs(path)


TIMES = st.sampled_from(["2026-01-05T10:00:00Z", "2026-01-05T10:00:09Z", "0001-01-01T00:00:00Z", "soon", None])
LABELS = st.dictionaries(st.sampled_from(["job-name", "ray.io/cluster"]), st.sampled_from(["a", "b\n", "", 7]))
JUNK = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.none(), max_size=2))
PODS_OF_ANY_KIND = st.fixed_dictionaries(
    {
        "kind": st.just("Pod"),
        "metadata": st.one_of(JUNK, st.fixed_dictionaries(
            {"name": st.sampled_from(["a", "b", "c", "", "\x00"]), "creationTimestamp": TIMES},
            optional={"labels": st.one_of(LABELS, JUNK), "deletionTimestamp": TIMES})),
        "spec": st.one_of(JUNK, st.fixed_dictionaries({"containers": st.lists(st.one_of(JUNK, st.fixed_dictionaries(
            {"resources": st.fixed_dictionaries({"limits": st.dictionaries(
                st.sampled_from(["nvidia.com/gpu", "cpu"]), st.sampled_from(["1", 8, "x", "1e999", None]))})})),
            max_size=2)})),
        "status": st.one_of(JUNK, st.fixed_dictionaries({"startTime": TIMES, "phase": st.just("Failed"),
            "containerStatuses": st.one_of(JUNK, st.lists(st.fixed_dictionaries({"state": st.fixed_dictionaries(
                {"terminated": st.fixed_dictionaries({"finishedAt": TIMES})})}), max_size=2))})),
    }
)  # fmt: skip


@given(st.lists(PODS_OF_ANY_KIND, max_size=6))
def test_any_objects_are_read_or_refused_and_what_is_read_survives_writing(pods: list[dict[str, object]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pods.json"
        path.write_text(json.dumps({"kind": "List", "items": pods}))
        try:
            trace = read_jobs(path)
        except UnreadableTrace:
            return
        assert trace.rows == len(trace.records) + trace.dropped
        write_jobs(trace, path)
        assert read_jobs(path).records == trace.records


@pytest.mark.parametrize(
    ("requested", "gpu_types"),
    [
        ("gres/gpu=2,gres/gpu:nvidia_a100_80gb_pcie=2", ("a100",)),
        ("gres/gpu:a100_1g.5gb=2", ("a100_1g.5gb",)),
        ("gres/gpu:H100=1,gres/gpu:l40s=1", ("h100", "l40s")),
        ("gres/gpu=2", ()),
    ],
)
def test_types_of_gpus_have_the_names_that_nodes_have(
    requested: str, gpu_types: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(f"JobID|Submit|Start|End|ReqTRES\n1|2026-01-05T10:00:00|Unknown|Unknown|{requested}\n")
    (job,) = read_jobs(path).records
    assert (job.gpus, job.gpu_types) == (2, gpu_types)
