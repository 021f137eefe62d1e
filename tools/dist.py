"""Checks of the built distributions: `python -m tools.dist DIRECTORY`, run by `make dist`.

An archive holds its package and none of its tests or benches, and the wheels run a job and its simulation from a fresh
environment.
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
DISTRIBUTIONS: Final = {
    "ganger": "ganger/cli/__init__.py",
    "ganger_baselines": "ganger_baselines/orders/sjf.py",
    "ganger_ssh": "ganger_ssh/remote.py",
}
"""A file of each distribution, by the name that its archives begin with."""
LEFT_OUT: Final = frozenset({"tests", "bench", "tools", ".ci"})
"""Folders of the checkout that no archive may hold."""


def main(directory: Path) -> None:
    """Check the wheels and the sdists in a directory; exit with a message if one is wrong."""
    wheels = []
    for distribution, file in DISTRIBUTIONS.items():
        (wheel,) = directory.glob(f"{distribution}-*.whl")
        (sdist,) = directory.glob(f"{distribution}-*.tar.gz")
        _check_names(wheel, zipfile.ZipFile(wheel).namelist(), file)
        with tarfile.open(sdist) as archive:
            _check_names(sdist, [name.partition("/")[2] for name in archive.getnames()], file)
        wheels.append(wheel)
    with tempfile.TemporaryDirectory() as scratch:
        _run_a_job(wheels, Path(scratch))
    print(f"{', '.join(wheel.name for wheel in wheels)}: no tests; they run `echo hello` and simulate sjf+best-fit")


def _check_names(archive: Path, names: list[str], file: str) -> None:
    wrong = [name for name in names if LEFT_OUT & set(name.split("/"))]
    if wrong or not any(name.endswith(file) for name in names):
        raise SystemExit(f"{archive.name} holds {wrong[:3] or f'no {file}'}: see [tool.hatch.build] in pyproject.toml")


def _run_a_job(wheels: list[Path], scratch: Path) -> None:
    environment = scratch / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "requirements" / "base.txt")], check=True)
    subprocess.run([*install, "--no-deps", *map(str, wheels)], check=True)
    ganger = environment / "bin" / "ganger"
    environment_variables = {"PATH": os.environ["PATH"], "HOME": str(scratch), "GANGER_HOME": str(scratch / "home")}
    (scratch / "jobs.csv").write_text("name,submitted_ms,duration_ms,gpus\nsmall,0,60000,8\n")
    try:
        run, _ = (
            subprocess.run(
                [str(ganger), *arguments],
                cwd=scratch,
                env=environment_variables,
                capture_output=True,
                text=True,
                check=True,
            )
            for arguments in (
                ("run", "--", "echo", "hello"),
                ("sim", "run", "jobs.csv", "--nodes", "1", "--policy", "sjf+best-fit"),
            )
        )
    finally:
        subprocess.run(
            [str(ganger), "server", "stop"], cwd=scratch, env=environment_variables, capture_output=True, check=False
        )
    if "hello" not in run.stdout:
        raise SystemExit(f"`ganger run -- echo hello` from the wheel printed {run.stdout!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
