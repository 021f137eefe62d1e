"""Network ports: down, flapping or slow, error rates, and errors that their driver writes."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import CounterBase, grown, is_number, newest
from ganger.check_api.kernel_text import matched_text, pci_address
from ganger.check_api.rule import Rule, RuleBook
from ganger.model.node_health.node_sample import NodeSample, PortSample

NAME: Final = "nic"
DOC: Final = "Network ports: state, flaps, error rates, errors of the driver"

_MAX_PORTS: Final = 512
_FORGET_MS: Final = 86_400_000
"""Time after which a port that is gone is taken for removed."""
_STATE_CODES: Final = ("port_down", "port_flap", "port_rate", "driver_error", "slot_power")
_DRIVER: Final = re.compile(
    r"mlx5_core .{0,80}(?:Port module event\[error\]|mlx5_cmd_out_err.{0,80}failed|health compromised"
    r"|device's health compromised|assert_var|Fatal error)|mlx5_cmd_out_err.{0,80}failed"
)
_SLOT_POWER: Final = re.compile(r"Detected insufficient power on the PCIe slot")


class PortState(NamedTuple):
    """A port: since when it is down, its best rate, when it was in a sample last, and its totals by rule."""

    down_since_ms: int | None = None
    best_gbps: int = 0
    seen_ms: int = 0
    bases: Mapping[str, CounterBase] = {}


State = Mapping[str, PortState]
"""Ports that have been up, and those that are."""
INITIAL_STATE: Final[State] = {}


def check(state: State, sample: NodeSample, rules: RuleBook) -> tuple[State, tuple[Finding, ...]]:
    """Return what is wrong with each port; one that was never up is not in use."""
    counters = [rule for code, rule in rules.table("nic").items() if code not in _STATE_CODES]
    ports: dict[str, PortState] = {}
    findings = list(_of_lines(sample, rules))
    for port in sample.ports:
        name = port_name(port)
        before = state.get(name)
        if before is None and not port.is_up:
            continue
        ports[name], found = _of_port(before or PortState(), port, sample.at_ms, counters, rules)
        findings += found
    for name, before in state.items():
        if name in ports or sample.at_ms - before.seen_ms > _FORGET_MS:
            continue
        if "/" in name:  # a port of an adapter does not go away; an interface may be taken down by its owner
            since_ms = sample.at_ms if before.down_since_ms is None else before.down_since_ms
            ports[name] = before._replace(down_since_ms=since_ms)
            findings += _found(rules, "port_down", name, f"port {name} is gone")
    return newest(ports, _MAX_PORTS), tuple(findings)


def port_name(port: PortSample) -> str:
    """Return the device of a port: mlx5_0/1, or eth0."""
    return f"{port.device}/{port.port}" if port.port else port.device


def _of_port(
    before: PortState, port: PortSample, now_ms: int, counters: list[Rule], rules: RuleBook
) -> tuple[PortState, list[Finding]]:
    """Return the next state of a port, and what is wrong with it."""
    name, findings = port_name(port), list[Finding]()
    down_since_ms = before.down_since_ms
    if not port.is_up:
        down_since_ms = now_ms if down_since_ms is None else down_since_ms
        findings += _found(rules, "port_down", name, f"port {name} is down")
    elif down_since_ms is not None:
        down_s = (now_ms - down_since_ms) // 1000
        flap = rules.find("nic", "port_flap")
        if flap is not None and down_s >= (flap.limit or 0):
            sentence = f"port {name} was down for {down_s} s and came back"
            findings.append(Finding(rule=flap, device=name, sentence=sentence, is_event=True))
        down_since_ms = None
    rate_gbps = port.rate_gbps if is_number(port.rate_gbps) else 0
    if port.is_up and 0 < rate_gbps < before.best_gbps:
        text = f"port {name} runs at {rate_gbps} Gb/s, {before.best_gbps} before"
        findings += _found(rules, "port_rate", name, text)
    bases: dict[str, CounterBase] = {}
    for rule in counters:
        counter = rule.code.partition(".")[0]
        base, growth = grown(before.bases.get(rule.code), port.counters.get(counter), now_ms, rule)
        if base is not None:
            bases[rule.code] = base
        if growth:
            sentence = f"port {name}: {counter} grew by {growth}: {rule.meaning}"
            evidence = (f"{counter}={port.counters[counter]}",)
            findings.append(
                Finding(rule=rule, device=name, sentence=sentence, evidence=evidence, is_event=rule.per_s == 0)
            )
    return PortState(down_since_ms, max(before.best_gbps, rate_gbps), now_ms, bases), findings


def _found(rules: RuleBook, code: str, device: str, sentence: str) -> list[Finding]:
    rule = rules.find("nic", code)
    return [] if rule is None else [Finding(rule=rule, device=device, sentence=sentence)]


def _of_lines(sample: NodeSample, rules: RuleBook) -> Iterator[Finding]:
    for line in sample.lines:
        if "mlx5" not in line.text[:400]:
            continue
        text = matched_text(line)
        code = "slot_power" if _SLOT_POWER.search(text) else "driver_error" if _DRIVER.search(text) else ""
        rule = rules.find("nic", code)
        if code and rule is not None:
            device = pci_address(text)
            yield Finding(
                rule=rule,
                device=device,
                sentence=f"network adapter {device}: {rule.meaning}",
                evidence=(line.text,),
                at_ms=line.at_ms,
                is_event=True,
            )
