"""Requirements of a test cluster on this machine, checked before anything is built or started."""

import os
import shutil
import subprocess
from pathlib import Path

CNI_PLUGINS = Path("/usr/lib/cni")
NODE_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "busybox": "busybox-static",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
"""Programs that a real node needs, and their Debian packages."""


class Unavailable(Exception):
    """This machine cannot have the test cluster; the message says why and what to do."""


def require_nodes() -> None:
    """Raise Unavailable if real nodes cannot run here."""
    if os.geteuid() != 0:
        raise Unavailable("real nodes need root, to make namespaces and cgroups: run as root, or ask for NODES=0")
    missing = {package for program, package in NODE_PROGRAMS.items() if not shutil.which(program)}
    if not (CNI_PLUGINS / "bridge").exists():
        missing.add("containernetworking-plugins")
    if missing:
        packages = " ".join(sorted(missing))
        raise Unavailable(f"real nodes need Debian packages that are not installed: apt-get install {packages}")


def install_packages() -> None:
    """Install missing Debian packages. Raises Unavailable if that is not possible here."""
    try:
        require_nodes()
    except Unavailable:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = sorted({*NODE_PROGRAMS.values(), "containernetworking-plugins"})
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            answer = subprocess.run(["apt-get", "-qq", *arguments], env=environment, check=False)
            if answer.returncode:
                raise Unavailable(
                    f"apt-get {arguments[0]} failed with {answer.returncode}; its own words are above"
                ) from None


def require_go() -> str:
    """Return the path of the Go toolchain. Raises Unavailable if there is none."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable("the cluster's programs are not built yet, and there is no Go here to build them: install Go")
    return go
