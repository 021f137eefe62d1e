"""kubectl, against a real API server: for tests that need one. They say so, and skip, where there is none.

It is what `make cluster` started, or what GANGER_TEST_KUBECONFIG names; the tests act as its administrator.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tools.testcluster import running
from tools.testcluster.binaries import program

KUBECONFIG = running()
KUBECTL = program("kubectl") if Path(program("kubectl")).exists() else shutil.which("kubectl")
APPLY = ("apply", "--server-side", "--force-conflicts")
"""Two tests may install the same at the same time."""
needs_cluster = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        KUBECONFIG is None or KUBECTL is None,
        reason="needs kubectl, and a cluster: `make cluster`, or GANGER_TEST_KUBECONFIG=FILE",
    ),
]


class RefusedByServerError(Exception):
    """What kubectl wrote to stderr."""


def kubectl(*words: str, given: Any = None, user: str = "") -> str:
    """What kubectl prints. given: objects, or text, for its stdin; user: whom it acts for. RefusedByServerError says
    why it failed."""
    acting = ["--as", user] if user else []
    text = given if isinstance(given, str) else json.dumps(given)
    run = subprocess.run(
        [str(KUBECTL), f"--kubeconfig={KUBECONFIG}", *acting, *words],
        input=text if given is not None else "",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if run.returncode:
        raise RefusedByServerError(run.stderr)
    return run.stdout


def objects(*items: Any) -> dict[str, Any]:
    """Several objects for kubectl in one."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def wait_for_definitions(plurals: Sequence[str]) -> None:
    """Come back when the API server serves what was defined."""
    names = [f"crd/{plural}.ganger.dev" for plural in plurals]
    kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
