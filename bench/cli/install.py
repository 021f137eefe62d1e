"""Base install into a fresh environment with uv and an empty cache; pip is printed as a comparison.

The time is what a user waits for: creating the environment, the locked requirements (fetched, checked by hash,
unpacked) and ganger's own wheel, which is built beforehand.
"""

import sys
import tempfile
from pathlib import Path

from bench.measure import Figure, median, wall_s

RUNS = 3
BAR_S = 10.0
LOCK = ["--require-hashes", "--requirement", "requirements/base.txt"]


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        folder = Path(name)
        wheel = _wheel(folder)
        uv = [_with_uv(folder / f"uv-{number}", wheel) for number in range(RUNS)]
        pip = [_with_pip(folder / "pip", wheel)]
    return [median("install", "s", uv, under=BAR_S), median("install_pip", "s", pip)]


def _wheel(folder: Path) -> Path:
    wall_s([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder])
    (wheel,) = folder.glob("*.whl")
    return wheel


def _with_uv(environment: Path, wheel: Path) -> float:
    uv: list[str | Path] = [sys.executable, "-m", "uv", "--cache-dir", environment.with_suffix(".cache")]
    install = [*uv, "pip", "install", "--python", environment]
    taken_s = wall_s([*uv, "venv", environment], [*install, *LOCK], [*install, "--no-deps", wheel])
    _check(environment)
    return taken_s


def _with_pip(environment: Path, wheel: Path) -> float:
    install: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "install", "--no-cache-dir"]
    taken_s = wall_s([sys.executable, "-m", "venv", environment], [*install, *LOCK], [*install, "--no-deps", wheel])
    _check(environment)
    return taken_s


def _check(environment: Path) -> None:
    """Check that the installed command starts; otherwise the figure does not count."""
    wall_s([environment / "bin" / "ganger", "--help"])
