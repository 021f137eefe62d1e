"""Writes what the pages say of the code: `make docs`. With --check it only says which page is stale, and exits with 1.

A page is written by people, but for what stands between `<!-- generated: BLOCK -->` and `<!-- end -->`: that is a block
of `generate_blocks.py`. Two pages are generated whole, cli.md and lifecycle.md, and so are
the definitions of custom resources, src/ganger/manifests.
"""
# ruff: noqa: INP001, T201 - a script, found by its path, that tells who called it

import re
import sys
from pathlib import Path
from typing import Final

import generate_cli
import generate_resources
import generate_schema
from generate_blocks import block

from ganger.core.state.lifecycle import page

DOCS: Final = Path(__file__).parent
README: Final = DOCS.parent / "README.md"
_BLOCK: Final = re.compile(r"(<!-- generated: (?P<words>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Every file that has something generated, and what it should say."""
    written = {page: filled(page.read_text()) for page in (README, *sorted(DOCS.rglob("*.md")))}
    whole = written | generate_resources.pages()
    return whole | {
        generate_cli.PAGE: generate_cli.page(),
        generate_schema.FILE: generate_schema.page(),
        DOCS / "lifecycle.md": page(),
    }


def filled(text: str) -> str:
    """The page with its blocks made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{block(*found['words'].split())}\n\n{found[3]}", text)


def main() -> int:
    """Write the pages, or only say which are stale."""
    stale = {page: text for page, text in pages().items() if not page.is_file() or page.read_text() != text}
    if "--check" not in sys.argv[1:]:
        for page, text in stale.items():
            page.write_text(text)
        return 0
    for page in stale:
        print(f"{page.relative_to(DOCS.parent)} is not what the code says: make docs")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
