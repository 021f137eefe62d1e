"""kubectl against a real API server, for tests that need one and skip where there is none.

The cluster is what `make cluster` started, or what GANGER_TEST_KUBECONFIG names; tests act as its administrator.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tools.testcluster import running_kubeconfig
from tools.testcluster.programs.binaries import program

KUBECONFIG = running_kubeconfig()
KUBECTL = program("kubectl") if Path(program("kubectl")).exists() else shutil.which("kubectl")
APPLY = ("apply", "--server-side", "--force-conflicts")
"""Server-side: two tests may install the same at the same time."""
needs_cluster = pytest.mark.skipif(
    KUBECONFIG is None or KUBECTL is None,
    reason="needs kubectl, and a cluster: `make cluster`, or GANGER_TEST_KUBECONFIG=FILE",
)


class RefusedByServerError(Exception):
    """Error output of kubectl."""


def kubectl(*arguments: str, stdin: Any = None, user: str = "") -> str:
    """Return kubectl's output. Raises RefusedByServerError.

    Args:
        *arguments: the command line.
        stdin: objects, or text, for its stdin.
        user: the impersonated user.
    """
    acting = ["--as", user] if user else []
    text = stdin if isinstance(stdin, str) else json.dumps(stdin)
    run = subprocess.run(
        [str(KUBECTL), f"--kubeconfig={KUBECONFIG}", *acting, *arguments],
        input=text if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if run.returncode:
        raise RefusedByServerError(run.stderr)
    return run.stdout


def objects(*items: Any) -> dict[str, Any]:
    """Return several objects as one list for kubectl."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def wait_for_definitions(plurals: Sequence[str]) -> None:
    """Wait until the API server serves the definitions."""
    names = [f"crd/{plural}.ganger.dev" for plural in plurals]
    kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
