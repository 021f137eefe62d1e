"""Files of throughputs: Gavel's, whose ratios are recomputed from its raw fields, our own, and what is refused."""

import gzip
import json
from fractions import Fraction
from pathlib import Path

import pytest

from ganger.model.cluster import Node
from ganger.simulation.trace_replay import simulate_trace
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import RecordedJob, Trace, UnreadableTrace
from ganger.simulation.workload.gpu_speeds import GpuSpeeds
from ganger.simulation.workload.throughputs import read_throughputs
from tests.simulator.test_trace_replay import run
from tests.simulator.trace_samples import TRACES, write

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    "path", sorted(TRACES.glob("gavel_simulation_throughputs.json.gz")), ids=lambda path: path.name
)
def test_run_times_on_gavels_types_are_those_of_its_raw_fields(path: Path) -> None:
    """One job of each kind, an hour long on V100, alone on each of the other types."""
    raw = json.loads(gzip.decompress(path.read_bytes()))
    kinds = [(key, *key.removeprefix("('").removesuffix(")").rsplit("', ", 1)) for key in raw["v100"]]
    assert len(kinds) == 83
    found = GpuSpeeds(throughputs=read_throughputs(path), reference="v100")
    jobs = []
    for at, (_, model, gpus) in enumerate(kinds):
        name, _, batch = model.removesuffix(")").partition(" (batch size ")
        jobs.append(
            RecordedJob(
                name=f"j{at}", submitted_ms=at * 10 * HOUR_MS * 8, duration_ms=HOUR_MS, gpus=int(gpus),
                model_name=name, batch_size=int(batch) if batch else None, line=at,
            )
        )  # fmt: skip
    trace = Trace(path="here", format="gavel", rows=len(jobs), records=tuple(jobs))
    for gpu_type, lacking in (("v100", 0), ("p100", 0), ("k80", 3)):
        node = Node(name="n0", gpus=8, gpu_type=gpu_type, cpu_milli=1_000)
        outcome = simulate_trace(run(trace, (node,), speeds=found))
        for (key, *_), job in zip(kinds, outcome.histories, strict=True):
            there = raw[gpu_type][key]["null"]
            expected_ms = HOUR_MS * raw["v100"][key]["null"] / there if there else HOUR_MS
            assert job.ran_ms == pytest.approx(expected_ms, abs=1)
        assert sum(finding.count for finding in outcome.findings) == lacking


@pytest.mark.parametrize("path", sorted(TRACES.glob("shockwave/tacc32*.trace.gz")), ids=lambda path: path.name)
def test_durations_from_steps_are_those_that_shockwave_recorded(path: Path) -> None:
    """Of the jobs whose batch size never changes: steps by the throughput that Shockwave has for them."""
    rows = [line.split("\t") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    static = [row for row in rows if row[7] == "static"]
    throughputs = read_throughputs(path.parent / "tacc_throughputs.json.gz")
    recorded = read_jobs(path).records
    jobs = tuple(job for job, row in zip(recorded, rows, strict=True) if row in static)
    unknown = tuple(RecordedJob(**{**_fields(job), "duration_ms": None}) for job in jobs)
    trace = Trace(path=str(path), format="gavel", rows=len(jobs), records=unknown)
    known = GpuSpeeds(throughputs=throughputs, reference="v100").with_durations(trace).records
    assert len(known) == 4
    for job, row in zip(known, static, strict=True):
        assert job.duration_ms == pytest.approx(float(row[10]) * 1000, rel=0.001)


def _fields(job: RecordedJob) -> dict[str, object]:
    return {name: getattr(job, name) for name in RecordedJob.__slots__}


def test_our_own_file_may_leave_out_batch_size_and_gpus(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv.gz",
        "model,gpu_type,steps_per_s,batch_size,gpus\nbert,V100,2.5,32,4\nbert,a100,1e1,,\ngpt2,a100,0,,\n",
    )
    assert read_throughputs(path) == {
        ("bert", 32, 4): {"v100": Fraction(5, 2)},
        ("bert", None, None): {"a100": Fraction(10)},
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("model,gpu_type\nbert,v100\n", "no column steps_per_s"),
        ("model,gpu_type,steps_per_s\nbert,k80,1\nbert,v100,fast\n", ":3: steps_per_s: 'fast' is not a number"),
        ("model,gpu_type,steps_per_s\nbert,k80,1\nbert,v100,-1\n", ":3: steps_per_s: -1 is less than zero"),
        ("model,gpu_type,steps_per_s\nbert,v100,1\nbert,V100,2\n", ":3: bert on v100 again"),
        ('{"v100": {"bert": {"null": 1}}}', "v100: 'bert' is not ('model', gpus)"),
        ('{"v100": {"(\'bert\', 1)": {"null": NaN}}}', "nan is not a number of steps per second"),
        ('{"v100": {"(\'bert\', 1)": {"null": "2"}}}', "2 is not a number of steps per second"),
        (f'{{"v100": {{"(\'bert\', 1)": {{"null": 1{"0" * 400}}}}}}}', "is not a number of steps per second"),
        ('{"v100": [1]}', "'v100' is not an object"),
        ('{"v100": ', "is not JSON"),
        ("{" + '"a":{' * 90_000, "is not JSON"),
    ],
)
def test_a_file_with_a_flaw_is_refused_with_its_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UnreadableTrace) as refused:
        read_throughputs(write(tmp_path / "t", text))
    assert what in str(refused.value)


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"v100": {}}' * 100)[:-12])
    with pytest.raises(UnreadableTrace, match="the gzip is damaged"):
        read_throughputs(path)
