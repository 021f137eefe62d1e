"""Findings of the test of nodes on what they measured of their GPUs and hosts, and the reports that it cannot read."""

import json
import math
import sys
from pathlib import Path

import pytest

from ganger.train.preflight.device_figures import (
    HOST,
    MAX_DEVICES,
    DeviceFigures,
    NodeFigures,
    decode,
    encode,
    judge,
    performance_milli,
)
from ganger.train.preflight.group_testing import Findings
from ganger.train.preflight.measure_devices import measure_devices
from ganger.train.preflight.node_results import RESULT_FILE, MeasuredNode, join_results, result_text, write_result
from tests.real.environments import python_with

ROOT = Path(__file__).parents[2]
H100 = "NVIDIA H100 80GB HBM3"
GOOD = {"hbm": 2900.0, "pcie_to_device": 55.0, "pcie_to_host": 55.5}
NO_PAIRS = Findings({}, {}, {})


def node(*figures: dict[str, float], gpu_type: str = "B42", **errors: str) -> NodeFigures:
    """Return the figures of a node with these GPUs; error_N is the error of GPU N."""
    return NodeFigures(
        [
            DeviceFigures(number, values, gpu_type, errors.get(f"error_{number}", ""))
            for number, values in enumerate(figures)
        ]
    )


def test_equal_gpus_are_good() -> None:
    nodes = [node(GOOD, GOOD) for _ in range(4)]
    assert judge(nodes) == []
    assert performance_milli(nodes) == [1000] * 4


@pytest.mark.parametrize("metric", GOOD)
def test_a_gpu_far_below_the_median_of_its_type_is_named_with_its_figure(metric: str) -> None:
    nodes = [node(GOOD, GOOD), node(GOOD, {**GOOD, metric: GOOD[metric] / 2}), node(GOOD, GOOD)]
    (finding,) = judge(nodes)
    assert (finding.node, finding.device, finding.code, finding.is_bad) == (1, 1, metric, True)
    assert f"{GOOD[metric] / 2:.4g} GB/s, 50 % of the median of {GOOD[metric]:.4g} GB/s" in finding.sentence
    assert performance_milli(nodes) == [1000, 500, 1000]


def test_types_of_gpus_are_not_compared_with_one_another() -> None:
    slow = {name: value / 4 for name, value in GOOD.items()}
    nodes = [*(node(GOOD, gpu_type="B42") for _ in range(3)), *(node(slow, gpu_type="T1") for _ in range(3))]
    assert judge(nodes) == []


def test_of_two_gpus_neither_is_slow_unless_a_figure_of_the_type_is_documented() -> None:
    slow = {**GOOD, "pcie_to_host": 20.0}
    assert judge([node(GOOD), node(slow)]) == []
    (finding,) = judge([node(GOOD, gpu_type=H100), node(slow, gpu_type=H100)])
    assert (finding.node, finding.code) == (1, "pcie_to_host")
    assert "less than 52 GB/s" in finding.sentence


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_a_figure_that_is_none_makes_its_gpu_bad_and_changes_no_median(value: float) -> None:
    nodes = [node(GOOD) for _ in range(3)] + [node({**GOOD, "hbm": value})]
    (finding,) = judge(nodes)
    assert (finding.node, finding.code, finding.is_bad) == (3, "hbm", True)
    assert performance_milli(nodes) == [1000, 1000, 1000, 0]


def test_a_gpu_that_does_not_work_is_named_with_its_error() -> None:
    nodes = [node(GOOD, GOOD), node(GOOD, {}, error_1="CUDA error: uncorrectable ECC error encountered")]
    (finding,) = judge(nodes)
    assert (finding.node, finding.device, finding.code) == (1, 1, "cuda")
    assert "uncorrectable ECC" in finding.sentence


def test_a_node_with_fewer_gpus_than_the_others_is_bad() -> None:
    nodes = [node(GOOD, GOOD), node(GOOD), node(GOOD, GOOD)]
    (finding,) = judge(nodes)
    assert (finding.node, finding.device, finding.is_bad) == (1, HOST, True)
    assert "it has 1 GPUs, and most other nodes have 2" in finding.sentence


def test_slow_memory_of_a_host_is_no_proof() -> None:
    nodes = [NodeFigures([DeviceFigures(HOST, {"host_memory": value})]) for value in (10.0, 11.0, 4.0, 10.0)]
    (finding,) = judge(nodes)
    assert (finding.node, finding.is_bad) == (2, False)
    assert performance_milli(nodes) == [1000] * 4


def test_figures_come_back_from_their_report() -> None:
    before = node(GOOD, {"hbm": math.nan}, error_1="lost")
    assert encode(decode(json.loads(json.dumps(encode(before))))) == encode(before) | {
        "devices": [[0, "B42", "", GOOD], [1, "B42", "lost", pytest.approx({"hbm": math.nan}, nan_ok=True)]]
    }


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"devices": 3},
        {"devices": [3]},
        {"devices": [["0", "", "", {}]]},
        {"devices": [[True, "", "", {}]]},
        {"devices": [[MAX_DEVICES, "", "", {}]]},
        {"devices": [[-2, "", "", {}]]},
        {"devices": [[0, 1, "", {}]]},
        {"devices": [[0, "", "", []]]},
        {"devices": [[0, "", "", {}], [0, "", "", {}]]},
        {"devices": [[0, "", "", {}]] * 1000},
        {"devices": [], "skipped": 1},
    ],
)
def test_a_report_that_is_none_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="device"):
        decode(document)


