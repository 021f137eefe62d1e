"""The CPU time of each test, what a run of tests waits for when it is cut, and the limit that keeps `make test` short.

CPU time and not wall time: on a machine that others use too, a test of one CPU second may take ten.
"""

import os
import resource
import threading
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
COSTS: Final = ROOT / "tests/costs.tsv"
"""CPU seconds of each file, as `make test-costs` measured them."""
BUDGET: Final = ROOT / "tests/budget.toml"
"""CPU seconds that the tests of a folder may take in `make test`."""
DEAREST: Final = 10
SLOW_S: Final = 150.0
"""A test that takes longer is named while it runs: its own time-out may be minutes away, by its marker."""
WORTH_SORTING_S: Final = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that the Makefile sets."""
    group = parser.getgroup("costs")
    group.addoption("--cpu-limit", type=float, metavar="SECONDS", help="fail a test that uses more CPU time")
    group.addoption("--write-costs", action="store_true", help=f"write {COSTS.relative_to(ROOT)}")


def pytest_configure(config: pytest.Config) -> None:
    """Measure where the tests run; collect where their reports arrive. Without workers both are one process."""
    config.pluginmanager.register(_Meter(config.getoption("--cpu-limit")), "meter")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary(config), "costs-summary")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the dearest files first: no worker ends with one while the others have nothing left."""
    if COSTS.exists():
        rows = (line.split("\t") for line in COSTS.read_text().splitlines())
        cost_s = {file: float(seconds) for seconds, file in rows}
        items.sort(key=lambda item: -cost_s.get(_file(item.nodeid), 0.0))


class _Meter:
    """Adds to the last report of each test its CPU seconds, with those of the processes that it waited for.

    A set-up that is shared by several tests counts for the first of them.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s, self._before_s = limit_s, 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._before_s = _cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        report: pytest.TestReport = yield  # type: ignore[misc]  # pluggy sends it
        if call.when == "teardown":
            used_s = _cpu_s() - self._before_s
            report.user_properties.append(("cpu_s", used_s))
            if self._limit_s is not None and used_s > self._limit_s and report.passed:
                report.outcome = "failed"
                report.longrepr = (
                    f"{item.nodeid} used {used_s:.1f} s of CPU time, of at most {self._limit_s:g} s in `make test`: "
                    "make it cheaper, or mark it `long`"
                )
        return report


class _Summary:
    """Prints the dearest tests, the folders over their budget, and what still runs when the run is interrupted."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running = dict[str, float]()
        self._ended = threading.Event()
        self._terminal = os.dup(2)  # the run's own: a test's is captured
        self._cost_s = dict[str, float]()

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self._tell_slow_ones, daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        self._ended.set()

    def _tell_slow_ones(self) -> None:
        told = set[str]()
        while not self._ended.wait(5.0):
            for nodeid, began_s in list(self._running.items()):
                if nodeid not in told and time.monotonic() - began_s > SLOW_S:
                    told.add(nodeid)
                    os.write(self._terminal, f"\nstill running after {SLOW_S:.0f} s: {nodeid}\n".encode())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._cost_s[report.nodeid] = float(dict(report.user_properties).get("cpu_s", 0.0))  # type: ignore[arg-type]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid, began_s in self._running.items():
            terminalreporter.line(f"still running after {time.monotonic() - began_s:.0f} s: {nodeid}")
        if self._config.getoption("--write-costs"):
            files = Counter[str]()
            for nodeid, used_s in self._cost_s.items():
                files[_file(nodeid)] += used_s
            rows = [f"{used_s:.1f}\t{file}\n" for file, used_s in files.most_common() if used_s >= WORTH_SORTING_S]
            COSTS.write_text("".join(rows))
        if self._config.getoption("--cpu-limit") is None:
            return
        terminalreporter.section(f"{sum(self._cost_s.values()):.0f} s of CPU time; the dearest tests")
        for nodeid in sorted(self._cost_s, key=self._cost_s.__getitem__, reverse=True)[:DEAREST]:
            terminalreporter.line(f"{self._cost_s[nodeid]:6.1f} s {nodeid}")
        folders = Counter[str]()
        for nodeid, used_s in self._cost_s.items():
            folders["/".join(nodeid.split("/")[:2])] += used_s
        budget_s: dict[str, float] = tomllib.loads(BUDGET.read_text())
        for folder, used_s in folders.most_common():
            if used_s > budget_s.get(folder, budget_s["others"]):
                terminalreporter.line(f"over its budget ({BUDGET.relative_to(ROOT)}): {folder}, {used_s:.0f} s")


def _file(nodeid: str) -> str:
    return nodeid.split("::", maxsplit=1)[0]


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
