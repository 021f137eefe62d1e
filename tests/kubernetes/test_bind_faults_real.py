"""All or nothing on a real API server, whatever goes wrong while a gang is bound: `bench bind_faults_real` in small."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.bind_faults_real import ends
from bench.disrupting import End
from tools.testcluster import Unavailable
from tools.testcluster.cluster import require_built

LIVES, MEMBERS = 2, 12


def test_none_or_all_are_bound_in_the_end(tmp_path: Path) -> None:
    try:
        require_built()
    except Unavailable as error:
        pytest.skip(str(error))
    found = ends(LIVES, MEMBERS, tmp_path / "kept")
    assert all(end.holds for end in found), found
    assert [end.bound_late for end in found] == [MEMBERS] * LIVES
    assert sum(end.kills for end in found) == 1
    assert all(end.faults for end in found)
    assert len((tmp_path / "kept").read_text().splitlines()) == LIVES


def test_lives_that_are_kept_are_not_lived_again(tmp_path: Path) -> None:
    counts = {"members": 3, "bound": 3, "faults": 1, "kills": 0, "bound_late": 3}
    end = End(**counts, is_mixed=False, is_led=False, settled_s=0.5, half_s=0.2, late_s=10.0)
    (tmp_path / "kept").write_text(json.dumps({"seed": 0, **asdict(end)}) + "\n")
    assert ends(1, 3, tmp_path / "kept") == [end]
