"""etcd, Kubernetes and KWOK, built once from the modules in `go/` and cached outside of the checkout.

They are cached by the content of what they are built from, so that every checkout with the same modules finds them, and
a change of version never runs an old program.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.testcluster.programs.requirements import require_go

MODULES = Path(__file__).parent / "go"
STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")
"""KWOK's stages of nodes and pods. Not `pod-complete`: pods of a gang run until they are told to stop."""

PROGRAMS = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
"""Programs by name: their module and package."""


def cache() -> Path:
    """Return the folder for what takes long to make."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ganger" / "testcluster"


def folder() -> Path:
    """Return the folder of the programs of this checkout's modules, which may not exist yet."""
    digest = hashlib.sha256(repr((PROGRAMS, STAGES)).encode())
    for path in sorted(MODULES.glob("*/go.*")):
        digest.update(path.relative_to(MODULES).as_posix().encode() + b"\0" + path.read_bytes())
    return cache() / digest.hexdigest()[:16]


def is_built() -> bool:
    """Return whether a cluster can start without building."""
    cache = folder()
    return all((cache / name).exists() for name in (*PROGRAMS, "stages.yaml"))


def build(report: Callable[[str], None]) -> Path:
    """Return the folder with every program, after building missing ones. Raises Unavailable without Go."""
    cache = folder()
    if is_built():
        return cache
    with build_lock(cache):
        for name, (module, package) in PROGRAMS.items():
            if (cache / name).exists():
                continue
            began = time.monotonic()
            _compile(module, package, cache / name)
            report(f"built {name} in {time.monotonic() - began:.0f} s")
        _write_stages(cache / "stages.yaml")
    return cache


@contextmanager
def build_lock(path: Path) -> Iterator[None]:
    """Hold the lock to make what belongs at `path`; other processes wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(module: str, package: str, target: Path) -> None:
    """Compile into a file beside the target, so that the final one is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.unfinished")
    flags = f"-s -w {_version_flags() if module == 'kubernetes' else ''}"
    command = [require_go(), "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run([*command, "-o", str(unfinished), package], cwd=MODULES / module, env=environment, check=True)
    unfinished.rename(target)


def _version_flags() -> str:
    """Return the flags with the version of the Kubernetes programs; built from a module they have none."""
    version = _module_info("kubernetes", "k8s.io/kubernetes")["Version"]
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())


def _write_stages(target: Path) -> None:
    stages = Path(_module_info("kwok", "sigs.k8s.io/kwok")["Dir"]) / "kustomize" / "stage"
    unfinished = target.with_name(f"{target.name}.unfinished")
    unfinished.write_text("---\n".join((stages / name).read_text() for name in STAGES))
    unfinished.rename(target)


def _module_info(module: str, path: str) -> dict[str, str]:
    command = [require_go(), "list", "-m", "-json", path]
    answer = subprocess.run(command, cwd=MODULES / module, check=True, capture_output=True, text=True)
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions


def program(name: str) -> str:
    """Return the path of one of `PROGRAMS`, built before."""
    return str(folder() / name)


def system_program(name: str) -> str:
    """Return the path of a program of the machine's own, checked by `requirements`."""
    return shutil.which(name) or name
