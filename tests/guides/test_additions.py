"""The checklists of CONTRIBUTING.md hold: with all rows a new thing of each kind is clean, and no row can be left out.

All additions are made in one copy of the checkout. Then each row is left out alone, and the check that it names fails.
"""

from collections.abc import Iterator

import pytest

from tests.architecture.test_checklists import Row, checklists
from tests.guides.additions import ADDITIONS, NAMES, Step
from tests.guides.checkout_copy import ROOT, CheckoutCopy

pytestmark = pytest.mark.long

LISTS = checklists()
CASES = [(kind, step, row) for kind, rows in LISTS.items() for step, row in zip(ADDITIONS[kind], rows, strict=True)]
GENERATED = [case for case in CASES if case[1].generated]
TYPED = [case for case in CASES if not case[2].test]
TESTED = [case for case in CASES if case[2].test and not case[1].generated]


def label(value: object) -> str:
    return value if isinstance(value, str) else value.place.strip("`") if isinstance(value, Row) else ""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckoutCopy]:
    """Return the copy with every addition."""
    made = CheckoutCopy(tmp_path_factory.mktemp("guides") / "checkout")
    for steps in ADDITIONS.values():
        for step in steps:
            for edit in step.edits:
                made.apply(edit)
    generated = made.python("tools.generate")
    assert generated.returncode == 0, generated.stdout + generated.stderr
    yield made
    made.close()


@pytest.mark.parametrize(("kind", "step", "row"), CASES, ids=label)
def test_each_step_is_in_the_place_of_its_row(kind: str, step: Step, row: Row) -> None:
    path = row.path.replace("NAME", NAMES.get(kind, ""))
    assert path == step.place


def test_with_every_row_all_checks_pass(copy: CheckoutCopy) -> None:
    code, output = copy.test(*dict.fromkeys(row.test for _, _, row in (*TESTED, *GENERATED)))
    assert code == 0, output


@pytest.mark.parametrize(("kind", "step", "row"), TESTED, ids=label)
def test_without_the_row_its_check_fails(copy: CheckoutCopy, kind: str, step: Step, row: Row) -> None:
    with copy.unchanged_afterwards(step.paths()):
        for edit in step.left_out():
            copy.apply(edit)
        code, output = copy.test(row.test)
    assert code == pytest.ExitCode.TESTS_FAILED, f"{row.test} without {row.place}:\n{output}"
    assert f"FAILED {row.test}" in output


def test_without_make_docs_every_file_is_stale(copy: CheckoutCopy) -> None:
    paths = [step.generated for _, step, _ in GENERATED]
    with copy.unchanged_afterwards(paths):
        for path in paths:
            (copy.root / path).write_text((ROOT / path).read_text())
        (check,) = {row.test for _, _, row in GENERATED}
        code, output = copy.test(check)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert [path for path in paths if f"{path} is stale" not in output] == [], output


def test_mypy_fails_in_each_place_that_is_left_out(copy: CheckoutCopy) -> None:
    complete = copy.python("mypy")
    assert complete.returncode == 0, complete.stdout + complete.stderr
    with copy.unchanged_afterwards(path for _, step, _ in TYPED for path in step.paths()):
        for _, step, _ in TYPED:
            for edit in step.left_out():
                copy.apply(edit)
        output = copy.python("mypy").stdout
    assert [row.path for _, _, row in TYPED if f"{row.path}:" not in output] == [], output
