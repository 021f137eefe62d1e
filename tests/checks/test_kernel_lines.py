"""Lines of the kernel's log, in the formats that drivers write, and the faults that they stand for."""

import pytest

from ganger.model.node_health.fault import Severity
from tests.checks.samples import codes, faults, gpus, sample

NOTE, JOB, RESET, REBOOT, REPLACE = Severity
LINES = {
    "NVRM: Xid (PCI:0000:03:00): 79, pid=77, name=fit, GPU has fallen off the bus.": ("xid_79", "GPU-2", REBOOT),
    "NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.": ("xid_79", "GPU-2", REBOOT),
    "kernel: NVRM: Xid (PCI:0000:03:00): 62, pid='<unknown>', name=<unknown>, 2027c1d4": ("xid_62", "GPU-2", RESET),
    "NVRM: Xid (PCI:0000:03:00): 48, pid=7, name=python, DBE": ("xid_48", "GPU-2", RESET),
    "NVRM: Xid (PCI:0000:03:00): 63, Row Remapper: New row marked": ("xid_63", "GPU-2", NOTE),
    "NVRM: Xid (PCI:0000:03:00): 64, Row Remapper: row remap failed": ("xid_64", "GPU-2", REPLACE),
    "NVRM: Xid (PCI:0000:03:00): 94, pid=7, Contained: SM": ("xid_94", "GPU-2", JOB),
    "NVRM: Xid (PCI:0000:03:00): 13, pid=2, Graphics Exception: ESR 0x515730": ("xid_13", "GPU-2", JOB),
    "NVRM: Xid (PCI:0000:03:00): 92, High single-bit ECC error rate": ("xid_92", "GPU-2", NOTE),
    "NVRM: Xid (PCI:0000:03:00): 4711, something new": ("xid_4711", "GPU-2", NOTE),
    "NVRM: Xid (PCI:0000:ee:00): 79, GPU has fallen off the bus.": ("xid_79", "0000:ee:00", REBOOT),
    "NVRM: Xid (PCI:0000:03:00): 45, pid=9, name=pt, Ch 0000000c caused by previous Xid 145": ("xid_45", "GPU-2", NOTE),
    "NVRM: Xid (PCI:0000:03:00): 109, pid=9, Ch 1 caused by previous Xid 62": ("xid_109", "GPU-2", NOTE),
    "NVRM: Xid (PCI:0000:03:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)": (
        *("xid_149_fatal", "GPU-2", RESET),
    ),
    "NVRM: Xid (PCI:0000:03:00): 145, RLW_REMAP Nonfatal XC0 i0 Link -1 (0x00010022 0x00000002)": (
        *("xid_145_nonfatal", "GPU-2", NOTE),
    ),
    "NVRM: Xid (PCI:0000:03:00): 150, MSE without a status": ("xid_150", "GPU-2", RESET),
    "NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": (
        *("xid_154_reset", "GPU-2", RESET),
    ),
    "NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": (
        *("xid_154_reboot", "GPU-2", REBOOT),
    ),
    "NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)": (
        *("xid_154_drain", "GPU-2", RESET),
    ),
    "NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)": (
        *("xid_154_none", "GPU-2", NOTE),
    ),
    "NVRM: GPU 0000:03:00.0: GPU has fallen off the bus.": ("xid_79", "GPU-2", REBOOT),
    "NVRM: GPU at 0000:03:00.0 has fallen off the bus.": ("xid_79", "GPU-2", REBOOT),
    "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": (
        *("sxid_20034", "nvidia-nvswitch1", RESET),
    ),
    "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 11012, Non-fatal, Link 30 single-bit": (
        *("sxid_11012", "nvidia-nvswitch1", NOTE),
    ),
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 23001, Fatal, engine": ("sxid_23001", "nvidia-nvswitch0", REBOOT),
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 99999, Fatal, new": ("sxid_99999", "nvidia-nvswitch0", RESET),
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 99999, Non-fatal, new": ("sxid_99999", "nvidia-nvswitch0", NOTE),
    "pcieport 0000:40:01.1: AER: Uncorrected (Fatal) error received: 0000:40:01.1": ("aer_fatal", "0000:40:01", REBOOT),
    "pcieport 0000:40:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer": (
        *("aer_fatal", "0000:40:01", REBOOT),
    ),
    "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)": ("aer_fatal", "GPU-2", REBOOT),
    "pcieport 0000:40:01.1: AER: Uncorrected (Non-Fatal) error received: 0000:40:01.1": (
        *("aer_nonfatal", "0000:40:01", NOTE),
    ),
    "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature": (
        *("driver_error", "0000:5e:00", NOTE),
    ),
    "mlx5_core 0000:5e:00.0: mlx5_pcie_event:299:(pid 1): Detected insufficient power on the PCIe slot (27W).": (
        *("slot_power", "0000:5e:00", NOTE),
    ),
    "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:808:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad": (
        *("driver_error", "0000:5e:00", NOTE),
    ),
    "EXT4-fs (nvme0n1p2): Remounting filesystem read-only": ("read_only", "/", REBOOT),
    "EXT4-fs (sdb1): Remounting filesystem read-only": ("read_only", "sdb1", REBOOT),
    "nvme nvme1: I/O 577 QID 14 timeout, reset controller": ("nvme_timeout", "nvme1", NOTE),
    "nvme nvme1: Disabling device after reset failure: -19": ("nvme_dead", "nvme1", REPLACE),
    "I/O error, dev nvme0n1, sector 40118272 op 0x1:(WRITE) flags 0x800": ("io_error", "nvme0n1", NOTE),
    "watchdog: BUG: soft lockup - CPU#11 stuck for 22s! [python3:4711]": ("soft_lockup", "", JOB),
    "watchdog: Watchdog detected hard LOCKUP on cpu 3": ("hard_lockup", "", REBOOT),
    "INFO: task pt_data_worker:7719 blocked for more than 241 seconds.": ("hung_task", "", NOTE),
    "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks: { 3-...0 } 9 jiffies": ("rcu_stall", "", NOTE),
    "EDAC MC1: 1 UE memory read error on CPU_SrcID#1": ("memory_uncorrected", "", REPLACE),
    "BUG: unable to handle page fault for address: ffffffffc0a0": ("kernel_oops", "", REBOOT),
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=user.slice,global_oom,task=python3,pid=3,uid=1": (
        *("oom_host", "", JOB),
    ),
    "Out of memory: Killed process 30771 (python3) total-vm:268112400kB": ("oom_host", "", JOB),
}
HARMLESS = (
    "pcieport 0000:16:02.0: AER: Corrected error received: 0000:17:00.0",
    "nvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,oom_memcg=/kubepods,task=python3,pid=88123,uid=1000",
    "Memory cgroup out of memory: Killed process 88123 (python3) total-vm:141220884kB",
    "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): Severity 0 Engine instance 30 Sub-engine instance 00",
    "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): Data {0x00000000, 0x00000000}",
    "NVRM: A GPU crash dump has been created. If possible, please run",
    "NVRM: GPU at PCI:0000:65:00: GPU-9d41c2f7-0a5e-4b1c-8a3f-5be7702c14d6",
    "I/O error, dev sr0, sector 0 op 0x0:(READ)",
    "nfs: server filer-a OK",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
)


