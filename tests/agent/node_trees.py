"""Trees of /proc and /sys in a folder, as a machine has them."""

from pathlib import Path

STAT = "cpu  {user} 0 {system} {idle} {wait} 0 0 0 0 0\ncpu0 1 0 1 1 0\ncpu1 1 0 1 1 0\nbtime {booted_s}\n"
BOOT_ID = "11111111-2222-3333-4444-555555555555"
BOOTED_S = 1_700_000_000


def write_proc(
    proc: Path, *, user: int = 0, system: int = 0, idle: int = 0, wait: int = 0, booted_s: int = BOOTED_S
) -> None:
    """Write /proc of a machine with two CPUs and 8 GiB, of which 6 are free."""
    _write(proc / "stat", STAT.format(user=user, system=system, idle=idle, wait=wait, booted_s=booted_s))
    _write(proc / "meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   6291456 kB\n")
    for name, average in (("cpu", "12.50"), ("memory", "0.00"), ("io", "3.14")):
        _write(proc / "pressure" / name, f"some avg10={average} avg60=0.00 avg300=0.00 total=1\n")
    _write(proc / "sys/kernel/random/boot_id", f"{BOOT_ID}\n")


def write_infiniband(sys: Path, device: str, **counters: int) -> Path:
    """Write a port of an InfiniBand adapter, and return its folder."""
    port = sys / "class/infiniband" / device / "ports/1"
    fields = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
    }
    for name, text in fields.items():
        _write(port / name, text)
    for name, value in counters.items():
        _write(port / "counters" / name, str(value))
    (sys / "class/infiniband" / device / "device").mkdir(exist_ok=True)
    return port


def write_interface(sys: Path, name: str, *, bus: str | None = "pci", flags: int = 0x1003, **fields: str) -> Path:
    """Write a network interface, and return its folder. bus: of its adapter; None: it is virtual."""
    interface = sys / "class/net" / name
    for field, text in ({"type": "1", "flags": hex(flags), "carrier": "1", "speed": "25000"} | fields).items():
        _write(interface / field, text)
    for counter in ("rx_bytes", "tx_bytes"):
        _write(interface / "statistics" / counter, "0")
    if bus is not None:
        (interface / "device").mkdir(exist_ok=True)
        (sys / "bus" / bus).mkdir(parents=True, exist_ok=True)
        (interface / "device/subsystem").symlink_to(sys / "bus" / bus)
    return interface


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
