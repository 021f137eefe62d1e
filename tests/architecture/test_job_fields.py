"""A field of a job is read by something, can be missing in old records, and is drawn by the laws of the spec."""

import ast
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from ganger.model.job import JobSpec
from ganger.spec.field_types import TABLES, forms
from ganger.spec.schema import by_key, inner

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ganger"
ABOUT_EVERY_FIELD = ("spec", "sdk", "cli")
"""Parts that handle all fields alike: a field that only these know does nothing."""
REQUIRED = {
    *("Slice.level", "Preference.match", "GitCode.git", "Volume.name", "Volume.path", "Rule.do", "After.job"),
    *("Batch.global_samples", "LogMarkers.step", "LogMarkers.loss"),
}
"""Fields without a default: they came with their class."""
NOT_DRAWN = {
    "GpuRequest.milli": "tests/spec/test_reading.py: it excludes whole GPUs",
    "GpuRequest.memory_bytes": "tests/spec/test_reading.py: it excludes whole GPUs",
    "Placement.nodes": "tests/spec/test_reading.py: the number of nodes limits it",
    "Placement.devices": "tests/spec/test_reading.py: it goes with nodes and GPUs",
    "JobSpec.warm": "tests/spec/test_warm.py: only some commands and frameworks have it",
    "Slice.ranks": "tests/spec/test_reading.py: it excludes nodes",
}
"""Fields that the strategies of tests/spec/test_laws.py leave out, each with the tests that have it, and the reason."""


def classes(cls: type = JobSpec) -> list[type]:
    """Return a class of the spec and those within it, each once."""
    within = [part for key in by_key(cls) if (part := inner(cls, key))]
    return list(dict.fromkeys([cls, *(deeper for part in within for deeper in classes(part))]))


def described_fields() -> Iterator[tuple[str, Field[Any]]]:
    """Yield "Class.field" and the field, for every field that a user may write."""
    for cls in classes():
        yield from ((f"{cls.__name__}.{part.name}", part) for part in fields(cls) if "doc" in part.metadata)


def test_every_field_is_read() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ABOUT_EVERY_FIELD]
    read = {name for path in paths for name in re.findall(r"\.(\w+)\b(?! = )", path.read_text())}
    assert [name for name, part in described_fields() if part.name not in read] == []


def test_every_form_has_a_parser() -> None:
    keys = {part.metadata["form"] for _, part in described_fields()} - {""}
    assert keys - {*forms(), *TABLES} == set()


def test_old_records_lack_no_field() -> None:
    without_default = {
        name for name, part in described_fields() if part.default is MISSING and part.default_factory is MISSING
    }
    assert without_default == REQUIRED, "give it a default: the log has jobs from before it"


def test_the_laws_of_the_spec_draw_every_field() -> None:
    names = {cls.__name__ for cls in classes()}
    drawn = set()
    for node in ast.walk(ast.parse((ROOT / "tests" / "spec" / "test_laws.py").read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.args[0] if ast.unparse(node.func) == "st.builds" and node.args else node.func)
            drawn |= {f"{called}.{keyword.arg}" for keyword in node.keywords if called in names}
    every = {name for name, _ in described_fields()}
    assert every - drawn == set(NOT_DRAWN), "draw it in tests/spec/test_laws.py"
