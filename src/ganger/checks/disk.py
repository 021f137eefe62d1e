"""Local disks: full, made read-only, not answering, and errors in the kernel's log."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import is_count, newest
from ganger.check_api.kernel_text import matched_text
from ganger.check_api.rule import RuleBook
from ganger.check_api.shared_kinds import is_shared
from ganger.model.node_health.node_sample import MountSample, NodeSample

NAME: Final = "disk"
DOC: Final = "Local file systems and disks: full, read-only, errors"

_LINES: Final = (
    ("read_only", re.compile(r"\((?P<device>[\w.!/-]{1,64})\): (?:.{0,80} )?[Rr]emounting filesystem read-only")),
    ("read_only", re.compile(r"XFS \((?P<device>[\w.!/-]{1,64})\): .{0,80}(?:Shutting down filesystem|shut down)")),
    (
        "nvme_dead",
        re.compile(
            r"nvme (?P<device>nvme\d{1,4}): (?:Disabling device after reset failure|Removing after probe failure"
            r"|Device not ready; aborting reset|controller is down; will reset)"
        ),
    ),
    ("nvme_timeout", re.compile(r"nvme (?P<device>nvme\d{1,4}): I/O .{0,80}\btimeout\b")),
    (
        "io_error",
        re.compile(
            r"(?:I/O error, dev|critical (?:medium|target) error, dev|Buffer I/O error on dev(?:ice)?) "
            r"(?P<device>(?:nvme|sd|vd|xvd|dm-|md)[\w-]{1,32})"
        ),
    ),
)
_WORDS: Final = ("nvme", "ilesystem", "XFS", "error", "shut")

State = Mapping[str, bool]
"""For each local mount whether it was read-only when it was seen first, and so is meant to be."""
INITIAL_STATE: Final[State] = {}


def check(state: State, sample: NodeSample, rules: RuleBook) -> tuple[State, tuple[Finding, ...]]:
    """Return what is wrong with each local file system, and errors of disks in lines."""
    mounts = [mount for mount in sample.mounts if not is_shared(mount.kind)]
    paths = {mount.source.rpartition("/")[2]: mount.path for mount in mounts if mount.source}
    findings = list(_of_lines(sample, paths, rules))
    meant: dict[str, bool] = {}
    for mount in mounts:
        meant[mount.path] = state.get(mount.path, mount.is_read_only) and mount.is_read_only
        for code, sentence in _of_mount(mount, rules, is_meant_read_only=meant[mount.path]):
            if (rule := rules.find("host", code)) is not None:
                findings.append(Finding(rule=rule, device=mount.path, sentence=sentence))
    return newest(meant), tuple(findings)


def _of_mount(mount: MountSample, rules: RuleBook, *, is_meant_read_only: bool) -> Iterator[tuple[str, str]]:
    if mount.is_read_only and not is_meant_read_only:
        yield "read_only", f"{mount.path} ({mount.source}) became read-only"
    if mount.is_read_only:
        return  # an image is always full
    if mount.stat_ms is None:
        if mount.total_bytes is None and mount.free_bytes is None:
            yield "mount_unread", f"{mount.path} ({mount.source}) does not answer within the time-out"
        return
    free, total, inodes = mount.free_bytes, mount.total_bytes, mount.free_inodes
    if is_count(free) and is_count(total) and total > 0:
        used_percent = 100 - 100 * min(free, total) / total
        code = next((one for one in ("disk_full", "disk_filling") if _is_above(used_percent, one, rules)), "")
        if code:
            yield code, f"{mount.path} is {used_percent:.1f} % full, {free >> 20} MiB are free"
    rule = rules.find("host", "inodes_out")
    if is_count(inodes) and rule is not None and rule.limit is not None and inodes < rule.limit:
        yield "inodes_out", f"{mount.path} has {inodes} free inodes"


def _is_above(value: float, code: str, rules: RuleBook) -> bool:
    rule = rules.find("host", code)
    return rule is not None and rule.limit is not None and value > rule.limit


def _of_lines(sample: NodeSample, paths: Mapping[str, str], rules: RuleBook) -> Iterator[Finding]:
    for line in sample.lines:
        if not any(word in line.text[:400] for word in _WORDS):
            continue
        text = matched_text(line)
        for code, pattern in _LINES:
            match, rule = pattern.search(text), rules.find("host", code)
            if match is None or rule is None:
                continue
            device = match["device"]
            yield Finding(
                rule=rule,
                device=paths.get(device, device),
                sentence=f"disk {device}: {rule.meaning}",
                evidence=(line.text,),
                at_ms=line.at_ms,
                is_event=True,
            )
            break
