"""What the pages say of the code is what the code says, and every framework has its page."""

import subprocess
import sys

from ganger.engine.registry import frameworks
from tests.docs.pages import DOCS, ROOT


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(DOCS / "generate.py"), "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_framework_has_a_page_with_its_variables() -> None:
    for framework in frameworks():
        assert f"<!-- generated: framework {framework} -->" in (DOCS / "frameworks" / f"{framework}.md").read_text()