@pytest.mark.parametrize("value", ["fast", None, True, [1], 10**400])
def test_a_figure_of_another_type_is_that_of_a_bad_gpu(value: object) -> None:
    decoded = decode({"devices": [[0, "B42", "", {**GOOD, "hbm": value}]]})
    assert [finding.code for finding in judge([decoded])] == ["hbm"]


# -- the process that measures -----------------------------------------------------------------------------------------

CHILD = """
import sys, time
first = int(sys.argv[1])
print('{"host": 12.5}' if first == 0 else '{"count": 4}', flush=True)
print('{"count": 4, "reason": ""}', flush=True)
for device in range(first, 4):
    print('{"begin": %d}' % device, flush=True)
    if device == HANGS: time.sleep(60)
    if device == ENDS: sys.exit(7)
    if device == LIES: print("{" * 20000, flush=True)
    print('{"device": %d, "type": "B42", "figures": {"hbm": 2900.0}}' % device, flush=True)
"""


def child(**bad: int) -> tuple[str, ...]:
    text = CHILD
    for name in ("HANGS", "ENDS", "LIES"):
        text = text.replace(name, str(bad.get(name.lower(), -1)))
    return sys.executable, "-c", text


def test_all_gpus_are_measured() -> None:
    figures = measure_devices(child())
    assert [one.device for one in figures.devices] == [HOST, 0, 1, 2, 3]
    assert not any(one.error for one in figures.devices)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"hangs": 1}, "it did not answer within 0.5 s"),
        ({"ends": 1}, "its measurement ended with code 7"),
        ({"lies": 1}, "its measurement printed a line that is damaged"),
    ],
)
def test_a_gpu_that_hangs_or_ends_its_process_is_named_and_the_others_are_measured(
    bad: dict[str, int], error: str
) -> None:
    figures = measure_devices(child(**bad), device_timeout_s=0.5)
    assert {one.device: one.error for one in figures.devices} == {HOST: "", 0: "", 1: error, 2: "", 3: ""}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import time; time.sleep(60)", "did not answer within 0.5 s"),
        ("raise SystemExit(3)", "ended with code 3"),
        ("print('[1]')", "a line that is damaged"),
        ("print('null')", "a line that is damaged"),
        ("""print('{"count": -1}')""", "a line that is damaged"),
        ("""print('{"count": 1e9}')""", "a line that is damaged"),
    ],
)
def test_a_measurement_that_ends_before_it_has_counted_gpus_says_why(program: str, reason: str) -> None:
    figures = measure_devices((sys.executable, "-c", program), start_timeout_s=0.5 if "sleep" in program else 30)
    assert figures.devices == []
    assert reason in figures.skipped


@pytest.mark.long
def test_a_node_without_gpus_says_so_and_measures_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it with torch."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    child = (python_with("torch"), "-m", "ganger.train.preflight.device_bandwidth")
    figures = measure_devices(child)
    (host,) = figures.devices
    assert host.figures_gbps["host_memory"] > 0
    assert figures.skipped in ("no CUDA device is visible", "this torch is built without CUDA")


# -- results -----------------------------------------------------------------------------------------------------------


def test_the_result_joins_devices_and_pairs_and_names_silent_nodes(tmp_path: Path) -> None:
    measured = [node(GOOD), node({**GOOD, "hbm": 1000.0}), node(GOOD), None, node(GOOD)]
    tested = [MeasuredNode(place, f"gpu-{place}", figures) for place, figures in enumerate(measured)]
    pairs = Findings({"2": 7}, {}, {"4": 1})
    results = join_results(tested, pairs, {"0": 1000, "1": 900, "2": 300, "4": 950}, 32)
    assert [result.is_bad for result in results] == [False, True, True, True, False]
    assert [result.performance_milli for result in results] == [1000, 345, 300, 0, 950]
    lines = result_text(results, 8, 32).splitlines()
    assert "node 1 (gpu-1) is bad: GPU 0 (B42): memory bandwidth is 1000 GB/s, 34 % of the median" in lines[0]
    assert lines[1:4] == [
        "node 2 (gpu-2) is bad: 7 of 32 tests of it failed",
        "node 3 (gpu-3) is bad: it did not report in time",
        "node 4 (gpu-4) is suspect: 1 of 32 tests of it failed",
    ]
    document = json.loads(lines[-1])
    assert ([*document["bad"]], [*document["suspect"]]) == (["1", "2", "3"], ["4"])
    write_result(results, str(tmp_path))
    written = json.loads((tmp_path / RESULT_FILE).read_text())["nodes"]
    assert [entry["performance_milli"] for entry in written] == [1000, 345, 300, 0, 950]
    assert written[2]["findings"][0]["code"] == "pair_tests"
    assert [path.name for path in tmp_path.iterdir()] == [RESULT_FILE]
