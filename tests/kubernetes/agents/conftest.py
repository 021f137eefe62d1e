"""GPUs without hardware, as in the tests of the agent, and the launcher of a server of this machine."""

from tests.agent.conftest import gpu_modes, stub_nvml
from tests.service.conftest import zipapp

__all__ = ["gpu_modes", "stub_nvml", "zipapp"]
