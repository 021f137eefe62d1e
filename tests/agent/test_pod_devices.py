"""A kubelet's answers about the devices of pods, over gRPC on a socket, as a real one gives them."""

import time
from pathlib import Path

import pytest

from ganger.agent.sampling.node_sampler import NodeSampler
from ganger.agent.sampling.pod_devices import KubeletAnswer, PodDevices
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.model.node_health.node_sample import GpuSample, ProbeSample
from tools.stub_kubelet.pod_resources import PlayedKubelet

GPU = "nvidia.com/gpu"


def ask(path: Path, timeout_s: float = 5.0) -> KubeletAnswer:
    """Return the answer of a kubelet at a socket."""
    kubelet = PodDevices(path)
    kubelet.begin()
    return kubelet.result(time.monotonic() + timeout_s)


def test_each_gpu_has_the_pods_that_the_kubelet_gave_it(tmp_path: Path) -> None:
    pods: dict[str, list[tuple[str, list[str]]]] = {
        "ml/train-1-0": [(GPU, ["GPU-a", "GPU-b"]), ("rdma/hca", ["GPU-c"])],
        "ml/shared-0": [(f"{GPU}.shared", ["GPU-c::0"])],
        "ml/shared-1": [(f"{GPU}.shared", ["GPU-c::1", "GPU-c::2"])],
        "ml/claimed": [("claim gpu.nvidia.com", ["gpu-3"]), ("claim nic.example.com", ["gpu-0"])],
        "ml/by-index": [(GPU, ["4"])],
        "web/none": [("cpu", [])],
    }
    with PlayedKubelet(pods).serving(tmp_path / "kubelet.sock"):
        answer = ask(tmp_path / "kubelet.sock")
    assert (answer.probe.name, answer.probe.error) == ("kubelet", "")
    assert answer.probe.took_ms is not None
    gpus = answer.join(GpuSample(index=index, uuid=f"GPU-{letter}") for index, letter in enumerate("abcdef"))
    assert [gpu.pods for gpu in gpus] == [
        ("ml/train-1-0",),
        ("ml/train-1-0",),
        ("ml/shared-0", "ml/shared-1"),
        ("ml/claimed",),
        ("ml/by-index",),
        (),
    ]


@pytest.mark.parametrize(("mode", "says"), [("hangs", ""), ("fails", "the kubelet starts")])
def test_a_kubelet_that_does_not_answer_is_a_probe_that_failed(tmp_path: Path, mode: str, says: str) -> None:
    with PlayedKubelet({}, mode).serving(tmp_path / "kubelet.sock"):
        answer = ask(tmp_path / "kubelet.sock", 0.2 if mode == "hangs" else 5.0)
        assert (answer.probe.took_ms, says in answer.probe.error, answer.pods) == (None, True, {})


@pytest.mark.parametrize("kind", ["no socket", "not gRPC"])
def test_what_is_no_kubelet_costs_its_own_part_of_the_sample(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kubelet.sock"
    if kind == "not gRPC":
        path.write_text("text")
    sample = NodeSampler("n1", SamplingRoots(pod_resources=path)).sample()
    (probe,) = sample.probes
    assert (probe, str(path) in probe.error) == (ProbeSample(name="kubelet", error=probe.error), True)
    assert sample.host.memory_bytes
