"""Services that a node depends on: its kubelet and containerd, and registry, DNS, storage and hub outside of it."""

from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import is_count
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import NodeSample, ProbeSample

NAME: Final = "services"
DOC: Final = "Probes of kubelet, containerd, registry, DNS, storage and hub; sources that do not answer"

_OF_NODE: Final = ("kubelet", "containerd", "docker", "crio")
_NVML: Final = "nvml"
"""The source that the check gpu_lost judges."""

INITIAL_STATE: Final = None


def check(state: None, sample: NodeSample, rules: RuleBook) -> tuple[None, tuple[Finding, ...]]:
    """Return services that fail. One outside of the node is a note here: if many nodes see it, the service has it."""
    found = [one for probe in sample.probes if (one := _of_probe(probe, rules)) is not None]
    found += (
        ("source_unread", source, f"{source} does not answer within its time-out")
        for source in sample.unread
        if source != _NVML
    )
    return None, tuple(
        Finding(rule=rule, device=device, sentence=sentence)
        for code, device, sentence in found
        if (rule := rules.find("host", code)) is not None
    )


def _of_probe(probe: ProbeSample, rules: RuleBook) -> tuple[str, str, str] | None:
    slow = rules.find("host", "probe_slow")
    if probe.error or probe.took_ms is None:
        is_of_node = probe.name.partition(" ")[0] in _OF_NODE
        sentence = probe.error or "it does not answer within its time-out"
        return "service_failed" if is_of_node else "external_failed", probe.name, f"{probe.name}: {sentence}"
    if slow is not None and slow.limit is not None and is_count(probe.took_ms) and probe.took_ms > slow.limit:
        return "probe_slow", probe.name, f"{probe.name} took {probe.took_ms} ms to answer"
    return None
