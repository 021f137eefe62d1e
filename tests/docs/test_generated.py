"""Agreement of the pages with the code they describe; a page for every framework."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ganger.registry import frameworks
from tests.docs.pages import DOCS, ROOT, written
from tests.docs.test_pages import name


def test_generated_pages_are_current() -> None:
    command = [sys.executable, "-m", "tools.generate", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_framework_has_a_page_with_its_variables() -> None:
    for framework in frameworks():
        assert (
            f"<!-- generated: framework {framework} -->"
            in (DOCS / "how-to" / "frameworks" / f"{framework}.md").read_text()
        )


@pytest.mark.parametrize("page", written(), ids=name)
def test_every_block_has_a_beginning_and_an_end(page: Path) -> None:
    """One that is mistyped would stay as it is, and nobody would see."""
    marks = re.findall(r"^<!-- (generated.*|end.*) -->$", page.read_text(), re.MULTILINE)
    assert all(re.fullmatch(r"generated: [\w-]+( \w+)?", mark) for mark in marks[::2])
    assert marks[1::2] == ["end"] * (len(marks) // 2)
    assert len(marks) % 2 == 0
