"""Memory of GPUs: ECC errors, and rows that were replaced or cannot be."""

from collections.abc import Mapping
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import CounterBase, grown, is_count
from ganger.check_api.kernel_text import device_of
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import GpuSample, NodeSample

NAME: Final = "ecc"
DOC: Final = "ECC errors and replaced rows of GPU memory"

State = Mapping[str, CounterBase]
"""Corrected errors at the start of a window, by GPU."""
INITIAL_STATE: Final[State] = {}


def check(state: State, sample: NodeSample, rules: RuleBook) -> tuple[State, tuple[Finding, ...]]:
    """Return what is wrong with the memory of each GPU."""
    bases: dict[str, CounterBase] = {}
    findings: list[Finding] = []
    corrected = rules.find("gpu", "ecc_corrected")
    for gpu in sample.gpus:
        device = device_of(gpu)
        facts = _facts(gpu, rules)
        if corrected is not None:
            base, growth = grown(state.get(device), gpu.ecc_corrected, sample.at_ms, corrected)
            if base is not None:
                bases[device] = base
            if growth:
                facts.append(("ecc_corrected", f"{growth} corrected ECC errors within the window of the rule"))
        for code, sentence in facts:
            if (rule := rules.find("gpu", code)) is not None:
                evidence = (f"ecc_uncorrected={gpu.ecc_uncorrected} remapped_uncorrected={gpu.remapped_uncorrected}",)
                text = f"GPU {gpu.index}: {sentence}"
                findings.append(Finding(rule=rule, device=device, gpu=gpu.index, sentence=text, evidence=evidence))
    return bases, tuple(findings)


def _facts(gpu: GpuSample, rules: RuleBook) -> list[tuple[str, str]]:
    """Return the codes and sentences of what is wrong now."""
    facts = []
    if _is_above(gpu.ecc_uncorrected, "ecc_uncorrected", rules):
        facts.append(("ecc_uncorrected", f"{gpu.ecc_uncorrected} uncorrectable ECC errors since the driver was loaded"))
    if gpu.is_remap_pending is True:
        facts.append(("remap_pending", "a row of its memory is replaced at the next reset"))
    if gpu.has_remap_failed is True:
        facts.append(("remap_failed", "a row of its memory could not be replaced"))
    if _is_above(gpu.remapped_uncorrected, "remap_many", rules):
        facts.append(("remap_many", f"{gpu.remapped_uncorrected} rows were replaced after uncorrectable errors"))
    return facts


def _is_above(value: object, code: str, rules: RuleBook) -> bool:
    rule = rules.find("gpu", code)
    return rule is not None and rule.limit is not None and is_count(value) and value > rule.limit
