"""Files of a host with two network cards of two rails, as sysfs, procfs and configfs have them, in a directory."""

import struct
from pathlib import Path

CARDS = {"ens1f0": ("0000:18:00.0", "mlx5_0", "10.0.0.5", 3), "ens2f0": ("0000:3b:00.0", "mlx5_1", "10.1.0.5", 3)}
BRIDGES = {"0000:18:00.0": "0000:17:01.0", "0000:3b:00.0": "0000:3a:01.0"}
"""The PCI bridge above each card."""
GPUS = {"0000:18:00.0": "0000:19:00.0", "0000:3b:00.0": "0000:3c:00.0"}
"""The GPU below the same bridge."""
MEMLOCK = (
    "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         unlimited            unlimited            bytes"
)
PFC = "PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   1   0   0   0   0\n"


def write(root: Path, path: str, text: str | bytes) -> None:
    """Write a file of the host."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())


def bridge_config(control: int) -> bytes:
    """Return the configuration space of a bridge whose second extended capability is access control (ACS)."""
    config = bytearray(512)
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", config, 0x148, 0x000D | 1 << 16, 0x7F, control)
    return bytes(config)


def healthy(root: Path) -> Path:
    """Write a host on which nothing is wrong, with two GPUs."""
    for index, (name, (address, hca, ip, gid)) in enumerate(CARDS.items()):
        bridge = f"sys/devices/pci0000:0{index}/{BRIDGES[address]}"
        device = f"{bridge}/{address}"
        write(root, f"{bridge}/config", bridge_config(0))
        write(root, f"{device}/sriov_numvfs", "2")
        write(root, f"{device}/sriov_totalvfs", "8")
        interface, port = f"{device}/net/{name}", f"{device}/infiniband/{hca}/ports/1"
        for path, text in {"mtu": "9000", "operstate": "up", "qos/trust": "dscp"}.items():
            write(root, f"{interface}/{path}", text)
        for role in ("roce_np", "roce_rp"):
            write(root, f"{interface}/ecn/{role}/enable/3", "1")
        write(root, f"{port}/link_layer", "Ethernet")
        write(root, f"{port}/state", "4: ACTIVE")
        set_gid(root, name, gid, ip)
        for folder, target in ((f"sys/class/net/{name}", interface), (f"sys/class/infiniband/{hca}", port[:-8])):
            link(root, folder, target)
        for folder in (interface, port[:-8]):
            link(root, f"{folder}/device", device)
        write(root, f"pfc/{name}", PFC)
        write(root, f"sys/kernel/config/rdma_cm/{hca}/ports/1/default_roce_tos", "106")
        gpu = f"{bridge}/{GPUS[address]}"
        write(root, f"{gpu}/class", "0x030200")
        write(root, f"{gpu}/vendor", "0x10de")
        for place in (device, gpu):
            write(root, f"{place}/iommu_group/type", "identity")
            link(root, f"sys/bus/pci/devices/{Path(place).name}", place)
    head = "IP address       HW type     Flags       HW address            Mask     Device"
    rows = [f"10.{index}.0.6  0x1  0x2  02:00:00:00:00:0{index}  *  {name}" for index, name in enumerate(CARDS)]
    write(root, "proc/net/arp", "\n".join([head, *rows]))
    for process, name in {"1": "systemd", "812": "containerd"}.items():
        write(root, f"proc/{process}/comm", name)
        write(
            root, f"proc/{process}/limits", MEMLOCK if name == "containerd" else MEMLOCK.replace("unlimited", "65536")
        )
    write(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15")
    write(root, "proc/sys/kernel/osrelease", "6.8.0-51-generic")
    write(root, "sys/module/nvidia_peermem/initstate", "live")
    write(root, "sys/module/ib_core/parameters/netns_mode", "N")
    return root


def link(root: Path, path: str, target: str) -> None:
    """Write a link within the tree, relative as those of sysfs are."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(Path("../" * (len(Path(path).parts) - 1)) / target)


def set_gid(root: Path, name: str, index: int, ip: str) -> None:
    """Write the GIDs of a card: that of its hardware address, which is RoCE v1, and one of an IPv4 address."""
    address, hca, _, _ = CARDS[name]
    port = next((root / "sys/devices").glob(f"*/*/{address}")) / "infiniband" / hca / "ports/1"
    for folder in ("gids", "gid_attrs/types"):
        for old in (port / folder).glob("*"):
            old.unlink()
    groups = [int(part) for part in ip.split(".")]
    mapped = f"0000:0000:0000:0000:0000:ffff:{groups[0]:02x}{groups[1]:02x}:{groups[2]:02x}{groups[3]:02x}"
    gids = {0: ("fe80:0000:0000:0000:0200:00ff:fe00:0001", "IB/RoCE v1"), index: (mapped, "RoCE v2")}
    for number, (gid, kind) in gids.items():
        write(port, f"gids/{number}", gid)
        write(port, f"gid_attrs/types/{number}", kind)
