"""NFS, Lustre and other shared storage: servers that do not respond, and mounts that hang."""

import re
from collections.abc import Mapping
from typing import Final

from ganger.check_api.check_interface import Finding
from ganger.check_api.counters import is_count, newest
from ganger.check_api.kernel_text import matched_text, shown
from ganger.check_api.rule import RuleBook
from ganger.check_api.shared_kinds import is_shared
from ganger.model.node_health.node_sample import NodeSample

NAME: Final = "shared_storage"
DOC: Final = "Servers of NFS and Lustre that do not respond; shared mounts that hang"

_MAX_SERVERS: Final = 64
_FORGET_MS: Final = 86_400_000
"""Time after which a server is not waited for any more: the line that it is back may have been lost."""
_BAD: Final = (
    re.compile(r"nfs: server (?P<server>\S{1,200}) not responding"),
    re.compile(r"Lustre: .{0,80}Connection to (?P<server>\S{1,200}) \(at .{1,80}\) was lost"),
    re.compile(r"ceph: (?P<server>(?:mds|osd|mon)\d{1,5}) .{0,60}(?:hung|caps stale|lost)"),
)
_GOOD: Final = (
    re.compile(r"nfs: server (?P<server>\S{1,200}) OK"),
    re.compile(r"Lustre: .{0,80}Connection restored to (?P<server>\S{1,200}) \(at "),
    re.compile(r"ceph: (?P<server>(?:mds|osd|mon)\d{1,5}) .{0,60}(?:came back|recovery completed|caps renewed)"),
)
_WORDS: Final = ("nfs: ", "Lustre: ", "ceph: ")

State = Mapping[str, tuple[int, str]]
"""Servers that do not respond: since when, and the line that said so."""
INITIAL_STATE: Final[State] = {}


def check(state: State, sample: NodeSample, rules: RuleBook) -> tuple[State, tuple[Finding, ...]]:
    """Return servers without the line that they are back, and mounts that do not answer in time."""
    silent = {server: entry for server, entry in state.items() if sample.at_ms - entry[0] <= _FORGET_MS}
    for line in sample.lines:
        if not any(word in line.text[:400] for word in _WORDS):
            continue
        text = matched_text(line)
        if match := next((hit for pattern in _GOOD if (hit := pattern.search(text))), None):
            silent.pop(match["server"], None)
        elif match := next((hit for pattern in _BAD if (hit := pattern.search(text))), None):
            silent.setdefault(match["server"], (sample.at_ms, shown(line.text)))
    silent = newest(silent, _MAX_SERVERS)
    found = [
        ("server_not_responding", server, f"the file server {server} does not respond", (text,))
        for server, (_, text) in silent.items()
    ]
    slow = rules.find("host", "shared_slow")
    for mount in sample.mounts:
        if not is_shared(mount.kind):
            continue
        evidence = (f"{mount.source} on {mount.path} type {mount.kind}",)
        if mount.stat_ms is None and mount.total_bytes is None:
            found.append(("shared_unread", mount.path, f"{mount.path} does not answer within the time-out", evidence))
        elif slow is not None and slow.limit is not None and is_count(mount.stat_ms) and mount.stat_ms > slow.limit:
            found.append(("shared_slow", mount.path, f"a stat of {mount.path} took {mount.stat_ms} ms", evidence))
    return silent, tuple(
        Finding(rule=rule, device=device, sentence=sentence, evidence=evidence)
        for code, device, sentence, evidence in found
        if (rule := rules.find("host", code)) is not None
    )
