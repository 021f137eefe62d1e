"""The columns of each format, the detection of formats, and the jobs that a cluster could hold."""

import gzip
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from ganger.model.cluster import Node
from ganger.simulation.trace_replay import jobs_that_fit
from ganger.simulation.traces.ganger_format import JOB_COLUMNS, NODE_COLUMNS, write_jobs, write_nodes
from ganger.simulation.traces.read_trace import JOB_FORMATS, read_faults, read_jobs, read_nodes
from ganger.simulation.traces.trace import Flaw, NodeFault, RecordedJob, Trace, UnreadableTrace
from ganger.simulation.workload.throughputs import read_throughputs
from tests.simulator.trace_samples import GOOD, write

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "trace-format.md"
MEANT = {
    "ganger": (
        RecordedJob(name="a", submitted_ms=0, duration_ms=1000, gpus=8, nodes=2, gpu_types=("h100", "a100"),
                    priority=-5, extra=("",)),
        RecordedJob(name="b", submitted_ms=500, duration_ms=None, gpu_milli=250, nodes=1, extra=("one, two",)),
    ),
    "openb": (
        RecordedJob(name="p0", submitted_ms=0, duration_ms=12_537_491_000, gpus=1, nodes=1, cpu_milli=12_000,
                    memory_bytes=16 * 2**30, started_ms=5_000, extra=("LS", "Running")),
        RecordedJob(name="p1", submitted_ms=427_061_000, duration_ms=12_475_899_000, gpu_milli=460, nodes=1,
                    cpu_milli=6_000, memory_bytes=12 * 2**30, gpu_types=("v100m16", "v100m32"),
                    started_ms=427_061_000, extra=("LS", "Running")),
        RecordedJob(name="p2", submitted_ms=427_062_000, duration_ms=None, nodes=1, cpu_milli=6_000,
                    memory_bytes=12 * 2**30, extra=("LS", "Pending")),
        RecordedJob(name="p3", submitted_ms=427_063_000, duration_ms=0, gpus=8, nodes=1, cpu_milli=6_000,
                    memory_bytes=12 * 2**30, started_ms=427_063_000, extra=("BE", "Failed")),
    ),
    "elasticflow": (
        RecordedJob(name="0", submitted_ms=1_932_025_000, duration_ms=2_429_000, gpus=64, deadline_ms=1_933_904_000,
                    iterations=45_775, model_name="resnet50", batch_size=256),
        RecordedJob(name="1", submitted_ms=2_000_581_000, duration_ms=1_532_000, gpus=1, deadline_ms=2_002_204_000,
                    iterations=11_197, model_name="gpt2", batch_size=128),
    ),
    "muri": (
        RecordedJob(name="0", submitted_ms=0, duration_ms=2_868_294_000, gpus=1, iterations=5_853_661, model_name="dqn",
                    batch_size=128, extra=("46122000", "490", "1")),
        RecordedJob(name="1", submitted_ms=201_694_000, duration_ms=4_472_936_000, gpus=8, iterations=8_787_693,
                    model_name="dqn", batch_size=128, extra=("201694000", "509", "0")),
    ),
    "tiresias": (
        RecordedJob(name="0", submitted_ms=0, duration_ms=164_000, gpus=1, iterations=606, model_name="vgg19",
                    extra=("30",)),
        RecordedJob(name="1", submitted_ms=30_000, duration_ms=147_000, gpus=8, iterations=133, model_name="vgg11",
                    extra=("23",)),
    ),
    "gavel": (
        RecordedJob(name="0", submitted_ms=0, duration_ms=1_418_000, gpus=1, iterations=134_583, model_name="LM",
                    batch_size=10, extra=("python3 main.py", "lm", "--steps", "1", "gns", "1", "-1.000000")),
        RecordedJob(name="1", submitted_ms=55_250, duration_ms=3_338_500, gpus=2, iterations=143_450,
                    model_name="CycleGAN",
                    extra=("python3 main.py --x", "gan", "--num_steps", "1", "static", "1", "-1.000000")),
    ),
    "swf": (
        RecordedJob(name="1", submitted_ms=0, duration_ms=100_000, cpu_milli=8_000, user="3", started_ms=5_000,
                    limit_ms=3_600_000, extra=("-1", "1", "1", "-1", "-1", "-1", "-1"), queue="1"),
        RecordedJob(name="2", submitted_ms=10_000, duration_ms=None, cpu_milli=4_000, memory_bytes=4 * 512 * 1024,
                    extra=("-1", "5", "1", "-1", "-1", "-1", "-1")),
    ),
    "sacct": (
        RecordedJob(name="7", submitted_ms=1_767_607_200_000, duration_ms=7_200_000, gpus=16, nodes=2, user="ada",
                    queue="gpu", started_ms=1_767_607_500_000, limit_ms=86_400_000, extra=("X",)),
        RecordedJob(name="8_1", submitted_ms=1_767_607_260_000, duration_ms=None, nodes=1, cpu_milli=2_000,
                    memory_bytes=4 * 2**30, user="ben", queue="gpu", extra=("PENDING",)),
    ),
}  # fmt: skip


