"""PCIe: fatal errors in the kernel's log, links that are narrower or slower than they can be, and replays."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import CounterBase, grown, is_count
from ganger.check_api.kernel_text import KnownGpu, device_of, known_gpus, matched_text, pci_address
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import GpuSample, NodeSample

NAME: Final = "pcie"
DOC: Final = "PCIe errors, link width and generation, replays"

_FATAL: Final = re.compile(
    r"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\)|severity=(?:Uncorrect(?:ed|able) \()?Fatal\b"
    r"|AER: (?:can't recover|device recovery failed)|DPC: containment event"
    r"|pciehp: .{0,40}(?:Surprise|Link) Down"
)
_NONFATAL: Final = re.compile(
    r"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Non-Fatal\)|severity=Uncorrect(?:ed|able) \(Non-Fatal\)"
)
_WORDS: Final = ("AER", "severity=", "DPC:", "pciehp")
_LOAD_PERCENT: Final = 50
"""Utilisation above which a link runs at its full generation."""
_REPLAYS_PER_LANE: Final = 0.15
_GENERATION_FACTORS: Final = (1.0, 2.0, 3.2, 6.4, 12.8, 25.6)
"""Speeds of generations 1 to 6 over that of the first, after DCGM."""


@dataclass(frozen=True, slots=True)
class PcieState:
    """GPUs by PCI address, and replays at the start of a window by GPU."""

    gpus: Mapping[str, KnownGpu] = field(default_factory=dict)
    bases: Mapping[str, CounterBase] = field(default_factory=dict)


INITIAL_STATE: Final = PcieState()


def check(state: PcieState, sample: NodeSample, rules: RuleBook) -> tuple[PcieState, tuple[Finding, ...]]:
    """Return errors in lines, and what is wrong with the link of each GPU."""
    gpus, bases = known_gpus(state.gpus, sample.gpus), dict[str, CounterBase]()
    findings = _of_lines(sample, gpus, rules)
    for gpu in sample.gpus:
        device = device_of(gpu)
        found = _of_link(gpu)
        if (rule := rules.find("gpu", "pcie_replay")) is not None and (limit := _replays_per_min(gpu)) is not None:
            own_rule = replace(rule, limit=limit * (rule.limit or 1))
            base, growth = grown(state.bases.get(device), gpu.pcie_replays, sample.at_ms, own_rule)
            if base is not None:
                bases[device] = base
            if growth:
                found.append(("pcie_replay", f"{growth} PCIe packets sent again; {limit} a minute are usual at most"))
        findings += (
            Finding(rule=rule, device=device, gpu=gpu.index, sentence=f"GPU {gpu.index}: {sentence}")
            for code, sentence in found
            if (rule := rules.find("gpu", code)) is not None
        )
    return PcieState(gpus, bases), tuple(findings)


def _of_lines(sample: NodeSample, gpus: Mapping[str, KnownGpu], rules: RuleBook) -> list[Finding]:
    findings = []
    for line in sample.lines:
        if not any(word in line.text[:400] for word in _WORDS):
            continue
        text = matched_text(line)
        code = "aer_fatal" if _FATAL.search(text) else "aer_nonfatal" if _NONFATAL.search(text) else ""
        rule = rules.find("gpu", code)
        if not code or rule is None:
            continue
        address = pci_address(text)
        gpu = gpus.get(address)
        findings.append(
            Finding(
                rule=rule,
                device=gpu.device if gpu else address,
                gpu=gpu.number if gpu else None,
                sentence=f"PCIe device {address}: {rule.meaning}",
                evidence=(line.text,),
                at_ms=line.at_ms,
                is_event=True,
            )
        )
    return findings


def _of_link(gpu: GpuSample) -> list[tuple[str, str]]:
    """Return what is below the best of a link; an idle one runs at a low generation to save power."""
    found = []
    width, best_width = gpu.pcie_width, gpu.max_pcie_width
    if is_count(width) and is_count(best_width) and 0 < width < best_width:
        found.append(("pcie_width", f"the PCIe link has {width} lanes of {best_width}"))
    generation, best = gpu.pcie_generation, gpu.max_pcie_generation
    is_loaded = is_count(gpu.utilisation_percent) and gpu.utilisation_percent >= _LOAD_PERCENT
    if is_loaded and is_count(generation) and is_count(best) and 0 < generation < best:
        found.append(("pcie_generation", f"the PCIe link runs as generation {generation} of {best} under load"))
    return found


def _replays_per_min(gpu: GpuSample) -> int | None:
    """Return the replays in a minute that DCGM has as the limit of this link, None if the link is unknown."""
    generation, width = gpu.pcie_generation, gpu.pcie_width
    if not is_count(generation) or not is_count(width) or not 1 <= generation <= len(_GENERATION_FACTORS):
        return None
    return math.ceil(_REPLAYS_PER_LANE * _GENERATION_FACTORS[generation - 1] * min(width, 32))
