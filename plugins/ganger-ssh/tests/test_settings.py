"""Bad settings are refused when the server starts, with what to write instead."""

import subprocess
import sys
from pathlib import Path

import pytest

NODES = "nodes: [{name: n1, cpu: 1, memory: 1Gi}]\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('backend = "rsh"', "has the backend rsh, which is not installed; installed: ssh"),
        (
            'backend = "ssh"\n[ssh.addresses]\nn1 = "-oProxyCommand=true"',
            "the table ssh: Expected `str` matching regex",
        ),
        ('backend = "ssh"\n[ssh]\nlost_after = "soon"', "lost_after"),
        ('backend = "ssh"\n[ssh]\nhosts = 3', "unknown field `hosts`"),
    ],
)
def test_bad_settings_are_refused(settings: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(settings)
    (tmp_path / "topology.yaml").write_text(NODES)
    tmp_path.chmod(0o700)
    command = [sys.executable, "-m", "ganger.server", "serve", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 5
    assert message in done.stderr
    assert "next: " in done.stderr