def joined(*lines: str) -> str:
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize("is_named", [True, False])
def test_columns_become_what_they_mean(name: str, ending: str, is_named: bool, tmp_path: Path) -> None:
    path = write(tmp_path / f"jobs.{ending}", joined(*GOOD[name]))
    trace = read_jobs(path, name if is_named else "")
    assert (trace.format, trace.records, trace.dropped) == (name, MEANT[name], 0)


def test_every_format_is_tried() -> None:
    assert set(GOOD) == set(MEANT) == {form.name for form in JOB_FORMATS}


def test_line_ends_blank_lines_and_a_byte_order_mark_mean_nothing(tmp_path: Path) -> None:
    text = "\ufeff" + "\r\n".join(("", GOOD["tiresias"][0], "  ", *GOOD["tiresias"][1:]))
    trace = read_jobs(write(tmp_path / "jobs", text))
    assert (trace.records, trace.rows, trace.findings) == (MEANT["tiresias"], 2, ())
    assert [job.line for job in trace.records] == [4, 5]


def test_columns_may_stand_in_any_order_and_others_are_kept(tmp_path: Path) -> None:
    text = joined("team,num_gpu,job_id,iterations,model_name,submit_time,duration", "x,2,a,7,vgg,1.0006,2.5e1")
    (job,) = (trace := read_jobs(write(tmp_path / "jobs", text))).records
    assert trace.extra_columns == ("team",)
    wanted = RecordedJob(name="a", submitted_ms=1_001, duration_ms=25_000, gpus=2, iterations=7, model_name="vgg")
    assert job == replace(wanted, extra=("x",))


@pytest.mark.parametrize(
    "line",
    [
        "A3C\tpython3 x.py\t--steps\t1\t500\t6.000000\t4",
        "A3C\tpython3 x.py\t--steps\t1\t500\t4\t1\t-1\t6.000000",
        "A3C\tpython3 x.py\trl\t--steps\t1\t500\t4\t1\t-1\t6.000000",
        "A3C\tpython3 x.py\trl\t--steps\t1\t500\t4\tstatic\t1\t-1\t6.000000",
    ],
)
def test_gavels_own_lists_have_no_durations(line: str, tmp_path: Path) -> None:
    trace = read_jobs(write(tmp_path / "jobs.trace", joined(line)))
    (job,) = trace.records
    assert (job.submitted_ms, job.gpus, job.iterations, job.duration_ms) == (6_000, 4, 500, None)
    assert [finding.flaw for finding in trace.findings] == [Flaw.NO_DURATION]


def test_an_ambiguous_format_is_refused_with_its_candidates(tmp_path: Path) -> None:
    header = GOOD["tiresias"][0] + ",submission_time,num_iteration,batch_size,deadline"
    path = write(tmp_path / "jobs", joined(header, "0,1,0,606,vgg19,164,30,0,5,6,7"))
    with pytest.raises(UnreadableTrace, match=r"jobs:1: may be of elasticflow or tiresias; name the one"):
        read_jobs(path)
    assert read_jobs(path, "tiresias").records[0].submitted_ms == 0


def test_jobs_that_a_cluster_cannot_hold(tmp_path: Path) -> None:
    nodes = [
        Node(name="a", gpus=8, gpu_type="h100", cpu_milli=64_000, memory_bytes=100),
        Node(name="b", gpus=8, gpu_type="a100", cpu_milli=32_000, memory_bytes=100),
        Node(name="c", cpu_milli=96_000, memory_bytes=1_000),
    ]
    text = joined(
        "name,submitted_ms,duration_ms,gpus,gpu_milli,nodes,gpu_types,cpu_milli,memory_bytes",
        "fits,0,1,16,,,,,",
        "fits2,0,1,16,,2,,,",
        "typed,0,1,8,,,b200|a100,,",
        "unknown,0,1,8,,,b200|t4,,",
        "large,0,1,17,,,,,",
        "typed_large,0,1,9,,,h100|a100,,",
        "one_node,0,1,9,,1,,,",
        "share,0,1,0,500,,h100,,",
        "cpus,0,1,8,,1,a100,33000,",
        "cpus2,0,1,16,,2,,66000,",
        "cpus_only,0,1,0,,1,,97000,",
        "memory,0,1,0,,,,,1001",
        "memory_fits,0,1,0,,,,,1000",
    )
    trace = read_jobs(write(tmp_path / "jobs", text))
    fitting = jobs_that_fit(trace, nodes)
    assert [job.name for job in fitting.records] == ["fits", "fits2", "typed", "share", "memory_fits"]
    assert (fitting.rows, fitting.dropped) == (13, 8)
    unknown, large = fitting.findings
    assert (unknown.flaw, unknown.count, large.flaw, large.count) == (Flaw.UNKNOWN_GPU_TYPE, 1, Flaw.TOO_LARGE, 7)
    assert str(unknown).endswith("line 5: unknown wants b200 or t4; there is a100, h100")
    assert str(large).startswith(
        "7 x too_large (a job that the whole cluster could not hold): line 6: large asks for 17"
    )
    assert str(large).endswith("; ...")


