"""Command that writes everything derived from the code: `make docs`, or `python -m tools.generate [--check]`.

Pages are written by hand except for the text between `<!-- generated: BLOCK -->` and `<!-- end -->`, which `blocks`
produces. Two pages are generated entirely, cli.md and lifecycle.md, and so are the JSON Schema of job files and the
definitions of the custom resources. With --check nothing is written: stale files are printed, and the exit code is 1.
"""

import re
import sys
from pathlib import Path
from typing import Final

from tools.generate import cli_page, job_schema, lifecycle_page
from tools.generate.blocks import block
from tools.generate.resources import custom_resources

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
_BLOCK: Final = re.compile(r"(<!-- generated: (?P<words>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def generated_files() -> dict[Path, str]:
    """Return every file with generated text, and the content that it should have."""
    pages = {page: with_blocks(page.read_text()) for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}
    return (
        pages
        | custom_resources.files()
        | {
            cli_page.PAGE: cli_page.page(),
            job_schema.FILE: job_schema.text(),
            lifecycle_page.PAGE: lifecycle_page.page(),
        }
    )


def with_blocks(text: str) -> str:
    """Return the text of a page with its generated blocks replaced by current ones."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{block(*match['words'].split())}\n\n{match[3]}", text)


def main() -> int:
    """Write stale files, or with --check print their names; return the exit code."""
    stale = {path: text for path, text in generated_files().items() if not path.is_file() or path.read_text() != text}
    if "--check" not in sys.argv[1:]:
        for path, text in stale.items():
            path.write_text(text)
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale; run: make docs")
    return 1 if stale else 0


sys.exit(main())
