"""The environments of frameworks: what a user would have, without ganger."""

from tests.real.cluster import ROOT


def python_with(framework: str) -> str:
    """Return the interpreter that has `framework`, as requirements/FRAMEWORK.txt says."""
    python = ROOT / f".venv-{framework}" / "bin" / "python"
    assert python.exists(), f"no environment with {framework}: type make setup-{framework}"
    return str(python)
