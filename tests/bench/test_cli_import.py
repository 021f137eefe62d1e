"""Commands that people wait for import nothing heavy, in a process of their own and at a real server."""

import os
from pathlib import Path

import pytest

from bench.cli.cli_import import HEAVY, imported
from tests.rest.serving import ServerHome

pytestmark = pytest.mark.long


@pytest.mark.parametrize("words", [["--help"], ["ls"], ["ls", "--all", "-o", "json"]])
def test_nothing_heavy_is_imported(words: list[str], tmp_path: Path) -> None:
    place = ServerHome(tmp_path)
    place.client.connect()
    try:
        found = imported(*words, environment={**os.environ, "GANGER_HOME": str(tmp_path)})
        assert {"ganger", "click"} <= found
        assert not found & HEAVY
    finally:
        place.close()
