"""Laws of checks: any stream of samples is judged, alike when it is replayed, and whatever the order of devices."""

import math
import pickle
from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ganger import registry
from ganger.check_api.rule_tables import OWN_RULES
from ganger.check_api.run_checks import ChecksState, run_checks
from ganger.model.node_health.fault import Fault
from ganger.model.node_health.node_sample import (
    ConditionSample,
    GpuSample,
    HostSample,
    KernelLine,
    MountSample,
    NodeSample,
    PortSample,
    ProbeSample,
)
from tests.checks.samples import COUNTERS, GPU, PORT, START_MS, faults, gpus, sample
from tests.checks.test_kernel_lines import HARMLESS, LINES

TOTALS = (
    *("ecc_corrected", "ecc_uncorrected", "remapped_corrected", "remapped_uncorrected"),
    *("nvlink_replays", "nvlink_recoveries", "nvlink_crc", "pcie_replays"),
)
numbers = st.none() | st.integers(0, 3) | st.integers(0, 2**64)
flags = st.none() | st.booleans()
names = st.sampled_from(["", "a", "mlx5_0", "nvme0n1", "/data", "kubelet", "nvml", "registry x"])
texts = st.sampled_from([*LINES, *HARMLESS]) | st.text(max_size=30)


def gpu_samples(number: int) -> st.SearchStrategy[GpuSample]:
    drawn = {part.name: numbers for part in fields(GpuSample) if part.type == int | None}
    return st.builds(
        GpuSample,
        index=st.just(number),
        uuid=st.sampled_from([f"GPU-{number}", ""]),
        bus_id=st.just(f"0000:{number + 1:02x}:00"),
        unread=st.sampled_from([(), ("power",)]),
        is_remap_pending=flags,
        has_remap_failed=flags,
        nvlinks=st.lists(st.booleans(), max_size=4).map(tuple),
        **drawn,
    )


ports = st.builds(
    PortSample,
    device=names,
    port=st.integers(0, 1),
    is_up=st.booleans(),
    rate_gbps=st.integers(0, 400),
    counters=st.dictionaries(st.sampled_from(sorted(COUNTERS)), st.integers(0, 2**64), max_size=4),
)
mounts = st.builds(
    MountSample,
    path=names,
    kind=st.sampled_from(["ext4", "nfs", "tmpfs"]),
    source=names,
    is_read_only=st.booleans(),
    stat_ms=numbers,
    free_bytes=numbers,
    total_bytes=numbers,
    free_inodes=numbers,
)
samples = st.builds(
    NodeSample,
    node=st.just("n1"),
    at_ms=st.integers(0, 10**7) | st.integers(-(10**15), 10**15),
    host=st.builds(HostSample, clock_offset_ms=numbers),
    gpus=st.tuples(*(gpu_samples(number) for number in range(2))) | st.just(()),
    ports=st.lists(ports, max_size=2, unique_by=lambda port: (port.device, port.port)).map(tuple),
    mounts=st.lists(mounts, max_size=2, unique_by=lambda mount: mount.path).map(tuple),
    probes=st.lists(st.builds(ProbeSample, name=names, took_ms=numbers, error=names), max_size=2).map(tuple),
    conditions=st.lists(
        st.builds(ConditionSample, source=names, name=names, is_bad=st.booleans(), device=names), max_size=2
    ).map(tuple),
    lines=st.lists(st.builds(KernelLine, seq=st.integers(0, 9), at_ms=numbers.map(lambda ms: ms or 0), text=texts)).map(
        tuple
    ),
    lines_lost=st.integers(0, 9),
    unread=st.lists(names, max_size=2, unique=True).map(tuple),
)
streams = st.lists(samples, max_size=6)


def steps(stream: list[NodeSample]) -> list[tuple[ChecksState, tuple[Fault, ...]]]:
    state, results = ChecksState(), []
    for one in stream:
        state, found = run_checks(state, one, registry.checks(), OWN_RULES)
        results.append((state, found))
    return results


@given(streams)
def test_any_stream_is_judged_by_every_check(stream: list[NodeSample]) -> None:
    for fault in faults(stream):
        assert fault.code not in ("check_failed", "too_many_findings"), fault.sentence
        assert fault.sentence
        assert fault.node == "n1"


@given(streams)
def test_a_replay_gives_the_same_faults_from_any_state(stream: list[NodeSample]) -> None:
    """A state is a value: kept, and used again later, it gives the same."""
    first = steps(stream)
    kept = [pickle.dumps(state) for state, _ in first]
    assert steps(stream) == first
    assert [pickle.dumps(state) for state, _ in first] == kept
    for (state, _), one, (_, found) in zip(first, stream[1:], first[1:], strict=False):
        assert run_checks(state, one, registry.checks(), OWN_RULES)[1] == found


@given(streams, st.randoms(use_true_random=False))
def test_the_order_of_devices_does_not_matter(stream: list[NodeSample], random: Any) -> None:
    shuffled = []
    for one in stream:
        parts = {name: list(getattr(one, name)) for name in ("gpus", "ports", "mounts")}
        for part in parts.values():
            random.shuffle(part)
        shuffled.append(replace(one, **{name: tuple(part) for name, part in parts.items()}))
    assert faults(shuffled) == faults(stream)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=8))
def test_totals_that_only_go_back_are_no_fault(values: list[int]) -> None:
    falling = sorted(values, reverse=True)
    changed = [name for name in TOTALS if name not in ("ecc_uncorrected", "remapped_uncorrected")]
    stream = [
        sample(
            number,
            gpus=gpus(**{name: {3: total} for name in changed}),
            ports=(replace(PORT, counters=dict.fromkeys(COUNTERS, total)),),
        )
        for number, total in enumerate(falling)
    ]
    assert faults(stream) == []


@given(st.lists(st.integers(-(10**14), 10**14), max_size=8))
def test_a_clock_that_jumps_is_no_fault(jumps: list[int]) -> None:
    stream = [replace(sample(number), at_ms=START_MS + jump) for number, jump in enumerate(jumps)]
    assert faults(stream) == []


FORGED = (math.nan, math.inf, -1, -(2**70), 2**200, 1.5, True, "7", b"7", (), None)


@given(
    st.sampled_from([part.name for part in fields(GPU)]),
    st.lists(st.sampled_from(FORGED), min_size=3, max_size=3),
)
def test_values_of_wrong_types_and_sizes_end_nothing(attribute: str, forged: list[Any]) -> None:
    """Samples come from agents of other versions: what a check cannot read is at most a note of that check."""
    stream = []
    for number, value in enumerate(forged):
        first, second = gpus(2)
        one = (replace(first, **{attribute: value}), second)
        port = replace(PORT, rate_gbps=value, counters=dict.fromkeys(COUNTERS, value))
        mount = MountSample(path="/d", kind="ext4", stat_ms=value, free_bytes=value, total_bytes=value)
        probe = ProbeSample(name="dns", took_ms=value)
        host = HostSample(clock_offset_ms=value)
        lines = ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",) * (number == 2)
        stream.append(sample(number, *lines, gpus=one, ports=(port,), mounts=(mount,), probes=(probe,), host=host))
    found = [fault for fault in faults(stream) if fault.check == "xid"]
    assert found
    assert found[0].code in ("xid_79", "check_failed")
