"""The environments of frameworks, each made when the first test asks for it: what a user would have, without ganger."""

import fcntl
import subprocess

from tests.real.cluster import ROOT


def python_with(framework: str) -> str:
    """Return the interpreter that has `framework`, as requirements/FRAMEWORK.txt says."""
    with (ROOT / "requirements" / f"{framework}.txt").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several runs of the tests may want it at once
        done = subprocess.run(["make", f"setup-{framework}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(ROOT / f".venv-{framework}" / "bin" / "python")
