"""The history of a machine: its bounds over months, its means, and disks and clocks that fail."""

import logging
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from ganger.agent.history.figure_history import (
    COARSE_ROWS,
    COARSE_STEP_S,
    FINE_ROWS,
    MAX_DEVICES,
    STEP_S,
    FigureHistory,
)
from ganger.agent.history.sample_figures import MACHINE, FigureReader
from ganger.model.node_health.node_figures import Figures
from ganger.model.node_health.node_sample import GpuSample, HostSample, NodeSample, PortSample

BEGAN_S = 1_700_000_100 - 1_700_000_100 % COARSE_STEP_S
DAY_S = 86_400


def _figures(busy_permille: int) -> Figures:
    return Figures(busy_permille=busy_permille, memory_bytes=1 << 30)


def _rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as database:
        return {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("fine", "coarse")}


def test_two_months_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A tenth of the rows, and a sample every quarter of an hour: the same bounds in a small part of the time.
    monkeypatch.setattr("ganger.agent.history.figure_history.FINE_ROWS", FINE_ROWS // 10)
    monkeypatch.setattr("ganger.agent.history.figure_history.COARSE_ROWS", COARSE_ROWS // 10)
    path = tmp_path / "history.db"
    history = FigureHistory(path)
    sizes = []
    for day in range(60):
        for at_s in range(BEGAN_S + day * DAY_S, BEGAN_S + (day + 1) * DAY_S, 3 * COARSE_STEP_S):
            history.add(at_s, {MACHINE: _figures(1), "GPU-0": _figures(500)})
        sizes.append(path.stat().st_size)
    rows = _rows(path)
    assert rows == {"fine": 2 * (FINE_ROWS // 10), "coarse": 2 * (COARSE_ROWS // 10)}
    assert max(sizes[30:]) <= 1.1 * sizes[29], "it grows no more"
    history.close()


def test_a_day_of_eight_gpus_is_a_few_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = FigureHistory(path)
    names = (MACHINE, *(f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(8)))
    figures = dict.fromkeys(
        names, Figures(busy_permille=987, memory_bytes=68 << 30, power_mw=650_000, temperature_c=61)
    )
    for number in range(FINE_ROWS // 10):
        history.add(BEGAN_S + number * STEP_S, figures)
    history.close()
    assert 10 * path.stat().st_size < 8 << 20


def test_steps_are_means_and_gaps_are_none(tmp_path: Path) -> None:
    history = FigureHistory(tmp_path / "history.db")
    for number, busy in enumerate((100, 200, 900, None, None, 300)):
        if busy is not None:
            history.add(BEGAN_S + number * STEP_S, {MACHINE: _figures(busy)})
    series = history.series(BEGAN_S, BEGAN_S + 6 * STEP_S, 3)[MACHINE]
    assert [step and step.busy_permille for step in series] == [150, 900, 300]
    series = history.series(BEGAN_S - 60, BEGAN_S + 60, 4)[MACHINE]
    assert [step and step.busy_permille for step in series] == [None, None, 400, 300]
    history.close()


def test_five_minutes_become_their_mean_also_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for half in range(2):
        history = FigureHistory(path)
        for number in range(15):
            at_s = BEGAN_S + (15 * half + number) * STEP_S
            history.add(at_s, {MACHINE: _figures(100 + 200 * half)})
        history.close()
    history = FigureHistory(path)
    history.add(BEGAN_S + COARSE_STEP_S, {MACHINE: _figures(0)})
    history.add(BEGAN_S + 2 * DAY_S, {MACHINE: _figures(0)})
    month = history.series(BEGAN_S, BEGAN_S + 10 * COARSE_STEP_S, 10)[MACHINE]
    assert month[:2] == (_figures(200), _figures(0))
    assert set(month[2:]) == {None}
    history.close()


def test_a_clock_that_jumps_deletes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = FigureHistory(path)
    for number in range(100):
        history.add(BEGAN_S + number * STEP_S, {MACHINE: _figures(1)})
    for at_s in (BEGAN_S + 1000 * DAY_S, BEGAN_S + 1000 * DAY_S + COARSE_STEP_S):  # and back
        history.add(at_s, {MACHINE: _figures(2)})
    for number in range(100, 200):
        history.add(BEGAN_S + number * STEP_S, {MACHINE: _figures(3)})
    series = history.series(BEGAN_S, BEGAN_S + 200 * STEP_S, 200)[MACHINE]
    assert [step and step.busy_permille for step in series] == 100 * [1] + 100 * [3]
    assert _rows(path)["fine"] == 200, "what was in the future is gone"
    history.close()


def test_a_full_disk_costs_history_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a small file system")
    caplog.set_level(logging.INFO)
    try:
        history = FigureHistory(directory / "history.db")
        at_s = BEGAN_S
        history.add(at_s, {MACHINE: _figures(1)})
        (directory / "ballast").write_bytes(bytes(100 << 10))
        for _ in range(300):
            at_s += STEP_S
            history.add(at_s, {MACHINE: _figures(1)} | {f"GPU-{number}": _figures(2) for number in range(20)})
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "disk" in caplog.text or "full" in caplog.text
        (directory / "ballast").unlink()
        history.add(at_s, {MACHINE: _figures(7)})
        assert caplog.records[-1].levelname == "INFO"
        assert history.series(at_s, at_s + STEP_S, 1)[MACHINE] == (_figures(7),)
        history.close()
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_file_that_is_no_database_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    history = FigureHistory(path)
    assert history.series(BEGAN_S, BEGAN_S + 60, 6) == {}
    for number in range(2):
        history.add(BEGAN_S + number * STEP_S, {MACHINE: _figures(1)}, ("boot", 5))
    assert len(caplog.records) == 1
    assert history.series(BEGAN_S, BEGAN_S + 20, 2)[MACHINE] == (None, _figures(1))
    assert history.position() == ("boot", 5)
    history.close()


def test_devices_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    history = FigureHistory(tmp_path / "history.db")
    names = [MACHINE, *(f"GPU-{number}" for number in range(2 * MAX_DEVICES))]
    history.add(BEGAN_S, {name: _figures(1) for name in names})
    assert sorted(history.series(BEGAN_S, BEGAN_S + 10, 1)) == sorted(names[:MAX_DEVICES])
    history.close()


def _sample(**ports: tuple[int, int]) -> NodeSample:
    host = HostSample(cpu_milli=500, cpu_total_milli=2000, memory_available_bytes=3, memory_bytes=10)
    return NodeSample(
        node="here",
        at_ms=0,
        host=host,
        gpus=(GpuSample(index=0, uuid="GPU-0", utilisation_percent=87), GpuSample(index=1)),
        ports=tuple(
            PortSample(device=name, counters={"rx_bytes": received, "tx_bytes": sent})
            for name, (received, sent) in ports.items()
        ),
    )


def test_rates_are_of_counters_that_went_on() -> None:
    reader = FigureReader()
    first = reader.read(_sample(eth0=(1000, 500), eth1=(10**6, 0)), 100.0)
    assert first[MACHINE] == Figures(busy_permille=250, memory_bytes=7)
    assert first["GPU-0"].busy_permille == 870
    assert set(first) == {MACHINE, "GPU-0"}, "a GPU without a UUID has no history"
    second = reader.read(_sample(eth0=(3000, 1500), eth1=(5, 0)), 110.0)[MACHINE]
    assert (second.received_bytes_s, second.sent_bytes_s) == (200, 100)
    third = reader.read(_sample(eth0=(3000, 1500), eth1=(15, 0), eth2=(10**9, 0)), 120.0)[MACHINE]
    assert (third.received_bytes_s, third.sent_bytes_s) == (1, 0)
