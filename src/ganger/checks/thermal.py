"""Heat and power of GPUs: clocks that hardware lowers for minutes, and the gap to that temperature."""

from collections.abc import Mapping
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import is_count, is_number
from ganger.check_api.kernel_text import device_of
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import GpuSample, NodeSample

NAME: Final = "thermal"
DOC: Final = "Clocks lowered by heat or power, and degrees to a slowdown"

_WINDOW_MIN: Final = 10
_HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _HW_POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
"""Bits of NVML's clocks event reasons."""
_REASONS: Final = (
    ("hw_thermal_slowdown", _HW_THERMAL, 0),
    ("hw_power_brake", _HW_POWER_BRAKE, 0),
    ("hw_slowdown", _HW_SLOWDOWN, _HW_THERMAL | _HW_POWER_BRAKE),
    ("sw_thermal_slowdown", _SW_THERMAL, 0),
)
"""Code, its bit, and the bits that say the same more exactly."""

State = Mapping[tuple[str, str], tuple[int, int]]
"""For each GPU and code the last minute with a slowdown, and which of the 10 up to it had one, as bits."""
INITIAL_STATE: Final[State] = {}


def check(state: State, sample: NodeSample, rules: RuleBook) -> tuple[State, tuple[Finding, ...]]:
    """Return GPUs whose clocks are lowered in a share of minutes, and those that are about to be."""
    minutes: dict[tuple[str, str], tuple[int, int]] = {}
    findings: list[Finding] = []
    now_min = sample.at_ms // 60_000
    for gpu in sample.gpus:
        device = device_of(gpu)
        for code, bit, exact in _REASONS:
            reasons = gpu.slowdown_reasons if is_count(gpu.slowdown_reasons) else 0
            history = _history(state.get((device, code)), now_min, is_slow=bool(reasons & bit and not reasons & exact))
            if history is None:
                continue
            minutes[device, code] = history
            rule, slow_min = rules.find("gpu", code), history[1].bit_count()
            if rule is not None and slow_min >= (rule.limit or 0) * _WINDOW_MIN:
                sentence = f"GPU {gpu.index}: {rule.meaning.partition(',')[0]}, in {slow_min} of {_WINDOW_MIN} min"
                evidence = (f"temperature {gpu.temperature_c} C, power {gpu.power_mw} mW, SM clock {gpu.sm_mhz} MHz",)
                findings.append(Finding(rule=rule, device=device, gpu=gpu.index, sentence=sentence, evidence=evidence))
        findings += _of_margin(gpu, rules)
    return minutes, tuple(findings)


def _history(history: tuple[int, int] | None, now_min: int, *, is_slow: bool) -> tuple[int, int] | None:
    """Return the minutes of a window that ends now, None if none of them was slow."""
    last_min, bits = history or (now_min, 0)
    bits = (bits << min(now_min - last_min, _WINDOW_MIN) | is_slow) & (1 << _WINDOW_MIN) - 1
    return (now_min, bits) if bits else None


def _of_margin(gpu: GpuSample, rules: RuleBook) -> list[Finding]:
    rule = rules.find("gpu", "temperature_margin")
    if rule is None or rule.limit is None or not is_number(gpu.temperature_c) or not is_number(gpu.slowdown_c):
        return []
    margin_c = gpu.slowdown_c - gpu.temperature_c
    if margin_c > rule.limit:
        return []
    sentence = f"GPU {gpu.index}: {gpu.temperature_c} C, {margin_c} C below the temperature that lowers its clocks"
    return [Finding(rule=rule, device=device_of(gpu), gpu=gpu.index, sentence=sentence)]
