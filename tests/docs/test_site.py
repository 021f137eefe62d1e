"""The site of docs/: every page is in the navigation of mkdocs.yml, and every link and anchor of a page resolves.

`make site` builds it, and fails on any warning. The checks here are quick, and also hold for pages that are read on
the repository's host, where anchors are made by other rules.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.docs.pages import DOCS, ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *DOCS.rglob("*.md")])
IN_THE_SITE = (DOCS, ROOT / "examples", ROOT / "src" / "ganger" / "job.schema.json")
MAX_PAGES_IN_A_FOLDER = 20
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)


def pages_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        value = entry if isinstance(entry, str) else next(iter(entry.values()))
        if isinstance(value, list):
            yield from pages_of(value)
        else:
            yield value


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def host_anchor(heading: str) -> str:
    """Return the anchor that repository hosts give a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def site_anchor(heading: str) -> str:
    """Return the anchor that MkDocs gives a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page that are the same on the host and on the site, repeated headings left out."""
    headings = [(host_anchor(text), site_anchor(text)) for text in HEADING.findall(prose(page))]
    count = Counter(host for host, _ in headings)
    return frozenset(host for host, site in headings if host == site and count[host] == 1)


def wrong_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: no such file"
        elif target.is_dir() and page.is_relative_to(DOCS):
            yield f"{link}: a folder is no page of the site"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: no such heading"
        elif page.is_relative_to(DOCS) and not any(target.is_relative_to(part) for part in IN_THE_SITE):
            yield f"{link}: not part of the site"


def test_navigation_names_every_page_once() -> None:
    yaml = YAML(typ="rt")
    named = list(pages_of(yaml.load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = [str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)]
    assert sorted(named) == sorted([*there, "examples/README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_resolve(page: Path) -> None:
    assert list(wrong_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_one_title(page: Path) -> None:
    assert len(re.findall(r"^# ", prose(page), re.MULTILINE)) == 1


def test_the_site_asks_no_other_host() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in text
    own = [path for path in (ROOT / "tools" / "site" / "theme").rglob("*") if path.is_file()]
    assert [
        path for path in [*own, *DOCS.rglob("*.svg")] if re.search(r"(src|href|url)[=(]\W*https?:", path.read_text())
    ] == []


def test_folders_stay_small() -> None:
    folders = {page.parent for page in PAGES}
    assert [folder for folder in folders if len(list(folder.glob("*.md"))) > MAX_PAGES_IN_A_FOLDER] == []


def test_wrong_links_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n## One `thing`\n\n[a](other.md) [b](#one-thing) [c](#two) [d](https://x.y) `[e](no.md)`\n"
    )
    assert list(wrong_links(page)) == ["other.md: no such file", "#two: no such heading"]
