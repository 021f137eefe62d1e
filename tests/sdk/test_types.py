"""A user's program passes mypy in strict mode, and its mistakes do not."""

import subprocess
import sys
from pathlib import Path

import ganger


def test_user_code_is_typed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path)]
    code = Path(__file__).with_name("user_code.py")
    done = subprocess.run([*command, str(code)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_travel_with_the_package() -> None:
    folder = Path(ganger.__file__).parent
    assert (folder / "py.typed").exists()
    assert (folder / "__init__.pyi").exists()
