"""GPUs that are gone or do not answer, and a driver that does not."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import newest
from ganger.check_api.kernel_text import MAX_GPUS, device_of
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import GpuSample, NodeSample

NAME: Final = "gpu_lost"
DOC: Final = "GPUs that the driver does not list or that do not answer; NVML that does not"

_FORGET_MS: Final = 86_400_000
"""Time after which a GPU that is gone is taken for removed."""
_NVML: Final = "nvml"


class SeenGpu(NamedTuple):
    """A GPU, and when it was listed last."""

    number: int
    seen_ms: int


State = Mapping[str, SeenGpu]
INITIAL_STATE: Final[State] = {}


def check(state: State, sample: NodeSample, rules: RuleBook) -> tuple[State, tuple[Finding, ...]]:
    """Return what is lost. While NVML as a whole does not answer, nothing is said of single GPUs."""
    present = {device_of(gpu): SeenGpu(gpu.index, sample.at_ms) for gpu in sample.gpus}
    absent = {
        device: gpu
        for device, gpu in state.items()
        if device not in present and sample.at_ms - gpu.seen_ms <= _FORGET_MS
    }
    seen = newest({**absent, **present}, MAX_GPUS)
    if _NVML in sample.unread:
        rule = rules.find("gpu", "nvml_unread")
        sentence = "NVML does not answer within its time-out"
        return seen, () if rule is None else (Finding(rule=rule, sentence=sentence, evidence=("unread: nvml",)),)
    found = [
        ("gpu_missing", device, gpu.number, f"GPU {gpu.number} ({device}) is not listed by the driver any more")
        for device, gpu in absent.items()
    ]
    for gpu in sample.gpus:
        if not gpu.unread:
            continue
        names = ", ".join(map(str, gpu.unread[:5]))
        if _is_silent(gpu):
            found.append(("gpu_lost", device_of(gpu), gpu.index, f"GPU {gpu.index} answers no question of the driver"))
        else:
            found.append(("gpu_unread", device_of(gpu), gpu.index, f"GPU {gpu.index} does not answer in time: {names}"))
    return seen, tuple(
        Finding(rule=rule, device=device, gpu=number, sentence=sentence)
        for code, device, number, sentence in found
        if (rule := rules.find("gpu", code)) is not None
    )


def _is_silent(gpu: GpuSample) -> bool:
    measured = (gpu.utilisation_percent, gpu.memory_used_bytes, gpu.power_mw, gpu.temperature_c, gpu.sm_mhz)
    return all(value is None for value in measured)
