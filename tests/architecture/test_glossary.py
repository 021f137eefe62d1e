"""The words of docs/reference/glossary.md: one concept has one word.

The words that it replaces are nowhere in names, and nowhere in the text of the program and its pages.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("src", "plugins", "tests", "bench", "tools", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "docs", "plugins")

REPLACED = frozenset(
    [
        "told",
        "untold",
        "laid",
        "promise",
        "promises",
        "promised",
        "foresight",
        "outlook",
        "hearing",
        "gear",
        "errand",
        "errands",
        "whoever",
        "whosoever",
        "somebody",
        "nobody",
        "everybody",
        "lookout",
        "vitals",
        "strays",
        "crowd",
        "crowds",
        "intake",
        "unaskable",
        "askable",
        "visitor",
        "visitors",
        "verdict",
        "verdicts",
        "heal",
        "heals",
        "beheld",
    ]
)
"""Words without another honest use here."""
OF_THE_SCHEDULER = frozenset(
    [
        "round",
        "rounds",
        "turn",
        "turns",
        "look",
        "looks",
        "door",
        "suppose",
        "moment",
        "moments",
        "spent",
        "standing",
        "standings",
        "lives",
    ]
)
"""Words that may not name anything of the scheduler, though they have honest uses elsewhere."""
SCHEDULER = (
    *("src/ganger/core", "src/ganger/policies", "src/ganger/engine", "src/ganger/simulation", "src/ganger/model"),
    "plugins",
)
BUILTIN = frozenset({"round"})
LIBRARIES = frozenset({"NodeVisitor", "MutationVisitor"})
"""Names of libraries."""
PHRASES = re.compile(r"\banew\b|\bfor want of\b|\bin (?:nobody|somebody)'s\b|\blegal here\b|\bcome true\b")
"""Phrases of the old dialect that no single word gives away."""
LABEL = re.compile(r"(?:[a-z]+: )?(?:and |or |not )?(?:what|who|whose) ")
"""The beginning of a label that names its subject by a clause."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


def tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    yield from tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)


def names(path: Path, replaced: frozenset[str], allowed: frozenset[str] = frozenset()) -> list[str]:
    """Return the places of names in a file that are made of one of these words."""
    return [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
        for token in tokens(path)
        if token.type == tokenize.NAME and token.string not in allowed and words(token.string) & replaced
    ]


@pytest.mark.parametrize("folder", CODE)
def test_no_name_has_a_replaced_word(folder: str) -> None:
    this = Path(__file__)
    assert [place for path in files(folder) if path != this for place in names(path, REPLACED, LIBRARIES)] == []


def test_no_name_of_the_scheduler_has_a_word_of_its_old_dialect() -> None:
    assert [place for path in files(*SCHEDULER) for place in names(path, OF_THE_SCHEDULER, BUILTIN)] == []


def test_no_text_of_the_program_has_a_replaced_word() -> None:
    """Docstrings, comments and messages; a string of one word is a value or a key."""
    text = (tokenize.STRING, tokenize.COMMENT)
    assert [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {sorted(found)}"
        for path in files("src", "plugins")
        for token in tokens(path)
        if token.type in text and " " in token.string and (found := words(token.string) & REPLACED)
    ] == []


def test_no_text_has_a_phrase_of_the_old_dialect() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = [path for path in (*files("src", "plugins"), *pages) if PHRASES.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def test_the_labels_of_pictures_are_in_the_words_of_the_scheduler() -> None:
    labels = [
        f"{path.name}: {key.value}"
        for path in files("tests/pictures")
        for table in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(table, ast.Dict)
        for key in table.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    assert [
        label for label in labels if words(label.partition(": ")[2]) & REPLACED or LABEL.match(label.partition(": ")[2])
    ] == []


def test_no_page_has_a_replaced_word() -> None:
    pages = [
        path for name in PAGES for path in ([ROOT / name] if name.endswith(".md") else (ROOT / name).rglob("*.md"))
    ]
    glossary = ROOT / "docs" / "reference" / "glossary.md"  # says which words it replaces
    assert [
        f"{path.relative_to(ROOT)}:{number}: {sorted(found)}"
        for path in pages
        if path != glossary
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := words(line) & REPLACED)
    ] == []
