"""Xid and SXid errors of GPUs and NVSwitches in the kernel's log, and GPUs off the bus that have none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.kernel_text import KnownGpu, known_gpus, matched_text, pci_address
from ganger.check_api.rule import RuleBook
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.node_sample import KernelLine, NodeSample

NAME: Final = "xid"
DOC: Final = "Xid and SXid of the kernel's log; GPUs off the bus"

_XID: Final = re.compile(r"\bNVRM: Xid \((?P<where>[^()]{1,40})\): (?P<number>\d{1,6})\b,? ?(?P<text>.*)")
_SXID: Final = re.compile(
    r"\b(?P<switch>nvidia-nvswitch\d{1,4}): SXid \((?P<where>[^()]{1,40})\): (?P<number>\d{1,6})\b,? ?(?P<text>.*)"
)
_OFF_BUS: Final = re.compile(r"\bGPU\b.{0,60}\bhas fallen off the bus")
_OFF_BUS_BEGIN: Final = re.compile(r"\bNVRM: The NVIDIA GPU (?P<where>[0-9a-fA-F:.]{7,20})")
_OFF_BUS_END: Final = "fallen off the bus and is not responding"
_OFF_BUS_LINES: Final = 8
"""Lines of the driver within which the parts of one message follow each other."""
_CAUSED_BY: Final = re.compile(r"caused by previous Xid (\d{1,6})")
_NVLINK5: Final = range(144, 151)
_NVLINK5_STATUS: Final = re.compile(
    r"\b(?P<fatal>Fatal|Nonfatal)\b.{0,40}?\bLink (?P<link>-?\d{1,3})\b(?: \((?P<word>0x[0-9a-fA-F]{1,8}))?"
)
_RECOVERY: Final = re.compile(
    r"recovery action changed from .{0,60}\bto 0x[0-9a-fA-F]{1,8} \((?P<action>[^()]{0,60})\)"
)
_PLACE: Final = re.compile(r"\bGPC (\d{1,3}), TPC (\d{1,3})|\blink (\d{1,3})\b", re.IGNORECASE)
_EFFECT_MS: Final = 60_000
"""Time after a GPU has left the bus in which link faults of switches are its effects."""
_LINK_FAULT: Final = "20034"


@dataclass(frozen=True, slots=True)
class XidState:
    """GPUs by PCI address, the beginning of a message of several lines, and when a GPU left the bus last."""

    gpus: Mapping[str, KnownGpu] = field(default_factory=dict)
    begun: str = ""
    lines_left: int = 0
    off_bus_ms: int | None = None


INITIAL_STATE: Final = XidState()


def check(state: XidState, sample: NodeSample, rules: RuleBook) -> tuple[XidState, tuple[Finding, ...]]:
    """Return a finding for each line with an error."""
    state = replace(state, gpus=known_gpus(state.gpus, sample.gpus))
    findings: list[Finding] = []
    for line in sample.lines:
        if "NVRM" not in line.text[:400] and "SXid" not in line.text[:400]:
            continue
        text = matched_text(line)
        if (match := _XID.search(text)) is not None:
            found = _of_xid(match, line, state, rules)
            if found is not None and found.rule.code == "79":
                state = replace(state, off_bus_ms=sample.at_ms)
        elif (match := _SXID.search(text)) is not None:
            found = _of_sxid(match, line, state, sample, rules)
        else:
            state, found = _of_other(text, line, state, sample, rules)
        if found is not None:
            findings.append(found)
    return state, tuple(findings)


def _of_xid(match: re.Match[str], line: KernelLine, state: XidState, rules: RuleBook) -> Finding | None:
    number, text = match["number"].lstrip("0") or "0", match["text"]
    place, codes = _place(text), [number]
    if int(number) in _NVLINK5 and (status := _NVLINK5_STATUS.search(text)) is not None:
        codes = [*_nvlink5_codes(number, status), number]
        place = f"link {status['link']}"
    elif number == "154" and (action := _RECOVERY.search(text)) is not None:
        codes = [f"154 {_recovery(action['action'])}", number]
    rule = rules.find("xid", *codes)
    if rule is None:
        return None
    cause = _CAUSED_BY.search(text)
    device, gpu, name = _named(match["where"], state)
    meaning = f"an effect of Xid {cause[1]}" if cause else rule.meaning
    return Finding(
        rule=rule if rule.code == number or " " in rule.code else replace(rule, code=number),
        device=device,
        gpu=gpu,
        sentence=f"{name}: Xid {number}: {meaning}{f', {place}' if place else ''}",
        evidence=(line.text,),
        at_ms=line.at_ms,
        severity=Severity.NOTE if cause else None,
        is_event=True,
        place=place,
    )


def _nvlink5_codes(number: str, status: re.Match[str]) -> list[str]:
    """Return the codes of rows for an error of NVLink 5, the most specific first: bits 20-25 are its sub-code."""
    code = f"{number} {status['fatal'].lower()}"
    return [f"{code} {int(status['word'], 16) >> 20 & 0x3F}", code] if status["word"] else [code]


def _recovery(action: str) -> str:
    """Return the last word of the code of a recovery action."""
    words = action.lower()
    return next((word for word in ("drain", "reboot", "reset", "none") if word in words), "unknown")


def _of_sxid(
    match: re.Match[str], line: KernelLine, state: XidState, sample: NodeSample, rules: RuleBook
) -> Finding | None:
    number, text = match["number"].lstrip("0") or "0", match["text"]
    kind = (
        "nonfatal" if re.match(r"non-?fatal", text, re.IGNORECASE) else "fatal" if text[:5].lower() == "fatal" else ""
    )
    rule = rules.find("sxid", number, kind)
    if rule is None:
        return None
    is_effect = number == _LINK_FAULT and state.off_bus_ms is not None and sample.at_ms - state.off_bus_ms <= _EFFECT_MS
    place = _place(text)
    meaning = "an effect of the GPU that left the bus" if is_effect else rule.meaning
    return Finding(
        rule=replace(rule, code=number) if rule.code != number else rule,
        device=match["switch"],
        sentence=f"{match['switch']}: SXid {number}: {meaning}{f', {place}' if place else ''}",
        evidence=(line.text,),
        at_ms=line.at_ms,
        severity=Severity.NOTE if is_effect else None,
        is_event=True,
        place=place,
    )


def _of_other(
    text: str, line: KernelLine, state: XidState, sample: NodeSample, rules: RuleBook
) -> tuple[XidState, Finding | None]:
    """Return what another line of the driver says: a GPU off the bus, in one line or in several."""
    if (begin := _OFF_BUS_BEGIN.search(text)) is not None:
        state = replace(state, begun=begin["where"], lines_left=_OFF_BUS_LINES)
    elif state.begun:
        left = state.lines_left - 1
        state = replace(state, lines_left=left, begun=state.begun if left else "")
    if _OFF_BUS_END in text:
        where = state.begun or text
        state = replace(state, begun="", lines_left=0)
    elif _OFF_BUS.search(text) is not None:
        where = text
    else:
        return state, None
    rule = rules.find("xid", "79")
    device, gpu, name = _named(where, state)
    if rule is None:
        return state, None
    finding = Finding(
        rule=rule,
        device=device,
        gpu=gpu,
        sentence=f"{name} has fallen off the bus, without an Xid",
        evidence=(line.text,),
        at_ms=line.at_ms,
        is_event=True,
    )
    return replace(state, off_bus_ms=sample.at_ms), finding


def _named(where: str, state: XidState) -> tuple[str, int | None, str]:
    """Return device, index and name of the GPU with the PCI address in a text."""
    address = pci_address(where)
    gpu = state.gpus.get(address)
    if gpu is None:
        return address, None, f"GPU {address or 'at an unknown address'}"
    return gpu.device, gpu.number, f"GPU {gpu.number} ({address})"


def _place(text: str) -> str:
    """Return the part of a GPU or switch that a text names."""
    match = _PLACE.search(text)
    if match is None:
        return ""
    return f"link {match[3]}" if match[3] else f"GPC {match[1]} TPC {match[2]}"