def test_a_share_needs_a_gpu(tmp_path: Path) -> None:
    text = joined("name,submitted_ms,duration_ms,gpus,gpu_milli,gpu_types", "a,0,1,0,500,", "b,0,1,0,500,T4| t4|a10")
    trace = read_jobs(write(tmp_path / "jobs", text))
    assert trace.records[1].gpu_types == ("t4", "a10")
    cpus = jobs_that_fit(trace, [Node(name="c", cpu_milli=96_000, memory_bytes=1_000)])
    assert [str(finding).partition(": ")[2] for finding in cpus.findings] == [
        "line 3: b wants t4 or a10; there is none",
        "line 2: a asks for 0.5 GPUs, 0 CPUs, 0 bytes",
    ]


def test_equal_traces_are_written_as_equal_bytes(tmp_path: Path) -> None:
    trace = read_jobs(write(tmp_path / "jobs", joined(*GOOD["openb"])))
    write_jobs(trace, tmp_path / "one.csv.gz")
    write_jobs(trace, tmp_path / "two.csv.gz")
    packed = (tmp_path / "one.csv.gz").read_bytes()
    assert packed == (tmp_path / "two.csv.gz").read_bytes()
    assert packed[3:8] == bytes(5), "no name, no time"
    write_jobs(trace, tmp_path / "three.csv")
    assert gzip.decompress(packed) == (tmp_path / "three.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs", "one.csv.gz", "three.csv", "two.csv.gz"]


def test_a_list_of_pods_for_placement_alone_is_read(tmp_path: Path) -> None:
    """Lists of the openb family without types and times were refused for their missing columns."""
    text = joined("name,cpu_milli,memory_mib,num_gpu,gpu_milli", "a,4000,1024,1,500", "b,8000,2048,8,1000")
    trace = read_jobs(write(tmp_path / "pods", text))
    assert (trace.format, [finding.flaw for finding in trace.findings]) == ("openb", [Flaw.NO_DURATION])
    assert trace.records == (
        RecordedJob(name="a", submitted_ms=0, duration_ms=None, gpu_milli=500, nodes=1, cpu_milli=4_000,
                    memory_bytes=2**30),
        RecordedJob(name="b", submitted_ms=0, duration_ms=None, gpus=8, nodes=1, cpu_milli=8_000,
                    memory_bytes=2**31),
    )  # fmt: skip


def test_nodes_are_read_of_both_formats(tmp_path: Path) -> None:
    nodes = (
        Node(name="a", gpus=2, gpu_type="p100", cpu_milli=64_000, memory_bytes=2**38),
        Node(name="b", cpu_milli=500, memory_bytes=2**20),
    )
    text = joined("sn,cpu_milli,memory_mib,gpu,model", "a,64000,262144,2,P100", "b,500,1,0,")
    assert read_nodes(write(tmp_path / "nodes", text)).records == nodes
    write_nodes(nodes, tmp_path / "nodes.csv")
    assert read_nodes(tmp_path / "nodes.csv").records == nodes


def test_faults(tmp_path: Path) -> None:
    text = joined("node,start_day,end_day,level,class,desc", '7,0.5,1.25,Hardware,GPU,"DBE, twice"')
    assert read_faults(write(tmp_path / "faults", text)).records == (
        NodeFault(node="7", start_ms=43_200_000, end_ms=108_000_000, level="Hardware", category="GPU",
                  detail="DBE, twice"),
    )  # fmt: skip


def test_the_page_names_every_format_column_and_flaw() -> None:
    page = PAGE.read_text()
    words = [*JOB_COLUMNS, *NODE_COLUMNS, *Flaw, *(form.name for form in JOB_FORMATS)]
    assert [word for word in words if f"`{word}`" not in page] == []


def test_the_example_of_the_page_is_read(tmp_path: Path) -> None:
    examples = PAGE.read_text().split("```csv\n")[1:]
    jobs, nodes, speeds = (write(tmp_path / str(at), text.split("```")[0]) for at, text in enumerate(examples))
    trace: Trace[RecordedJob] = read_jobs(jobs)
    assert (trace.format, trace.findings) == ("ganger", ())
    assert jobs_that_fit(trace, read_nodes(nodes).records).dropped == 0
    assert read_throughputs(speeds)["bert", 32, 1] == {"v100": Fraction(17, 2), "k80": Fraction(5, 4)}
