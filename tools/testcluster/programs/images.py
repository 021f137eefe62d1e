"""Images for pods of the real nodes, made here: nothing is pulled.

`BASE_IMAGE` is a small Debian with Python 3. What a test needs beside it (torch, MPI) is in environments of the
checkout, which pods mount from the host.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.testcluster.programs.binaries import build_lock, cache, system_program

BASE_IMAGE = "localhost/ganger-testcluster/base:1"
PAUSE_IMAGE = "localhost/ganger-testcluster/pause:1"
EXCLUDED_FOLDERS = ("doc", "locale", "man", "zoneinfo")
BASE = (
    "--variant=essential",
    "--include=python3,libgomp1,libstdc++6,git",
    *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in EXCLUDED_FOLDERS),
    "bookworm",
)
"""Packages of the image: Python, the libraries that numerical wheels expect, and git. Each node unpacks it."""


def images() -> list[Path]:
    """Return the archives of the images, made before by `make`."""
    return [cache() / "images" / f"{name}-{_digest()}.tar" for name in ("pause", "base")]


def is_built() -> bool:
    """Return whether they exist."""
    return all(image.exists() for image in images())


def make(report: Callable[[str], None]) -> None:
    """Make the missing images."""
    pause, base = images()
    with build_lock(base):
        if not pause.exists():
            write_archive(pause, PAUSE_IMAGE, [_pause_layer()], {"Cmd": ["/busybox", "sleep", "2147483647"]})
        if not base.exists():
            report("making the base image of pods with mmdebstrap")
            write_archive(base, BASE_IMAGE, [_make_base_layer(base)], {"Cmd": ["/bin/sh"]})


def base_layer() -> bytes:
    """Return the layer of the base image, made before by `make`."""
    _, base = images()
    with tarfile.open(base) as archive:
        (manifest,) = json.loads(_member(archive, "manifest.json"))
        return _member(archive, manifest["Layers"][0])


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def _digest() -> str:
    return hashlib.sha256(repr((BASE, BASE_IMAGE, PAUSE_IMAGE)).encode()).hexdigest()[:16]


def _pause_layer() -> bytes:
    """Return one static program that sleeps: the first container of a pod."""
    busybox = Path(system_program("busybox")).resolve()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        layer.add(busybox, "busybox")
    return buffer.getvalue()


def _make_base_layer(beside: Path) -> bytes:
    layer = beside.with_name(f"{beside.name}.layer")
    command = ["mmdebstrap", "--quiet", "--format=tar", *BASE, str(layer)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"mmdebstrap could not make the base image: {answer.stderr.strip()[-2000:]}")
    data = layer.read_bytes()
    layer.unlink()
    return data


def write_archive(target: Path, image: str, layers: list[bytes], settings: dict[str, Any]) -> None:
    """Write an archive as `docker save` does: a manifest, the image's configuration, its layers."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], **settings},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
    }
    files = {f"layer-{index}.tar": layer for index, layer in enumerate(layers)}
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": list(files)}]
    unfinished = target.with_name(f"{target.name}.unfinished")
    with tarfile.open(unfinished, "w") as archive:
        for name, data in (
            ("manifest.json", json.dumps(manifest).encode()),
            ("config.json", json.dumps(config).encode()),
            *files.items(),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    unfinished.rename(target)
