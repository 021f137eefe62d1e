"""Multus, whereabouts and the CNI plug-ins of several networks, built from `network_modules/` and cached like the rest.

They are not a part of every cluster: `python -m tools.testcluster build --networks` builds them, and tests that need
them skip without.
"""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tools.testcluster.programs.binaries import build_lock, cache
from tools.testcluster.programs.requirements import require_go

MODULES = Path(__file__).parent / "network_modules"
_CNI = "github.com/containernetworking/plugins/plugins"
_WHEREABOUTS = "github.com/k8snetworkplumbingwg/whereabouts"
PROGRAMS = {
    "macvlan": ("cni-plugins", f"{_CNI}/main/macvlan"),
    "sbr": ("cni-plugins", f"{_CNI}/meta/sbr"),
    "tuning": ("cni-plugins", f"{_CNI}/meta/tuning"),
    "multus": ("multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"),
    "whereabouts": ("whereabouts", f"{_WHEREABOUTS}/cmd"),
}
"""Programs by name: their module and package."""
DEFINITIONS = "whereabouts.yaml"
"""File with the custom resource definitions of whereabouts."""


def network_plugins() -> Path:
    """Return the folder of the programs of this checkout's modules, which may not exist yet."""
    digest = hashlib.sha256(repr(PROGRAMS).encode())
    for path in sorted(MODULES.glob("*/go.*")):
        digest.update(path.relative_to(MODULES).as_posix().encode() + b"\0" + path.read_bytes())
    return cache() / f"networks-{digest.hexdigest()[:16]}"


def is_built() -> bool:
    """Return whether all of them exist."""
    return all((network_plugins() / name).exists() for name in (*PROGRAMS, DEFINITIONS))


def build(report: Callable[[str], None]) -> None:
    """Build those that are missing. Raises Unavailable without Go."""
    folder = network_plugins()
    with build_lock(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, (module, package) in PROGRAMS.items():
            if (folder / name).exists():
                continue
            began = time.monotonic()
            unfinished = folder / f"{name}.unfinished"
            _go(module, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(unfinished), package)
            unfinished.rename(folder / name)
            report(f"built {name} in {time.monotonic() - began:.0f} s")
        source = json.loads(_go("whereabouts", "list", "-m", "-json", _WHEREABOUTS))["Dir"]
        definitions = sorted(Path(source, "doc", "crds").glob("whereabouts.cni.cncf.io_*.yaml"))
        (folder / DEFINITIONS).write_text("---\n".join(path.read_text() for path in definitions))


def _go(module: str, command: str, *arguments: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    argv = [require_go(), command, "-mod=readonly", *arguments]
    return subprocess.run(
        argv, cwd=MODULES / module, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
