"""Records of the kernel's log from files and a FIFO, and from this machine's own where it may be read."""

import os
from pathlib import Path

import pytest

from ganger.agent.sampling import kernel_log
from ganger.agent.sampling.host_source import Boot, HostSource
from ganger.agent.sampling.kernel_log import KernelLog, KernelPosition

BOOT = Boot("boot-1", 1_000_000)
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, name=python, GPU has fallen off the bus."


def _record(seq: int, text: str, *, prio: int = 4, flags: str = "-") -> str:
    return f"{prio},{seq},{1000 * seq},{flags};{text}\n"


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_line_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(_record(7, XID) + " SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00\n" + _record(8, "a\\x09b"))
    log = KernelLog(path, None)
    lines, lost = log.read(BOOT)
    assert [(line.seq, line.at_ms, line.text) for line in lines] == [(7, 1_000_007, XID), (8, 1_000_008, "a\tb")]
    assert lost == 0
    assert log.read(BOOT) == ((), 0)
    _append(path, _record(9, "next"))
    assert [line.text for line in log.read(BOOT)[0]] == ["next"]
    assert log.position == KernelPosition("boot-1", 9)


def test_a_gap_is_how_many_were_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(_record(1, "a") + _record(2, "b"))
    log = KernelLog(path, None)
    log.read(BOOT)
    _append(path, _record(50, "c") + _record(51, "d"))
    lines, lost = log.read(BOOT)
    assert ([line.seq for line in lines], lost) == ([50, 51], 47)


def test_a_record_that_is_being_written_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    whole = _record(1, XID)
    path.write_text(whole[:30])
    log = KernelLog(path, None)
    assert log.read(BOOT) == ((), 0)
    _append(path, whole[30:])
    assert [line.text for line in log.read(BOOT)[0]] == [XID]


def test_a_line_in_parts_is_one(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(_record(1, "ata1: ", flags="c") + _record(2, "SATA link down", flags="+"))
    assert [line.text for line in KernelLog(path, None).read(BOOT)[0]] == ["ata1: SATA link down"]


def test_what_is_no_record_of_the_kernel_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    forged = _record(1, XID, prio=12)
    path.write_bytes(b"not a record\n\xff\xfe,,;\n" + forged.encode() + b"4,2\n" + _record(2, "real").encode())
    lines, lost = KernelLog(path, None).read(BOOT)
    assert ([line.text for line in lines], lost) == (["real"], 0)


def test_a_file_that_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(_record(10, "old") + _record(11, "older"))
    log = KernelLog(path, None)
    log.read(BOOT)
    path.write_text(_record(1, "new"))
    assert [line.text for line in log.read(BOOT)[0]] == ["new"]
    path.unlink()
    assert log.read(BOOT) == ((), 0)
    path.write_text(_record(1, "another"))
    assert [line.text for line in log.read(BOOT)[0]] == ["another"]


def test_the_next_agent_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(_record(1, "a") + _record(2, "b") + _record(3, "c"))
    lines, lost = KernelLog(path, KernelPosition("boot-1", 2)).read(BOOT)
    assert ([line.text for line in lines], lost) == (["c"], 0)
    lines, _ = KernelLog(path, KernelPosition("boot-0", 2)).read(BOOT)
    assert [line.text for line in lines] == ["a", "b", "c"], "of a new boot, everything"


def test_a_flood_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "MAX_LINES", 10)
    path = tmp_path / "kmsg"
    path.write_text("".join(_record(seq, "x") for seq in range(25)))
    log = KernelLog(path, None)
    parts = [[line.seq for line in log.read(BOOT)[0]] for _ in range(4)]
    assert parts == [[*range(10)], [*range(10, 20)], [*range(20, 25)], []]


def test_a_fifo_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = KernelLog(path, None)
    assert log.read(BOOT) == ((), 0)
    with path.open("w") as writer:
        for seq in range(3):
            writer.write(_record(seq, XID))
            writer.flush()
            assert [line.seq for line in log.read(BOOT)[0]] == [seq]
    assert log.read(BOOT) == ((), 0)
    log.close()


def test_the_log_of_this_machine_is_read_from_its_end(tmp_path: Path) -> None:
    boot = HostSource(Path("/proc")).boot()
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read: {error.strerror}")
    assert boot is not None
    log = KernelLog(Path("/dev/kmsg"), None)
    log.read(boot)
    whole = KernelLog(Path("/dev/kmsg"), KernelPosition("another boot", 0))
    lines, _ = whole.read(boot)
    again = KernelLog(Path("/dev/kmsg"), KernelPosition(boot.id, lines[-1].seq))
    assert all(line.seq > lines[-1].seq for line in again.read(boot)[0])
    assert [line.seq for line in lines] == sorted({line.seq for line in lines})
