"""MkDocs hooks that let pages written for the repository's host build into the site.

Pages link to examples/, which is beside docs/, and name the file of a code block after its language. The site has the
examples as files of its own, and the names as titles of the blocks.
"""

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_NAMED_FENCE: Final = re.compile(r"^```(yaml|python) ([\w.-]+)$", re.MULTILINE)
_EXAMPLE_LINK: Final = re.compile(r"\]\(\.\./((?:\.\./)*examples/)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the examples to the files of the site."""
    for path in sorted(EXAMPLES.iterdir()):
        if path.suffix in (".md", ".py", ".yaml"):
            files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with titles of code blocks, and links to the examples as they lie in the site."""
    return _EXAMPLE_LINK.sub(r"](\1", _NAMED_FENCE.sub(r'```\1 title="\2"', markdown))
