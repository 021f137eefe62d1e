"""Samples of the host, its mounts and its ports, from trees in a folder and from this machine."""

import os
import time
from pathlib import Path

from ganger.agent.sampling.bounded_call import BoundedCall
from ganger.agent.sampling.host_source import HostSource
from ganger.agent.sampling.mount_source import MountSource
from ganger.agent.sampling.network_port_source import NetworkPortSource
from ganger.agent.sampling.node_sampler import NodeSampler
from ganger.agent.sampling.sampling_roots import SamplingRoots
from tests.agent.hung_mount import hung_mount
from tests.agent.node_trees import BOOTED_S, write_infiniband, write_interface, write_proc
from tests.waiting import wait_until


def test_cpu_usage_is_the_mean_since_the_previous_sample(tmp_path: Path) -> None:
    source = HostSource(tmp_path)
    write_proc(tmp_path, user=100, idle=100)
    assert source.read().cpu_milli is None
    write_proc(tmp_path, user=150, system=25, idle=150, wait=75)
    host = source.read()
    assert (host.cpu_milli, host.cpu_total_milli) == (2000 * 75 // 200, 2000)
    assert (host.memory_available_bytes, host.memory_bytes) == (6 << 30, 8 << 30)
    assert (host.cpu_pressure_permille, host.memory_pressure_permille, host.io_pressure_permille) == (125, 0, 31)


def test_counters_that_go_back_are_no_usage(tmp_path: Path) -> None:
    source = HostSource(tmp_path)
    used = []
    for user, idle in ((500, 500), (10, 10), (20, 10)):
        write_proc(tmp_path, user=user, idle=idle)
        used.append(source.read().cpu_milli)
    assert used == [None, None, 2000]


def test_a_clock_that_jumps_is_not_another_boot(tmp_path: Path) -> None:
    source = HostSource(tmp_path)
    booted = []
    for ahead_s in (0, 86_400, -86_400):
        write_proc(tmp_path, booted_s=BOOTED_S + ahead_s)
        booted.append(source.read().booted_at_ms)
    assert booted == 3 * [1000 * BOOTED_S]
    (tmp_path / "sys/kernel/random/boot_id").write_text("another")
    assert source.read().booted_at_ms == 1000 * (BOOTED_S - 86_400)


def test_a_proc_without_anything_costs_values_alone(tmp_path: Path) -> None:
    host = HostSource(tmp_path / "none").read()
    assert {getattr(host, name) for name in host.__slots__} == {None}


def test_ports_are_adapters_that_are_switched_on(tmp_path: Path) -> None:
    write_infiniband(tmp_path, "mlx5_0", link_downed=2, port_rcv_data=10)
    write_infiniband(tmp_path, "mlx5_9")
    (tmp_path / "class/infiniband/mlx5_9/device/physfn").mkdir()
    (write_infiniband(tmp_path, "mlx5_1") / "phys_state").write_text("2: Polling")
    (write_infiniband(tmp_path, "mlx5_2") / "phys_state").write_text("3: Disabled")
    write_interface(tmp_path, "eth0", carrier_changes="4")
    write_interface(tmp_path, "eth1", carrier="0", speed="-1")
    write_interface(tmp_path, "eth2", flags=0x1002)
    write_interface(tmp_path, "bmc0", bus="usb")
    write_interface(tmp_path, "veth12", bus=None)
    write_interface(tmp_path, "lo", bus=None, type="772")
    (write_interface(tmp_path, "eth0v0") / "device/physfn").mkdir()
    ports = {port.device: port for port in NetworkPortSource(tmp_path).read()}
    assert {name: (port.port, port.layer, port.is_up, port.rate_gbps) for name, port in ports.items()} == {
        "mlx5_0": (1, "infiniband", True, 400),
        "mlx5_1": (1, "infiniband", False, 400),
        "eth0": (0, "ethernet", True, 25),
        "eth1": (0, "ethernet", False, 0),
    }
    assert ports["mlx5_0"].counters == {"link_downed": 2, "port_rcv_data": 10}
    assert ports["eth0"].counters == {"carrier_changes": 4, "rx_bytes": 0, "tx_bytes": 0}


MOUNTS = """
21 27 0:20 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
30 27 254:0 /sub /bound ro,relatime - ext4 /dev/vda rw,errors=remount-ro
31 27 254:16 / /mnt/data\\040set rw,relatime - xfs /dev/vdb ro
32 27 0:40 / /nfs rw,relatime - nfs4 filer:/home rw,hard
33 27 0:41 / /dev/shm rw - tmpfs tmpfs rw
34 27 0:42 / /var/lib/kubelet/pods/1/tmp rw - tmpfs tmpfs rw
35 27 0:43 / /var/lib/kubelet/pods/1/home rw - nfs4 filer:/home rw
a line that is none
"""


def test_mounts_are_file_systems_of_jobs_each_once(tmp_path: Path) -> None:
    for path in ("mnt/data set", "dev/shm", "nfs", "var/lib/kubelet/pods/1/home"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "mountinfo").write_text(MOUNTS)
    source = MountSource(tmp_path / "mountinfo", tmp_path)
    source.begin()
    mounts = {mount.path: mount for mount in source.result(time.monotonic() + 10)}
    assert {path: (mount.kind, mount.is_read_only) for path, mount in mounts.items()} == {
        "/": ("ext4", False),
        "/mnt/data set": ("xfs", True),
        "/nfs": ("nfs4", False),
        "/dev/shm": ("tmpfs", False),
        "/var/lib/kubelet/pods/1/home": ("nfs4", False),
    }
    usage = os.statvfs(tmp_path)
    assert mounts["/"].total_bytes == usage.f_blocks * usage.f_frsize
    assert all(mount.stat_ms is not None for mount in mounts.values())


def test_a_mount_whose_server_is_away_holds_nothing_else(tmp_path: Path) -> None:
    source = MountSource(Path("/proc/self/mountinfo"), Path("/"))
    (tmp_path / "dead").mkdir()
    with hung_mount(tmp_path / "dead"):
        for wait_s in (0.5, 60.0):  # it is not waited for again
            source.begin()
            mounts = {mount.path: mount for mount in source.result(time.monotonic() + wait_s)}
            dead = mounts.pop(str(tmp_path / "dead"))
            assert (dead.source, dead.stat_ms, dead.total_bytes) == ("dead-server", None, None)
            assert mounts["/"].stat_ms is not None


def test_a_call_that_hangs_is_not_made_again_until_it_returns() -> None:
    pipe = os.pipe()
    calls: list[bytes] = []
    call = BoundedCall("pipe", lambda: calls.append(os.read(pipe[0], 1)))
    outcomes = []
    for _ in range(3):
        call.begin()
        try:
            call.result(time.monotonic())
        except Exception as error:  # noqa: BLE001
            outcomes.append(type(error).__name__)
    assert outcomes == 3 * ["UnansweredError"]
    os.write(pipe[1], b"ab")

    def is_called_again() -> bool:
        if len(calls) < 2:
            call.begin()
        return len(calls) == 2

    wait_until(is_called_again, "a second call returns")
    assert calls == [b"a", b"b"]
    for fd in pipe:
        os.close(fd)


def test_this_machine_has_a_sample() -> None:
    sampler = NodeSampler("here", SamplingRoots())
    sampler.sample()
    sample = sampler.sample()
    assert sample.unread == ()
    assert sample.host.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert any(mount.path == "/" and mount.stat_ms is not None for mount in sample.mounts)
