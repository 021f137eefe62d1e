"""Everything that a page says to type is typed, and comes to what the page shows."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, agrees, blocks, environment_of, typed, written
from tests.docs.reader import CLUSTER, STAND_INS, Environment, Reader, end_all, surroundings

RUN = ("console", "yaml", "python")
IN_EACH_RUN = (ROOT / "README.md", ROOT / "docs/tutorial/first-gang.md")
"""Pages that `make test` follows: what a newcomer types first. `make test-long` follows all."""
NOT_RUN = 6
"""Blocks of commands that no test types, at most."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Yield the environment that is shared by the pages that only ask what would happen."""
    folder = tmp_path_factory.mktemp("dry")
    environment = surroundings(folder, STAND_INS)
    (folder / "cluster.yaml").write_text(CLUSTER)
    start = ["ganger", "server", "start", "--topology", str(folder / "cluster.yaml")]
    subprocess.run(start, env=environment, check=True, capture_output=True)
    yield environment
    end_all(environment)


@pytest.fixture
def environment(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Environment]:
    """Yield the environment of a page; end afterwards what the page started there."""
    if environment_of(page) == STAND_INS:
        yield request.getfixturevalue("dry")
        return
    own = surroundings(tmp_path, environment_of(page))
    yield own
    end_all(own)


def _followed(page: Path) -> object:
    return pytest.param(page, id=name(page), marks=() if page in IN_EACH_RUN else pytest.mark.long)


@pytest.mark.parametrize(
    "page", [_followed(page) for page in written() if any(b.language in RUN for b in blocks(page))]
)
def test_what_a_page_says_to_type_does_what_it_shows(page: Path, environment: Environment, tmp_path: Path) -> None:
    reader = Reader(tmp_path, environment)
    try:
        for block in blocks(page):
            reader.follow(block)
    finally:
        reader.leave()


def test_commands_that_are_not_run_say_why() -> None:
    shown = [(page, block) for page in written() for block in blocks(page) if block.language not in RUN]
    commands = [(page, block) for page, block in shown if re.search(r"^\$ ", block.text, re.MULTILINE)]
    assert [f"{name(page)}:{block.line}" for page, block in commands if not block.why_not] == []
    tests = [re.findall(r"tests/\S+", block.why_not) for _, block in commands]
    assert sum(not run_by for run_by in tests) <= NOT_RUN
    for (page, block), run_by in zip(commands, tests, strict=True):
        assert all((ROOT / test).exists() for test in run_by), f"{name(page)}:{block.line}"


def test_dots_stand_for_what_varies() -> None:
    shown = ("Plan   train-...  queue default", "...", "done")
    assert agrees(shown, "Plan   train-x1  queue default\na\nb\ndone\n")
    assert agrees(shown, "\nPlan   train-x1  queue default  \ndone\n\n")
    assert not agrees(shown, "Plan   train-x1  queue nlp\ndone\n")
    assert not agrees(shown, "Plan   train-x1  queue default\ndone\nmore\n")


def test_a_command_goes_on_until_the_next() -> None:
    first, second = typed("$ echo a \\\n> b\na b\n\n$ true\n")
    assert (first.command, first.prints) == ("echo a \\\nb", ("a b",))
    assert (second.command, second.prints) == ("true", None)
