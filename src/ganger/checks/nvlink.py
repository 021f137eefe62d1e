"""NVLinks of GPUs: links that are down, and errors of links."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import CounterBase, grown
from ganger.check_api.kernel_text import device_of
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.node_sample import NodeSample

NAME: Final = "nvlink"
DOC: Final = "NVLinks that are down, and their replay, recovery and CRC errors"

_MAX_LINKS: Final = 64
_COUNTERS: Final = (
    ("nvlink_replay", "nvlink_replays", "packets sent again"),
    ("nvlink_recovery", "nvlink_recoveries", "recoveries of links"),
    ("nvlink_crc", "nvlink_crc", "CRC errors"),
)


class LinkState(NamedTuple):
    """Links of one GPU that have been up, and its totals at the start of a window."""

    was_up: frozenset[int] = frozenset()
    bases: tuple[CounterBase | None, ...] = (None,) * len(_COUNTERS)


State = Mapping[str, LinkState]
INITIAL_STATE: Final[State] = {}


def check(state: State, sample: NodeSample, rules: RuleBook) -> tuple[State, tuple[Finding, ...]]:
    """Return links that were up and are down, GPUs with fewer links than their equals, and errors of links."""
    links: dict[str, LinkState] = {}
    findings: list[Finding] = []
    down_rule, most_up = rules.find("gpu", "nvlink_down"), _most_up(sample)
    for gpu in sample.gpus:
        device = device_of(gpu)
        before = state.get(device, LinkState())
        up = frozenset(number for number, is_up in enumerate(gpu.nvlinks[:_MAX_LINKS]) if is_up)
        bases = []
        found: list[tuple[str, str]] = []
        down = sorted(before.was_up - up) if gpu.nvlinks else []
        missing = most_up.get(gpu.name, 0) - len(up) if gpu.nvlinks else 0
        if down_rule is not None and (down or missing > 0):
            text = f"NVLinks {', '.join(map(str, down))} are down" if down else f"{missing} NVLinks fewer than others"
            found.append(("nvlink_down", f"{text}; {len(up)} are up"))
        for base, (code, attribute, title) in zip(before.bases, _COUNTERS, strict=True):
            rule = rules.find("gpu", code)
            if rule is None:
                bases.append(base)
                continue
            base_now, growth = grown(base, getattr(gpu, attribute), sample.at_ms, rule)
            bases.append(base_now)
            if growth:
                found.append((code, f"{growth} {title} of NVLinks"))
        links[device] = LinkState(before.was_up | up, tuple(bases))
        findings += (
            Finding(
                rule=rule,
                device=device,
                gpu=gpu.index,
                sentence=f"GPU {gpu.index}: {sentence}",
                is_event=code != "nvlink_down",
            )
            for code, sentence in found
            if (rule := rules.find("gpu", code)) is not None
        )
    return links, tuple(findings)


def _most_up(sample: NodeSample) -> dict[str, int]:
    """Return the highest number of links that are up on GPUs of each name."""
    most: dict[str, int] = {}
    for gpu in sample.gpus:
        most[gpu.name] = max(most.get(gpu.name, 0), sum(map(bool, gpu.nvlinks[:_MAX_LINKS])))
    return most
