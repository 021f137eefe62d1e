"""Without the extra `ganger[kubernetes]`: one sentence, with the command to type, wherever it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GANGER = str(Path(sys.executable).with_name("ganger"))


@pytest.mark.parametrize(
    "arguments", [["--context", "there", "ls"], ["controller", "--launcher-address", "127.0.0.1:9"]]
)
def test_a_missing_library_is_named_with_what_brings_it(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ModuleNotFoundError(\"No module named 'aiohttp'\", name='aiohttp')\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "GANGER_HOME": str(tmp_path / "home")}
    # `-P` leaves out the program's directory alone: PYTHONPATH comes before what is installed.
    output = subprocess.run([GANGER, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert output.returncode == 5
    assert "there is no module aiohttp" in output.stderr
    assert "pip install 'ganger[kubernetes]'" in output.stderr
