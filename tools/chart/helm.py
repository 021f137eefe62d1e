"""Helm, built once from its Go module and cached outside of the checkout, as the programs of the test cluster are."""

import os
import subprocess
from pathlib import Path
from typing import Final

from tools.testcluster import Unavailable
from tools.testcluster.programs.binaries import build_lock, cache
from tools.testcluster.programs.requirements import require_go

VERSION: Final = "v4.3.1"
PACKAGE: Final = "helm.sh/helm/v4/cmd/helm"


def program() -> Path:
    """Return the path of Helm, which may not be built yet."""
    return cache() / f"helm-{VERSION}" / "helm"


def require_program() -> str:
    """Return the path of Helm. Raises Unavailable if it is not built."""
    if not program().exists():
        raise Unavailable("Helm is not built yet: make chart builds it")
    return str(program())


def build() -> str:
    """Return the path of Helm, after building it if it is missing. Raises Unavailable without Go."""
    target = program()
    if not target.exists():
        with build_lock(target.parent):
            environment = os.environ | {"CGO_ENABLED": "0", "GOBIN": str(target.parent)}
            command = [require_go(), "install", "-trimpath", "-ldflags", "-s -w", f"{PACKAGE}@{VERSION}"]
            subprocess.run(command, env=environment, check=True)
    return str(target)
