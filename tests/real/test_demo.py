"""What README types to show all of ganger: it ends with code 0 only if each of its checks holds."""

import subprocess
from pathlib import Path

import pytest

from tests.real.cluster import ROOT

pytestmark = pytest.mark.long


def test_the_demo_loses_a_worker_and_no_step(tmp_path: Path, torch_python: str) -> None:
    demo = subprocess.run(
        [torch_python, str(ROOT / "examples" / "demo.py")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert demo.returncode == 0, demo.stdout[-4000:] + demo.stderr[-4000:]
