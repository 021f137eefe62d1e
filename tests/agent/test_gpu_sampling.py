"""Samples of GPUs through the modes of the stub of the driver's library, and of a DCGM exporter's page."""

import time
from collections.abc import Callable
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ganger.agent.sampling import node_sampler
from ganger.agent.sampling.gpu_source import READERS, GpuDriver, GpuSource
from ganger.agent.sampling.node_sampler import NodeSampler
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.model.node_health.node_sample import GpuSample
from tests.waiting import wait_until

Modes = Callable[[str], None]
ALL = tuple(name for names, _ in READERS for name in names)
PAGE = """# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-00000000-0000-0000-0000-000000000000",Hostname="a"} 0.875
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-00000000-0000-0000-0000-000000000000",Hostname="a"} 0.5
DCGM_FI_PROF_DRAM_ACTIVE{gpu="1",UUID="GPU-00000000-0000-0000-0000-000000000001",Hostname="a"} 7
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-00000000-0000-0000-0000-000000000000",Hostname="a"} 41
"""


def _read(source: GpuSource, wait_s: float = 30.0) -> tuple[GpuSample, ...]:
    source.begin()
    return source.result(time.monotonic() + wait_s)


def test_a_healthy_gpu_has_every_figure(stub_nvml: Path, gpu_modes: Modes) -> None:
    gpu_modes("8 3=busy")
    gpus = _read(GpuSource(GpuDriver(stub_nvml)))
    assert [gpu.index for gpu in gpus] == [*range(8)]
    assert gpus[3].uuid == "GPU-00000000-0000-0000-0000-000000000003"
    assert gpus[3].bus_id == "0000:13:00"
    assert [gpu.processes for gpu in gpus] == [(), (), (), (4003,), (), (), (), ()]
    assert gpus[3].nvlinks == 18 * (True,)
    profiling = {"sm_active_permille", "tensor_active_permille", "dram_active_permille"}
    for gpu in gpus:
        assert {field.name for field in fields(gpu) if getattr(gpu, field.name) is None} == profiling
        assert gpu.unread == ()


def test_a_gpu_that_is_lost_keeps_its_name_and_has_no_values(stub_nvml: Path, gpu_modes: Modes) -> None:
    gpu_modes("3")
    source = GpuSource(GpuDriver(stub_nvml))
    healthy = _read(source)
    gpu_modes("3 1=lost")
    lost = _read(source)
    assert lost[0] == healthy[0]
    assert lost[2] == healthy[2]
    assert (lost[1].uuid, lost[1].bus_id, lost[1].unread) == (healthy[1].uuid, healthy[1].bus_id, ALL)
    assert (lost[1].utilisation_percent, lost[1].ecc_uncorrected) == (None, None)
    gpu_modes("3")
    assert _read(source) == healthy


def test_a_gpu_that_was_always_lost_is_one_of_the_node(stub_nvml: Path, gpu_modes: Modes) -> None:
    gpu_modes("2 1=lost")
    source = GpuSource(GpuDriver(stub_nvml))
    assert _read(source)[1] == GpuSample(index=1, unread=ALL)
    gpu_modes("2")
    assert _read(source)[1].uuid == "GPU-00000000-0000-0000-0000-000000000001"


def test_ecc_errors_are_counted(stub_nvml: Path, gpu_modes: Modes) -> None:
    gpu_modes("2 1=ecc")
    gpus = _read(GpuSource(GpuDriver(stub_nvml)))
    assert [(gpu.ecc_uncorrected, gpu.remapped_uncorrected, gpu.is_remap_pending) for gpu in gpus] == [
        (0, 0, False),
        (3, 1, True),
    ]


@pytest.mark.parametrize("mode", ["hang", "slow"])
def test_a_gpu_that_does_not_answer_in_time_hides_no_other(stub_nvml: Path, gpu_modes: Modes, mode: str) -> None:
    gpu_modes("3")
    source = GpuSource(GpuDriver(stub_nvml))
    healthy = _read(source)
    gpu_modes(f"3 2={mode}")
    for wait_s in (1.0, 0.5):
        gpus = _read(source, wait_s)
        assert gpus[:2] == healthy[:2]
        assert (gpus[2].uuid, gpus[2].unread) == (healthy[2].uuid, ALL)
    gpu_modes("3")
    wait_until(lambda: _read(source) == healthy, "all are read again")


def test_a_driver_that_hangs_is_one_unread_source(
    stub_nvml: Path, gpu_modes: Modes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sampler, "TIMEOUT_S", 1.0)
    gpu_modes("2 *=hang")
    sampler = NodeSampler("here", SamplingRoots(nvml_library=stub_nvml))
    sample = sampler.sample()
    assert (sample.gpus, sample.unread) == ((), ("nvml",))
    assert sample.host.memory_bytes is not None
    gpu_modes("2")
    wait_until(lambda: len(sampler.sample().gpus) == 2, "both GPUs are read again")
    assert sampler.sample().unread == ()


def test_a_machine_without_the_library_has_no_gpus(tmp_path: Path) -> None:
    assert _read(GpuSource(GpuDriver(tmp_path / "libnvidia-ml.so.1"))) == ()


def test_profiling_fields_come_from_an_exporter(stub_nvml: Path, gpu_modes: Modes) -> None:
    pages = [PAGE, "no metrics DCGM_FI_PROF_\nDCGM_FI_PROF_SM_ACTIVE{", PAGE]

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pages.pop(0).encode())

        def log_message(self, *_: object) -> None:
            pass

    gpu_modes("2")
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        sampler = NodeSampler("here", SamplingRoots(nvml_library=stub_nvml, dcgm_exporter=url))
        samples = [sampler.sample() for _ in range(3)]
        server.shutdown()
    first = samples[0].gpus[0]
    assert (first.sm_active_permille, first.tensor_active_permille, first.dram_active_permille) == (875, 500, None)
    assert samples[0].gpus[1].dram_active_permille is None, "a ratio is at most 1"
    assert [sample.unread for sample in samples] == [(), ("dcgm",), ()]
    assert sampler.sample().unread == ("dcgm",)
    assert len(sampler.sample().gpus) == 2
