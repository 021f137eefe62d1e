"""Hooks that repair a node, as real programs: success, failure, one that never ends, one whose server ends."""

import os
import queue
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ganger.backends.local.repair_hooks import HookRunner
from ganger.model.event import Event
from ganger.model.node_health.health_event import RepairEnded
from ganger.model.node_health.health_record import RepairStep
from ganger.ports import RepairCall
from tests.waiting import DEADLINE_S


class _Reports:
    """The reports of hooks."""

    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[RepairEnded] = queue.SimpleQueue()

    def __call__(self, event: Event, *beside: Event) -> "Future[int]":
        assert isinstance(event, RepairEnded)
        self.ended.put(event)
        return Future()

    def next(self) -> tuple[bool, str]:
        event = self.ended.get(timeout=DEADLINE_S)
        return event.has_succeeded, event.detail


def _call(*argv: str, timeout_ms: int = 30_000, **fields: Any) -> RepairCall:
    common = {"node": "rack 1/n1", "address": "10.0.0.1", "repair": 3, "begun_ms": 5, "step": RepairStep.REBOOT}
    return RepairCall(argv=argv, timeout_ms=timeout_ms, **common | fields)


def test_ends_of_hooks(tmp_path: Path) -> None:
    hooks, reports = HookRunner(tmp_path / "repairs"), _Reports()
    ends = []
    for begun_ms, argv in enumerate(
        (("true",), ("sh", "-c", "echo no power; exit 3"), ("sh", "-c", "kill -9 $$"), ("/no/such/program",))
    ):
        hooks.run(_call(*argv, begun_ms=begun_ms), reports)
        ends.append(reports.next())
    assert ends == [
        (True, "reboot succeeded"),
        (False, "reboot: the hook exited with code 3: no power"),
        (False, "reboot: the hook was killed by signal 9"),
        (False, "reboot: /no/such/program cannot be started: No such file or directory"),
    ]


def test_a_hook_that_was_decided_a_day_ago_is_not_begun(tmp_path: Path) -> None:
    hooks, reports = HookRunner(tmp_path / "repairs"), _Reports()
    hooks.run(_call("touch", str(tmp_path / "begun"), is_over=True), reports)
    assert reports.next() == (False, "the server was away for a day: the hook was not begun")
    assert not (tmp_path / "begun").exists()


def test_a_hook_that_never_ends_is_killed_with_its_children(tmp_path: Path) -> None:
    hooks, reports = HookRunner(tmp_path / "repairs"), _Reports()
    child = tmp_path / "child"
    hooks.run(_call("sh", "-c", f"sleep 300 & echo $! > {child}; wait", timeout_ms=1_000), reports)
    has_succeeded, detail = reports.next()
    assert not has_succeeded
    assert "did not end within 1.0s: it was killed" in detail
    deadline_s = time.monotonic() + DEADLINE_S
    while _runs(int(child.read_text())):
        assert time.monotonic() < deadline_s, "its child runs on"


def _runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_hook_is_run_once(tmp_path: Path) -> None:
    """Ask again, as a server does that restarts before the end is in its log."""
    reports, marks = _Reports(), tmp_path / "marks"
    call = _call("sh", "-c", f"echo mark >> {marks}")
    for _ in range(3):
        HookRunner(tmp_path / "repairs").run(call, reports)
        assert reports.next() == (True, "reboot succeeded")
    assert marks.read_text() == "mark\n"


def test_a_hook_whose_server_ended_is_waited_for_and_has_failed(tmp_path: Path) -> None:
    marks, reports = tmp_path / "marks", _Reports()
    program = ("sh", "-c", f"echo mark >> {marks}; sleep 1; echo end >> {marks}")
    if (server := os.fork()) == 0:  # a server that is killed while its hook runs
        HookRunner(tmp_path / "repairs").run(_call(*program), reports)
        while not marks.exists() or not list((tmp_path / "repairs").glob("*/pid")):
            pass
        os._exit(0)
    os.waitpid(server, 0)
    HookRunner(tmp_path / "repairs").run(_call(*program), reports)
    assert reports.next() == (False, "reboot: the server ended while the hook ran: its exit code is unknown")
    assert marks.read_text() == "mark\nend\n", "it was not run again"
