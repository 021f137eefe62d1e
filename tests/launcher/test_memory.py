"""Kills for want of memory, by the counts of a kernel that is made of files."""

from pathlib import Path

import pytest

from ganger.launcher.health.out_of_memory import LOOK_S, OutOfMemory

NINE, TERM, EXIT = {"signal": 9}, {"signal": 15}, {"exit_code": 1}
WORKER = {"message": "DataLoader worker (pid 7) is killed by signal: Killed. "}


class Kernel:
    """/proc and /sys under a root. `place` has the count."""

    def __init__(self, root: Path, groups: str, place: str) -> None:
        self.root = f"{root}/"
        self._place = root / place
        self._place.parent.mkdir(parents=True, exist_ok=True)
        (root / "proc" / "self").mkdir(parents=True, exist_ok=True)
        (root / "proc" / "self" / "cgroup").write_text(groups)
        self.kill(0)

    def kill(self, count: int) -> None:
        self._place.write_text(f"oom 4\noom_kill {count}\noom_group_kill 0\n")


V2 = ("0::/user.slice/job\n", "sys/fs/cgroup/user.slice/job/memory.events")
V1 = ("9:cpu,memory:/pod/7\n0::/\n", "sys/fs/cgroup/memory/pod/7/memory.oom_control")
NONE = ("", "proc/vmstat")


@pytest.mark.parametrize(("groups", "place"), [V2, V1, NONE], ids=["v2", "v1", "machine"])
def test_who_was_killed_when_the_count_rose(tmp_path: Path, groups: str, place: str) -> None:
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


def test_a_kill_of_long_ago_explains_nothing(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, *V2)
    memory = OutOfMemory(0.0, kernel.root)
    kernel.kill(1)
    memory.tick(LOOK_S)
    assert memory.explains(NINE, None), "it may have been noted before the end was heard of"
    memory.tick(2 * LOOK_S)
    assert not memory.explains(NINE, None)


def test_where_nothing_counts_the_answer_is_no(tmp_path: Path) -> None:
    assert not OutOfMemory(0.0, f"{tmp_path}/").explains(NINE, None)