@pytest.mark.parametrize(("line", "fault"), LINES.items(), ids=[line[:60] for line in LINES])
def test_a_line_is_a_fault(line: str, fault: tuple[str, str, Severity]) -> None:
    assert codes([sample(0), sample(1, line)]) == [fault]


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_is_harmless(line: str) -> None:
    assert codes([sample(0, line)]) == []


def test_a_gpu_that_is_off_the_bus_in_three_lines_of_two_samples() -> None:
    begin = ("NVRM: The NVIDIA GPU 0000:03:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has")
    end = "NVRM: fallen off the bus and is not responding to commands."
    assert codes([sample(0, *begin), sample(1, end)]) == [("xid_79", "GPU-2", REBOOT)]


def test_a_gpu_that_the_driver_has_dropped_is_known_by_its_address() -> None:
    line = "NVRM: Xid (PCI:0000:08:00): 79, GPU has fallen off the bus."
    (fault,) = faults([sample(0), sample(1, line, gpus=gpus(7))])
    assert (fault.device, fault.gpu) == ("GPU-7", 7)
    assert fault.evidence == (line,)
    assert fault.sentence == "GPU 7 (0000:08:00): Xid 79: GPU has fallen off the bus; drain the node and reboot it"


def test_link_faults_of_switches_after_a_gpu_left_the_bus_are_its_effects() -> None:
    off_bus = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus."
    link = "nvidia-nvswitch{}: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    found = codes([sample(0, off_bus), sample(1, link.format(0), link.format(1)), *map(sample, range(2, 12))])
    assert found == [
        ("xid_79", "GPU-2", REBOOT),
        ("sxid_20034", "nvidia-nvswitch0", NOTE),
        ("sxid_20034", "nvidia-nvswitch1", NOTE),
    ]
    later = [sample(0, off_bus), *map(sample, range(1, 12)), sample(12, link.format(0))]
    assert codes(later)[-1] == ("sxid_20034", "nvidia-nvswitch0", RESET)


XID_13 = "NVRM: Xid (PCI:0000:0{}:00): 13, pid=2, Graphics SM Warp Exception on (GPC {}, TPC 5, SM 1): Out Of Range"
XID_31 = "NVRM: Xid (PCI:0000:0{}:00): 31, pid=2, name=python, Ch 0000001a, intr 00000000. MMU Fault"


def severities(*lines: str) -> list[Severity]:
    """Return the severities of lines that are 10 min apart."""
    few = {"gpus": (), "ports": (), "mounts": (), "probes": (), "step_ms": 60_000}
    minutes = ((10 * place + minute, line) for place, line in enumerate(lines) for minute in range(10))
    samples = (sample(minute, *([line] if minute % 10 == 0 else []), **few) for minute, line in minutes)
    return [severity for _, _, severity in codes(samples)]


def test_an_xid_that_comes_again_on_the_same_gpu_is_the_gpu() -> None:
    assert severities(XID_31.format(3), XID_31.format(3)) == [JOB, RESET]
    assert severities(XID_13.format(3, 2), XID_13.format(3, 2)) == [JOB, RESET]


def test_an_xid_that_comes_again_elsewhere_is_the_program() -> None:
    assert severities(XID_31.format(3), XID_31.format(4), XID_31.format(3), XID_31.format(4)) == [JOB] * 4
    assert severities(XID_13.format(3, 2), XID_13.format(3, 4)) == [JOB, JOB]


def test_lines_of_one_failure_are_no_repetition() -> None:
    assert codes([sample(0, *[XID_31.format(3)] * 5)]) == [("xid_31", "GPU-2", JOB)]


def test_repetitions_are_counted_in_their_time() -> None:
    line = XID_31.format(3)
    assert severities(line, *[""] * (24 * 6 + 1), line) == [JOB, JOB]
    off_bus = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus."
    assert severities(off_bus, *[""] * (24 * 6 + 1), off_bus) == [REBOOT, REPLACE]


def test_lost_lines_are_a_note() -> None:
    assert codes([sample(0, lines_lost=512)]) == [("lines_lost", "", NOTE)]
