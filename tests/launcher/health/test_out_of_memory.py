"""Detection of out-of-memory kills, with the counters of a simulated kernel."""

from pathlib import Path

import pytest

from ganger.launcher.health.out_of_memory import POLL_S, OutOfMemory

NINE, TERM, EXIT = {"signal": 9}, {"signal": 15}, {"exit_code": 1}
WORKER = {"message": "DataLoader worker (pid 7) is killed by signal: Killed. "}


class Kernel:
    """Files of /proc and /sys under a root; `counter` has the count."""

    def __init__(self, root: Path, groups: str, counter: str) -> None:
        self.root = f"{root}/"
        self._counter = root / counter
        self._counter.parent.mkdir(parents=True, exist_ok=True)
        (root / "proc" / "self").mkdir(parents=True, exist_ok=True)
        (root / "proc" / "self" / "cgroup").write_text(groups)
        self.kill(0)

    def kill(self, count: int) -> None:
        self._counter.write_text(f"oom 4\noom_kill {count}\noom_group_kill 0\n")


V2 = ("0::/user.slice/job\n", "sys/fs/cgroup/user.slice/job/memory.events")
V1 = ("9:cpu,memory:/pod/7\n0::/\n", "sys/fs/cgroup/memory/pod/7/memory.oom_control")
NONE = ("", "proc/vmstat")


@pytest.mark.parametrize(("groups", "place"), [V2, V1, NONE], ids=["v2", "v1", "machine"])
def test_kill_after_the_count_rose(tmp_path: Path, groups: str, place: str) -> None:
    kernel = Kernel(tmp_path, groups, place)
    memory = OutOfMemory(0.0, kernel.root)
    assert not memory.explains(NINE, None)
    kernel.kill(1)
    assert memory.explains(NINE, None)
    assert memory.explains({"exit_code": 137}, None)
    assert memory.explains(EXIT, WORKER)
    assert not memory.explains(EXIT, {"message": "KeyError"})
    assert not memory.explains(EXIT, None)
    assert not memory.explains(TERM, None)


def test_an_old_kill_explains_nothing(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, *V2)
    memory = OutOfMemory(0.0, kernel.root)
    kernel.kill(1)
    memory.tick(POLL_S)
    assert memory.explains(NINE, None), "the count may have been read before the end was known"
    memory.tick(2 * POLL_S)
    assert not memory.explains(NINE, None)


def test_without_a_counter_the_answer_is_no(tmp_path: Path) -> None:
    assert not OutOfMemory(0.0, f"{tmp_path}/").explains(NINE, None)
