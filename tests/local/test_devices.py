"""What a machine offers: names of GPUs, and those that are not on offer."""

import os
from pathlib import Path

import pytest

from ganger.backends.local.machine import Gpu, machine, offer, read_gpus
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


def test_free_gpus_are_on_offer() -> None:
    assert offer((gpu(0), gpu(1)), ()) == ((0, 1), "h100", {})
    assert offer((), ()) == ((), "", {})


def test_what_is_not_on_offer_says_why() -> None:
    me = os.getpid()
    offered, name, unavailable = offer((gpu(0), gpu(1, T4), gpu(2, mig=True), gpu(3, pids=(me,)), gpu(4)), ())
    assert (offered, name) == ((0, 4), "h100")
    assert unavailable == {
        1: "is a Tesla T4, and this node offers its h100s",
        2: "is split by MIG, which ganger does not use yet",
        3: f"is used by process {me}, which is not ganger's",
    }


def test_gpu_that_does_not_answer_hides_no_other() -> None:
    broken = Gpu(index=0, error="GPU is lost")
    assert offer((broken, gpu(1)), ()) == ((1,), "h100", {0: "does not answer: GPU is lost"})
    assert offer((broken,), ()) == ((), "", {0: "does not answer: GPU is lost"})


def test_own_ranks_are_no_strangers() -> None:
    me = os.getpid()
    assert offer((gpu(0, pids=(me,)),), (me,)) == ((0,), "h100", {})


def test_process_of_another_namespace_is_a_stranger_unless_it_may_be_ours() -> None:
    nobody = 2**22 + 1  # above the largest process number of Linux
    assert offer((gpu(0, pids=(nobody,)),), ())[0] == ()
    assert offer((gpu(0, pids=(nobody,)),), (os.getpid(),))[0] == (0,)


def test_this_machine(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert here.cpu_milli == 1000 * len(os.sched_getaffinity(0))
    assert here.memory_bytes > 0
    assert len(here.gpus) + len(here.unavailable) == len(read_gpus())
