"""Bad settings are refused when the server starts, with what to write instead."""

from pathlib import Path

import pytest

from ganger.server.__main__ import CANNOT, main

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
def test_bad_settings_are_refused(
    settings: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganger.server.server_log.set_up", lambda _: None)  # it is for the whole process
    (tmp_path / "settings.toml").write_text(settings)
    (tmp_path / "topology.yaml").write_text(NODES)
    tmp_path.chmod(0o700)
    assert main(["serve", "--home", str(tmp_path)]) == CANNOT
    said = capsys.readouterr().err
    assert message in said
    assert "next: " in said
