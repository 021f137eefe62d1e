"""GPUs without hardware."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ganger.agent.sampling.gpu_source import GpuDriver
from tools.stub_nvml import VARIABLE, build_stub_nvml, write_modes


@pytest.fixture(scope="session")
def stub_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stub of the driver's library, once."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler builds the stub of the driver's library: apt-get install gcc")
    return build_stub_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpu_modes(stub_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the modes of the stub's GPUs; none is left for other tests of this process."""
    modes = tmp_path / "gpu-modes"
    monkeypatch.setenv(VARIABLE, str(modes))
    write_modes(modes, "0")
    yield lambda text: write_modes(modes, text)
    write_modes(modes, "0")
    assert GpuDriver(stub_nvml).count() == 0
