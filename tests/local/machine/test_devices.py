"""The available GPUs of a machine and their type names."""

import os
from pathlib import Path

import pytest

from ganger.backends.local.machine import Gpu, available_gpus, machine, read_gpus
from ganger.model.cluster import gpu_type

H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("GeForce GTX 1080 Ti", "gtx1080"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000"),
        ("NVIDIA RTX A6000", "a6000"),
        ("Quadro RTX 8000", "rtx8000"),
        ("NVIDIA TITAN V", "titan-v"),
        ("Graphics Device", ""),
    ],
)
def test_short_name(name: str, short: str) -> None:
    assert gpu_type(name) == short


def gpu(index: int, name: str = H100, *, mig: bool = False, pids: tuple[int, ...] = ()) -> Gpu:
    return Gpu(index=index, name=name, mig=mig, pids=pids)


def test_free_gpus_are_available() -> None:
    assert available_gpus((gpu(0), gpu(1)), ()) == ((0, 1), "h100", {})
    assert available_gpus((), ()) == ((), "", {})


def test_unavailable_gpus_have_a_reason() -> None:
    own_pid = os.getpid()
    offered, name, unavailable = available_gpus(
        (gpu(0), gpu(1, T4), gpu(2, mig=True), gpu(3, pids=(own_pid,)), gpu(4)), ()
    )
    assert (offered, name) == ((0, 4), "h100")
    assert unavailable == {
        1: "is a Tesla T4, and this node uses its h100s",
        2: "is partitioned by MIG, which ganger does not support yet",
        3: f"is used by process {own_pid}, which is not ganger's",
    }


def test_a_broken_gpu_does_not_hide_others() -> None:
    broken = Gpu(index=0, error="GPU is lost")
    assert available_gpus((broken, gpu(1)), ()) == ((1,), "h100", {0: "does not respond: GPU is lost"})
    assert available_gpus((broken,), ()) == ((), "", {0: "does not respond: GPU is lost"})


def test_own_ranks_may_use_gpus() -> None:
    own_pid = os.getpid()
    assert available_gpus((gpu(0, pids=(own_pid,)),), (own_pid,)) == ((0,), "h100", {})


def test_process_of_another_pid_namespace_is_foreign_unless_own_jobs_run() -> None:
    unknown_pid = 2**22 + 1  # above the largest process number of Linux
    assert available_gpus((gpu(0, pids=(unknown_pid,)),), ())[0] == ()
    assert available_gpus((gpu(0, pids=(unknown_pid,)),), (os.getpid(),))[0] == (0,)


def test_this_machine(tmp_path: Path) -> None:
    this_machine = machine(tmp_path)
    assert this_machine.cpu_milli == 1000 * len(os.sched_getaffinity(0))
    assert this_machine.memory_bytes > 0
    assert len(this_machine.gpus) + len(this_machine.unavailable) == len(read_gpus())
