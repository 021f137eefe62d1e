"""Checks of the built distributions: `python -m tools.dist DIRECTORY`, run by `make dist`.

An archive holds the package and none of its tests or benches, and the wheel runs a job from a fresh environment.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LEFT_OUT: Final = frozenset({"tests", "bench", "tools", ".ci"})
"""Folders of the checkout that no archive may hold."""


def main(directory: Path) -> None:
    """Check the wheel and the sdist in a directory; exit with a message if one is wrong."""
    (wheel,) = directory.glob("*.whl")
    (sdist,) = directory.glob("*.tar.gz")
    _check_names(wheel, zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        _check_names(sdist, [name.partition("/")[2] for name in archive.getnames()])
    with tempfile.TemporaryDirectory() as scratch:
        _run_a_job(wheel, Path(scratch))
    print(f"{wheel.name} and {sdist.name}: no tests, and `ganger run -- echo hello` runs from the wheel")


def _check_names(archive: Path, names: list[str]) -> None:
    wrong = [name for name in names if LEFT_OUT & set(name.split("/"))]
    if wrong or not any(name.endswith("ganger/cli/__init__.py") for name in names):
        raise SystemExit(
            f"{archive.name} holds {wrong[:3] or 'no ganger/cli'}: see [tool.hatch.build] in pyproject.toml"
        )


def _run_a_job(wheel: Path, scratch: Path) -> None:
    environment = scratch / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "requirements" / "base.txt")], check=True)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    ganger = environment / "bin" / "ganger"
    environment_variables = {"PATH": os.environ["PATH"], "HOME": str(scratch), "GANGER_HOME": str(scratch / "home")}
    try:
        run = subprocess.run(
            [str(ganger), "run", "--", "echo", "hello"],
            cwd=scratch,
            env=environment_variables,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        subprocess.run(
            [str(ganger), "server", "stop"], cwd=scratch, env=environment_variables, capture_output=True, check=False
        )
    if "hello" not in run.stdout:
        raise SystemExit(f"`ganger run -- echo hello` from the wheel printed {run.stdout!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
